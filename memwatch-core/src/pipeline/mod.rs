//! What the pipeline is beside its line: contexts, all detectors, losses, PyTorch's part, cache misses ahead, and its state as bytes.

pub mod contexts;
pub mod detectors;
mod ended;
mod kernel_driver;
mod losses;
mod owners;
pub mod prefetch;
pub mod pytorch;
pub mod state;
