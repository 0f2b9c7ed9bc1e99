//! What the numbers say together.

pub mod reconcile;
