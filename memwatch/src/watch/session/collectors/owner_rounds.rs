//! Reads the memory of processes at intervals, on the threads of the owner queues, so the ring never
//! waits: finding what is read takes milliseconds, and reading memory mapped from a file may block
//! for as long as the file server likes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::sources::library::limits::FileOwner;
use crate::sources::library_sweep::{Among, ProcessListing};
use crate::sources::owner_queues::{Accepted, OwnerQueues, QueueFull};

/// Readers of one owner's processes.
pub(super) trait RoundReader: Send + 'static {
    /// What one round over the processes has found.
    type Round: Send;

    /// Creates the readers without any process, for rounds at this interval.
    fn new(every: Duration) -> Self;

    /// Reads these processes, and forgets all others.
    fn round(&mut self, tgids: &BTreeSet<u32>) -> Self::Round;
}

/// Rounds over the processes of each owner.
#[derive(Debug)]
pub(super) struct OwnerRounds<R: RoundReader> {
    every: Duration,
    queues: OwnerQueues,
    /// Readers of each owner. An entry is absent while a thread uses it.
    readers: Arc<Mutex<BTreeMap<FileOwner, R>>>,
    report: Sender<(FileOwner, R::Round)>,
    read: Receiver<(FileOwner, R::Round)>,
    /// Time at which the last rounds were started.
    ordered: Option<Instant>,
    reading: BTreeSet<FileOwner>,
}

impl<R: RoundReader> OwnerRounds<R> {
    /// Creates the state with this interval. `name` is that of the threads.
    pub(super) fn new(name: &'static str, every: Duration) -> Self {
        let (report, read) = channel();
        Self {
            every,
            queues: OwnerQueues::new(name),
            readers: Arc::default(),
            report,
            read,
            ordered: None,
            reading: BTreeSet::new(),
        }
    }

    /// Returns the finished rounds and, when due, starts the next ones over the wanted processes.
    pub(super) fn advance(&mut self, wanted: impl FnOnce() -> BTreeSet<u32>) -> Vec<R::Round> {
        let mut rounds = Vec::new();
        while let Ok((owner, round)) = self.read.try_recv() {
            self.reading.remove(&owner);
            rounds.push(round);
        }
        if self.ordered.is_none_or(|ordered| ordered.elapsed() >= self.every) {
            self.ordered = Some(Instant::now());
            self.start(wanted());
        }
        rounds
    }

    fn start(&mut self, wanted: BTreeSet<u32>) {
        let of_owners = ProcessListing::now(Among::Processes(wanted.into_iter().collect())).of_owners;
        lock(&self.readers).retain(|owner, _| of_owners.contains_key(owner));
        for (owner, tgids) in of_owners {
            // An owner gets no new round until its previous one has answered.
            if !self.reading.contains(&owner) && self.order(owner, tgids.into_iter().collect()).is_ok() {
                self.reading.insert(owner);
            }
        }
    }

    fn order(&self, owner: FileOwner, tgids: BTreeSet<u32>) -> Result<Accepted, QueueFull> {
        let (readers, report, every) = (Arc::clone(&self.readers), self.report.clone(), self.every);
        self.queues.order(owner, move || {
            let own = lock(&readers).remove(&owner);
            let mut own = own.unwrap_or_else(|| R::new(every));
            let round = own.round(&tgids);
            lock(&readers).insert(owner, own);
            // The receiver is gone if the session has ended.
            let _ = report.send((owner, round));
        })
    }
}

/// Locks the readers. The lock is held only to move readers in and out, never while memory is read.
fn lock<R>(readers: &Mutex<BTreeMap<FileOwner, R>>) -> MutexGuard<'_, BTreeMap<FileOwner, R>> {
    readers.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Remembers the processes of the last round.
    struct LastProcesses(BTreeSet<u32>);

    impl RoundReader for LastProcesses {
        type Round = usize;

        fn new(_every: Duration) -> Self {
            Self(BTreeSet::new())
        }

        fn round(&mut self, tgids: &BTreeSet<u32>) -> usize {
            self.0.clone_from(tgids);
            tgids.len()
        }
    }

    #[test]
    fn a_round_of_each_owner_is_ordered_once_and_its_answer_is_awaited() {
        let own = std::process::id();
        let mut rounds = OwnerRounds::<LastProcesses>::new("rounds", Duration::ZERO);
        assert_eq!(rounds.advance(|| BTreeSet::from([own])).len(), 0);
        assert_eq!(rounds.reading.len(), 1);
        rounds.order(FileOwner::User(u32::MAX), BTreeSet::new()).expect("there is room");
        let answers = [(); 2].map(|()| rounds.read.recv().expect("threads report"));
        let known: usize = lock(&rounds.readers).values().map(|last| last.0.len()).sum();
        assert_eq!(known, 1, "one owner has this process");
        for answer in answers {
            rounds.report.send(answer).expect("the receiver is there");
        }
        // A round at once would be another one.
        rounds.every = Duration::MAX;
        assert_eq!(rounds.advance(BTreeSet::new).len(), 2);
        assert!(rounds.reading.is_empty());
    }
}
