//! What the numbers say together.

pub mod alarm;
pub mod calibration;
pub mod forecast;
pub mod leak;
pub mod line;
pub mod reconcile;
pub mod trend;
