//! Queue of processes for loader scans: processes with a new program, and processes that map a
//! library which CUDA programs map before the driver library.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::sources::library::limits::FileOwner;

/// Maximum queued processes of each kind. The sweep and the mapping records find what others map.
const MOST_WAITING: usize = 64;
/// Pause between two scans, so that a process that starts programs endlessly occupies a thread only
/// for a fraction of the time: one scan takes some 3 ms.
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);
/// Minimum interval between two scans of one process.
const BETWEEN_LOOKS_AT_ONE: Duration = Duration::from_millis(500);
/// A scan that takes longer blocks only further scans of the same owner.
const PATIENCE: Duration = Duration::from_millis(500);

/// The processes queued for a scan, and the running scans.
#[derive(Debug, Default)]
pub(super) struct Loaders {
    /// Processes with a new program. One may map the library within milliseconds.
    programs: BTreeSet<u32>,
    /// Processes reported by a mapping record.
    heralded: BTreeSet<u32>,
    looked: BTreeMap<u32, Instant>,
    /// Running scans by owner: the process and the start time.
    at_work: BTreeMap<FileOwner, (u32, Instant)>,
    last: Option<Instant>,
}

impl Loaders {
    /// Queues a process with a new program.
    pub(super) fn want(&mut self, tgid: u32) {
        if self.programs.len() < MOST_WAITING {
            self.programs.insert(tgid);
        }
    }

    /// Queues processes that have mapped a library which CUDA programs map before the driver's.
    pub(super) fn note(&mut self, tgids: Vec<u32>) {
        for tgid in tgids {
            let again = self.looked.get(&tgid).is_some_and(|looked| looked.elapsed() < BETWEEN_LOOKS_AT_ONE);
            if !again && self.heralded.len() < MOST_WAITING {
                self.heralded.insert(tgid);
            }
        }
    }

    /// Keeps only the wanted ones of the processes reported by a mapping record.
    pub(super) fn keep_wanted(&mut self, wanted: impl Fn(u32) -> bool) {
        self.heralded.retain(|tgid| wanted(*tgid));
    }

    /// Forgets a process that has exited.
    pub(super) fn forget(&mut self, tgid: u32) {
        self.programs.remove(&tgid);
        self.heralded.remove(&tgid);
        self.looked.remove(&tgid);
    }

    /// Returns the next process to scan; `None` during another scan or shortly after one. While an
    /// owner's scan takes long, the owner's other processes are left to the sweep and the mapping
    /// records.
    pub(super) fn next(&mut self, owner_of: impl Fn(u32) -> Option<FileOwner>) -> Option<u32> {
        let rests = self.last.is_some_and(|last| last.elapsed() < BETWEEN_LOOKS);
        if rests || self.looks_until().is_some() {
            return None;
        }
        let (tgid, owner) = loop {
            let tgid = self.programs.pop_first().or_else(|| self.heralded.pop_first())?;
            // A process that has exited is skipped.
            match owner_of(tgid) {
                Some(owner) if !self.at_work.contains_key(&owner) => break (tgid, owner),
                _ => {}
            }
        };
        if self.looked.len() >= MOST_WAITING {
            self.looked.retain(|_, looked| looked.elapsed() < BETWEEN_LOOKS_AT_ONE);
        }
        self.looked.insert(tgid, Instant::now());
        self.at_work.insert(owner, (tgid, Instant::now()));
        Some(tgid)
    }

    /// Returns when the running scans stop blocking those of other owners.
    fn looks_until(&self) -> Option<Instant> {
        let until = self.at_work.values().map(|(_, since)| *since + PATIENCE);
        until.filter(|until| *until > Instant::now()).max()
    }

    /// Returns when the next scan is due, if a process is queued.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        let waits = !self.programs.is_empty() || !self.heralded.is_empty();
        let after = self.looks_until().or_else(|| self.last.map(|last| last + BETWEEN_LOOKS));
        waits.then(|| after.unwrap_or(now))
    }

    /// Records the end of a scan.
    pub(super) fn done(&mut self, tgid: u32) {
        let before = self.at_work.len();
        self.at_work.retain(|_, (at_work, _)| *at_work != tgid);
        if self.at_work.len() != before {
            self.last = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives each process an owner of its own.
    fn own(tgid: u32) -> Option<FileOwner> {
        (tgid > 0).then_some(FileOwner::User(tgid))
    }

    #[test]
    fn loader_scan_that_hangs_does_not_block_other_owners() {
        let mut loaders = Loaders::default();
        let owner = |tgid: u32| (tgid != 8).then_some(FileOwner::User(tgid % 2));
        loaders.note(vec![1]);
        assert_eq!(loaders.next(owner), Some(1));
        loaders.note(vec![2, 3, 5, 8]);
        assert_eq!(loaders.next(owner), None);
        loaders.at_work.values_mut().for_each(|(_, since)| *since -= PATIENCE);
        assert_eq!(loaders.next(owner), Some(2));
        loaders.done(2);
        loaders.last = None;
        assert_eq!(
            (loaders.next(owner), loaders.heralded.len()),
            (None, 0),
            "3 and 5 are the other owner's, 8 has ended"
        );
        loaders.done(1);
        loaders.last = None;
        loaders.want(7);
        assert_eq!(loaders.next(owner), Some(7));
    }

    #[test]
    fn loader_scan_runs_one_at_a_time_with_new_programs_first() {
        let mut loaders = Loaders::default();
        loaders.note(vec![5, 6]);
        loaders.want(9);
        assert_eq!(loaders.next(own), Some(9));
        let now = Instant::now();
        assert_eq!(loaders.next(own), None, "9 is being looked at");
        assert!(loaders.due(now) > Some(now));
        loaders.done(8);
        assert_eq!(loaders.next(own), None, "that was another");
        loaders.done(9);
        assert!(loaders.due(now) >= Some(now + BETWEEN_LOOKS));
        loaders.last = None;
        assert_eq!(loaders.due(now), Some(now));
        loaders.keep_wanted(|tgid| tgid == 6);
        assert_eq!(loaders.next(own), Some(6));
    }

    #[test]
    fn loader_scan_queue_is_bounded_per_process() {
        let mut loaders = Loaders::default();
        loaders.note((0..10_000).collect());
        (0..10_000).for_each(|tgid| loaders.want(tgid));
        assert_eq!((loaders.heralded.len(), loaders.programs.len()), (MOST_WAITING, MOST_WAITING));
        loaders.forget(0);
        assert_eq!((loaders.heralded.len(), loaders.programs.len()), (MOST_WAITING - 1, MOST_WAITING - 1));
        let next = loaders.next(own).expect("one of the ones that wait");
        loaders.done(next);
        loaders.heralded.clear();
        loaders.note(vec![next]);
        assert!(loaders.heralded.is_empty(), "it has just been looked at");
    }
}
