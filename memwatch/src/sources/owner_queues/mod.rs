//! Work on strangers' files and memory, queued per owner: a file on FUSE or on a dead NFS server, memory that is mapped from one, or a mapping that is
//! being made from one may hold a thread for as long as its owner likes, and then holds only that owner's work.
//!
//! Work of different owners runs side by side on threads that start when there is work and end when there is none. Work that has not come back within
//! [`Limits::patience`] is stuck: it no longer takes the place of other work, and its owner gets one more thread, but never a third.

mod asking;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::library::limits::Owner;

pub(crate) use self::asking::Asking;

/// Threads of one owner: a second starts only when the first is stuck.
const MOST_OF_OWNER: usize = 2;
/// Work of one owner that waits; more is refused.
const MOST_WAITING: usize = 1024;
/// Work that takes longer is hardly worth waiting for.
const HELD: Duration = Duration::from_millis(50);

/// How many threads there are, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Users' work that runs at once, stuck work excluded. Root's has as many places of its own.
    pub(crate) busy: usize,
    /// Threads that users' work may occupy, stuck work included; root's again has as many of its own.
    pub(crate) threads: usize,
    /// After how long work is stuck.
    pub(crate) patience: Duration,
    /// How long a thread without work stays.
    pub(crate) idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        // A look of a usual process takes milliseconds: more at once would only compete for processors.
        Self { busy: 4, threads: 64, patience: Duration::from_secs(2), idle: Duration::from_secs(10) }
    }
}

/// The owner's queue is full: its work is stuck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueFull;

/// What becomes of accepted work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accepted {
    /// It runs when it is its turn.
    InTurn,
    /// Its owner holds earlier work for longer than that takes.
    BehindStuck,
}

type Work = Box<dyn FnOnce() + Send>;

/// The queues. Work that waits is dropped with them; a thread that is stuck is left behind.
///
/// What a stranger can hold, and where it is read:
///
/// | queue | reads |
/// |---|---|
/// | `library-files`, `library-sweeps`, `functions` | `maps`, and the files that are mapped: attributes, first bytes, symbols, code |
/// | `loaders` | `environ`, `root`, `cwd`, and files of libraries and directories that a loader may find there |
/// | `frameworks`, `mappings` | `maps` |
/// | `pytorch` | `maps`, and the libraries of frameworks: symbols, code |
/// | `counters` | a process's memory, its libraries, and files of memory that it has not touched |
/// | `command-lines` | `cmdline` and `environ` |
///
/// `stat`, `status`, `comm`, `cgroup`, `fd` and the links `exe` and `ns` need no lock that a process can hold (Linux 6.18, fs/proc), and any thread reads
/// them. Memory of processes that are traced for their tensors is read between two fetches of records (`watch/session/books.rs`, `arenas.rs`,
/// `numbers.rs`, `python`): such a process was named, and holds the watch on it. What it holds by name is read on a thread of that process alone.
pub(crate) struct OwnerQueues {
    shared: Arc<Shared>,
}

struct Shared {
    /// Also the threads' name.
    name: &'static str,
    limits: Limits,
    queues: Mutex<Queues>,
    changed: Condvar,
}

#[derive(Default)]
struct Queues {
    waiting: BTreeMap<Owner, VecDeque<Work>>,
    /// The owners with waiting work, in the order in which they are served.
    turns: VecDeque<Owner>,
    running: BTreeMap<u64, Running>,
    last_id: u64,
    idle_threads: usize,
    is_closed: bool,
}

struct Running {
    owner: Owner,
    since: Instant,
    is_reported: bool,
}

impl OwnerQueues {
    /// No work and no thread yet.
    pub(crate) fn new(name: &'static str) -> Self {
        Self::with(name, Limits::default())
    }

    /// The same with other limits.
    pub(crate) fn with(name: &'static str, limits: Limits) -> Self {
        let (queues, changed) = (Mutex::default(), Condvar::new());
        Self { shared: Arc::new(Shared { name, limits, queues, changed }) }
    }

    /// Runs this after the other work of its owner. Returns at once.
    ///
    /// # Errors
    /// Too much work of this owner waits, or there is no thread to be had.
    pub(crate) fn order(&self, owner: Owner, work: impl FnOnce() + Send + 'static) -> Result<Accepted, QueueFull> {
        let mut queues = self.shared.lock();
        let is_stuck = |running: &Running| running.since.elapsed() >= HELD;
        let is_behind = queues.running.values().any(|running| running.owner == owner && is_stuck(running));
        let own = queues.waiting.entry(owner).or_default();
        if own.len() >= MOST_WAITING {
            return Err(QueueFull);
        }
        let accepted = if is_behind { Accepted::BehindStuck } else { Accepted::InTurn };
        own.push_back(Box::new(work));
        if own.len() == 1 {
            queues.turns.push_back(owner);
        }
        if !self.shared.provide_thread(&mut queues) && queues.running.is_empty() {
            queues.waiting.remove(&owner);
            queues.turns.retain(|other| *other != owner);
            return Err(QueueFull);
        }
        self.shared.changed.notify_one();
        Ok(accepted)
    }

