//! ggml in a process: where things lie in a build's buffers.

mod layout;

pub(crate) use layout::BufferLayout;
