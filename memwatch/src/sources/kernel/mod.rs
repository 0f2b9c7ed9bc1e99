//! User space side of the kernel half: loads it, finds functions, attaches probes, and reads
//! records and losses.

pub(crate) mod allocation_map;
pub(crate) mod attach;
pub(crate) mod btf;
pub(crate) mod exports;
pub(crate) mod load;
pub(crate) mod losses;
mod offsets;
pub(crate) mod pins;
pub(crate) mod resolve;
pub(crate) mod ring;
pub(crate) mod shares;
pub(crate) mod site;
pub(crate) mod stub;
mod waiting;
