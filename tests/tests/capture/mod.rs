//! Driver calls of any process: attach, libraries, losses, devices.

mod attach;
pub(crate) mod changes;
mod churn;
mod conformance;
mod devices;
mod driver;
mod kernel_driver;
mod libraries;
mod loader;
mod named;
mod real_drivers;
mod sharing;
