//! What a process holds, read from an image of its memory.
//!
//! Nothing here asks the world: a [`memory::Memory`] is filled by whoever owns the process, by a test, or by a fuzzer. All that is read is a stranger's:
//! every list is bounded, every pointer doubted, and what contradicts itself is refused with its reason.
//!
//! ```text
//! Memory ▶ pass (each piece once, bounded) ▶ pytorch (the caching allocators' books) ▶ Books
//!                                          └▶ python (objects, frames, paths) ▶ holdings (tensors, names) ▶ Holdings
//! ```

pub mod holdings;
pub mod memory;
pub mod pass;
pub mod python;
pub mod pytorch;
mod rtti;
