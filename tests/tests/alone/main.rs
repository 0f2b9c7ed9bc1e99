//! Tests that look at the whole machine, where another test's programs would be too many: one runs at a time.

mod agent;
mod attach;
mod churn;
mod cli;
mod conformance;
mod containers;
mod deploy;
mod devices;
mod driver;
mod explain;
mod explained_jobs;
mod history;
mod jobs;
mod libraries;
mod loader;
mod named;
mod oom;
mod owners;
mod page;
mod prometheus;
mod real_drivers;
mod run;
mod service;
mod sharing;
mod soak;
mod survive;
