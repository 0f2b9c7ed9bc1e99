//! Commands, one module each: arguments, implementation and output.

pub(crate) mod agent;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod fleet;
pub(crate) mod fragment;
pub(crate) mod holdings;
pub(crate) mod leak;
pub(crate) mod live;
pub(crate) mod oom;
pub(crate) mod places;
pub(crate) mod ps;
pub(crate) mod record;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod simulate;
pub(crate) mod snapshot;
pub(crate) mod stats;
pub(crate) mod timeline;
pub(crate) mod web;
