//! The slow look at what every process has mapped: when it is due, whose processes there are, and what has come of it so far.
//!
//! A thread lists the processes of each owner, which opens no file of theirs: a machine with 10,000 processes takes a tenth of a second to list. Each
//! owner's part is then looked at in the owner's own queue (`library_look`), and an owner whose part does not come back in time is left out of the sweep.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::clock;
use super::library::limits::Owner;
use super::library::{Discovery, numbers_in};
use super::library_look::owner_of;

/// Sweeps are no closer than this, even if something may have been missed: on a large machine each takes a while.
const CLOSEST: Duration = Duration::from_secs(2);
/// How long all parts of a sweep are waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which processes to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Among {
    /// All of the machine.
    Everybody,
    /// These.
    Processes(Vec<u32>),
}

/// The processes of each owner.
pub(crate) struct Listed {
    /// When they were listed: `CLOCK_BOOTTIME`, nanoseconds.
    pub(crate) begun_ns: u64,
    /// In ascending order.
    pub(crate) of_owners: BTreeMap<Owner, Vec<u32>>,
}

/// A sweep whose parts are being looked at.
pub(crate) struct Sweep {
    /// When it began: `CLOCK_BOOTTIME`, nanoseconds.
    pub(crate) begun_ns: u64,
    /// It is the one with which the watch begins.
    pub(crate) is_first: bool,
    /// The parts that have not come back.
    missing: BTreeMap<Owner, Vec<u32>>,
    /// The parts that nobody looks at: their owners have not given back an earlier one.
    left_out: BTreeMap<Owner, Vec<u32>>,
    found: Discovery,
    end: Instant,
}

/// The thread that lists processes, seen from outside, and the time of the next sweep. The thread ends with this.
pub(crate) struct Sweeper {
    orders: Sender<Among>,
    listed: Receiver<Listed>,
    every: Duration,
    last: Instant,
    next: Instant,
    at_work: bool,
    /// Owners who have not given back their part of an earlier sweep: they get no other one until then.
    behind: BTreeSet<Owner>,
}

impl Listed {
    /// Lists them on this thread.
    pub(crate) fn now(among: Among) -> Self {
        let begun_ns = clock::boottime_ns();
        let tgids = match among {
            Among::Everybody => numbers_in("/proc".as_ref()),
            Among::Processes(tgids) => tgids,
        };
        let mut of_owners = BTreeMap::<Owner, Vec<u32>>::new();
        for (owner, tgid) in tgids.into_iter().filter_map(|tgid| Some((owner_of(tgid)?, tgid))) {
            of_owners.entry(owner).or_default().push(tgid);
        }
        Self { begun_ns, of_owners }
    }
}

impl Sweep {
    /// An owner's part of a sweep has come back, of this one or an earlier one.
    pub(crate) fn take(&mut self, owner: Owner, begun_ns: u64, found: &Discovery) {
        if begun_ns == self.begun_ns && self.missing.remove(&owner).is_some() {
            self.found.merge(found);
        }
    }

    /// Whether nothing more is waited for.
    pub(crate) fn is_over(&self) -> bool {
        self.missing.is_empty() || Instant::now() >= self.end
    }

    /// What was found. Of the processes whose part is missing nothing is known.
    pub(crate) fn finish(self) -> Discovery {
        let Self { missing, left_out, mut found, .. } = self;
        for (owner, tgids) in missing.into_iter().chain(left_out) {
            log::info!("sweep: what the {} processes of {owner} have mapped is not known", tgids.len());
            found.merge(&Discovery::of_unseen(tgids));
        }
        found.denied.sort_unstable();
        found
    }
}

