//! Builds the explanation of a process's GPU memory from the kernel driver's state.

use std::collections::BTreeMap;

use super::{Surroundings, difference, used_bytes};
use crate::attribution::device::resolve_place;
use crate::attribution::process::Process;
use crate::input::{Cores, DeviceFacts};
use crate::kernel_driver::columns::{Columns, LiveRequests};
use crate::kernel_driver::decode::Lies;
use crate::kernel_driver::labels::{AttributedPurpose, MemoryPurpose};
use crate::kernel_driver::local_memory::bytes_per_thread;
use crate::kernel_driver::objects::DriverMemory;
use crate::kernel_driver::process_ledger::{DriverLedger, RefusedMemory};
use crate::kernel_driver::trust::{LedgerTrust, NvmlAgreement};
use crate::ledger::totals::AllocationKind;
use crate::snapshot::{
    ColumnsView, Explained, ExplainedHost, ExplainedUse, LeftBehindView, LeftOnGpu, PIECES_KEPT, PartView, PieceView,
    RefusedView, RemainderView, UsedView,
};
use crate::words::{GpuUuid, Tgid};

/// Returns the explanation of a process, of an exited one its last; `None` if no request of the
/// process was traced.
pub(crate) fn process(around: &Surroundings<'_>, process: &Process) -> Option<Explained> {
    if process.ended.is_some() {
        return process.last_explained.as_deref().cloned();
    }
    let ledger = around.kernel_driver.ledger_of(process.tgid)?;
    let requests = LiveRequests::new(process.ledger.requests());
    let mut by_gpu: BTreeMap<Option<GpuUuid>, Vec<&DriverMemory>> = BTreeMap::new();
    let mut host = ExplainedHost::default();
    for device in around.reading.devices.iter().filter(|device| device.lists(process.tgid)) {
        by_gpu.entry(Some(device.uuid.clone())).or_default();
    }
    for (_, place, memory) in around.kernel_driver.memory(process.tgid) {
        let column = match memory.lies {
            Lies::Video => {
                let uuid = resolve_place(&place, process.tgid, &around.reading.devices);
                by_gpu.entry(uuid).or_default().push(memory);
                continue;
            }
            Lies::DriverHost => &mut host.driver_bytes,
            Lies::PinnedHost => &mut host.pinned_bytes,
        };
        *column = column.saturating_add(memory.granted_bytes);
    }
    let mut gpus: Vec<_> = by_gpu
        .iter()
        .map(|(uuid, memory)| ExplainedUse {
            columns: columns(memory, &requests),
            pieces: pieces(memory, &requests),
            ..on_gpu(around, process, ledger, (uuid.as_ref(), memory))
        })
        .collect();
    gpus.sort_by_key(|gpu| gpu.uuid.is_none());
    Some(Explained {
        gpus,
        host,
        imported: around.kernel_driver.imported(process.tgid),
        refused: ledger.refused().map(|one| refused(one, process.tgid, &around.reading.devices)).collect(),
        refused_count: ledger.refused_count(),
        reused: ledger.reused(),
        version: around.kernel_driver.version().map(str::to_owned),
    })
}

fn on_gpu(
    around: &Surroundings<'_>,
    process: &Process,
    ledger: &DriverLedger,
    (gpu, memory): (Option<&GpuUuid>, &[&DriverMemory]),
) -> ExplainedUse {
    let standing = gpu.and_then(|gpu| ledger.standing(gpu));
    // Readings with requests in flight are not among these.
    let last = standing.and_then(NvmlAgreement::last);
    ExplainedUse {
        uuid: gpu.cloned(),
        trust: gpu
            .map_or(LedgerTrust::Settling, |gpu| around.kernel_driver.trust(process.tgid, gpu, process.watched())),
        used_bytes: last.map(|(compared, _)| compared.used_bytes),
        live_bytes: memory.iter().fold(0, |sum, memory| sum.saturating_add(memory.granted_bytes)),
        older_bytes: standing.and_then(NvmlAgreement::older_bytes),
        difference_bytes: last.and_then(|(_, difference_bytes)| difference_bytes),
        parts: parts(memory, cores_of(around, gpu)),
        columns: ColumnsView::default(),
        pieces: Vec::new(),
    }
}

/// Returns the cores for which a context has local memory; `None` for a MIG instance, since its cores
/// are unknown.
fn cores_of(around: &Surroundings<'_>, gpu: Option<&GpuUuid>) -> Option<Cores> {
    let mut devices = around.reading.devices.iter();
    devices.find(|device| Some(&device.uuid) == gpu).filter(|device| device.mig.is_none())?.cores
}

#[derive(Default)]
struct PartSum {
    bytes: u64,
    objects: u64,
    largest_asked_bytes: Option<u64>,
}

fn parts(memory: &[&DriverMemory], cores: Option<Cores>) -> Vec<PartView> {
    let mut sums: BTreeMap<(&AttributedPurpose, Option<Tgid>), PartSum> = BTreeMap::new();
    for memory in memory {
        let sum = sums.entry((&memory.named, memory.left_by)).or_default();
        (sum.bytes, sum.objects) = (sum.bytes.saturating_add(memory.granted_bytes), sum.objects + 1);
        sum.largest_asked_bytes = sum.largest_asked_bytes.max(memory.asked_bytes);
    }
    let view = |((named, left_by), sum): ((&AttributedPurpose, Option<Tgid>), PartSum)| PartView {
        label: named.label,
        owner: named.owner.as_deref().map(str::to_owned),
        function: named.function.as_deref().map(str::to_owned),
        bytes: sum.bytes,
        objects: sum.objects,
        sure: named.sure,
        bytes_per_thread: Some(named.label)
            .filter(|label| *label == MemoryPurpose::LocalMemory)
            .and_then(|_| bytes_per_thread(cores?, sum.largest_asked_bytes?)),
        left_by,
    };
    let mut parts: Vec<_> = sums.into_iter().map(view).collect();
    parts.sort_by_key(|part| std::cmp::Reverse(part.bytes));
    parts
}

