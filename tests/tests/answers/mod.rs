//! Commands that answer one question each, live and from recordings.

mod agreement;
mod causes;
mod cli;
mod diff;
mod explain;
mod explained_jobs;
mod export;
mod forecast;
mod fragment;
mod leak;
mod newcomer;
mod oom;
mod oom_neighbours;
mod profile;
mod recording;
mod recording_ring;
pub(crate) mod run;
mod simulate;
mod timeline;
