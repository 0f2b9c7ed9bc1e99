//! Arenas of `tsl::BFCAllocator` and of classes derived from it, which several frameworks use:
//! field offsets of a build, and readers of the arenas' own state.

pub(super) mod layout;
mod reader;
pub(super) mod tsl;

pub(crate) use layout::ArenaLayout;
pub(crate) use reader::ArenaReader;
