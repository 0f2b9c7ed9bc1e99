//! The kernel driver's books: how inputs come to them, and what they explain.

use std::collections::BTreeMap;

use crate::Pipeline;
use crate::attribution::device::charged_during;
use crate::input::DeviceFacts;
use crate::input::rm::RmCall;
use crate::kernel_driver::KernelDriver;
use crate::kernel_driver::books::Books;
use crate::kernel_driver::trust::Compared;
use crate::snapshot::Explained;
use crate::snapshot::build::explained;
use crate::words::{GpuUuid, Tgid};

/// What was in flight at a reading has returned this long after it, or the next reading is there, nanoseconds. Measured on an H100 the longest ioctl took
/// 6 ms.
const IN_FLIGHT_NS: u64 = 100_000_000;

/// What NVML charges each process on a device, where it lists any; of a process that is listed twice, the first.
fn used_by(device: &DeviceFacts) -> Option<BTreeMap<Tgid, Option<u64>>> {
    let list = device.processes.as_ref()?;
    Some(list.iter().rev().map(|entry| (entry.tgid, entry.used_bytes)).collect())
}

impl Pipeline {
    pub(crate) fn follow_rm(&mut self, call: &RmCall) {
        self.follow_time(call.returned_ns);
        let most_bytes = self.reading.devices.iter().map(|device| device.total_bytes).max().flatten();
        let refused = |pipeline: &Self| pipeline.kernel_driver.books(call.tgid).map_or(0, Books::refused_count);
        let before = refused(self);
        self.kernel_driver.apply(call, most_bytes);
        if refused(self) > before {
            self.note_refused_request(call.tgid);
        }
        // Who has memory on a GPU is watched, whatever calls of libcuda are seen of it.
        if self.kernel_driver.books(call.tgid).is_some_and(Books::has_video_memory) {
            self.process_mut(call.tgid, call.entered_ns).changed = true;
        }
    }

    /// What the readings so far have shown of a process is of no use any more.
    pub(crate) fn forget_readings(&mut self, tgid: Tgid) {
        self.reconciliation.forget(tgid);
        self.kernel_driver.forget_standing(tgid);
    }

    pub(crate) fn tick_kernel_driver(&mut self) {
        if self.now_ns.saturating_sub(self.reading.end_ns) >= IN_FLIGHT_NS {
            self.compare_kernel_driver();
        }
    }

    /// Holds all books against the last reading, if that was not done.
    pub(crate) fn compare_kernel_driver(&mut self) {
        if !self.kernel_driver.take_awaited() {
            return;
        }
        let mut all: Vec<(Tgid, GpuUuid, Compared)> = Vec::new();
        let begin_ns = self.reading.begin_ns;
        let listed: Vec<(&DeviceFacts, BTreeMap<Tgid, Option<u64>>)> =
            self.reading.devices.iter().filter_map(|device| Some((device, used_by(device)?))).collect();
        for process in self.processes.values().filter(|process| process.observed_since_ns <= begin_ns) {
            let Some(books) = self.kernel_driver.books(process.tgid) else { continue };
            for (device, list) in &listed {
                let seen = charged_during(books, process.tgid, &device.uuid, &self.reading);
                let used = match list.get(&process.tgid) {
                    Some(used) => *used,
                    // It is not there, and its books say so.
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

    /// The kernel driver's books: its version, whether its layouts are known, and whether a sum has agreed with NVML.
    pub const fn kernel_driver(&self) -> &KernelDriver {
        &self.kernel_driver
    }

    /// What a process that ends now has last by these books is kept with it.
    pub(crate) fn keep_explained(&mut self, tgid: Tgid) {
        let explained = self.explain(tgid).map(Box::new);
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.last_explained = explained;
        }
    }

    /// What a living process has of the kernel driver, object by object; `None` where no request of it was seen.
    pub fn explain(&self, tgid: Tgid) -> Option<Explained> {
        let process = self.processes.get(&tgid)?;
        explained::process(&self.surroundings(), process)
    }
}