impl Sweeper {
    /// Starts the thread, which reports by `news` that there is a result; the first sweep begins `every` later.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub(crate) fn start(every: Duration, news: Arc<Notify>) -> std::io::Result<Self> {
        let (orders, ordered) = channel();
        let (done, listed) = channel();
        std::thread::Builder::new().name("processes".to_owned()).spawn(move || {
            for among in ordered {
                if done.send(Listed::now(among)).is_err() {
                    return;
                }
                news.notify_one();
            }
        })?;
        let last = Instant::now();
        Ok(Self { orders, listed, every, last, next: last + every, at_work: false, behind: BTreeSet::new() })
    }

    /// When the next sweep is to be ordered, or the one that goes on ends at the latest.
    pub(crate) fn due(&self, under_way: Option<&Sweep>) -> Option<Instant> {
        under_way.map(|sweep| sweep.end).or_else(|| (!self.at_work).then_some(self.next))
    }

    /// Whether the next sweep is to be ordered.
    pub(crate) fn is_due(&self) -> bool {
        !self.at_work && Instant::now() >= self.next
    }

    /// Has the processes listed with which a sweep begins.
    pub(crate) fn order(&mut self, among: Among) {
        // The thread ends only with this.
        self.at_work = self.orders.send(among).is_ok();
        self.last = Instant::now();
        self.next = self.last + self.every;
    }

    /// Lets the next sweep be due soon: something may have been missed.
    pub(crate) fn hurry(&mut self) {
        self.next = self.next.min(self.last + CLOSEST);
    }

    /// The processes that were ordered to be listed.
    pub(crate) fn listed(&mut self) -> Option<Listed> {
        self.listed.try_recv().ok()
    }

    /// Begins a sweep over these, and says whose parts are to be looked at.
    pub(crate) fn begin(&mut self, listed: Listed, is_first: bool) -> (Sweep, BTreeMap<Owner, Vec<u32>>) {
        self.at_work = true;
        let Listed { begun_ns, of_owners } = listed;
        let (left_out, missing): (BTreeMap<_, _>, BTreeMap<_, _>) =
            of_owners.into_iter().partition(|(owner, _)| self.behind.contains(owner));
        self.behind.extend(missing.keys());
        let (parts, found, end) = (missing.clone(), Discovery::default(), Instant::now() + PATIENCE);
        (Sweep { begun_ns, is_first, missing, left_out, found, end }, parts)
    }

    /// An owner has given back a part, of this sweep or an earlier one.
    pub(crate) fn note_part(&mut self, owner: Owner) {
        self.behind.remove(&owner);
    }

    /// A sweep has ended.
    pub(crate) fn note_end(&mut self) {
        self.at_work = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed() -> Listed {
        let of_owners = [(Owner::User(1), vec![10, 12]), (Owner::User(2), vec![11])].into();
        Listed { begun_ns: 5, of_owners }
    }

    #[test]
    fn a_sweep_without_one_owners_part_knows_nothing_of_that_owners_processes() {
        let mut sweeper = Sweeper::start(Duration::ZERO, Arc::new(Notify::new())).expect("a thread");
        let (mut sweep, parts) = sweeper.begin(listed(), false);
        assert_eq!((parts.len(), sweep.is_over(), sweeper.is_due()), (2, false, false));
        let part = Discovery::default();
        sweep.take(Owner::User(2), 5, &part);
        sweeper.note_part(Owner::User(2));
        sweep.end = Instant::now();
        assert!(sweep.is_over());
        let found = sweep.finish();
        assert_eq!((found.processes_denied, found.denied), (2, vec![10, 12]));
        sweeper.note_end();
        assert!(sweeper.is_due());
        let (mut sweep, parts) = sweeper.begin(Listed { begun_ns: 6, ..listed() }, false);
        assert_eq!(parts.into_keys().collect::<Vec<_>>(), [Owner::User(2)], "the other has a part still");
        sweep.take(Owner::User(2), 5, &part);
        assert!(!sweep.is_over(), "that was of the earlier sweep");
        sweep.take(Owner::User(2), 6, &part);
        assert!(sweep.is_over(), "nobody waits for the other");
        assert_eq!(sweep.finish().denied, [10, 12]);
        sweeper.note_part(Owner::User(1));
        sweeper.note_part(Owner::User(2));
        assert_eq!(sweeper.begin(listed(), false).1.len(), 2);
    }

    #[test]
    fn this_process_is_listed_with_its_owner() {
        let own = std::process::id();
        let of_all = Listed::now(Among::Everybody).of_owners;
        let owner = owner_of(own).expect("it runs");
        assert!(of_all[&owner].contains(&own));
        let of_some = Listed::now(Among::Processes(vec![own, 0])).of_owners;
        assert_eq!(of_some, [(owner, vec![own])].into());
    }
}
