//! Records of process events.

use aya_ebpf::helpers::generated::bpf_get_current_cgroup_id;
use memwatch_common::capture::CaptureKernel;
use memwatch_common::loss::Loss;
use memwatch_common::record::{COMM_BYTES, ProcessEvent, ProcessRecord, RecordKind};

use super::Bpf;
use crate::shares::user;
use crate::task::{comm, current, start_ns};

/// Reports the running process before its first call.
#[inline(always)]
pub(crate) fn announce(tgid: u32) {
    send(ProcessEvent::FirstCall, tgid, 0, start_ns(current()), 0);
}

#[inline(always)]
pub(crate) fn send(event: ProcessEvent, tgid: u32, parent_tgid: u32, start_ns: u64, life: u32) {
    emit(&ProcessRecord {
        tgid,
        parent_tgid,
        life,
        // SAFETY: the helper has no preconditions.
        cgroup_id: unsafe { bpf_get_current_cgroup_id() },
        start_ns,
        comm: comm(current()),
        uid: user(),
        ..blank(event)
    });
}

#[inline(always)]
pub(crate) fn blank(event: ProcessEvent) -> ProcessRecord {
    ProcessRecord {
        kind: RecordKind::Process as u8,
        event: event as u8,
        reserved: 0,
        tgid: 0,
        parent_tgid: 0,
        life: 0,
        time_ns: Bpf.now_ns(),
        cgroup_id: 0,
        start_ns: 0,
        comm: [0; COMM_BYTES],
        uid: 0,
        unused: 0,
    }
}

#[inline(always)]
pub(crate) fn emit(record: &ProcessRecord) {
    // The exit of a thread is not urgent, and a new control group can be read later as well.
    let urgent = record.event != ProcessEvent::ThreadEnd as u8 && record.event != ProcessEvent::Move as u8;
    if !Bpf::output(record, urgent) {
        Bpf.lose(record.tgid, Loss::RingFull);
    }
}
