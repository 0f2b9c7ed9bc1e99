//! Analyses of the collected data, one module per feature.

pub mod balance;
pub mod causes;
pub mod checks;
pub mod churn;
pub mod diff;
pub mod forecast;
pub mod fragments;
pub mod growth;
pub mod holdings;
pub mod leak;
pub mod left_behind;
pub mod oom;
pub mod profile;
pub mod samples;
pub mod simulate;
pub mod timeline;
pub mod trend;
