//! Accounting of table entries by owner. The rule is in [`memwatch_common::shares`].
//!
//! The functions are global, so that the verifier checks them once (see `walk`).

use aya_ebpf::Global;
use aya_ebpf::bindings::{BPF_F_NO_PREALLOC, BPF_NOEXIST};
use aya_ebpf::helpers::bpf_get_current_uid_gid;
use aya_ebpf::macros::map;
use aya_ebpf::maps::lpm_trie::{Key, LpmTrie};
use aya_ebpf::maps::{Array, HashMap};
use aya_ebpf::programs::RawTracePointContext;
use memwatch_common::shares::{NOBODY, OTHERS, SharedTable, TABLES, TakenEntries, may_take};

use crate::counter::add;

/// Login user of each range of subordinate user ids, from subuid(5). Keys are ids in big-endian
/// order.
#[map]
static LOGIN_USERS: LpmTrie<u32, u32> = LpmTrie::with_max_entries(1 << 18, 0);

/// Number of entries of each owner in tables that survive memwatch.
#[map]
static OWNERS: HashMap<u32, TakenEntries> = HashMap::with_max_entries(16_384, BPF_F_NO_PREALLOC);
/// Number of entries of all owners in these tables.
#[map]
static TAKEN: Array<TakenEntries> = Array::with_max_entries(1, 0);

/// Number of entries of each owner in the other tables.
#[map]
static STACK_OWNERS: HashMap<u32, TakenEntries> = HashMap::with_max_entries(16_384, BPF_F_NO_PREALLOC);
#[map]
static STACK_TAKEN: Array<TakenEntries> = Array::with_max_entries(1, 0);

/// Size of the table of addresses, which depends on the memory limit. Set by the loader before load.
#[unsafe(no_mangle)]
static ADDRESS_ENTRIES: Global<u32> = Global::new(SharedTable::Addresses.entries());

static NOTHING: TakenEntries = TakenEntries { of: [0; TABLES] };

/// Returns the real user id of the running process.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "two 32-bit numbers in one word: the upper half is the group")]
pub(crate) fn user() -> u32 {
    bpf_get_current_uid_gid() as u32
}

/// Returns the owner of the running process.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "it was made of one")]
pub(crate) fn owner() -> u32 {
    mw_owner() as u32
}

/// Takes an entry of a table for the running process. Returns its owner, or `None` if the owner's
/// share is used up.
#[inline(always)]
pub(crate) fn take(table: SharedTable) -> Option<u32> {
    let owner = owner();
    take_for(table, owner).then_some(owner)
}

/// Takes an entry of a table for a known owner. Returns whether the owner's share allowed it.
#[inline(always)]
pub(crate) fn take_for(table: SharedTable, owner: u32) -> bool {
    mw_take(u64::from(table as u32), owner.into()) != 0
}

/// Gives an entry back.
#[inline(always)]
pub(crate) fn give(table: SharedTable, owner: u32) {
    mw_give(u64::from(table as u32), owner.into(), 1);
}

/// Gives back entries that user space has freed. Arguments: table, owner, number of entries.
#[inline(always)]
pub(crate) fn give_back(context: &RawTracePointContext) -> i32 {
    let (table, owner, places): (u64, u64, u64) = (context.arg(0), context.arg(1), context.arg(2));
    mw_give(table, owner, places);
    0
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mw_owner() -> u64 {
    let user = user();
    let key = Key::new(32, user.to_be());
    LOGIN_USERS.get(&key).copied().unwrap_or(user).into()
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mw_take(table: u64, owner: u64) -> u64 {
    let Some((own, all, entries, owner)) = counters(table, owner) else { return 0 };
    // SAFETY: map values are aligned to eight bytes and live as long as the program runs.
    unsafe {
        if !may_take(entries, owner, own.read_volatile(), all.read_volatile()) {
            return 0;
        }
        add(own, 1);
        add(all, 1);
    }
    1
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mw_give(table: u64, owner: u64, places: u64) -> u64 {
    if owner == u64::from(NOBODY) {
        return 0;
    }
    let Some((own, all, ..)) = counters(table, owner) else { return 0 };
    // SAFETY: as in `mw_take`.
    unsafe {
        add(own, places.wrapping_neg());
        add(all, places.wrapping_neg());
    }
    1
}

/// Returns the counters of this owner and of all owners for a table, the table's size, and the
/// owner that is charged.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "an owner was made of 32 bits, and there are ten tables")]
fn counters(table: u64, owner: u64) -> Option<(*mut u64, *mut u64, u64, u32)> {
    let table = table as usize;
    if table >= TABLES {
        return None;
    }
    let is_pinned = PINNED[table] != 0;
    let owner = owner as u32;
    let (own, owner) = match of_owner(is_pinned, owner) {
        Some(own) => (own, owner),
        None => (of_owner(is_pinned, OTHERS)?, OTHERS),
    };
    let all = if is_pinned { TAKEN.get_ptr_mut(0) } else { STACK_TAKEN.get_ptr_mut(0) }?;
    // SAFETY: the number is less than the number of tables.
    let (own, all) =
        unsafe { ((&raw mut (*own).of).cast::<u64>().add(table), (&raw mut (*all).of).cast::<u64>().add(table)) };
    let entries =
        if table == SharedTable::Addresses as usize { u64::from(ADDRESS_ENTRIES.load()) } else { ENTRIES[table] };
    Some((own, all, entries, owner))
}

#[inline(always)]
fn of_owner(is_pinned: bool, owner: u32) -> Option<*mut TakenEntries> {
    let owners = if is_pinned { &OWNERS } else { &STACK_OWNERS };
    owners.get_ptr_mut(&owner).or_else(|| {
        // A racing thread may have inserted it first.
        let _ = owners.insert(&owner, &NOTHING, BPF_NOEXIST.into());
        owners.get_ptr_mut(&owner)
    })
}

static ENTRIES: [u64; TABLES] = {
    let mut entries = [0; TABLES];
    let mut number = 0;
    while number < TABLES {
        entries[number] = SharedTable::ALL[number].entries() as u64;
        number += 1;
    }
    entries
};

static PINNED: [u64; TABLES] = {
    let mut pinned = [0; TABLES];
    let mut number = 0;
    while number < TABLES {
        pinned[number] = SharedTable::ALL[number].is_pinned() as u64;
        number += 1;
    }
    pinned
};
