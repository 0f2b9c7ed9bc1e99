//! PyTorch's own counters of every process on the machine, read from process memory at intervals,
//! without a probe.
//!
//! Counters are read on the threads of the owner queues, so the ring never waits: finding the
//! allocators of one process takes milliseconds, and reading memory mapped from a file may block
//! for as long as the file server likes. Reading another user's process needs CAP_SYS_PTRACE.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use memwatch_core::input::allocator_state::{AllocatorNumbers, DeviceNumbers};
use memwatch_core::input::{Input, LevelChoice, MeasuredSlowdown};
use memwatch_core::words::{Framework, Tgid};

use super::Collector;
use super::owner_rounds::{OwnerRounds, RoundReader};
use crate::frameworks::pytorch::{StateReadError, StateReader};
use crate::frameworks::watch::TensorLevel;
use crate::sources::clock;
use crate::watch::session::input_sink::InputSink;
use crate::watch::session::parts::SessionParts;

/// A process without PyTorch allocators is retried after a pause that doubles with each attempt, up
/// to this maximum.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Counter readings of a machine-wide session.
#[derive(Debug)]
pub(super) struct CounterPoller {
    rounds: OwnerRounds<Readers>,
    /// Whether a permission error was reported.
    is_refusal_reported: bool,
}

/// Result of one round over the processes of one owner.
#[derive(Debug)]
struct CounterRound {
    /// Processes whose counters differ from the previous round.
    numbers: Vec<AllocatorNumbers>,
    /// A process that memwatch is not permitted to read.
    refused: Option<u32>,
}

impl CounterPoller {
    /// Creates the state with this interval.
    pub(super) fn new(every: Duration) -> Self {
        Self { rounds: OwnerRounds::new("counters", every), is_refusal_reported: false }
    }

    fn take(&mut self, round: CounterRound, sink: &mut InputSink) {
        for numbers in round.numbers {
            if sink.state().level_of(numbers.tgid).is_none() {
                sink.step(Input::TensorLevel(read_only(numbers.tgid)));
            }
            sink.step(Input::Numbers(Box::new(numbers)));
        }
        if let Some(tgid) = round.refused.filter(|_| !self.is_refusal_reported) {
            self.is_refusal_reported = true;
            eprintln!(
                "memwatch: cannot read PyTorch's counters of process {tgid}: permission denied (needs cap_sys_ptrace, and \
                 kernel.yama.ptrace_scope below 3)"
            );
        }
    }
}

impl Collector for CounterPoller {
    fn collect_for_report(&mut self, parts: &mut SessionParts, _now_ns: u64) {
        let SessionParts { frameworks, sink, .. } = parts;
        for round in self.rounds.advance(|| frameworks.having(Framework::PyTorch)) {
            self.take(round, sink);
        }
    }
}

/// Returns the coverage of a process that is read and not traced, which costs the process nothing.
pub(crate) fn read_only(tgid: Tgid) -> LevelChoice {
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
        measured: MeasuredSlowdown::Not,
    }
}

/// Readers of one owner's processes.
#[derive(Debug)]
struct Readers {
    every: Duration,
    known: BTreeMap<u32, ProcessCounterReader>,
}

/// Reader of one process.
#[derive(Debug)]
enum ProcessCounterReader {
    /// The process has PyTorch allocators.
    Open { reader: Box<StateReader>, last: Vec<DeviceNumbers> },
    /// The process has no allocators, or memwatch lacks the permission: time of the attempt, and
    /// pause before the next.
    Closed { looked: Instant, pause: Duration },
}

impl RoundReader for Readers {
    type Round = CounterRound;

    fn new(every: Duration) -> Self {
        Self { every, known: BTreeMap::new() }
    }

    fn round(&mut self, tgids: &BTreeSet<u32>) -> CounterRound {
        self.known.retain(|tgid, _| tgids.contains(tgid));
        let (mut numbers, mut refused) = (Vec::new(), None);
        for &tgid in tgids {
            match self.read(tgid) {
                Ok(Some(own)) => numbers.push(own),
                Ok(None) => {}
                Err(StateReadError::Unreadable(io::ErrorKind::PermissionDenied)) => refused = Some(tgid),
                // The process may have no allocators yet, may be changing them, or may have exited.
                Err(error) => log::debug!("process {tgid}: its allocators were not read: {error}"),
            }
        }
        CounterRound { numbers, refused }
    }
}

impl Readers {
    /// Returns the counters if they differ from the last reading.
    fn read(&mut self, tgid: u32) -> Result<Option<AllocatorNumbers>, StateReadError> {
        if let Some(ProcessCounterReader::Closed { looked, pause }) = self.known.get(&tgid)
            && looked.elapsed() < *pause
        {
            return Ok(None);
        }
        if !matches!(self.known.get(&tgid), Some(ProcessCounterReader::Open { .. })) {
            let opened = StateReader::open(tgid);
            let Ok(Some(reader)) = opened else {
                self.close(tgid);
                return opened.map(|_| None);
            };
            self.known.insert(tgid, ProcessCounterReader::Open { reader: Box::new(reader), last: Vec::new() });
        }
        let Some(ProcessCounterReader::Open { reader, last }) = self.known.get_mut(&tgid) else { return Ok(None) };
        match reader.read_numbers() {
            Ok(numbers) if numbers.devices == *last => Ok(None),
            Ok(numbers) => {
                last.clone_from(&numbers.devices);
                Ok(Some(numbers))
            }
            Err(StateReadError::Refused(refusal)) if refusal.is_passing() => Ok(None),
            Err(error) => {
                // The process may have called exec meanwhile.
                self.close(tgid);
                Err(error)
            }
        }
    }

    fn close(&mut self, tgid: u32) {
        let before = match self.known.get(&tgid) {
            Some(ProcessCounterReader::Closed { pause, .. }) => *pause,
            Some(ProcessCounterReader::Open { .. }) | None => Duration::ZERO,
        };
        let pause = (2 * before).clamp(self.every, LONGEST_PAUSE);
        self.known.insert(tgid, ProcessCounterReader::Closed { looked: Instant::now(), pause });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_reader_backs_off_without_pytorch_and_forgets_ended_processes() {
        let own = std::process::id();
        let own_only = BTreeSet::from([own]);
        let mut readers = Readers { every: Duration::ZERO, known: BTreeMap::new() };
        let pause = |readers: &Readers| match readers.known.get(&own) {
            Some(ProcessCounterReader::Closed { pause, .. }) => Some(*pause),
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
}
