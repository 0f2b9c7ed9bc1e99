//! Framework allocators above the CUDA driver: locating their functions and probing them.

pub(crate) mod bfc;
mod cupy;
mod descriptor;
mod getter;
mod ggml;
mod list;
pub(crate) mod named;
mod onnxruntime;
pub(crate) mod points;
mod pools;
pub(crate) mod probes;
pub(crate) mod pytorch;
mod rmm;
pub(crate) mod serving;
mod state_folder;
mod symbols;
mod tensorflow;
pub(crate) mod watch;
mod xla;

use self::list::FrameworkList;

/// All frameworks. Small libraries come first because their probes are needed soonest.
pub(crate) const FRAMEWORKS: FrameworkList = FrameworkList(&[
    &rmm::DESCRIPTOR,
    &cupy::DESCRIPTOR,
    &ggml::DESCRIPTOR,
    &onnxruntime::DESCRIPTOR,
    &xla::DESCRIPTOR,
    &tensorflow::DESCRIPTOR,
    &pytorch::DESCRIPTOR,
]);
