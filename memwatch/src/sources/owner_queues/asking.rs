//! Short queries about other users' processes, such as their command line, for which the poll loop
//! waits. They take microseconds, unless the process holds the lock of its address space (mmap(2)
//! of a file on FUSE may hold it for as long as the file server likes). In that case the loop
//! continues without an answer, and makes no further query about that owner's processes until the
//! answer arrives.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use super::{Limits, OwnerQueues};
use crate::sources::library::limits::FileOwner;

/// Maximum time to wait for an answer. It is long enough for an overloaded machine.
const WAIT: Duration = Duration::from_millis(250);
/// Maximum time to wait for an owner whose answer was late, during [`PROBATION`] after that.
const SHORT_WAIT: Duration = Duration::from_millis(2);
const PROBATION: Duration = Duration::from_secs(30);
/// Maximum number of processes stored to be queried again because their query got no answer.
const MOST_UNANSWERED: usize = 4096;
/// Number of queries repeated at a time.
const MOST_AGAIN: usize = 16;

/// Queries of one kind.
pub(crate) struct OwnerQueries<T> {
    queues: OwnerQueues,
    report: Sender<(FileOwner, u32, T)>,
    answers: Receiver<(FileOwner, u32, T)>,
    /// Process of the unanswered query, by owner.
    open: BTreeMap<FileOwner, u32>,
    /// Time at which an answer was late, by owner.
    late: BTreeMap<FileOwner, Instant>,
    /// Processes whose query got no answer in time.
    unanswered: BTreeMap<u32, FileOwner>,
}

impl<T: Send + 'static> OwnerQueries<T> {
    /// Creates the state without queries.
    pub(crate) fn new(name: &'static str) -> Self {
        Self::with(name, Limits::default())
    }

    fn with(name: &'static str, limits: Limits) -> Self {
        let (report, answers) = channel();
        let (open, late, unanswered) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { queues: OwnerQueues::with(name, limits), report, answers, open, late, unanswered }
    }

    /// Queries a process of this owner. Returns `None` if the answer does not arrive in time.
    pub(crate) fn ask(
        &mut self,
        owner: FileOwner,
        tgid: u32,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.take_late_answers();
        self.unanswered.remove(&tgid);
        if !self.open.contains_key(&owner) {
            let report = self.report.clone();
            let answer = move || {
                // The receiver is gone if the session has ended.
                let _ = report.send((owner, tgid, question()));
            };
            if self.queues.order(owner, answer).is_ok() {
                self.open.insert(owner, tgid);
                if let Some(answer) = self.wait(owner) {
                    return Some(answer);
                }
            }
        }
        if self.unanswered.len() < MOST_UNANSWERED {
            self.unanswered.insert(tgid, owner);
        }
        None
    }

    fn wait(&mut self, owner: FileOwner) -> Option<T> {
        self.late.retain(|_, late| late.elapsed() < PROBATION);
        let wait = if self.late.contains_key(&owner) { SHORT_WAIT } else { WAIT };
        let end = Instant::now() + wait;
        loop {
            let Ok((from, _, answer)) = self.answers.recv_timeout(end.saturating_duration_since(Instant::now())) else {
                self.late.insert(owner, Instant::now());
                return None;
            };
            self.open.remove(&from);
            if from == owner {
                return Some(answer);
            }
        }
    }

    /// Takes some of the processes without an answer whose owners have answered since.
    pub(crate) fn again(&mut self) -> Vec<u32> {
        if self.unanswered.is_empty() {
            return Vec::new();
        }
        self.take_late_answers();
        let is_free = |(_, owner): &(&u32, &FileOwner)| !self.open.contains_key(owner);
        let again: Vec<u32> = self.unanswered.iter().filter(is_free).map(|(tgid, _)| *tgid).take(MOST_AGAIN).collect();
        self.unanswered.retain(|tgid, _| !again.contains(tgid));
        again
    }

    fn take_late_answers(&mut self) {
        while let Ok((owner, ..)) = self.answers.try_recv() {
            self.open.remove(&owner);
        }
    }
}

impl<T> fmt::Debug for OwnerQueries<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asking")
            .field("open", &self.open)
            .field("unanswered", &self.unanswered.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_without_an_answer_is_not_waited_for_again_until_there_is_one() {
        let mut asking = OwnerQueries::new("test");
        let (greedy, other) = (FileOwner::User(1), FileOwner::User(2));
        let (release, released) = channel::<()>();
        assert_eq!(asking.ask(greedy, 10, || 1), Some(1));
        assert_eq!(asking.ask(greedy, 11, move || drop_at_end(&released)), None);
        assert_eq!(asking.ask(greedy, 12, || 3), None, "it is not even asked");
        assert_eq!(asking.ask(other, 20, || 4), Some(4));
        assert_eq!(asking.again(), Vec::<u32>::new());
        drop(release);
        let mut again = Vec::new();
        while again.is_empty() {
            std::thread::sleep(Duration::from_millis(5));
            again = asking.again();
        }
        assert_eq!(again, [11_u32, 12]);
        assert_eq!(asking.again(), Vec::<u32>::new(), "each is named once");
        // A query whose answer was late is repeated.
        while asking.ask(greedy, 12, || 6).is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn drop_at_end(released: &Receiver<()>) -> i32 {
        let _ = released.recv();
        2
    }
}
