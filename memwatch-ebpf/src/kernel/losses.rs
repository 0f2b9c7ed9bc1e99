//! Loss counters: by process, by owner, and in total.

use aya_ebpf::bindings::{BPF_F_NO_PREALLOC, BPF_NOEXIST};
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap};
use memwatch_common::loss::Loss;
use memwatch_common::shares::{LossCount, SharedTable};

use super::add_one;
use crate::shares;

/// Losses by process: `tgid << 32 | loss`.
#[map]
static LOST: HashMap<u64, LossCount> = HashMap::with_max_entries(SharedTable::Losses.entries(), 0);

/// Losses by owner, `owner << 32 | loss`, for an owner whose share of [`LOST`] is used up. Any
/// process of that owner may have lost records.
#[map]
static LOST_BY_OWNER: HashMap<u64, u64> = HashMap::with_max_entries(16_384, BPF_F_NO_PREALLOC);

/// Total losses by kind, complete even if [`LOST`] is full.
#[map]
static LOST_TOTAL: Array<u64> = Array::with_max_entries(16, 0);

#[inline(always)]
pub(super) fn lose(tgid: u32, loss: Loss) {
    mw_lose(tgid.into(), u64::from(loss as u32));
}

/// Counts a loss. A global function, which the verifier checks once (see `walk`), since it is
/// called from many places and rarely.
#[unsafe(no_mangle)]
#[inline(never)]
#[expect(clippy::cast_possible_truncation, reason = "a loss has a small number")]
extern "C" fn mw_lose(tgid: u64, loss: u64) -> u64 {
    let key = tgid << 32 | loss;
    if LOST.get_ptr(&key).is_none() {
        open_loss(key);
    }
    match LOST.get_ptr_mut(&key) {
        // SAFETY: map values live as long as the program runs.
        Some(entry) => add_one(Some(unsafe { &raw mut (*entry).count })),
        None => lose_for_owner(loss),
    }
    add_one(LOST_TOTAL.get_ptr_mut(loss as u32));
    0
}

#[inline(always)]
fn open_loss(key: u64) {
    let Some(owner) = shares::take(SharedTable::Losses) else { return };
    // A racing thread may have inserted it first.
    if LOST.insert(&key, &LossCount { count: 0, owner: owner.into() }, BPF_NOEXIST.into()).is_err() {
        shares::give(SharedTable::Losses, owner);
    }
}

/// Counts a loss for the owner. If this table is full or an insert races, `LOST_TOTAL` still counts
/// the loss, and user space compares the two.
#[inline(always)]
fn lose_for_owner(loss: u64) {
    let key = u64::from(shares::owner()) << 32 | loss;
    if LOST_BY_OWNER.get_ptr(&key).is_none() {
        let _ = LOST_BY_OWNER.insert(&key, &0, BPF_NOEXIST.into());
    }
    add_one(LOST_BY_OWNER.get_ptr_mut(&key));
}