    /// How many owners have stuck work now.
    #[cfg(test)]
    fn stuck_owners(&self) -> usize {
        let queues = self.shared.lock();
        let is_stuck = |running: &&Running| running.since.elapsed() >= self.shared.limits.patience;
        let owners = queues.running.values().filter(is_stuck).map(|running| running.owner);
        owners.collect::<std::collections::BTreeSet<_>>().len()
    }
}

impl Drop for OwnerQueues {
    fn drop(&mut self) {
        let mut queues = self.shared.lock();
        queues.is_closed = true;
        queues.waiting.clear();
        queues.turns.clear();
        self.shared.changed.notify_all();
    }
}

impl fmt::Debug for OwnerQueues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnerQueues").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        // Work runs without the lock: whoever panicked left the queues whole.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has one thread wait for work as long as there is any. False: the system has none to give.
    fn provide_thread(self: &Arc<Self>, queues: &mut Queues) -> bool {
        if queues.idle_threads > 0 || queues.turns.is_empty() {
            return true;
        }
        let shared = Arc::clone(self);
        match thread::Builder::new().name(self.name.to_owned()).spawn(move || shared.serve()) {
            Ok(_) => {
                // It waits from now on: until it runs, nobody starts another in its place.
                queues.idle_threads += 1;
                true
            }
            Err(error) => {
                log::warn!("{}: no thread for the work of another owner: {error}", self.name);
                false
            }
        }
    }

    /// A thread: takes work until there is none for some time.
    fn serve(self: Arc<Self>) {
        let mut queues = self.lock();
        let mut since = Instant::now();
        loop {
            if let Some((id, work)) = queues.take(&self.limits) {
                queues.idle_threads -= 1;
                self.provide_thread(&mut queues);
                drop(queues);
                // The work of others goes on even if this work panics.
                let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
                queues = self.lock();
                queues.finish(id, self.name);
                if ended.is_err() {
                    log::warn!("{}: a look has failed", self.name);
                }
                queues.idle_threads += 1;
                since = Instant::now();
                continue;
            }
            queues.report_stuck(&self.limits, self.name);
            let is_needed = !queues.turns.is_empty() && queues.idle_threads == 1;
            if queues.is_closed || (since.elapsed() >= self.limits.idle && !is_needed) {
                queues.idle_threads -= 1;
                return;
            }
            let pause = queues.next_stuck(&self.limits).unwrap_or(self.limits.idle).min(self.limits.idle);
            let waited = self.changed.wait_timeout(queues, pause.max(Duration::from_millis(1)));
            queues = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Queues {
    /// The next work that may run now.
    fn take(&mut self, limits: &Limits) -> Option<(u64, Work)> {
        let place = self.turns.iter().position(|owner| self.may_run(*owner, limits))?;
        let owner = self.turns.remove(place)?;
        let own = self.waiting.get_mut(&owner)?;
        let work = own.pop_front()?;
        if own.is_empty() {
            self.waiting.remove(&owner);
        } else {
            self.turns.push_back(owner);
        }
        self.last_id += 1;
        self.running.insert(self.last_id, Running { owner, since: Instant::now(), is_reported: false });
        Some((self.last_id, work))
    }

    fn may_run(&self, owner: Owner, limits: &Limits) -> bool {
        let is_root = |owner: Owner| matches!(owner, Owner::Root(_));
        let (mut own, mut busy, mut threads) = (0, 0, 0);
        for running in self.running.values().filter(|running| is_root(running.owner) == is_root(owner)) {
            let is_stuck = running.since.elapsed() >= limits.patience;
            if running.owner == owner && !is_stuck {
                return false;
            }
            own += usize::from(running.owner == owner);
            busy += usize::from(!is_stuck);
            threads += 1;
        }
        // Where many owners are stuck, as with a dead file server, each keeps one thread rather than some two.
        let has_place = own == 0 || threads < limits.threads / 2;
        own < MOST_OF_OWNER && busy < limits.busy && threads < limits.threads && has_place
    }

    fn finish(&mut self, id: u64, name: &str) {
        if let Some(Running { owner, since, is_reported: true }) = self.running.remove(&id) {
            log::warn!("{name}: {owner} answers again, after {} s", since.elapsed().as_secs());
        }
    }

    fn report_stuck(&mut self, limits: &Limits, name: &str) {
        for running in self.running.values_mut().filter(|running| !running.is_reported) {
            if running.since.elapsed() >= limits.patience {
                running.is_reported = true;
                log::warn!(
                    "{name}: a file or memory of {} does not answer; looks at other users' go on",
                    running.owner
                );
            }
        }
    }

    /// How long until work that runs counts as stuck.
    fn next_stuck(&self, limits: &Limits) -> Option<Duration> {
        let left = self.running.values().filter_map(|running| limits.patience.checked_sub(running.since.elapsed()));
        left.filter(|left| !left.is_zero()).min()
    }
}

#[cfg(test)]
mod tests;
