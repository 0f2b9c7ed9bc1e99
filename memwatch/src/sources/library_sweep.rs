//! The slow look at what every process has mapped, in a thread of its own.
//!
//! A machine with 10,000 processes takes a quarter of a second to look through (25 µs each, Linux 6.18): the loop that fetches
//! records must not wait for that.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::clock;
use super::library::{Discovery, LibraryScan};

/// Sweeps are no closer than this, even if something may have been missed: on a large machine each takes a while.
const CLOSEST: Duration = Duration::from_secs(2);

/// Which processes to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Among {
    /// All of the machine.
    Everybody,
    /// These.
    Processes(Vec<u32>),
}

/// What a sweep found.
pub(crate) struct Swept {
    /// When it began: `CLOCK_BOOTTIME`, nanoseconds.
    pub(crate) begun_ns: u64,
    /// The files, and who maps them.
    pub(crate) found: Discovery,
}

/// The thread, seen from outside. It ends with this.
pub(crate) struct Sweeper {
    orders: Sender<Among>,
    results: Receiver<Swept>,
    every: Duration,
    last: Instant,
    next: Instant,
    at_work: bool,
}

impl Sweeper {
    /// Starts the thread, which reports by `news` that there is a result; the first sweep begins `every` later.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub(crate) fn start(scan: LibraryScan, every: Duration, news: Arc<Notify>) -> std::io::Result<Self> {
        let (orders, ordered) = channel();
        let (done, results) = channel();
        std::thread::Builder::new().name("libraries".to_owned()).spawn(move || {
            for among in ordered {
                let begun_ns = clock::boottime_ns();
                let found = match among {
                    Among::Everybody => scan.scan_all(),
                    Among::Processes(tgids) => scan.scan_processes(&tgids),
                };
                if done.send(Swept { begun_ns, found }).is_err() {
                    return;
                }
                news.notify_one();
            }
        })?;
        let last = Instant::now();
        Ok(Self { orders, results, every, last, next: last + every, at_work: false })
    }

    /// When the next sweep is to be ordered; `None` during one.
    pub(crate) fn due(&self) -> Option<Instant> {
        (!self.at_work).then_some(self.next)
    }

    /// Whether the next sweep is to be ordered.
    pub(crate) fn is_due(&self) -> bool {
        !self.at_work && Instant::now() >= self.next
    }

    /// Begins a sweep.
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

    /// What a sweep found that has ended.
    pub(crate) fn result(&mut self) -> Option<Swept> {
        let swept = self.results.try_recv().ok()?;
        self.at_work = false;
        Some(swept)
    }
}
