//! Feeds the kernel-driver ledger and reports what it explains.

use std::collections::BTreeMap;

use crate::attribution::device::charged_during;
use crate::input::DeviceFacts;
use crate::input::rm::RmCall;
use crate::kernel_driver::KernelDriver;
use crate::kernel_driver::process_ledger::DriverLedger;
use crate::kernel_driver::trust::Compared;
use crate::snapshot::Explained;
use crate::snapshot::build::explained;
use crate::state::State;
use crate::state::event::{Detector, Event};
use crate::words::{GpuUuid, Tgid};

/// Nanoseconds after a reading, within which all ioctls in flight have returned, unless the next
/// reading comes first. The longest ioctl measured on an H100 took 6 ms.
const IN_FLIGHT_NS: u64 = 100_000_000;

/// Returns what NVML charges each process on a device that lists processes. If a process is listed
/// twice, the first entry counts.
fn used_by(device: &DeviceFacts) -> Option<BTreeMap<Tgid, Option<u64>>> {
    let list = device.processes.as_ref()?;
    Some(list.iter().rev().map(|entry| (entry.tgid, entry.used_bytes)).collect())
}

impl State {
    pub(super) fn follow_rm(&mut self, call: &RmCall, detector: &mut impl Detector) {
        let most_bytes = self.reading.devices.iter().map(|device| device.total_bytes).max().flatten();
        let refused = |state: &Self| state.kernel_driver.ledger_of(call.tgid).map_or(0, DriverLedger::refused_count);
        let before = refused(self);
        self.kernel_driver.apply(call, most_bytes);
        if refused(self) > before {
            detector.on(&Event::Refused(call.tgid), self);
        }
        // A process with memory on a GPU is tracked, whether or not libcuda calls of it are seen.
        if self.kernel_driver.ledger_of(call.tgid).is_some_and(DriverLedger::has_video_memory) {
            self.process_mut(call.tgid, call.entered_ns).changed = true;
        }
    }

    /// Discards the comparisons of earlier readings with a process.
    pub(crate) fn forget_readings(&mut self, tgid: Tgid) {
        self.reconciliation.forget(tgid);
        self.kernel_driver.forget_standing(tgid);
    }

    pub(crate) fn tick_kernel_driver(&mut self) {
        if self.now_ns.saturating_sub(self.reading.end_ns) >= IN_FLIGHT_NS {
            self.compare_kernel_driver();
        }
    }

    /// Compares all ledgers with the last reading, if that has not been done.
    pub(crate) fn compare_kernel_driver(&mut self) {
        if !self.kernel_driver.take_awaited() {
            return;
        }
        let mut all: Vec<(Tgid, GpuUuid, Compared)> = Vec::new();
        let begin_ns = self.reading.begin_ns;
        let listed: Vec<(&DeviceFacts, BTreeMap<Tgid, Option<u64>>)> =
            self.reading.devices.iter().filter_map(|device| Some((device, used_by(device)?))).collect();
        for process in self.processes.values().filter(|process| process.observed_since_ns <= begin_ns) {
            let Some(ledger) = self.kernel_driver.ledger_of(process.tgid) else { continue };
            for (device, list) in &listed {
                let seen = charged_during(ledger, process.tgid, &device.uuid, &self.reading);
                let used = match list.get(&process.tgid) {
                    Some(used) => *used,
                    // NVML does not list the process, and its ledger agrees.
                    None => seen.filter(|seen_bytes| *seen_bytes == 0),
                };
                let both = used.zip(seen).map(|(used_bytes, seen_bytes)| Compared { used_bytes, seen_bytes, begin_ns });
                all.extend(both.map(|compared| (process.tgid, device.uuid.clone(), compared)));
            }
        }
        for (tgid, gpu, compared) in all {
            if let Some(process) = self.processes.get(&tgid) {
                self.kernel_driver.compare(tgid, &gpu, compared, process.watched());
            }
        }
        self.kernel_driver.forget_before(begin_ns);
    }

    /// Kernel-driver ledger: version, whether layouts are known, and whether a sum has agreed with
    /// NVML.
    pub const fn kernel_driver(&self) -> &KernelDriver {
        &self.kernel_driver
    }

    /// Keeps the final report of an ending process with it.
    pub(crate) fn keep_explained(&mut self, tgid: Tgid) {
        let explained = self.explain(tgid).map(Box::new);
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.last_explained = explained;
        }
    }

    /// Returns the kernel-driver memory of a live process, object by object; `None` if none of its
    /// ioctls was seen.
    pub fn explain(&self, tgid: Tgid) -> Option<Explained> {
        let process = self.processes.get(&tgid)?;
        explained::process(&self.surroundings(), process)
    }
}
