//! Frameworks besides PyTorch.

mod arenas;
mod ggml;
mod ggml_from_start;
mod onnx;
mod pools;
mod pools_from_start;
mod tensorflow;
