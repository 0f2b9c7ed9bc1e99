//! The kernel half's allocation map: resynchronizes processes with it after lost records, and keeps
//! it free of allocations that the pipeline knows to be freed.

use memwatch_core::input::Input;

use super::Collector;
use crate::watch::session::parts::SessionParts;

/// Reads [`SessionParts::allocation_map`], which the journal stores.
pub(super) struct AllocationMapResync;

impl Collector for AllocationMapResync {
    fn collect_for_report(&mut self, parts: &mut SessionParts, _now_ns: u64) {
        remove_freed(parts);
        resync(parts);
    }
}

/// Resynchronizes the processes with a single pass over the map. A process that makes a call
/// during the pass is left for later.
fn resync(parts: &mut SessionParts) {
    let losers = parts.sink.state().to_anchor();
    let before: Vec<_> =
        losers.into_iter().filter_map(|tgid| Some((tgid.0, parts.allocation_map.sums(tgid.0)?))).collect();
    if before.is_empty() {
        return;
    }
    // Records made before the pass are in the ring, and this fetch empties it.
    parts.pump();
    remove_freed(parts);
    for held in parts.allocation_map.held_since(&before) {
        parts.sink.step(Input::Held(held));
    }
}

/// Removes allocations from the kernel half's map that were freed without a free call of their
/// own.
fn remove_freed(parts: &mut SessionParts) {
    for unnamed in parts.sink.state_mut().take_unnamed() {
        let tgid = unnamed.tgid.0;
        match unnamed.life.or_else(|| parts.allocation_map.sums(tgid).map(|sums| sums.life)) {
            Some(life) => parts.allocation_map.remove((tgid, life), &unnamed),
            None if unnamed.addresses.is_empty() => {}
            None => parts.allocation_map.want_sweep(tgid),
        }
        if unnamed.incomplete {
            parts.allocation_map.want_sweep(tgid);
        }
    }
    parts.allocation_map.sweep();
}
