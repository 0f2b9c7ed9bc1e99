//! Allocator statistics read at a failure or at process exit. They are correct even if events were
//! lost or never traced.
//!
//! The kernel half reads them at that moment and sends them right before the record of the event.
//! Values that agree with the events are applied at once. Others wait for that record, since a
//! reading without one may have been taken in the middle of an operation.

use super::TensorLedger;
use super::pytorch::StatisticsWords;
use crate::input::allocator_state::{AllocatorNumbers, DeviceNumbers};
#[cfg(test)]
use crate::words::Ordinal;
use crate::words::Tgid;

/// Maximum time between a reading and its record, nanoseconds.
const TOGETHER_NS: u64 = 50_000_000;
/// Maximum number of allocators of a process read at one moment.
const KEPT: usize = 16;

/// Statistics of one allocator that wait for their record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unsettled {
    allocator: u64,
    time_ns: u64,
    words: Box<StatisticsWords>,
}

impl TensorLedger {
    /// Keeps statistics that disagree with the allocator's events, or belong to an untraced
    /// allocator.
    pub(crate) fn keep_unsettled(&mut self, allocator: u64, time_ns: u64, words: &StatisticsWords) {
        self.unsettled.retain(|kept| kept.allocator != allocator);
        if self.unsettled.len() < KEPT {
            self.unsettled.push(Unsettled { allocator, time_ns, words: Box::new(*words) });
        }
    }

    /// Takes the statistics read right before a record of this time, for allocators on a known
    /// device.
    pub(crate) fn take_unsettled(&mut self, tgid: Tgid, time_ns: u64) -> Option<AllocatorNumbers> {
        let devices = std::mem::take(&mut self.unsettled).into_iter().filter_map(|kept| {
            let is_of_it = (kept.time_ns..=kept.time_ns.saturating_add(TOGETHER_NS)).contains(&time_ns);
            let ordinal = self.allocators.pytorch.place_of(kept.allocator).filter(|_| is_of_it)?;
            Some(DeviceNumbers { ordinal, allocator: kept.allocator, words: kept.words.to_vec() })
        });
        let devices: Vec<DeviceNumbers> = devices.collect();
        (!devices.is_empty()).then_some(AllocatorNumbers { tgid, time_ns, devices })
    }

    /// Sets the device of the allocator at this address.
    #[cfg(test)]
    pub(crate) fn know_place(&mut self, allocator: u64, ordinal: Ordinal) {
        self.allocators.pytorch.know_place(allocator, ordinal);
    }

    /// Applies these statistics although events were lost or never traced. `ends` is set if they
    /// are the last of the process.
    pub(crate) fn learn_last(&mut self, numbers: &AllocatorNumbers, ends: bool) {
        for device in &numbers.devices {
            if self.allocators.pytorch.learn_last(device, (numbers.time_ns, ends))
                && let Some(now) = self.allocators.pytorch.reported_on(device.ordinal)
            {
                self.attribution.count_allocated(device.ordinal, now.allocated_bytes);
            }
        }
    }
}
