//! Tests that look at the whole machine, where another test's programs would be too many: one runs at a time.

mod agent;
mod agreement;
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
mod owners;
mod prometheus;
mod real_drivers;
mod recording;
mod ring;
mod run;
mod service;
mod sharing;
mod soak;