/// Returns the objects with their use; equal objects are one row.
fn pieces(memory: &[&DriverMemory], requests: &LiveRequests) -> Vec<PieceView> {
    type Alike<'a> = (&'a AttributedPurpose, Option<u64>, u64, Option<Columns>);
    let mut alike: BTreeMap<Alike<'_>, (u64, Option<u64>)> = BTreeMap::new();
    for memory in memory {
        let key = (&memory.named, memory.asked_bytes, memory.granted_bytes, Columns::of(memory, requests));
        let (objects, address) = alike.entry(key).or_default();
        *objects += 1;
        *address = memory.ranges.first().map(|(base, _)| *base).filter(|_| *objects == 1);
    }
    let view = |((named, asked_bytes, granted_bytes, columns), (objects, address)): (Alike<'_>, _)| PieceView {
        label: named.label,
        owner: named.owner.as_deref().map(str::to_owned),
        function: named.function.as_deref().map(str::to_owned),
        objects,
        asked_bytes,
        granted_bytes,
        used: columns.map(|own| UsedView {
            requested_bytes: own.requested_bytes,
            slack_bytes: own.slack_bytes,
            rounding_bytes: own.rounding_bytes,
        }),
        address,
    };
    let mut pieces: Vec<_> = alike.into_iter().map(view).collect();
    pieces.sort_by_key(|piece| std::cmp::Reverse(piece.granted_bytes.saturating_mul(piece.objects)));
    pieces.truncate(PIECES_KEPT);
    pieces
}

fn columns(memory: &[&DriverMemory], requests: &LiveRequests) -> ColumnsView {
    let mut sum = ColumnsView::default();
    for memory in memory {
        let label = memory.named.label;
        let (column, bytes) = match Columns::of(memory, requests) {
            Some(own) => {
                sum.requested_bytes = sum.requested_bytes.saturating_add(own.requested_bytes);
                sum.rounding_bytes = sum.rounding_bytes.saturating_add(own.rounding_bytes);
                (&mut sum.slack_bytes, own.slack_bytes)
            }
            None if label.is_requested() || label == MemoryPurpose::Inherited => {
                (&mut sum.unplaced_bytes, memory.granted_bytes)
            }
            None => (&mut sum.driver_bytes, memory.granted_bytes),
        };
        *column = column.saturating_add(bytes);
    }
    sum
}

/// Time after the exit of a process, in nanoseconds, by which its files are closed: another process
/// keeps what NVML still charges it then.
const CLOSED_NS: u64 = 2_000_000_000;

/// Returns the memory that NVML still charges to an exited process; `None` if NVML no longer lists
/// it, or if its pid was reused.
pub(crate) fn left_behind(around: &Surroundings<'_>, process: &Process) -> Option<LeftBehindView> {
    let ended = process.ended?;
    let is_late = around.reading.begin_ns >= ended.time_ns.saturating_add(CLOSED_NS);
    if !is_late || around.processes.contains_key(&process.tgid) {
        return None;
    }
    let charged = |device: &DeviceFacts| used_bytes(device, process.tgid).filter(|bytes| *bytes > 0);
    let of = |device: &DeviceFacts| Some(LeftOnGpu { uuid: device.uuid.clone(), used_bytes: charged(device)? });
    let gpus: Vec<_> = around.reading.devices.iter().filter_map(of).collect();
    (!gpus.is_empty()).then(|| LeftBehindView { gpus, forked: process.forked.iter().copied().collect() })
}

/// Returns the view of a request that the kernel driver refused.
pub(crate) fn refused(refused: &RefusedMemory, tgid: Tgid, devices: &[DeviceFacts]) -> RefusedView {
    let named = &refused.named;
    RefusedView {
        time_ns: refused.time_ns,
        tid: refused.tid,
        uuid: resolve_place(&refused.place, tgid, devices),
        lies: refused.lies,
        asked_bytes: refused.asked_bytes,
        function: named.function.as_deref().map(str::to_owned),
        owner: named.owner.as_deref().map(str::to_owned),
        label: named.label,
        inside: refused.inside,
    }
}

/// Returns the used bytes of a GPU that no process is charged with; `None` if NVML does not report
/// them for the GPU or for a process.
pub(super) fn remainder(around: &Surroundings<'_>, device: &DeviceFacts) -> Option<RemainderView> {
    let managed_bytes = |process: &Process| process.ledger.totals().whole().kind(AllocationKind::Managed).live_bytes;
    let has_managed = around.processes.values().any(|process| device.lists(process.tgid) && managed_bytes(process) > 0);
    let charged: Option<u64> = device.processes.as_ref()?.iter().map(|entry| entry.used_bytes).sum();
    Some(RemainderView { bytes: difference(device.used_bytes?, charged?), has_managed })
}
