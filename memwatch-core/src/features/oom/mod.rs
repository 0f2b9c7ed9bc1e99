//! Failed allocations: the state at that moment is kept, because the program may exit a moment
//! later.

#[cfg(test)]
pub(crate) mod fixture;
mod log;
mod moment;
mod requests;
pub mod room;
pub mod view;

use crate::allocators::Refused;
use crate::allocators::pytorch::{DeviceAllocator, PoolSize};
use crate::attribution::device::resolve;
use crate::attribution::workload::WorkloadKey;
use crate::decode::{Call, TensorEvent};
use crate::features::fragments::model::{shapes, usual_shapes};
pub use crate::features::oom::log::OomLog;
use crate::features::oom::log::OpenCall;
use crate::features::oom::view::{CacheView, OomView, SurvivedView};
use crate::ledger::totals::DeviceRef;
use crate::snapshot::RefusedView;
use crate::snapshot::build::explained;
use crate::snapshot::build::places::whose;
use crate::state::State;
use crate::state::event::{Detector, Event};
use crate::state::room::answers;
use crate::words::{Framework, OUT_OF_MEMORY, Tgid, Tid};

/// Failures of one process within this time are one failure, in nanoseconds: programs retry.
const ONE_NS: u64 = 1_000_000_000;
/// A process that exits within this time after a failure died of it, in nanoseconds: meanwhile
/// Python prints a traceback and closes its libraries.
const DEATH_NS: u64 = 10_000_000_000;

impl Detector for OomLog {
    #[inline]
    fn on(&mut self, event: &Event<'_>, state: &State) {
        match event {
            Event::Call(call) => self.note_outcome(call, state),
            // Nearly every event of every program passes through here.
            Event::Tensor(event) if event.what.is_failure() => self.note_failure(event, state),
            Event::Tensor(event) => {
                if let Some(bytes) = event.what.granted_bytes() {
                    self.note_granted((event.tgid, event.tid), bytes, event.time_ns);
                }
            }
            Event::Refused(tgid) => self.note_refused(*tgid, state),
            Event::HeldNames(reading) => self.note_names(reading),
            // A failure that the process died of counts even if no allocator reported it. One that the
            // program handled does not become a death by the exit.
            Event::Ends { tgid, time_ns } => self.end(*tgid, *time_ns),
            // Refused requests of which nothing further will be reported.
            Event::Tick => {
                self.requests.settle(state.now_ns.saturating_sub(ONE_NS));
                self.settle(state.now_ns);
                self.moments.forget(state.now_ns);
            }
            _ => {}
        }
    }
}

impl OomLog {
    /// Returns the last requests that the kernel driver refused without a resulting failure, oldest
    /// first, and the number of older ones that were dropped.
    pub fn survived(&self) -> (impl Iterator<Item = SurvivedView>, u64) {
        (self.requests.survived(), self.requests.forgotten())
    }

    /// Records that the kernel driver refused memory.
    fn note_refused(&mut self, tgid: Tgid, state: &State) {
        if let Some(refused) = state.kernel_driver.ledger_of(tgid).and_then(|ledger| ledger.refused().last()) {
            self.requests.open(tgid, explained::refused(refused, tgid, &state.reading.devices));
        }
    }

    /// Records that a framework's allocator is about to fail. A failure shortly after another one
    /// is merged into that one.
    fn note_failure(&mut self, event: &TensorEvent, state: &State) {
        let tensors = state.processes.get(&event.tgid).and_then(|process| process.tensors.as_ref());
        let Some(failed) = tensors.and_then(|tensors| tensors.refused_by(event)) else { return };
        let Refused { framework, ordinal, wanted_bytes } = failed;
        let mut behind = self.take_of_thread(event.tgid, event.tid, event.time_ns);
        behind.extend(self.requests.take_of_thread(event.tgid, event.tid));
        let Some(refused) = self.join_last((event.tgid, event.tid), event.time_ns, behind) else { return };
        if !self.may_list(event.tgid, event.time_ns, state) {
            return;
        }
        let snapshot = self.moments.at(state, event.tgid, event.time_ns);
        let Some(process) = state.processes.get(&event.tgid) else { return };
        let Some(tensors) = &process.tensors else { return };
        let wanted_by = tensors.attribution().refused().back().map(|refusal| whose(tensors.names(), &refusal.whose));
        let view = OomView {
            time_ns: event.time_ns,
            tgid: event.tgid,
            level: "tensor".into(),
            device: Some(ordinal.0),
            uuid: resolve(process, DeviceRef::Ordinal(ordinal), &state.reading.devices),
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
            exited_ns: None,
            refused,
            names: process.held_names.readings().to_vec(),
            snapshot,
        };
        self.keep_failure(view, (event.tid, None), state);
    }

    /// Processes the return of a driver call. If it failed for lack of memory, an allocator may
    /// retry; PyTorch also reports a failed retry.
    fn note_outcome(&mut self, call: &Call, state: &State) {
        if call.status == 0
            && let Some(bytes) = call.action.requested_bytes()
        {
            self.retract((call.tgid, call.tid, bytes), call.returned_ns);
            self.note_granted((call.tgid, call.tid), bytes, call.returned_ns);
        }
        let behind = self.requests.take_of_call(call);
        if call.status != OUT_OF_MEMORY {
            return self.requests.list(call.tgid, behind, Some(call.status));
        }
        let process = state.processes.get(&call.tgid);
        // The process's allocator reports failures itself: there is no failure until it does, or
        // until the process exits.
        let reports =
            process.is_none_or(|process| process.current_tensors().is_some() && process.tensors_watched_ns > 0);
        // The creation of a context or a module has no size, but the request that the kernel driver
        // refused has one.
        let asked_bytes = behind.iter().filter_map(|refused| refused.asked_bytes).max();
        let Some(wanted_bytes) = call.action.requested_bytes().or(asked_bytes) else { return };
        let open = OpenCall { tid: call.tid, bytes: wanted_bytes, is_reported_later: reports };
        let Some(refused) = self.join((call.tgid, open), call.returned_ns, behind) else { return };
        self.note_call_failure(call, open, refused, state);
    }

    fn note_call_failure(&mut self, call: &Call, open: OpenCall, refused: Vec<RefusedView>, state: &State) {
        let spare = self.take_spare(call.tgid, call.returned_ns);
        if spare.is_none() && !self.may_list(call.tgid, call.returned_ns, state) {
            return;
        }
        let snapshot = spare.unwrap_or_else(|| self.moments.at(state, call.tgid, call.returned_ns));
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
            exited_ns: None,
            refused,
            names: state.processes.get(&call.tgid).map_or_else(Vec::new, |own| own.held_names.readings().to_vec()),
            snapshot,
        };
        self.keep_failure(view, (open.tid, Some(open)), state);
    }

    /// Counts a failure. Returns false if its user has too many; it is then one of the dropped ones.
    fn may_list(&mut self, tgid: Tgid, time_ns: u64, state: &State) -> bool {
        let may_list = self.moments.allows(state.processes.get(&tgid).and_then(answers), time_ns);
        self.forgotten += u64::from(!may_list);
        may_list
    }

    fn keep_failure(&mut self, view: OomView, call: (Tid, Option<OpenCall>), state: &State) {
        let process = state.processes.get(&view.tgid);
        let owner = process.map(|process| (WorkloadKey::of(&process.owner), answers(process)));
        self.keep(view, call, owner);
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
