//! Sweeps over the mappings of every process: schedule, processes by owner, and progress.
//!
//! A thread lists the processes of each owner without opening their files; 10,000 processes take
//! 0.1 s. Each owner's part is then examined in the owner's queue (`library_look`). A part that
//! does not return in time is left out of the sweep.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::clock;
use super::library::limits::FileOwner;
use super::library::{Discovery, numbers_in};
use super::library_look::owner_of;

/// Minimum interval of sweeps, even if mappings may have been missed, since a sweep of a large
/// machine takes a while.
const CLOSEST: Duration = Duration::from_secs(2);
/// Time limit for all parts of a sweep.
const PATIENCE: Duration = Duration::from_secs(10);

/// Processes to sweep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Among {
    /// All processes of the machine.
    Everybody,
    /// These processes.
    Processes(Vec<u32>),
}

/// Processes by owner.
pub(crate) struct ProcessListing {
    /// Time of the listing: `CLOCK_BOOTTIME`, nanoseconds.
    pub(crate) begun_ns: u64,
    /// Processes in ascending order, by owner.
    pub(crate) of_owners: BTreeMap<FileOwner, Vec<u32>>,
}

/// A running sweep.
pub(crate) struct Sweep {
    /// Start of the sweep: `CLOCK_BOOTTIME`, nanoseconds.
    pub(crate) begun_ns: u64,
    /// Whether it is the first sweep of the session.
    pub(crate) is_first: bool,
    /// Parts that have not returned yet.
    missing: BTreeMap<FileOwner, Vec<u32>>,
    /// Parts that were skipped, since their owners have not returned an earlier part.
    left_out: BTreeMap<FileOwner, Vec<u32>>,
    found: Discovery,
    end: Instant,
}

/// Handle of the listing thread, and schedule of the sweeps. The thread exits when the handle is
/// dropped.
pub(crate) struct Sweeper {
    orders: Sender<Among>,
    listed: Receiver<ProcessListing>,
    every: Duration,
    last: Instant,
    next: Instant,
    at_work: bool,
    /// Owners with a pending part of an earlier sweep. They get no other part until it returns.
    behind: BTreeSet<FileOwner>,
}

impl ProcessListing {
    /// Lists the processes on the calling thread.
    pub(crate) fn now(among: Among) -> Self {
        let begun_ns = clock::boottime_ns();
        let tgids = match among {
            Among::Everybody => numbers_in("/proc".as_ref()),
            Among::Processes(tgids) => tgids,
        };
        let mut of_owners = BTreeMap::<FileOwner, Vec<u32>>::new();
        for (owner, tgid) in tgids.into_iter().filter_map(|tgid| Some((owner_of(tgid)?, tgid))) {
            of_owners.entry(owner).or_default().push(tgid);
        }
        Self { begun_ns, of_owners }
    }
}

impl Sweep {
    /// Adds a returned part, which may belong to an earlier sweep.
    pub(crate) fn take(&mut self, owner: FileOwner, begun_ns: u64, found: &Discovery) {
        if begun_ns == self.begun_ns && self.missing.remove(&owner).is_some() {
            self.found.merge(found);
        }
    }

    /// Whether no part is pending, or the time limit is reached.
    pub(crate) fn is_over(&self) -> bool {
        self.missing.is_empty() || Instant::now() >= self.end
    }

    /// Returns the result of the sweep. The mappings of processes in missing parts are unknown.
    pub(crate) fn finish(self) -> Discovery {
        let Self { missing, left_out, mut found, .. } = self;
        for (owner, tgids) in missing.into_iter().chain(left_out) {
            log::info!("sweep: the mappings of {} processes of {owner} are unknown", tgids.len());
            found.merge(&Discovery::of_unseen(tgids));
        }
        found.denied.sort_unstable();
        found
    }
}

