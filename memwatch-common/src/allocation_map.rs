//! The kernel half's own allocation map: which addresses a process holds, so that records lost on their way do not lose the truth.
//!
//! They cover what one address and one free are enough to follow: linear, managed, pinned and stream-ordered memory. Physical memory,
//! arrays and contexts need more than that, and stay with the ledger.

/// An address of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Place {
    /// The address.
    pub address: u64,
    /// The process.
    pub tgid: u32,
    /// Which life of its number: a process id is reused, and an exec starts over.
    pub life: u32,
}

/// The sums over a process's addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct AllocationMap {
    /// Never 0.
    pub life: u32,
    /// Whose place it takes ([`crate::shares`]).
    pub owner: u32,
    /// Bytes of all its addresses.
    pub live_bytes: u64,
    /// Addresses that came or went so far.
    pub moves: u64,
    /// Addresses that found no room.
    pub missing: u64,
    /// Calls that freed addresses without naming them.
    pub teardowns: u64,
}

const _: () = assert!(size_of::<Place>() == 16 && size_of::<AllocationMap>() == 40);
