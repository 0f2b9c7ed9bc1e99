//! Attribution of memory: processes by identity, devices by UUID.

pub mod device;
pub(crate) mod ended;
pub mod governor;
pub mod losses;
pub mod names;
pub mod overhead;
mod peaks;
pub mod price;
pub mod process;
pub mod reconcile;
pub(crate) mod room;
pub mod sharing;
pub mod trial;
mod visible;
pub mod workload;
