//! The log of failures: which of them a successful retry cancels, which ones a process died of, and
//! which are dropped if there are too many.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::moment::Moments;
use super::requests::RefusedRequests;
use super::view::OomView;
use super::{DEATH_NS, ONE_NS};
use crate::attribution::workload::WorkloadKey;
use crate::input::held_names::HeldNames;
use crate::kernel_driver::process_ledger::REFUSED_KEPT;
use crate::snapshot::{ProcessView, RefusedView, Snapshot, Viewer};
use crate::words::{OUT_OF_MEMORY, Tgid, Tid};

/// Maximum number of failures. The user with most failures loses the oldest one of its workload with
/// most, so that neither a user with many workloads nor a workload displaces the failures of others.
const KEPT: usize = 64;

/// Granted requests of the thread that failed, and size in bytes of a single one, that show that its
/// program continued. An uncaught error only runs handlers, which need no large tensors.
const WORK_REQUESTS: u32 = 32;
const WORK_BYTES: u64 = 1 << 20;

/// Workload and login user of a process.
type FailureOwner = Option<(WorkloadKey, Option<u32>)>;

/// A refused call that a retry may still make up for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OpenCall {
    pub(super) tid: Tid,
    pub(super) bytes: u64,
    /// Whether the process's allocator reports failures: without a report there is no failure,
    /// unless the process dies.
    pub(super) is_reported_later: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct LoggedFailure {
    view: OomView,
    owner: FailureOwner,
    /// Time of the last refusal: `CLOCK_BOOTTIME`, in nanoseconds.
    last_ns: u64,
    /// Refused calls without a known result; empty if an allocator has reported the failure.
    open: Vec<OpenCall>,
    /// Thread whose request failed last.
    tid: Tid,
    /// Requests granted to this thread since then; [`WORK_REQUESTS`] after a large one.
    granted: u32,
}

impl LoggedFailure {
    fn is_hidden(&self) -> bool {
        self.open.first().is_some_and(|open| open.is_reported_later)
    }

    /// Takes a further failure into this one: whatever was granted before it shows nothing.
    fn fails_again(&mut self, tid: Tid, now_ns: u64) {
        (self.last_ns, self.tid, self.granted) = (now_ns, tid, 0);
    }

    /// Whether its program handled the failure and continued.
    fn is_handled(&self) -> bool {
        self.granted >= WORK_REQUESTS
    }

    fn is_recent(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.last_ns) < ONE_NS
    }

    /// Whether a further failure at this time is merged into this one. Counted from the failure
    /// itself: a program that fails every half second has a failure per second, not a single one.
    fn includes(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.view.time_ns) < ONE_NS
    }

    /// Whether a refused call belongs to this failure: it is a retry, or a further failure.
    fn takes(&self, call: OpenCall, now_ns: u64) -> bool {
        match (self.open.is_empty(), call.is_reported_later) {
            // The allocator will report whether the call is a failure at all.
            (true, true) => false,
            (false, true) => self.is_recent(now_ns),
            (_, false) => self.includes(now_ns),
        }
    }
}

/// Failures, oldest first, and the number of dropped ones.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct OomLog {
    kept: VecDeque<LoggedFailure>,
    pub(super) forgotten: u64,
    /// Time after which no failure can turn out to be survived by what its program allocates.
    doubtful_until_ns: u64,
    /// Requests that the kernel driver refused and that belong to none of these failures.
    pub(super) requests: RefusedRequests,
    /// Snapshot of the last failure cancelled by a retry, for reuse: programs retry often, and
    /// snapshots are expensive.
    spare: Option<(Tgid, u64, Box<Snapshot>)>,
    #[serde(skip)]
    pub(super) moments: Moments,
}

impl OomLog {
    /// Returns the last failures, oldest first, and the number of older ones that were dropped.
    pub fn failures(&self) -> (impl Iterator<Item = &OomView>, u64) {
        (self.shown(), self.forgotten)
    }

    /// Takes over the failures since `since_ns` from the log of a later moment, which knows more of
    /// failures that both have.
    pub(crate) fn take_over(&mut self, later: Self, since_ns: u64) {
        let key = |one: &LoggedFailure| (one.view.tgid, one.view.time_ns);
        for failure in later.kept.into_iter().filter(|one| one.view.time_ns >= since_ns) {
            if let Some(own) = self.kept.iter_mut().find(|one| key(one) == key(&failure)) {
                *own = failure;
            } else {
                self.make_place();
                self.kept.push_back(failure);
            }
        }
        self.doubtful_until_ns = self.doubtful_until_ns.max(later.doubtful_until_ns);
        self.requests.take_over(later.requests, since_ns);
    }

