//! What processes hold as far as the pipeline knows it: the last reading of each, and what has become of that since.

use super::view::{By, HoldingsView};
use super::{DeviceTotals, view_of};
use crate::Pipeline;
use crate::allocators::TensorLedger;
use crate::attribution::process::Process;
use crate::input::holdings::Holding;
use crate::words::Tgid;

/// What one process holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownHoldings<'p> {
    /// The process.
    pub tgid: Tgid,
    /// From when on it was watched, which distinguishes it from others with its number: `CLOCK_BOOTTIME`, nanoseconds.
    pub observed_since_ns: u64,
    /// Sums of it.
    pub view: HoldingsView,
    /// Its blocks.
    pub rows: Vec<&'p Holding>,
}

impl Pipeline {
    /// What processes with PyTorch hold by name, so many groups at most: of the last reading what is there still, and how much came later. Of a process
    /// that has ended it is what the reading found.
    pub fn holdings(&self, by: By, top: usize) -> Vec<KnownHoldings<'_>> {
        self.ended.iter().chain(self.processes.values()).filter_map(|process| known(process, (by, top))).collect()
    }
}

fn known(process: &Process, (by, top): (By, usize)) -> Option<KnownHoldings<'_>> {
    let tensors = process.tensors.as_deref()?;
    let held = tensors.held()?;
    let is_there = process.current_tensors().is_some();
    let rows: Vec<_> = if is_there { tensors.still_held().collect() } else { held.rows.iter().collect() };
    let totals = totals(tensors, &rows, is_there);
    let view = view_of(held, &rows, &totals, (by, top));
    Some(KnownHoldings { tgid: process.tgid, observed_since_ns: process.observed_since_ns, view, rows })
}

fn totals(tensors: &TensorLedger, rows: &[&Holding], is_there: bool) -> Vec<DeviceTotals> {
    let reported = tensors.reported();
    let device = reported.iter().map(|(ordinal, now)| {
        let held = rows.iter().filter(|row| row.ordinal == *ordinal).map(|row| row.block_bytes);
        let later_bytes = now.allocated_bytes.saturating_sub(held.fold(0, u64::saturating_add));
        DeviceTotals {
            ordinal: *ordinal,
            reserved_bytes: now.reserved_bytes,
            changing_bytes: None,
            later_bytes: (is_there && later_bytes > 0).then_some(later_bytes),
        }
    });
    device.collect()
}
