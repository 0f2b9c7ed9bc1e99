//! Work queues per owner for reading files and memory of other users. A file on FUSE or on a dead
//! NFS server, memory mapped from such a file, or a mapping in progress can block a thread for as
//! long as its owner likes. The thread then blocks only work of that owner.
//!
//! Work of different owners runs in parallel, on threads that start on demand and exit when idle.
//! Work that has not returned within [`Limits::patience`] is stuck: it does not count as concurrent
//! work any longer, and its owner gets a second thread, but never a third.

mod asking;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::library::limits::FileOwner;

pub(crate) use self::asking::OwnerQueries;

/// Maximum number of threads of one owner. The second starts only when the first is stuck.
const MOST_OF_OWNER: usize = 2;
/// Maximum amount of waiting work of one owner. Further work is refused.
const MOST_WAITING: usize = 1024;
/// Running time of work from which new work of its owner counts as [`Accepted::BehindStuck`].
const HELD: Duration = Duration::from_millis(50);

/// Limits of the threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum number of concurrent work items of users, excluding stuck ones. Root has a separate
    /// limit of the same size.
    pub(crate) busy: usize,
    /// Maximum number of threads for users, including stuck ones. Root has a separate limit of the
    /// same size.
    pub(crate) threads: usize,
    /// Running time from which work is stuck.
    pub(crate) patience: Duration,
    /// Time after which an idle thread exits.
    pub(crate) idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        // Examining an ordinary process takes milliseconds. More concurrency would only compete for
        // processors.
        Self { busy: 4, threads: 64, patience: Duration::from_secs(2), idle: Duration::from_secs(10) }
    }
}

/// Error: too much work of the owner is waiting, or no thread can be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueFull;

/// State of the queue that accepted the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accepted {
    /// The work runs in turn.
    InTurn,
    /// The work waits behind earlier work of the owner that has run for too long.
    BehindStuck,
}

type Work = Box<dyn FnOnce() + Send>;

/// Work queues by owner. Dropping them drops waiting work and abandons stuck threads.
///
/// Reads that another user can block, by queue:
///
/// | queue | reads |
/// |---|---|
/// | `library-files`, `library-sweeps`, `functions` | `maps`, and the mapped files: attributes,
/// first bytes, symbols, code |
/// | `loaders` | `environ`, `root`, `cwd`, and files of libraries and directories that a loader may
/// find there |
/// | `frameworks`, `mappings` | `maps` |
/// | `pytorch` | `maps`, and the libraries of frameworks: symbols, code |
/// | `counters` | a process's memory, its libraries, and the files of memory that it has not
/// accessed |
/// | `command-lines` | `cmdline` and `environ` |
///
/// Reading `stat`, `status`, `comm`, `cgroup`, `fd` and the links `exe` and `ns` needs no lock that
/// a process can hold (Linux 6.18, fs/proc), so any thread reads them. Memory of processes traced
/// for tensors is read between two fetches of records (`watch/session/allocator_state.rs`, `arenas.rs`,
/// `numbers.rs`, `python`): such a process was selected explicitly and can block only the session
/// that traces it. Live objects are read on a thread per process.
pub(crate) struct OwnerQueues {
    shared: Arc<SharedQueues>,
}

struct SharedQueues {
    /// Name of the queues and of their threads.
    name: &'static str,
    limits: Limits,
    queues: Mutex<Queues>,
    changed: Condvar,
}

#[derive(Default)]
struct Queues {
    waiting: BTreeMap<FileOwner, VecDeque<Work>>,
    /// Owners with waiting work, in the order in which they are served.
    turns: VecDeque<FileOwner>,
    running: BTreeMap<u64, RunningWork>,
    last_id: u64,
    idle_threads: usize,
    is_closed: bool,
}

struct RunningWork {
    owner: FileOwner,
    since: Instant,
    is_reported: bool,
}

impl OwnerQueues {
    /// Creates the queues without threads.
    pub(crate) fn new(name: &'static str) -> Self {
        Self::with(name, Limits::default())
    }

    /// Creates the queues with these limits.
    pub(crate) fn with(name: &'static str, limits: Limits) -> Self {
        let (queues, changed) = (Mutex::default(), Condvar::new());
        Self { shared: Arc::new(SharedQueues { name, limits, queues, changed }) }
    }

