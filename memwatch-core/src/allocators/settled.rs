//! What an allocator had counted at a failure or at the end of its process: the truth, also where events before it were lost or never traced.
//!
//! The kernel half reads it in that moment and sends it right before the record of what happens. Where it agrees with the events it is taken at once; where it
//! does not, it waits for that record: a reading without one may be of a moment in the midst of something.

use super::TensorLedger;
use super::pytorch::Words;
use crate::input::books::{DeviceNumbers, Numbers};
#[cfg(test)]
use crate::words::Ordinal;
use crate::words::Tgid;

/// A reading and the record that it belongs to are no further apart, nanoseconds.
const TOGETHER_NS: u64 = 50_000_000;
/// So many allocators of a process are read in one moment at most.
const KEPT: usize = 16;

/// One allocator's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unsettled {
    allocator: u64,
    time_ns: u64,
    words: Box<Words>,
}

impl TensorLedger {
    /// What the allocator at this address has counted does not agree with its events, or none of these is traced.
    pub(crate) fn keep_unsettled(&mut self, allocator: u64, time_ns: u64, words: &Words) {
        self.unsettled.retain(|kept| kept.allocator != allocator);
        if self.unsettled.len() < KEPT {
            self.unsettled.push(Unsettled { allocator, time_ns, words: Box::new(*words) });
        }
    }

    /// What was read right before something that happened at this time, on devices that are known.
    pub(crate) fn take_unsettled(&mut self, tgid: Tgid, time_ns: u64) -> Option<Numbers> {
        let devices = std::mem::take(&mut self.unsettled).into_iter().filter_map(|kept| {
            let is_of_it = (kept.time_ns..=kept.time_ns.saturating_add(TOGETHER_NS)).contains(&time_ns);
            let ordinal = self.allocators.pytorch.place_of(kept.allocator).filter(|_| is_of_it)?;
            Some(DeviceNumbers { ordinal, allocator: kept.allocator, words: kept.words.to_vec() })
        });
        let devices: Vec<DeviceNumbers> = devices.collect();
        (!devices.is_empty()).then_some(Numbers { tgid, time_ns, devices })
    }

    /// The allocator at this address is a device's.
    #[cfg(test)]
    pub(crate) fn know_place(&mut self, allocator: u64, ordinal: Ordinal) {
        self.allocators.pytorch.know_place(allocator, ordinal);
    }

    /// Takes these as what the allocators have counted, though events of them were lost or never traced; last of all where the process ends.
    pub(crate) fn learn_last(&mut self, numbers: &Numbers, ends: bool) {
        for device in &numbers.devices {
            if self.allocators.pytorch.learn_last(device, (numbers.time_ns, ends))
                && let Some(now) = self.allocators.pytorch.reported_on(device.ordinal)
            {
                self.places.count_allocated(device.ordinal, now.allocated_bytes);
            }
        }
    }
}
