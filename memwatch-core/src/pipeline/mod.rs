//! Parts of the pipeline: contexts, detectors, losses, PyTorch, prefetching, and the saved state.

pub mod contexts;
pub mod detectors;
mod ended;
mod kernel_driver;
mod losses;
mod owners;
pub mod prefetch;
pub mod pytorch;
pub mod state;
