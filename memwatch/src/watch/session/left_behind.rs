//! Memory that NVML charges to processes that had ended before the watch: whoever has their open files of the driver keeps it.

use std::collections::BTreeMap;

use memwatch_common::record::{ProcessEvent, ProcessRecord, Record, RecordKind};
use memwatch_core::input::{DeviceReading, Input, ProcessFacts};
use memwatch_core::words::Tgid;

use super::Session;

/// The file of the driver that programs with CUDA alone open: a service that only looks at GPUs has not.
const CUDA_FILE: &str = "nvidia-uvm";
/// An end that nobody has seen is taken for this much earlier than the reading: longer than files take to be closed, nanoseconds.
const EARLIER_NS: u64 = 3_000_000_000;

/// The dead by number, each with the processes that may keep its memory.
pub(super) type LeftBehind = BTreeMap<u32, Vec<u32>>;

impl Session {
    /// The processes of a reading that are charged and are no more, and were never met, where somebody is there who may keep their memory: has the driver's
    /// files open and is charged nothing.
    pub(super) fn left_behind(&mut self, reading: &DeviceReading) -> LeftBehind {
        if !self.everybody {
            return LeftBehind::new();
        }
        let entries = || reading.devices.iter().flat_map(|device| device.processes.iter().flatten());
        let is_met = |tgid| self.pipeline.knows(tgid) || self.pipeline.remembers(tgid);
        let charged = entries().filter(|entry| entry.used_bytes > Some(0) && !is_met(entry.tgid));
        let dead: Vec<u32> = charged.map(|entry| entry.tgid.0).filter(|tgid| !self.processes.exists(*tgid)).collect();
        if dead.is_empty() {
            return LeftBehind::new();
        }
        let is_listed = |tgid: u32| entries().any(|entry| entry.tgid.0 == tgid);
        let users = self.libraries.users().into_iter().filter(|tgid| !is_listed(*tgid) && !self.own.holds(*tgid));
        let keepers: Vec<u32> = users.filter(|tgid| self.processes.has_open(*tgid, CUDA_FILE)).collect();
        // A driver that lists numbers of other pid namespaces means one of those by such a number.
        let inner =
            keepers.iter().filter_map(|tgid| self.processes.facts(*tgid, false)?.inner_tgid).collect::<Vec<u32>>();
        let is_dead = |tgid: &u32| !keepers.is_empty() && !inner.contains(tgid);
        dead.into_iter().filter(is_dead).map(|tgid| (tgid, keepers.clone())).collect()
    }

    /// The same as inputs, after the reading: what is known of such a process is that it was there, which processes it may have forked, and that it has ended.
    pub(super) fn note_left_behind(&mut self, left_behind: LeftBehind, begin_ns: u64) {
        for (tgid, keepers) in left_behind {
            self.pipeline.step(Input::Process(ProcessFacts { tgid, ..ProcessFacts::default() }));
            for keeper in keepers {
                let (kind, event) = (RecordKind::Process as u8, ProcessEvent::Fork as u8);
                let fork = ProcessRecord { kind, event, tgid: keeper, parent_tgid: tgid, ..ProcessRecord::default() };
                self.pipeline.step(Input::Record(Record::Process(ProcessRecord { time_ns: begin_ns, ..fork })));
            }
            let time_ns = begin_ns.saturating_sub(EARLIER_NS);
            self.pipeline.step(Input::ProcessEnded { tgid: Tgid(tgid), time_ns });
        }
    }
}
