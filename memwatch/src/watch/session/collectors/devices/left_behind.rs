//! Memory that NVML charges to processes that exited before the session began. A process that
//! inherited their open driver files keeps the memory allocated.

use std::collections::BTreeMap;

use memwatch_common::record::{ProcessEvent, ProcessRecord, RecordKind, RingRecord};
use memwatch_core::input::{DeviceReading, Input, ProcessFacts};
use memwatch_core::words::Tgid;

use crate::watch::session::parts::SessionParts;

/// Device file that only CUDA programs open; monitoring services do not.
const CUDA_FILE: &str = "nvidia-uvm";
/// An unseen exit is dated this long before the reading, in nanoseconds. That is longer than
/// closing the files takes.
const EARLIER_NS: u64 = 3_000_000_000;

/// Exited processes by number, each with the processes that may keep its memory allocated.
pub(super) type ExitedCharges = BTreeMap<u32, Vec<u32>>;

/// Returns the processes of a reading that are charged, have exited and were never known, each
/// with the running processes that may keep their memory allocated. Such a running process has
/// the driver's files open and is not charged itself.
pub(super) fn left_behind(reading: &DeviceReading, parts: &mut SessionParts) -> ExitedCharges {
    if !parts.scope.everybody {
        return ExitedCharges::new();
    }
    let entries = || reading.devices.iter().flat_map(|device| device.processes.iter().flatten());
    let is_met = |tgid| parts.sink.state().knows(tgid) || parts.sink.state().remembers(tgid);
    let charged = entries().filter(|entry| entry.used_bytes > Some(0) && !is_met(entry.tgid));
    let dead: Vec<u32> = charged.map(|entry| entry.tgid.0).filter(|tgid| !parts.processes.exists(*tgid)).collect();
    if dead.is_empty() {
        return ExitedCharges::new();
    }
    let is_listed = |tgid: u32| entries().any(|entry| entry.tgid.0 == tgid);
    let users = parts.libraries.users().into_iter().filter(|tgid| !is_listed(*tgid) && !parts.scope.own.holds(*tgid));
    let retainers: Vec<u32> = users.filter(|tgid| parts.processes.has_open(*tgid, CUDA_FILE)).collect();
    // Some drivers list process numbers of other pid namespaces: a number that is the inner
    // number of such a running process denotes that process.
    let inner =
        retainers.iter().filter_map(|tgid| parts.processes.facts(*tgid, false)?.inner_tgid).collect::<Vec<u32>>();
    let is_dead = |tgid: &u32| !retainers.is_empty() && !inner.contains(tgid);
    dead.into_iter().filter(is_dead).map(|tgid| (tgid, retainers.clone())).collect()
}

/// Passes on the inputs for these processes, after the reading: that each existed, which
/// processes it may have forked, and that it has exited.
pub(super) fn note_left_behind(left_behind: ExitedCharges, begin_ns: u64, parts: &mut SessionParts) {
    for (tgid, retainers) in left_behind {
        parts.sink.step(Input::Process(ProcessFacts { tgid, ..ProcessFacts::default() }));
        for retainer in retainers {
            let (kind, event) = (RecordKind::Process as u8, ProcessEvent::Fork as u8);
            let fork = ProcessRecord { kind, event, tgid: retainer, parent_tgid: tgid, ..ProcessRecord::default() };
            parts.sink.step(Input::Record(RingRecord::Process(ProcessRecord { time_ns: begin_ns, ..fork })));
        }
        let time_ns = begin_ns.saturating_sub(EARLIER_NS);
        parts.sink.step(Input::ProcessEnded { tgid: Tgid(tgid), time_ns });
    }
}
