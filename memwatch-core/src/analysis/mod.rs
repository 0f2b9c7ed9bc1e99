//! What the numbers say together.

pub mod alarm;
pub mod calibration;
pub mod churn;
pub mod course;
pub mod driver;
pub mod forecast;
pub mod fragments;
pub mod growth;
pub mod leak;
pub mod line;
pub mod pins;
pub mod reconcile;
pub mod samples;
pub mod simulation;
pub mod trend;