    /// Queues `work` behind earlier work of its owner. Returns at once.
    ///
    /// # Errors
    /// Too much work of this owner is waiting, or no thread can be started.
    pub(crate) fn order(&self, owner: FileOwner, work: impl FnOnce() + Send + 'static) -> Result<Accepted, QueueFull> {
        let mut queues = self.shared.lock();
        let is_stuck = |running: &RunningWork| running.since.elapsed() >= HELD;
        let is_behind = queues.running.values().any(|running| running.owner == owner && is_stuck(running));
        if queues.waiting.get(&owner).is_some_and(|own| own.len() >= MOST_WAITING) {
            return Err(QueueFull);
        }
        let accepted = if is_behind { Accepted::BehindStuck } else { Accepted::InTurn };
        queues.add(owner, Box::new(work));
        if !self.shared.provide_thread(&mut queues) && queues.running.is_empty() {
            queues.take_back(owner);
            return Err(QueueFull);
        }
        self.shared.changed.notify_one();
        Ok(accepted)
    }

    /// Returns the number of owners with stuck work.
    #[cfg(test)]
    fn stuck_owners(&self) -> usize {
        let queues = self.shared.lock();
        let is_stuck = |running: &&RunningWork| running.since.elapsed() >= self.shared.limits.patience;
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

impl SharedQueues {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        // Work runs without the lock, so a panic in it leaves the queues consistent.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ensures that a thread is available for waiting work. Returns false if the system refuses a
    /// thread.
    fn provide_thread(self: &Arc<Self>, queues: &mut Queues) -> bool {
        if queues.idle_threads > 0 || queues.turns.is_empty() {
            return true;
        }
        let shared = Arc::clone(self);
        match thread::Builder::new().name(self.name.to_owned()).spawn(move || shared.serve()) {
            Ok(_) => {
                // The thread counts as idle before it runs, so that no second thread is started in
                // its place.
                queues.idle_threads += 1;
                true
            }
            Err(error) => {
                log::warn!("{}: no thread for the work of another owner: {error}", self.name);
                false
            }
        }
    }

    /// Main loop of a thread: runs work until the thread has been idle for some time.
    fn serve(self: Arc<Self>) {
        let mut queues = self.lock();
        let mut since = Instant::now();
        loop {
            if let Some((id, work)) = queues.take(&self.limits) {
                queues.idle_threads -= 1;
                self.provide_thread(&mut queues);
                drop(queues);
                // A panic in one work item does not affect others.
                let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
                queues = self.lock();
                queues.finish(id, self.name);
                if ended.is_err() {
                    log::warn!("{}: a work item panicked", self.name);
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
    /// Adds work behind earlier work of its owner.
    fn add(&mut self, owner: FileOwner, work: Work) {
        let own = self.waiting.entry(owner).or_default();
        own.push_back(work);
        if own.len() == 1 {
            self.turns.push_back(owner);
        }
    }

    /// Removes the work of an owner that was added last. Earlier work was accepted and waits for a
    /// thread.
    fn take_back(&mut self, owner: FileOwner) {
        let Some(own) = self.waiting.get_mut(&owner) else { return };
        own.pop_back();
        if own.is_empty() {
            self.waiting.remove(&owner);
            self.turns.retain(|other| *other != owner);
        }
    }

    /// Takes the next work that may run at the moment.
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
        self.running.insert(self.last_id, RunningWork { owner, since: Instant::now(), is_reported: false });
        Some((self.last_id, work))
    }

    fn may_run(&self, owner: FileOwner, limits: &Limits) -> bool {
        let is_root = |owner: FileOwner| matches!(owner, FileOwner::Root(_));
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
        // If many owners are stuck, as with a dead file server, each gets one thread before any
        // owner gets two.
        let has_place = own == 0 || threads < limits.threads / 2;
        own < MOST_OF_OWNER && busy < limits.busy && threads < limits.threads && has_place
    }

    fn finish(&mut self, id: u64, name: &str) {
        if let Some(RunningWork { owner, since, is_reported: true }) = self.running.remove(&id) {
            log::warn!("{name}: {owner} answers again, after {} s", since.elapsed().as_secs());
        }
    }

    fn report_stuck(&mut self, limits: &Limits, name: &str) {
        for running in self.running.values_mut().filter(|running| !running.is_reported) {
            if running.since.elapsed() >= limits.patience {
                running.is_reported = true;
                log::warn!(
                    "{name}: reading a file or memory of {} is stuck; other users are not affected",
                    running.owner
                );
            }
        }
    }

    /// Returns the time until the next running work counts as stuck.
    fn next_stuck(&self, limits: &Limits) -> Option<Duration> {
        let left = self.running.values().filter_map(|running| limits.patience.checked_sub(running.since.elapsed()));
        left.filter(|left| !left.is_zero()).min()
    }
}

#[cfg(test)]
mod tests;
