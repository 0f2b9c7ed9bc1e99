//! What PyTorch's allocators have counted, of every process of a machine that has it: read from memory now and then, without a probe.
//!
//! A thread of its own reads, so that the ring never waits: to find the allocators of one process takes milliseconds, and there may be many. What it
//! takes to read another user's process is CAP_SYS_PTRACE.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use memwatch_core::input::books::{DeviceNumbers, Numbers};
use memwatch_core::input::{Input, LevelChoice, Measured};
use memwatch_core::words::Tgid;

use super::intake::Intake;
use crate::frameworks::pytorch::{BooksError, BooksReader, TensorLevel};
use crate::sources::clock;

/// A process in which PyTorch has no allocators yet is looked at again after twice the time that it was there by then, and after this at the latest.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The readings of a watch on a machine.
#[derive(Debug)]
pub(super) struct Counters {
    every: Duration,
    orders: Sender<BTreeSet<u32>>,
    read: Receiver<Round>,
    /// When the last round was ordered, and whether its answer is still to come.
    ordered: Option<Instant>,
    is_reading: bool,
    /// That a process may not be read was reported.
    is_refusal_reported: bool,
}

/// What one round has found.
#[derive(Debug, Default)]
struct Round {
    /// Of the processes whose allocators have other numbers than in the round before.
    numbers: Vec<Numbers>,
    /// One that may not be read.
    refused: Option<u32>,
}

