//! NEW ROOM

pub mod detectors;
mod losses;
pub mod prefetch;
pub mod pytorch;
pub mod state;
