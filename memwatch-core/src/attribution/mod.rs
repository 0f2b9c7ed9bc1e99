//! Attribution of memory: processes by identity, devices by UUID.

pub mod device;
pub(crate) mod ended;
pub mod governor;
pub mod held_names;
pub mod losses;
pub mod names;
pub mod overhead;
pub mod price;
pub mod process;
pub mod reconcile;
pub mod sharing;
pub mod trial;
mod visible;
pub mod workload;
