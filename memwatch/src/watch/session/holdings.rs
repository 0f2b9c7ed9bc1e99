//! Schedules reading live objects by name: once for a process older than the session, and at
//! intervals where requested.
//!
//! A reading takes up to a second and needs no probe. It runs in its own thread, so the ring never
//! waits for it.

use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use memwatch_core::input::Input;
use memwatch_core::input::holdings::Holdings;
use memwatch_inspect::pytorch::ReadRefusal;

use super::input_sink::InputSink;
use crate::frameworks::pytorch::{HoldingsReader, NAMES_TIME, StateReadError};
use crate::frameworks::watch::TensorLevel;
use crate::sources::clock::thread_ns;
use crate::sources::free_memory;

/// Minimum pause after a reading, as a multiple of its processor time. Time spent waiting for a
/// processor does not count.
const SPARING: u32 = 20;
/// Retry interval for a process that has loaded PyTorch and has no memory allocated yet.
const LATER: Duration = Duration::from_secs(1);
/// Maximum number of such retries.
const TRIES: u32 = 10;

/// Interval for a screen and for a recording.
pub(crate) const ON_SCREEN: Duration = Duration::from_secs(10);
pub(crate) const IN_RECORDING: Duration = Duration::from_secs(60);
/// Delay of the second reading. Each later delay doubles, since most objects that hold memory
/// appear early.
const SOON: Duration = Duration::from_secs(5);
/// Maximum time to wait for a reading.
pub(crate) const LONGEST_READING: Duration = Duration::from_secs(10);

/// Readings of one process.
#[derive(Debug, Default)]
pub(super) struct ProcessHoldings {
    state: LiveObjectsState,
    /// Names are wanted for memory that is older than the session.
    names_older: bool,
    /// End and processor time of the last reading.
    last: Option<(Instant, Duration)>,
    /// Number of readings with a result.
    with_result: u32,
    /// Number of consecutive readings without a result.
    without_result: u32,
    /// A reading was requested outside the schedule.
    is_asked_for: bool,
}

#[derive(Debug, Default)]
enum LiveObjectsState {
    #[default]
    NotOpened,
    Open(Box<HoldingsReader>),
    Reads(Receiver<Done>),
    /// The process cannot be read.
    Refused,
}

/// A finished reading.
#[derive(Debug)]
struct Done {
    reader: Option<Box<HoldingsReader>>,
    read: Result<Holdings, StateReadError>,
    /// Processor time of the reading.
    took: Duration,
}

impl ProcessHoldings {
    /// Creates a schedule without any reading, for a session that traces this much. Counters and
    /// sizes of blocks need no names.
    pub(super) fn new(level: TensorLevel) -> Self {
        Self { names_older: level != TensorLevel::Blocks, ..Self::default() }
    }

    /// Starts a due reading, and processes a finished one. `is_older`: the process is older than
    /// the session. `every`: the requested interval, if any.
    pub(super) fn advance(&mut self, tgid: u32, (is_older, every): (bool, Option<Duration>), sink: &mut InputSink) {
        if let LiveObjectsState::Reads(done) = &self.state {
            match done.try_recv() {
                Ok(done) => self.take(tgid, done, sink),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => self.state = LiveObjectsState::Refused,
            }
        }
        let now = Instant::now();
        if !matches!(self.state, LiveObjectsState::Reads(_))
            && self.due((is_older, every), now).is_some_and(|due| due <= now)
        {
            self.begin(tgid);
        }
    }