    /// Returns the failures of processes that the viewer may see, each with what that viewer may see
    /// of its moment.
    pub(crate) fn of(&self, viewer: Viewer) -> Self {
        let is_shown = |one: &&LoggedFailure| {
            let failed = |process: &&ProcessView| process.tgid == one.view.tgid;
            // A pid may have been reused, and the last of several processes is the one that failed.
            one.view.snapshot.processes.iter().rfind(failed).is_some_and(|process| process.is_shown_to(viewer))
        };
        let cut = |one: &LoggedFailure| {
            let mut own = one.clone();
            *own.view.snapshot = one.view.snapshot.observed_by(viewer);
            own
        };
        let kept = self.kept.iter().filter(is_shown).map(cut).collect();
        Self { kept, doubtful_until_ns: self.doubtful_until_ns, ..Self::default() }
    }

    /// Returns the confirmed failures.
    fn shown(&self) -> impl Iterator<Item = &OomView> {
        self.kept.iter().filter(|failure| !failure.is_hidden()).map(|failure| &failure.view)
    }

    pub(super) fn keep(&mut self, view: OomView, (tid, open): (Tid, Option<OpenCall>), owner: FailureOwner) {
        self.make_place();
        let last_ns = view.time_ns;
        self.doubt_from(last_ns);
        let open = open.into_iter().collect();
        self.kept.push_back(LoggedFailure { view, owner, last_ns, open, tid, granted: 0 });
    }

    /// Drops a failure if there are too many.
    fn make_place(&mut self) {
        if self.kept.len() < KEPT {
            return;
        }
        let user = |owner: &FailureOwner| owner.as_ref().and_then(|(_, user)| *user);
        let of_user = |owner| self.kept.iter().filter(|one| user(&one.owner) == user(owner)).count();
        let of_owner = |owner: &FailureOwner| self.kept.iter().filter(|one| one.owner == *owner).count();
        // Of several owners with the same count the one with the oldest failure.
        let owners = self.kept.iter().enumerate().rev();
        let most = owners.max_by_key(|(_, one)| (of_user(&one.owner), of_owner(&one.owner)));
        let owner = most.map(|(_, one)| one.owner.clone());
        if let Some(at) = owner.and_then(|owner| self.kept.iter().position(|one| one.owner == owner)) {
            self.kept.remove(at);
            self.forgotten += 1;
        }
    }

    /// Adds a refused call to the failure that it belongs to; returns the refused requests if there
    /// is none.
    pub(super) fn join(
        &mut self,
        (tgid, call): (Tgid, OpenCall),
        now_ns: u64,
        behind: Vec<RefusedView>,
    ) -> Option<Vec<RefusedView>> {
        let last = self.kept.iter_mut().rfind(|one| one.view.tgid == tgid && one.takes(call, now_ns));
        let Some(failure) = last else { return Some(behind) };
        failure.fails_again(call.tid, now_ns);
        // A request is refused several times before its allocator fails.
        let is_same = failure.open.iter().any(|open| (open.tid, open.bytes) == (call.tid, call.bytes));
        let is_reported = failure.open.is_empty();
        failure.view.more += u64::from(!is_same);
        if !is_same && !is_reported {
            failure.open.push(call);
        }
        add(&mut failure.view, behind);
        self.doubt_from(now_ns);
        None
    }

    /// Adds a failure reported by an allocator to the failure that it belongs to; returns the
    /// refused requests if there is none.
    pub(super) fn join_last(
        &mut self,
        (tgid, thread): (Tgid, Tid),
        now_ns: u64,
        behind: Vec<RefusedView>,
    ) -> Option<Vec<RefusedView>> {
        let is_one = |one: &&mut LoggedFailure| one.view.tgid == tgid && !one.is_hidden() && one.includes(now_ns);
        let Some(failure) = self.kept.iter_mut().rfind(is_one) else { return Some(behind) };
        failure.view.more += 1;
        failure.fails_again(thread, now_ns);
        add(&mut failure.view, behind);
        self.doubt_from(now_ns);
        None
    }

    /// Begins the time after a failure in which granted requests show that its program continued.
    fn doubt_from(&mut self, now_ns: u64) {
        self.doubtful_until_ns = self.doubtful_until_ns.max(now_ns.saturating_add(DEATH_NS));
    }

    /// Counts a granted request: the thread that failed, or the program's first thread if that one
    /// failed elsewhere, as for the backward pass, has caught the error and continues.
    pub(super) fn note_granted(&mut self, (tgid, thread): (Tgid, Tid), bytes: u64, now_ns: u64) {
        // Nearly every allocation of every program passes through here.
        if now_ns > self.doubtful_until_ns {
            return;
        }
        let is_first = thread.0 == tgid.0;
        let is_of = |one: &&mut LoggedFailure| {
            one.view.tgid == tgid
                && one.view.ended_ns.is_none()
                && now_ns > one.last_ns
                && (one.tid == thread || is_first)
        };
        for failure in self.kept.iter_mut().filter(is_of) {
            let requests = if bytes >= WORK_BYTES { WORK_REQUESTS } else { 1 };
            failure.granted = failure.granted.saturating_add(requests);
        }
    }

