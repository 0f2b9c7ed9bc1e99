//! What the numbers say together.

pub mod churn;
pub mod course;
pub mod leak;
pub mod reconcile;
pub mod samples;
pub mod trend;
