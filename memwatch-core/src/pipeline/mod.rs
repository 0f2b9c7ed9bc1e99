//! NEW ROOM

pub mod detectors;
pub mod prefetch;
pub mod pytorch;
pub mod state;
