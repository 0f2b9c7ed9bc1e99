//! The line's look at allocations that fail: what was held at that moment is kept, since the program may be gone a moment later.

pub mod view;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::Pipeline;
use crate::allocators::pytorch::{DeviceAllocator, PoolSize};
use crate::attribution::device::resolve;
use crate::decode::{Call, TensorChange, TensorEvent};
use crate::features::fragments::model::shapes;
use crate::features::oom::view::{CacheView, OomView};
use crate::ledger::totals::DeviceRef;
use crate::snapshot::Snapshot;
use crate::snapshot::build::places::whose;
use crate::words::Tgid;

/// How many failures are remembered.
const KEPT: usize = 8;
/// Failures of one process so shortly after each other are one, nanoseconds: programs try again.
const ONE_NS: u64 = 1_000_000_000;
/// `CUDA_ERROR_OUT_OF_MEMORY` of cuda.h.
const OUT_OF_MEMORY: i32 = 2;

/// Failures, oldest first, and how many older ones are forgotten.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct OomLog {
    kept: VecDeque<OomView>,
    forgotten: u64,
}

impl Pipeline {
    /// From now on what is held when an allocation fails is kept.
    pub fn watch_ooms(&mut self) {
        self.detectors.ooms.get_or_insert_default();
    }

    /// The last failures, oldest first, and how many older ones are forgotten; nothing before [`Pipeline::watch_ooms`].
    pub fn ooms(&self) -> (impl Iterator<Item = &OomView>, u64) {
        let log = self.detectors.ooms.as_ref();
        (log.into_iter().flat_map(|log| &log.kept), log.map_or(0, |log| log.forgotten))
    }

    /// PyTorch is about to give up.
    pub(crate) fn note_tensor_oom(&mut self, event: &TensorEvent) {
        let TensorChange::OutOfMemory { ordinal, wanted_bytes, .. } = event.what else { return };
        if !self.is_new_oom(event.tgid, event.time_ns) {
            return;
        }
        let snapshot = self.snapshot_at(event.time_ns);
        let Some(process) = self.processes.get(&event.tgid) else { return };
        let Some(tensors) = &process.tensors else { return };
        let refused = tensors.places().refused().back().map(|refusal| whose(tensors.names(), &refusal.whose));
        let view = OomView {
            time_ns: event.time_ns,
            tgid: event.tgid,
            level: "tensor".into(),
            device: Some(ordinal.0),
            uuid: resolve(process, DeviceRef::Ordinal(ordinal), &self.reading.devices),
            symbol: None,
            wanted_bytes,
            whose: refused,
            cache: tensors.allocators().get(&ordinal).and_then(|allocator| cache(allocator, wanted_bytes)),
            more: 0,
            snapshot,
        };
        self.keep_oom(view);
    }

    /// The driver has refused a call; PyTorch goes on to look for memory itself, and tells if it finds none.
    pub(crate) fn note_call_oom(&mut self, call: &Call) {
        let is_pytorch = self.processes.get(&call.tgid).is_none_or(|process| process.current_tensors().is_some());
        let Some(wanted_bytes) = call.action.requested_bytes() else { return };
        if call.status != OUT_OF_MEMORY || is_pytorch || !self.is_new_oom(call.tgid, call.returned_ns) {
            return;
        }
        let snapshot = self.snapshot_at(call.returned_ns);
        let own = snapshot.processes.iter().rfind(|process| process.tgid == call.tgid);
        let failure = own.and_then(|process| process.failures.iter().rfind(|one| one.time_ns == call.returned_ns));
        let view = OomView {
            time_ns: call.returned_ns,
            tgid: call.tgid,
            level: "driver".into(),
            device: None,
            uuid: failure.and_then(|failure| failure.uuid.clone()),
            symbol: Some(call.symbol.into()),
            wanted_bytes,
            whose: None,
            cache: None,
            more: 0,
            snapshot,
        };
        self.keep_oom(view);
    }

    /// Whether anybody wants to know, and it is not one of several that follow each other.
    fn is_new_oom(&mut self, tgid: Tgid, time_ns: u64) -> bool {
        let Some(log) = &mut self.detectors.ooms else { return false };
        let last = log.kept.iter_mut().rfind(|view| view.tgid == tgid);
        match last.filter(|view| time_ns.saturating_sub(view.time_ns) < ONE_NS) {
            Some(view) => {
                view.more += 1;
                false
            }
            None => true,
        }
    }

    fn snapshot_at(&mut self, time_ns: u64) -> Box<Snapshot> {
        self.now_ns = self.now_ns.max(time_ns);
        Box::new(self.snapshot())
    }

    fn keep_oom(&mut self, view: OomView) {
        let Some(log) = &mut self.detectors.ooms else { return };
        if log.kept.len() >= KEPT {
            log.kept.pop_front();
            log.forgotten += 1;
        }
        log.kept.push_back(view);
    }
}

/// `None` where its segments are not seen.
pub(crate) fn cache(allocator: &DeviceAllocator, wanted_bytes: u64) -> Option<CacheView> {
    if allocator.seen_by() == "reports" {
        return None;
    }
    let memory = allocator.memory();
    let [small, large] = shapes(memory);
    let own = if PoolSize::of_request(wanted_bytes) == PoolSize::Small { small } else { large };
    Some(CacheView {
        reserved_bytes: memory.reserved_bytes(),
        allocated_bytes: memory.allocated_bytes(),
        unused_segment_bytes: small.and(large).unused_segment_bytes,
        split_bytes: own.split_bytes,
        largest_free_bytes: own.largest_free_bytes,
        is_expandable: own.expandable_bytes > 0,
    })
}