impl Sweeper {
    /// Starts the thread, which signals results through `news`. The first sweep is due after
    /// `every`.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn start(every: Duration, news: Arc<Notify>) -> std::io::Result<Self> {
        let (orders, ordered) = channel();
        let (done, listed) = channel();
        std::thread::Builder::new().name("processes".to_owned()).spawn(move || {
            for among in ordered {
                if done.send(ProcessListing::now(among)).is_err() {
                    return;
                }
                news.notify_one();
            }
        })?;
        let last = Instant::now();
        Ok(Self { orders, listed, every, last, next: last + every, at_work: false, behind: BTreeSet::new() })
    }

    /// Returns when the next sweep is due, or when the running one times out.
    pub(crate) fn due(&self, under_way: Option<&Sweep>) -> Option<Instant> {
        under_way.map(|sweep| sweep.end).or_else(|| (!self.at_work).then_some(self.next))
    }

    /// Whether the next sweep is due.
    pub(crate) fn is_due(&self) -> bool {
        !self.at_work && Instant::now() >= self.next
    }

    /// Requests the listing that starts a sweep.
    pub(crate) fn order(&mut self, among: Among) {
        // The thread exits only after this value is dropped.
        self.at_work = self.orders.send(among).is_ok();
        self.last = Instant::now();
        self.next = self.last + self.every;
    }

    /// Schedules the next sweep soon, because mappings may have been missed.
    pub(crate) fn hurry(&mut self) {
        self.next = self.next.min(self.last + CLOSEST);
    }

    /// Takes the requested listing.
    pub(crate) fn listed(&mut self) -> Option<ProcessListing> {
        self.listed.try_recv().ok()
    }

    /// Starts a sweep over these processes. Returns the parts to examine.
    pub(crate) fn begin(&mut self, listed: ProcessListing, is_first: bool) -> (Sweep, BTreeMap<FileOwner, Vec<u32>>) {
        self.at_work = true;
        let ProcessListing { begun_ns, of_owners } = listed;
        let (left_out, missing): (BTreeMap<_, _>, BTreeMap<_, _>) =
            of_owners.into_iter().partition(|(owner, _)| self.behind.contains(owner));
        self.behind.extend(missing.keys());
        let (parts, found, end) = (missing.clone(), Discovery::default(), Instant::now() + PATIENCE);
        (Sweep { begun_ns, is_first, missing, left_out, found, end }, parts)
    }

    /// Notes that a part of this sweep or an earlier one has returned.
    pub(crate) fn note_part(&mut self, owner: FileOwner) {
        self.behind.remove(&owner);
    }

    /// Notes that the sweep is finished, so that the next one can be scheduled.
    pub(crate) fn note_end(&mut self) {
        self.at_work = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed() -> ProcessListing {
        let of_owners = [(FileOwner::User(1), vec![10, 12]), (FileOwner::User(2), vec![11])].into();
        ProcessListing { begun_ns: 5, of_owners }
    }

    #[test]
    fn a_sweep_without_one_owners_part_knows_nothing_of_that_owners_processes() {
        let mut sweeper = Sweeper::start(Duration::ZERO, Arc::new(Notify::new())).expect("a thread");
        let (mut sweep, parts) = sweeper.begin(listed(), false);
        assert_eq!((parts.len(), sweep.is_over(), sweeper.is_due()), (2, false, false));
        let part = Discovery::default();
        sweep.take(FileOwner::User(2), 5, &part);
        sweeper.note_part(FileOwner::User(2));
        sweep.end = Instant::now();
        assert!(sweep.is_over());
        let found = sweep.finish();
        assert_eq!((found.processes_denied, found.denied), (2, vec![10, 12]));
        sweeper.note_end();
        assert!(sweeper.is_due());
        let (mut sweep, parts) = sweeper.begin(ProcessListing { begun_ns: 6, ..listed() }, false);
        assert_eq!(parts.into_keys().collect::<Vec<_>>(), [FileOwner::User(2)], "the other has a part still");
        sweep.take(FileOwner::User(2), 5, &part);
        assert!(!sweep.is_over(), "that was of the earlier sweep");
        sweep.take(FileOwner::User(2), 6, &part);
        assert!(sweep.is_over(), "nobody waits for the other");
        assert_eq!(sweep.finish().denied, [10, 12]);
        sweeper.note_part(FileOwner::User(1));
        sweeper.note_part(FileOwner::User(2));
        assert_eq!(sweeper.begin(listed(), false).1.len(), 2);
    }

    #[test]
    fn this_process_is_listed_with_its_owner() {
        let own = std::process::id();
        let of_all = ProcessListing::now(Among::Everybody).of_owners;
        let owner = owner_of(own).expect("it runs");
        assert!(of_all[&owner].contains(&own));
        let of_some = ProcessListing::now(Among::Processes(vec![own, 0])).of_owners;
        assert_eq!(of_some, [(owner, vec![own])].into());
    }
}
