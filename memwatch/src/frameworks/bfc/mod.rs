//! The arenas of JAX, TensorFlow and ONNX Runtime in a process: where things lie in a build's `BFCAllocator` or `BFCArena`, and what its objects have in
//! their own books.

mod layout;
mod onnxruntime;
pub(super) mod operators;
mod reader;

pub(crate) use layout::{ArenaLayout, CounterLayout};
pub(crate) use onnxruntime::Build as OnnxRuntime;
pub(crate) use reader::ArenaReader;
