//! Tests that observe the whole machine and would be disturbed by other tests' programs. They run
//! one at a time.

mod agent;
mod alertmanager;
mod attach;
mod changes;
mod churn;
mod cli;
mod conformance;
mod containers;
mod deploy;
mod devices;
mod driver;
mod explain;
mod explained_jobs;
mod ggml;
mod history;
mod hostile;
mod hostile_hang;
mod jobs;
mod libraries;
mod loader;
mod named;
mod oom;
mod otlp;
mod owners;
mod page;
mod pools;
mod prometheus;
mod real_drivers;
mod run;
mod service;
mod sharing;
mod soak;
mod survive;
mod tls;
