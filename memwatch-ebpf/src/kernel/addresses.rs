//! Allocation map: live allocations of each process by address, and their sums. The writing half of
//! [`memwatch_common::allocation_map`].

use aya_ebpf::bindings::{BPF_ANY, BPF_F_NO_PREALLOC, BPF_NOEXIST};
use aya_ebpf::macros::map;
use aya_ebpf::maps::HashMap;
use memwatch_common::allocation_map::{AllocationKey, AllocationMap};
use memwatch_common::capture::{CaptureKernel as _, MappedAllocation, NOT_MAPPED_YET};
use memwatch_common::shares::{NOBODY, SharedTable};

use super::Bpf;
use crate::counter::add;
use crate::shares;

/// Live allocations by process and address, correct even if records are lost. Memory is allocated
/// per entry, in addition to 16 MiB of buckets.
#[map]
static ADDRESSES: HashMap<AllocationKey, MappedAllocation> =
    HashMap::with_max_entries(SharedTable::Addresses.entries(), BPF_F_NO_PREALLOC);

/// Sums of [`ADDRESSES`] by process.
#[map]
static ALLOCATION_MAP: HashMap<u32, AllocationMap> =
    HashMap::with_max_entries(SharedTable::AllocationMaps.entries(), BPF_F_NO_PREALLOC);

#[inline(always)]
pub(super) fn credit(tgid: u32, address: u64, booked: &MappedAllocation) {
    let Some(allocation_map) = open_allocation_map(tgid) else { return };
    // SAFETY: map values live as long as the program runs; life and owner are written once, by the insert.
    let (life, owner) = unsafe { ((*allocation_map).life, (*allocation_map).owner) };
    let place = AllocationKey { address, tgid, life };
    // An entry made by user space has no owner.
    let owner = if owner == NOBODY { shares::owner() } else { owner };
    let mut full = false;
    if !book(&place, booked, owner) {
        // The share has no space, or the address is still listed because its context was destroyed
        // a moment ago, which freed it without naming it.
        full = match ADDRESSES.get_ptr(&place) {
            None => true,
            Some(previous) => {
                // SAFETY: as in `debit`.
                let MappedAllocation { bytes, owner, .. } = unsafe { *previous };
                // SAFETY: as below.
                unsafe { add(&raw mut (*allocation_map).live_bytes, bytes.wrapping_neg()) };
                ADDRESSES.insert(&place, &MappedAllocation { owner, ..*booked }, BPF_ANY.into()).is_err()
            }
        };
    }
    // SAFETY: as above, and aligned to eight bytes.
    unsafe {
        add(&raw mut (*allocation_map).live_bytes, booked.bytes);
        add(&raw mut (*allocation_map).moves, 1);
        if full {
            add(&raw mut (*allocation_map).missing, 1);
        }
    }
}

#[inline(always)]
pub(super) fn debit(tgid: u32, address: u64) -> MappedAllocation {
    let Some(allocation_map) = ALLOCATION_MAP.get_ptr_mut(&tgid) else { return NOT_MAPPED_YET };
    // SAFETY: as in `credit`.
    let place = AllocationKey { address, tgid, life: unsafe { (*allocation_map).life } };
    let Some(booked) = ADDRESSES.get_ptr(&place) else { return NOT_MAPPED_YET };
    // SAFETY: the value is copied at once; only a free of the same address by another thread could
    // remove it in between.
    let booked = unsafe { *booked };
    if ADDRESSES.remove(&place).is_ok() {
        shares::give(SharedTable::Addresses, booked.owner);
    }
    // SAFETY: as in `credit`.
    unsafe {
        add(&raw mut (*allocation_map).live_bytes, booked.bytes.wrapping_neg());
        add(&raw mut (*allocation_map).moves, 1);
    }
    booked
}

#[inline(always)]
pub(super) fn note_teardown(tgid: u32) {
    if let Some(allocation_map) = open_allocation_map(tgid) {
        // SAFETY: as in `credit`.
        unsafe { add(&raw mut (*allocation_map).teardowns, 1) };
    }
}

/// Closes the allocation map of a process. Returns the life of the process number that it was for;
/// 0 if there is no map.
#[inline(always)]
pub(super) fn close(tgid: u32) -> u32 {
    let Some((life, owner)) = allocation_map(tgid).map(|of_process| (of_process.life, of_process.owner)) else {
        return 0;
    };
    if ALLOCATION_MAP.remove(&tgid).is_ok() {
        shares::give(SharedTable::AllocationMaps, owner);
    }
    life
}

/// Adds a new address if the share of its owner has space.
#[inline(always)]
fn book(place: &AllocationKey, booked: &MappedAllocation, owner: u32) -> bool {
    if !shares::take_for(SharedTable::Addresses, owner) {
        return false;
    }
    let is_new = ADDRESSES.insert(place, &MappedAllocation { owner, ..*booked }, BPF_NOEXIST.into()).is_ok();
    if !is_new {
        shares::give(SharedTable::Addresses, owner);
    }
    is_new
}

const NO_ALLOCATIONS: AllocationMap =
    AllocationMap { life: 0, owner: 0, live_bytes: 0, moves: 0, missing: 0, teardowns: 0 };

/// Returns the allocation map of a process, created empty if there is none; `None` if the share has
/// no space.
#[inline(always)]
fn open_allocation_map(tgid: u32) -> Option<*mut AllocationMap> {
    ALLOCATION_MAP.get_ptr_mut(&tgid).or_else(|| {
        #[expect(clippy::cast_possible_truncation, reason = "a number that differs from life to life is enough")]
        let life = (Bpf.now_ns() >> 10) as u32 | 1;
        let owner = shares::take(SharedTable::AllocationMaps)?;
        let empty = AllocationMap { life, owner, ..NO_ALLOCATIONS };
        if ALLOCATION_MAP.insert(&tgid, &empty, BPF_NOEXIST.into()).is_err() {
            // A racing thread may have inserted it first; its life then counts.
            shares::give(SharedTable::AllocationMaps, owner);
        }
        ALLOCATION_MAP.get_ptr_mut(&tgid)
    })
}

#[inline(always)]
fn allocation_map(tgid: u32) -> Option<&'static AllocationMap> {
    // SAFETY: map values live as long as the program runs; a torn read of a counter gives a value
    // that it had.
    ALLOCATION_MAP.get_ptr(&tgid).map(|allocation_map| unsafe { &*allocation_map })
}
