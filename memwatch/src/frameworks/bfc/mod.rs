//! The arenas of JAX and TensorFlow in a process: where things lie in a build's `tsl::BFCAllocator`, and what its objects have in their own books.

mod layout;
mod reader;

pub(crate) use layout::ArenaLayout;
pub(crate) use reader::ArenaReader;
