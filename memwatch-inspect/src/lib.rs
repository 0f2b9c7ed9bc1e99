//! Reads the live objects of a process from an image of its memory.
//!
//! This crate does no I/O: a [`memory::MemoryAccess`] is provided by the caller, a test or a fuzzer. The
//! memory read is untrusted: every list is bounded, every pointer checked, and contradictory data
//! is refused with a reason.
//!
//! ```text
//! Memory ▶ pass (each piece once) ▶ pytorch (the caching allocators' state) ▶ Books
//!                                 └▶ python (objects, frames, paths) ▶ holdings (names) ▶ Holdings
//!                                                                    └▶ engines (KV cache) ▶ KvCache
//! ```

pub mod engines;
pub mod holdings;
pub mod memory;
pub mod pass;
pub mod python;
pub mod pytorch;
mod rtti;
