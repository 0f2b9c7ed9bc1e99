//! Failed allocations: the state at that moment is kept, because the program may exit a moment
//! later.

#[cfg(test)]
pub(crate) mod fixture;
mod log;
mod requests;
pub mod room;
pub mod view;

use crate::Pipeline;
use crate::allocators::Refused;
use crate::allocators::pytorch::{DeviceAllocator, PoolSize};
use crate::attribution::device::resolve;
use crate::attribution::workload::WorkloadKey;
use crate::decode::{Call, TensorEvent};
use crate::features::fragments::model::{shapes, usual_shapes};
pub(crate) use crate::features::oom::log::OomLog;
use crate::features::oom::log::OpenCall;
use crate::features::oom::view::{CacheView, OomView, SurvivedView};
use crate::ledger::totals::DeviceRef;
use crate::snapshot::build::explained;
use crate::snapshot::build::places::whose;
use crate::snapshot::{RefusedView, Snapshot};
use crate::words::{Framework, Tgid};

/// Failures of one process within this time are one failure, in nanoseconds: programs retry.
const ONE_NS: u64 = 1_000_000_000;
/// A process that exits within this time after a failure died of it, in nanoseconds: meanwhile
/// Python prints a traceback and closes its libraries.
const DEATH_NS: u64 = 10_000_000_000;
/// `CUDA_ERROR_OUT_OF_MEMORY` in cuda.h.
const OUT_OF_MEMORY: i32 = 2;

impl Pipeline {
    /// Turns recording of failed allocations on.
    pub fn watch_ooms(&mut self) {
        self.detectors.ooms.get_or_insert_default();
    }

    /// Returns the last failures, oldest first, and the number of older ones that were dropped;
    /// nothing before [`Pipeline::watch_ooms`].
    pub fn ooms(&self) -> (impl Iterator<Item = &OomView>, u64) {
        let log = self.detectors.ooms.as_ref();
        (log.into_iter().flat_map(OomLog::shown), log.map_or(0, |log| log.forgotten))
    }

    /// Returns the last requests that the kernel driver refused without a resulting failure, oldest
    /// first, and the number of older ones that were dropped.
    pub fn survived(&self) -> (impl Iterator<Item = SurvivedView>, u64) {
        let log = self.detectors.ooms.as_ref();
        let all = log.into_iter().flat_map(|log| log.requests.survived());
        (all, log.map_or(0, |log| log.requests.forgotten()))
    }

    /// Records that the kernel driver refused memory. The result is known when the call returns.
    pub(crate) fn note_refused_request(&mut self, tgid: Tgid) {
        let Some(log) = &mut self.detectors.ooms else { return };
        if let Some(refused) = self.kernel_driver.ledger_of(tgid).and_then(|ledger| ledger.refused().last()) {
            log.requests.open(tgid, explained::refused(refused, tgid, &self.reading.devices));
        }
    }

    /// Closes refused requests of which nothing further will be reported.
    pub(crate) fn settle_refused(&mut self) {
        if let Some(log) = &mut self.detectors.ooms {
            log.requests.settle(self.now_ns.saturating_sub(ONE_NS));
            log.settle(self.now_ns);
        }
    }

    /// Records that a framework's allocator is about to fail.
    pub(crate) fn note_tensor_oom(&mut self, event: &TensorEvent) {
        // Nearly every event of every program passes through here.
        if !event.what.is_failure() {
            return;
        }
        let tensors = self.processes.get(&event.tgid).and_then(|process| process.tensors.as_ref());
        let Some(failed) = tensors.and_then(|tensors| tensors.refused_by(event)) else { return };
        let Refused { framework, ordinal, wanted_bytes } = failed;
        let Some(log) = &mut self.detectors.ooms else { return };
        let mut behind = log.take_of_thread(event.tgid, event.tid, event.time_ns);
        behind.extend(log.requests.take_of_thread(event.tgid, event.tid));
        let Some(refused) = self.unless_one_of_several(event.tgid, event.time_ns, behind) else { return };
        let snapshot = self.snapshot_at(event.time_ns);
        let Some(process) = self.processes.get(&event.tgid) else { return };
        let Some(tensors) = &process.tensors else { return };
        let wanted_by = tensors.attribution().refused().back().map(|refusal| whose(tensors.names(), &refusal.whose));
        let view = OomView {
            time_ns: event.time_ns,
            tgid: event.tgid,
            level: "tensor".into(),
            device: Some(ordinal.0),
            uuid: resolve(process, DeviceRef::Ordinal(ordinal), &self.reading.devices),
            symbol: None,
            wanted_bytes,
            whose: wanted_by,
            cache: tensors
                .allocators()
                .get(&ordinal)
                .filter(|_| framework == Some(Framework::PyTorch))
                .and_then(|allocator| cache(allocator, wanted_bytes)),
            framework,
            more: 0,
            ended_ns: None,
            is_survived: false,
            refused,
            snapshot,
        };
        self.keep_oom(view, None);
    }