    /// Returns when the next work is due: starting a reading, or polling the running one.
    pub(super) fn due(&self, (is_older, every): (bool, Option<Duration>), now: Instant) -> Option<Instant> {
        match self.state {
            LiveObjectsState::Refused => return None,
            LiveObjectsState::Reads(_) => return Some(now),
            LiveObjectsState::NotOpened | LiveObjectsState::Open(_) => {}
        }
        let Some((ended, took)) = self.last else {
            return ((is_older && self.names_older) || every.is_some() || self.is_asked_for).then_some(now);
        };
        if self.is_asked_for {
            return Some(now);
        }
        let soon = SOON.saturating_mul(1 << self.with_result.saturating_sub(1).min(8));
        let pause = if self.without_result > 0 { Some(LATER) } else { every.map(|every| every.min(soon)) };
        pause.filter(|_| self.without_result < TRIES).map(|pause| ended + pause.max(took * SPARING))
    }

    fn begin(&mut self, tgid: u32) {
        let reader = match std::mem::take(&mut self.state) {
            LiveObjectsState::Open(reader) => Some(reader),
            _ => None,
        };
        self.is_asked_for = false;
        let (sender, done) = channel();
        let thread = thread::Builder::new().name(format!("read {tgid}")).spawn(move || {
            let done = read(tgid, reader);
            free_memory::release();
            // The receiver is gone if the session has ended.
            let _ = sender.send(done);
        });
        self.state = match thread {
            Ok(_) => LiveObjectsState::Reads(done),
            Err(error) => {
                log::warn!("process {tgid}: cannot read its live objects: {error}");
                LiveObjectsState::Refused
            }
        };
    }

    fn take(&mut self, tgid: u32, done: Done, sink: &mut InputSink) {
        self.last = Some((Instant::now(), done.took));
        self.state = done.reader.map_or(LiveObjectsState::NotOpened, LiveObjectsState::Open);
        match done.read {
            Ok(holdings) => {
                (self.with_result, self.without_result) = (self.with_result.saturating_add(1), 0);
                sink.step(Input::Holdings(Box::new(holdings)));
            }
            Err(StateReadError::Refused(refusal)) if refusal.is_passing() || refusal == ReadRefusal::NotInitialized => {
                self.without_result += 1;
            }
            Err(error) => {
                log::info!("process {tgid}: cannot read its live objects: {error}");
                self.state = LiveObjectsState::Refused;
            }
        }
    }

    /// Requests a reading outside the schedule.
    pub(super) const fn request(&mut self) {
        self.is_asked_for = true;
    }

    /// Whether a reading is running, or a requested one is due.
    pub(super) fn is_reading(&self) -> bool {
        matches!(self.state, LiveObjectsState::Reads(_))
            || (self.is_asked_for && !matches!(self.state, LiveObjectsState::Refused))
    }
}

fn read(tgid: u32, reader: Option<Box<HoldingsReader>>) -> Done {
    let opened = match reader {
        Some(reader) => Ok(Some(reader)),
        None => HoldingsReader::open(tgid, NAMES_TIME).map(|reader| reader.map(Box::new)),
    };
    // Opening happens once per process and does not predict the cost of the next reading, so it is
    // not timed.
    let began_ns = thread_ns();
    let (reader, read) = match opened {
        Ok(Some(mut reader)) => {
            let read = reader.refresh().and_then(|()| reader.read_patiently()).map(|(holdings, _)| holdings);
            (Some(reader), read)
        }
        Ok(None) => (None, Err(ReadRefusal::NotInitialized.into())),
        Err(error) => (None, Err(error)),
    };
    Done { reader, read, took: Duration::from_nanos(thread_ns().saturating_sub(began_ns)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_older_memory_are_read_where_a_report_shows_them() {
        let now = Instant::now();
        let due = |level: TensorLevel, every: Option<Duration>| ProcessHoldings::new(level).due((true, every), now);
        assert_eq!(due(TensorLevel::Blocks, None), None, "counters have no names");
        assert_eq!(due(TensorLevel::Blocks, Some(ON_SCREEN)), Some(now));
        for level in [TensorLevel::Read, TensorLevel::Lines, TensorLevel::Modules] {
            assert_eq!(due(level, None), Some(now), "{level:?}");
        }
    }
}
