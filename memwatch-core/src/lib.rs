//! Pure core of memwatch: inputs in, snapshots out. It uses no clock, file, socket or thread.
//!
//! ```text
//! Input ▶ decode ▶ ledger ▶ attribution ▶ State ▶ detectors ▶ Snapshot and reports
//! ```
#![deny(unsafe_code)]

pub mod allocators;
pub mod attribution;
pub mod decode;
pub mod features;
pub mod input;
pub mod kernel_driver;
pub mod ledger;
pub mod owner;
pub mod pipeline;
pub mod recording;
pub mod snapshot;
pub mod stack;
pub mod state;
#[cfg(test)]
#[path = "tests/calls.rs"]
mod test_calls;
#[cfg(test)]
#[path = "tests/driver.rs"]
mod test_driver;
#[cfg(test)]
mod tests;
pub mod words;

pub use pipeline::Pipeline;