    /// Processes the return of a driver call. If it failed for lack of memory, an allocator may
    /// retry; PyTorch also reports a failed retry.
    pub(crate) fn note_outcome(&mut self, call: &Call) {
        let Some(log) = &mut self.detectors.ooms else { return };
        if call.status == 0
            && let Some(bytes) = call.action.requested_bytes()
        {
            log.retract((call.tgid, call.tid, bytes), call.returned_ns);
        }
        let behind = log.requests.take_of_call(call);
        if call.status != OUT_OF_MEMORY {
            return log.requests.list(call.tgid, behind, Some(call.status));
        }
        let process = self.processes.get(&call.tgid);
        // The process's allocator reports failures itself: there is no failure until it does, or
        // until the process exits.
        let reports =
            process.is_none_or(|process| process.current_tensors().is_some() && process.tensors_watched_ns > 0);
        // The creation of a context or a module has no size, but the request that the kernel driver
        // refused has one.
        let asked_bytes = behind.iter().filter_map(|refused| refused.asked_bytes).max();
        let Some(wanted_bytes) = call.action.requested_bytes().or(asked_bytes) else { return };
        let open = OpenCall { tid: call.tid, bytes: wanted_bytes, is_reported_later: reports };
        let Some(refused) = log.join((call.tgid, open), call.returned_ns, behind) else { return };
        self.note_call_oom(call, open, refused);
    }

    fn note_call_oom(&mut self, call: &Call, open: OpenCall, refused: Vec<RefusedView>) {
        let spare = self.detectors.ooms.as_mut().and_then(|log| log.take_spare(call.tgid, call.returned_ns));
        let snapshot = spare.unwrap_or_else(|| self.snapshot_at(call.returned_ns));
        let own = snapshot.processes.iter().rfind(|process| process.tgid == call.tgid);
        let failure = own.and_then(|process| process.failures.iter().rfind(|one| one.requested_bytes == open.bytes));
        let view = OomView {
            time_ns: call.returned_ns,
            tgid: call.tgid,
            level: "driver".into(),
            device: None,
            uuid: failure.and_then(|failure| failure.uuid.clone()),
            symbol: Some(call.symbol.into()),
            wanted_bytes: open.bytes,
            whose: None,
            cache: None,
            framework: None,
            more: 0,
            ended_ns: None,
            is_survived: false,
            refused,
            snapshot,
        };
        self.keep_oom(view, Some(open));
    }

    /// Processes the exit of a process: a failure that it died of counts even if no allocator
    /// reported it.
    pub(crate) fn note_end_of_oom(&mut self, tgid: Tgid, time_ns: u64) {
        if let Some(log) = &mut self.detectors.ooms {
            log.end(tgid, time_ns);
        }
    }

    /// Returns the refused requests of a new failure. A failure shortly after another one is merged
    /// into that one, and `None` is returned.
    fn unless_one_of_several(
        &mut self,
        tgid: Tgid,
        time_ns: u64,
        behind: Vec<RefusedView>,
    ) -> Option<Vec<RefusedView>> {
        let log = self.detectors.ooms.as_mut()?;
        log.join_last(tgid, time_ns, behind)
    }

    fn snapshot_at(&mut self, time_ns: u64) -> Box<Snapshot> {
        self.now_ns = self.now_ns.max(time_ns);
        Box::new(self.snapshot())
    }

    fn keep_oom(&mut self, view: OomView, open: Option<OpenCall>) {
        let process = self.processes.get(&view.tgid);
        let owner = process
            .map(|process| (WorkloadKey::of(&process.owner), process.facts.as_ref().and_then(|facts| facts.uid)));
        if let Some(log) = &mut self.detectors.ooms {
            log.keep(view, open, owner);
        }
    }
}

/// Returns the state of a caching allocator; `None` if its segments are not traced.
pub(crate) fn cache(allocator: &DeviceAllocator, wanted_bytes: u64) -> Option<CacheView> {
    if allocator.shows_totals_alone() {
        return None;
    }
    let memory = allocator.memory();
    let [small, large] = shapes(memory);
    // A request of the default pools, as all but those of a capture are, cannot use private pools.
    let [usual_small, usual_large] = usual_shapes(memory);
    let own = if PoolSize::of_request(wanted_bytes) == PoolSize::Small { usual_small } else { usual_large };
    Some(CacheView {
        reserved_bytes: memory.reserved_bytes(),
        allocated_bytes: memory.allocated_bytes(),
        unused_segment_bytes: small.and(large).unused_segment_bytes,
        stranded_bytes: small.and(large).stranded_bytes,
        split_bytes: own.split_bytes,
        largest_free_bytes: own.largest_free_bytes,
        is_expandable: own.expandable_bytes > 0,
    })
}
