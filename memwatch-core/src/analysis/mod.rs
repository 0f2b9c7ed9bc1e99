//! What the numbers say together.

pub mod fragments;
pub mod leak;
pub mod reconcile;
pub mod simulation;
pub mod trend;
