//! The state of the machine at a failure, within bounds: users can have many processes, and fail many
//! times.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::snapshot::{ProcessView, Snapshot};
use crate::state::State;
use crate::words::{GpuUuid, Tgid};

/// Maximum number of processes: those with most memory. What the others have is in the GPUs' sums.
const PROCESSES: usize = 24;
/// Maximum bytes of the command line of a process that did not fail.
const COMMAND_BYTES: usize = 256;
/// Time for which what is known of other processes counts for further failures, in nanoseconds. A
/// snapshot of thousands of processes takes long, and as many may fail within a second.
const SHARED_NS: u64 = 250_000_000;
/// Failures of one login user at once, and the time in which one more is listed, in nanoseconds. Of
/// more the log could not keep any longer than a moment.
const AT_ONCE: u64 = 64;
const EACH_NS: u64 = 125_000_000;

/// The state of the machine at the last failure, for the next ones.
#[derive(Clone, Debug, Default)]
pub(super) struct Moments {
    /// All running processes, and the time of the failure: `CLOCK_BOOTTIME`, nanoseconds.
    last: Option<(Snapshot, u64)>,
    /// For each login user, the time at which the failures so far would have been at an even pace.
    even_ns: BTreeMap<Option<u32>, u64>,
}

impl Moments {
    /// Counts a failure of a process of this login user. Returns whether it is within the user's share.
    pub(super) fn allows(&mut self, user: Option<u32>, time_ns: u64) -> bool {
        let even_ns = self.even_ns.entry(user).or_default();
        let next_ns = (*even_ns).max(time_ns).saturating_add(EACH_NS);
        let is_allowed = next_ns <= time_ns.saturating_add(AT_ONCE * EACH_NS);
        if is_allowed {
            *even_ns = next_ns;
        }
        is_allowed
    }

    /// Returns the state of the machine at a failure of this process, with the processes on its GPUs.
    pub(super) fn at(&mut self, state: &State, tgid: Tgid, time_ns: u64) -> Box<Snapshot> {
        // Records of several processors come in any order.
        let is_shared = |last: &(Snapshot, u64)| last.1.abs_diff(time_ns) < SHARED_NS;
        let (mut all, taken_ns) = self.last.take().filter(is_shared).unwrap_or_else(|| (running(state), time_ns));
        let ended = || state.ended.last(tgid);
        let own = state.processes.get(&tgid).or_else(ended).map(|process| state.surroundings().process(process));
        let everybody = std::mem::take(&mut all.processes);
        let processes = related(&everybody, tgid, own);
        let moment = Box::new(Snapshot { processes, time_ns: all.time_ns.max(time_ns), ..all.clone() });
        self.last = Some((Snapshot { processes: everybody, ..all }, taken_ns));
        moment
    }

    /// Forgets what counts for no further failure.
    pub(super) fn forget(&mut self, now_ns: u64) {
        self.last.take_if(|(_, taken_ns)| now_ns.saturating_sub(*taken_ns) >= SHARED_NS);
        self.even_ns.retain(|_, even_ns| *even_ns > now_ns);
    }
}

/// Returns the state of the processes that run, or still hold memory.
fn running(state: &State) -> Snapshot {
    let mut all = state.snapshot();
    all.processes.retain(|process| process.ended_ns.is_none() || process.left_behind.is_some());
    for process in &mut all.processes {
        process.command.truncate(process.command.floor_char_boundary(COMMAND_BYTES));
    }
    // A failure is about processes.
    all.workloads.clear();
    all
}

/// Returns the processes on the GPUs of the one that failed, which is one of them.
fn related(everybody: &[ProcessView], tgid: Tgid, own: Option<ProcessView>) -> Vec<ProcessView> {
    let gpus: BTreeSet<&Option<GpuUuid>> = own.iter().flat_map(|process| &process.gpus).map(|gpu| &gpu.uuid).collect();
    // A process on an unknown GPU may be on any.
    let is_everywhere = gpus.is_empty() || gpus.contains(&None);
    let is_there = |process: &&ProcessView| {
        let is_on_one = || process.gpus.iter().any(|gpu| gpu.uuid.is_none() || gpus.contains(&gpu.uuid));
        process.tgid != tgid && (is_everywhere || process.left_behind.is_some() || is_on_one())
    };
    let mut others: Vec<&ProcessView> = everybody.iter().filter(is_there).collect();
    if others.len() >= PROCESSES {
        others.sort_by_cached_key(|process| Reverse(held_bytes(process)));
        others.truncate(PROCESSES - 1);
    }
    let mut processes: Vec<ProcessView> = others.into_iter().cloned().chain(own).collect();
    processes.sort_by_key(|process| (process.tgid, process.observed_since_ns));
    processes
}

/// Returns the bytes of a process on all GPUs, without those that NVML does not confirm.
fn held_bytes(process: &ProcessView) -> u64 {
    let on_gpus = process.gpus.iter().map(|gpu| gpu.used_bytes.unwrap_or(0).max(gpu.confirmed_live_bytes()));
    on_gpus.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_with_failures_without_end_has_a_share_and_others_have_theirs() {
        let (mut moments, second_ns) = (Moments::default(), 1_000_000_000);
        let mut allowed = |user, time_ns| (0..1000).filter(|_| moments.allows(Some(user), time_ns)).count();
        assert_eq!([allowed(1, second_ns), allowed(1, second_ns), allowed(2, second_ns)], [64, 0, 64]);
        assert_eq!([allowed(1, 2 * second_ns), allowed(1, 60 * second_ns)], [8, 64]);
        moments.forget(100 * second_ns);
        assert!(moments.even_ns.is_empty());
    }
}
