//! Framework allocators above the CUDA driver: locating their functions and probing them.

pub(crate) mod bfc;
mod getter;
pub(crate) mod ggml;
pub(crate) mod libraries;
pub(crate) mod named;
pub(crate) mod points;
pub(crate) mod pools;
pub(crate) mod probes;
pub(crate) mod pytorch;
mod state_folder;
pub(crate) mod symbols;
pub(crate) mod watch;
