//! Arenas of JAX, TensorFlow and ONNX Runtime in a process: field offsets of a build's
//! `BFCAllocator` or `BFCArena`, and readers of the arenas' own state.

mod layout;
mod onnxruntime;
pub(super) mod operators;
mod reader;

pub(crate) use layout::{ArenaLayout, CounterLayout};
pub(crate) use onnxruntime::OnnxRuntimeBuild as OnnxRuntime;
pub(crate) use reader::ArenaReader;
