//! The kernel half's own allocation map: the addresses that a process holds, so that lost records
//! do not falsify the totals.
//!
//! The map covers memory that can be followed by one address and one free: linear, managed, pinned
//! and stream-ordered memory. Physical memory, arrays and contexts need more, and are tracked by
//! the ledger only.

/// An address of a process: key of the allocation map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct AllocationKey {
    /// Address in the process.
    pub address: u64,
    /// Process id in the initial pid namespace.
    pub tgid: u32,
    /// Life of the process id: distinguishes reuses of the id, and the time before and after an
    /// exec.
    pub life: u32,
}

/// Totals over the addresses of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct AllocationMap {
    /// Current life of the process id; never 0.
    pub life: u32,
    /// User charged for the entry ([`crate::shares`]).
    pub owner: u32,
    /// Bytes of all live addresses.
    pub live_bytes: u64,
    /// Number of addresses added or removed so far.
    pub moves: u64,
    /// Number of addresses that did not fit in the map.
    pub missing: u64,
    /// Number of calls that freed addresses without naming them.
    pub teardowns: u64,
}

const _: () = assert!(size_of::<AllocationKey>() == 16 && size_of::<AllocationMap>() == 40);