    /// Cancels a refused call after the thread was granted the same size: that was a retry.
    pub(super) fn retract(&mut self, (tgid, thread, bytes): (Tgid, Tid, u64), now_ns: u64) {
        // Nearly every allocation of every program passes through here.
        let is_of = |one: &&mut LoggedFailure| one.view.tgid == tgid && !one.open.is_empty() && one.is_recent(now_ns);
        let Some(failure) = self.kept.iter_mut().rfind(is_of) else { return };
        let before = failure.open.len();
        failure.open.retain(|open| (open.tid, open.bytes) != (thread, bytes));
        if failure.open.len() == before {
            return;
        }
        if let Some(first) = failure.open.first() {
            failure.view.wanted_bytes = first.bytes;
            failure.view.more = failure.view.more.saturating_sub(1);
            return;
        }
        let at =
            self.kept.iter().rposition(|one| one.view.tgid == tgid && one.open.is_empty() && one.last_ns <= now_ns);
        if let Some(LoggedFailure { view, .. }) = at.and_then(|at| self.kept.remove(at)) {
            self.requests.list(tgid, view.refused, Some(OUT_OF_MEMORY));
            self.spare = Some((tgid, view.time_ns, view.snapshot));
        }
    }

    /// Removes the refused calls of a thread that reports the failure itself; returns their refused
    /// requests.
    pub(super) fn take_of_thread(&mut self, tgid: Tgid, thread: Tid, now_ns: u64) -> Vec<RefusedView> {
        let is_of = |one: &LoggedFailure| {
            one.view.tgid == tgid && one.is_recent(now_ns) && one.open.first().is_some_and(|open| open.tid == thread)
        };
        let Some(at) = self.kept.iter().rposition(is_of) else { return Vec::new() };
        self.kept.remove(at).map(|failure| failure.view.refused).unwrap_or_default()
    }

    /// Returns a snapshot that is recent enough for a failure of this process.
    pub(super) fn take_spare(&mut self, tgid: Tgid, now_ns: u64) -> Option<Box<Snapshot>> {
        let is_recent =
            |spare: &mut (Tgid, u64, Box<Snapshot>)| spare.0 == tgid && now_ns.saturating_sub(spare.1) < ONE_NS;
        self.spare.take_if(is_recent).map(|(_, _, snapshot)| snapshot)
    }

    /// Adds the first reading of the live objects that began after a failure, if it did so before the
    /// outcome is known.
    pub(super) fn note_names(&mut self, reading: &HeldNames) {
        let is_of = |one: &&mut LoggedFailure| {
            let view = &one.view;
            let is_after = reading.time_ns >= view.time_ns && reading.time_ns - view.time_ns < DEATH_NS;
            view.tgid == reading.tgid && is_after && view.names.last().is_none_or(|last| last.time_ns < view.time_ns)
        };
        for failure in self.kept.iter_mut().filter(is_of) {
            let mut reading = reading.clone();
            reading.look_through_traceback(failure.view.names.last());
            failure.view.names.push(reading);
        }
    }

    /// Marks failures as survived after a while: a refused call that no allocator reported, in a
    /// process that still runs, was no failure.
    pub(super) fn settle(&mut self, now_ns: u64) {
        for failure in self.kept.iter_mut().filter(|one| one.view.ended_ns.is_none() && one.view.exited_ns.is_none()) {
            let is_old = now_ns.saturating_sub(failure.last_ns) >= DEATH_NS;
            failure.view.is_survived = is_old || failure.is_handled();
        }
        let is_over = |one: &LoggedFailure| one.is_hidden() && now_ns.saturating_sub(one.last_ns) >= DEATH_NS;
        while let Some(at) = self.kept.iter().position(is_over) {
            if let Some(LoggedFailure { view, .. }) = self.kept.remove(at) {
                self.requests.list(view.tgid, view.refused, Some(OUT_OF_MEMORY));
            }
        }
    }

    /// Marks failures that the exiting process died of, and those that it survived before.
    pub(super) fn end(&mut self, tgid: Tgid, time_ns: u64) {
        // What an allocator has not reported was no failure if its program continued.
        let is_none = |one: &LoggedFailure| one.view.tgid == tgid && one.is_hidden() && one.is_handled();
        while let Some(at) = self.kept.iter().position(is_none) {
            if let Some(LoggedFailure { view, .. }) = self.kept.remove(at) {
                self.requests.list(tgid, view.refused, Some(OUT_OF_MEMORY));
            }
        }
        let is_of = |one: &&mut LoggedFailure| {
            one.view.tgid == tgid && one.view.ended_ns.is_none() && one.view.exited_ns.is_none()
        };
        for failure in self.kept.iter_mut().filter(is_of) {
            failure.open.clear();
            let died = time_ns.saturating_sub(failure.last_ns) < DEATH_NS && !failure.is_handled();
            failure.view.is_survived = !died;
            *(if died { &mut failure.view.ended_ns } else { &mut failure.view.exited_ns }) = Some(time_ns);
        }
    }
}

fn add(view: &mut OomView, behind: Vec<RefusedView>) {
    view.refused.extend(behind);
    view.refused.drain(..view.refused.len().saturating_sub(REFUSED_KEPT));
}