impl Counters {
    /// Reads this often, if at all.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub(super) fn wanted(every: Option<Duration>) -> anyhow::Result<Option<Self>> {
        let started = every.map(Self::start).transpose();
        started.context("the thread that reads counters cannot be started")
    }

    fn start(every: Duration) -> io::Result<Self> {
        let (orders, ordered) = channel::<BTreeSet<u32>>();
        let (report, read) = channel();
        thread::Builder::new().name("counters".to_owned()).spawn(move || {
            let mut readers = Readers { every, known: BTreeMap::new() };
            for tgids in ordered {
                // Nobody listens any more once the watch has ended.
                if report.send(readers.round(&tgids)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { every, orders, read, ordered: None, is_reading: false, is_refusal_reported: false })
    }

    /// Takes in what was read, and orders the next round, of the processes that are wanted, where it is time.
    pub(super) fn advance(&mut self, pipeline: &mut Intake, wanted: impl FnOnce() -> BTreeSet<u32>) {
        match self.read.try_recv() {
            Ok(round) => self.take(round, pipeline),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
        }
        let is_due = self.ordered.is_none_or(|ordered| ordered.elapsed() >= self.every);
        if is_due && !self.is_reading {
            self.ordered = Some(Instant::now());
            // The thread ends only with this.
            self.is_reading = self.orders.send(wanted()).is_ok();
        }
    }

    fn take(&mut self, round: Round, pipeline: &mut Intake) {
        self.is_reading = false;
        for numbers in round.numbers {
            if pipeline.level_of(numbers.tgid).is_none() {
                pipeline.step(Input::TensorLevel(read_only(numbers.tgid)));
            }
            pipeline.step(Input::Numbers(Box::new(numbers)));
        }
        if let Some(tgid) = round.refused.filter(|_| !self.is_refusal_reported) {
            self.is_refusal_reported = true;
            eprintln!(
                "memwatch: what PyTorch has counted cannot be read from the memory of process {tgid}: not permitted (that takes cap_sys_ptrace, and \
                 kernel.yama.ptrace_scope below 3)"
            );
        }
    }
}

/// Nothing of a process is traced: its memory is read, which costs it nothing.
fn read_only(tgid: Tgid) -> LevelChoice {
    LevelChoice {
        tgid,
        time_ns: clock::boottime_ns(),
        asked: TensorLevel::Read,
        chosen: TensorLevel::Read,
        events_per_second: 0,
        asked_ns_per_second: 0,
        chosen_ns_per_second: 0,
        budget_ns_per_second: Some(0),
        trap_ns: None,
        windows: None,
        measured: Measured::Not,
    }
}

/// The thread's own.
struct Readers {
    every: Duration,
    known: BTreeMap<u32, Known>,
}

/// What is known of a process.
enum Known {
    /// It has PyTorch.
    Open { reader: Box<BooksReader>, last: Vec<DeviceNumbers> },
    /// It had none, or may not be read: when it was looked at, and for how long it is not again.
    Closed { looked: Instant, pause: Duration },
}

impl Readers {
    fn round(&mut self, tgids: &BTreeSet<u32>) -> Round {
        self.known.retain(|tgid, _| tgids.contains(tgid));
        let mut round = Round::default();
        for &tgid in tgids {
            match self.read(tgid) {
                Ok(Some(numbers)) => round.numbers.push(numbers),
                Ok(None) => {}
                Err(BooksError::Unreadable(io::ErrorKind::PermissionDenied)) => round.refused = Some(tgid),
                // It may have none yet, be in the midst of something, or have ended.
                Err(error) => log::debug!("process {tgid}: its allocators were not read: {error}"),
            }
        }
        round
    }

    /// What its allocators have counted, where that is something else than before.
    fn read(&mut self, tgid: u32) -> Result<Option<Numbers>, BooksError> {
        if let Some(Known::Closed { looked, pause }) = self.known.get(&tgid)
            && looked.elapsed() < *pause
        {
            return Ok(None);
        }
        if !matches!(self.known.get(&tgid), Some(Known::Open { .. })) {
            let opened = BooksReader::open(tgid);
            let Ok(Some(reader)) = opened else {
                self.close(tgid);
                return opened.map(|_| None);
            };
            self.known.insert(tgid, Known::Open { reader: Box::new(reader), last: Vec::new() });
        }
        let Some(Known::Open { reader, last }) = self.known.get_mut(&tgid) else { return Ok(None) };
        match reader.read_numbers() {
            Ok(numbers) if numbers.devices == *last => Ok(None),
            Ok(numbers) => {
                last.clone_from(&numbers.devices);
                Ok(Some(numbers))
            }
            Err(BooksError::Refused(refusal)) if refusal.is_passing() => Ok(None),
            Err(error) => {
                // Another image may be under the number by now.
                self.close(tgid);
                Err(error)
            }
        }
    }

    fn close(&mut self, tgid: u32) {
        let before = match self.known.get(&tgid) {
            Some(Known::Closed { pause, .. }) => *pause,
            Some(Known::Open { .. }) | None => Duration::ZERO,
        };
        let pause = (2 * before).clamp(self.every, LONGEST_PAUSE);
        self.known.insert(tgid, Known::Closed { looked: Instant::now(), pause });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_pytorch_is_looked_at_less_and_less_and_forgotten_when_it_has_gone() {
        let own = std::process::id();
        let own_only = BTreeSet::from([own]);
        let mut readers = Readers { every: Duration::ZERO, known: BTreeMap::new() };
        let pause = |readers: &Readers| match readers.known.get(&own) {
            Some(Known::Closed { pause, .. }) => Some(*pause),
            _ => None,
        };
        assert_eq!(readers.round(&own_only).numbers, []);
        assert_eq!(pause(&readers), Some(Duration::ZERO));
        readers.every = Duration::from_secs(5);
        for seconds in [5, 10, 20, 40, 60, 60] {
            readers.close(own);
            assert_eq!(pause(&readers), Some(Duration::from_secs(seconds)));
            assert!(readers.round(&own_only).refused.is_none(), "it is not looked at");
        }
        assert_eq!((readers.round(&BTreeSet::new()).numbers.len(), readers.known.len()), (0, 0));
    }

    #[test]
    fn a_round_is_ordered_once_and_its_answer_is_awaited() {
        let mut counters = Counters::start(Duration::ZERO).expect("a thread");
        let mut pipeline = Intake::new(memwatch_core::Pipeline::new(false), None);
        counters.advance(&mut pipeline, BTreeSet::new);
        assert!(counters.is_reading);
        let round = counters.read.recv().expect("the thread lives");
        counters.take(round, &mut pipeline);
        assert!(!counters.is_reading && !counters.is_refusal_reported);
    }
}
