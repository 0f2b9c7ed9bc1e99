//! Sources of reports: a session from attach to detach, or a recording.

pub(crate) mod alert;
pub(crate) mod command;
pub(crate) mod events;
pub(crate) mod evidence;
pub(crate) mod excerpt;
pub(crate) mod filter;
pub(crate) mod history;
pub(crate) mod joined;
pub(crate) mod journal;
pub(crate) mod kv_caches;
pub(crate) mod one_shot;
pub(crate) mod priority;
pub(crate) mod progress;
pub(crate) mod recorded;
pub(crate) mod recorded_period;
pub(crate) mod recording;
pub(crate) mod replay;
pub(crate) mod selection;
pub(crate) mod session;
pub(crate) mod signals;
pub(crate) mod subject;
pub(crate) mod taken_at;
