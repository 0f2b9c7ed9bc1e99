//! Live objects known to the state: the last reading of each process, updated with later frees.

use super::view::{HoldingGrouping, HoldingsView};
use super::{AllocatorTotals, view_of};
use crate::allocators::TensorLedger;
use crate::attribution::process::Process;
use crate::input::held_names::HeldNames;
use crate::input::holdings::Holding;
use crate::state::State;
use crate::words::Tgid;

/// Live objects of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownHoldings<'p> {
    /// The process.
    pub tgid: Tgid,
    /// Start of observation, which distinguishes processes with the same number: `CLOCK_BOOTTIME`,
    /// in nanoseconds.
    pub observed_since_ns: u64,
    /// Sums of the blocks.
    pub view: HoldingsView,
    /// Blocks of the process.
    pub rows: Vec<&'p Holding>,
}

/// Returns the live objects of PyTorch processes, with at most `top` groups: the blocks of the last
/// reading that are still live, and the bytes allocated later. For a process that has ended,
/// returns all blocks of the reading.
pub fn known_holdings(state: &State, by: HoldingGrouping, top: usize) -> Vec<KnownHoldings<'_>> {
    state.ended.iter().chain(state.processes.values()).filter_map(|process| known(process, (by, top))).collect()
}

/// Returns the last reading of a process's live objects that was summed by name. `process` is the
/// process with the start of its observation.
pub fn last_names(state: &State, process: (Tgid, u64)) -> Option<&HeldNames> {
    let mut all = state.ended.iter().chain(state.processes.values());
    all.find(|own| (own.tgid, own.observed_since_ns) == process)?.held_names.readings().last()
}

fn known(process: &Process, (by, top): (HoldingGrouping, usize)) -> Option<KnownHoldings<'_>> {
    let tensors = process.tensors.as_deref()?;
    let held = tensors.held()?;
    let is_there = process.current_tensors().is_some();
    let rows: Vec<_> = if is_there { tensors.still_held().collect() } else { held.rows.iter().collect() };
    let totals = totals(tensors, &rows, is_there);
    let view = view_of(held, &rows, &totals, (by, top));
    Some(KnownHoldings { tgid: process.tgid, observed_since_ns: process.observed_since_ns, view, rows })
}

fn totals(tensors: &TensorLedger, rows: &[&Holding], is_there: bool) -> Vec<AllocatorTotals> {
    let reported = tensors.reported();
    let device = reported.iter().map(|(ordinal, now)| {
        let held = rows.iter().filter(|row| row.ordinal == *ordinal).map(|row| row.block_bytes);
        let later_bytes = now.allocated_bytes.saturating_sub(held.fold(0, u64::saturating_add));
        AllocatorTotals {
            ordinal: *ordinal,
            reserved_bytes: now.reserved_bytes,
            changing_bytes: None,
            later_bytes: (is_there && later_bytes > 0).then_some(later_bytes),
            pieces: None,
        }
    });
    device.collect()
}
