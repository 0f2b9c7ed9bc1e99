//! When it is read what a process holds, by name: once where it is older than the watch, and now and then where that is wanted.
//!
//! A reading takes up to a second, and no probe: it is made in a thread of its own, so that the ring never waits for it.

use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use memwatch_core::input::Input;
use memwatch_core::input::holdings::Holdings;
use memwatch_inspect::pytorch::Refusal;

use super::Session;
use super::intake::Intake;
use crate::frameworks::pytorch::{BooksError, HoldingsReader, NAMES_TIME};
use crate::sources::clock::thread_ns;
use crate::watch::signals::Signals;

/// A reading is repeated no sooner than after so many times the processor time that it took: a wait for a processor costs nobody anything.
const SPARING: u32 = 20;
/// A process that has begun with PyTorch and has no memory yet is looked at this much later.
const LATER: Duration = Duration::from_secs(1);
/// And so many times.
const TRIES: u32 = 10;

/// On a screen it is read this often, and into a recording.
pub(crate) const ON_SCREEN: Duration = Duration::from_secs(10);
pub(crate) const IN_RECORDING: Duration = Duration::from_secs(60);
/// After the first reading there is one so soon, and the next ones after twice as long each: much that keeps memory begins with a program.
const SOON: Duration = Duration::from_secs(5);
/// For how long a reading is waited for.
pub(crate) const LONGEST_READING: Duration = Duration::from_secs(10);

/// The readings of a process.
#[derive(Debug, Default)]
pub(super) struct ProcessHoldings {
    state: State,
    /// When the last one ended, and the processor time that it took.
    last: Option<(Instant, Duration)>,
    /// So many found something.
    with_result: u32,
    /// So many found nothing, one after the other.
    without_result: u32,
    /// One is wanted, whenever the last one was.
    is_asked_for: bool,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    NotOpened,
    Open(Box<HoldingsReader>),
    Reads(Receiver<Done>),
    /// It cannot be read.
    Refused,
}

/// A reading that has ended.
#[derive(Debug)]
struct Done {
    reader: Option<Box<HoldingsReader>>,
    read: Result<Holdings, BooksError>,
    /// The processor time that the reading took.
    took: Duration,
}

impl ProcessHoldings {
    /// Begins a reading that is due, and takes in one that has ended. `is_older` is whether the process was there before the watch; `every` is how
    /// often what it holds is wanted, if it is.
    pub(super) fn advance(&mut self, tgid: u32, (is_older, every): (bool, Option<Duration>), pipeline: &mut Intake) {
        if let State::Reads(done) = &self.state {
            match done.try_recv() {
                Ok(done) => self.take(tgid, done, pipeline),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => self.state = State::Refused,
            }
        }
        let now = Instant::now();
        if !matches!(self.state, State::Reads(_)) && self.due((is_older, every), now).is_some_and(|due| due <= now) {
            self.begin(tgid);
        }
    }

    /// When there is something to do next: to begin a reading, or to look whether the one that goes on has ended.
    pub(super) fn due(&self, (is_older, every): (bool, Option<Duration>), now: Instant) -> Option<Instant> {
        match self.state {
            State::Refused => return None,
            State::Reads(_) => return Some(now),
            State::NotOpened | State::Open(_) => {}
        }
        let Some((ended, took)) = self.last else {
            return (is_older || every.is_some() || self.is_asked_for).then_some(now);
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
            State::Open(reader) => Some(reader),
            _ => None,
        };
        self.is_asked_for = false;
        let (sender, done) = channel();
        let thread = thread::Builder::new().name(format!("read {tgid}")).spawn(move || {
            // Nobody waits for it where the watch has ended.
            let _ = sender.send(read(tgid, reader));
        });
        self.state = match thread {
            Ok(_) => State::Reads(done),
            Err(error) => {
                log::warn!("process {tgid}: what it holds is not read: {error}");
                State::Refused
            }
        };
    }

    fn take(&mut self, tgid: u32, done: Done, pipeline: &mut Intake) {
        self.last = Some((Instant::now(), done.took));
        self.state = done.reader.map_or(State::NotOpened, State::Open);
        match done.read {
            Ok(holdings) => {
                (self.with_result, self.without_result) = (self.with_result.saturating_add(1), 0);
                pipeline.step(Input::Holdings(Box::new(holdings)));
            }
            Err(BooksError::Refused(refusal)) if refusal.is_passing() || refusal == Refusal::NotInitialized => {
                self.without_result += 1;
            }
            Err(error) => {
                log::info!("process {tgid}: what it holds is not read: {error}");
                self.state = State::Refused;
            }
        }
    }

    /// Whether a reading goes on, or one is due that was asked for.
    fn is_reading(&self) -> bool {
        matches!(self.state, State::Reads(_)) || (self.is_asked_for && !matches!(self.state, State::Refused))
    }
}

fn read(tgid: u32, reader: Option<Box<HoldingsReader>>) -> Done {
    let opened = match reader {
        Some(reader) => Ok(Some(reader)),
        None => HoldingsReader::open(tgid, NAMES_TIME).map(|reader| reader.map(Box::new)),
    };
    // To open one is done once for a process, and is no part of what the next reading will take.
    let began_ns = thread_ns();
    let (reader, read) = match opened {
        Ok(Some(mut reader)) => {
            let read = reader.refresh().and_then(|()| reader.read_patiently()).map(|(holdings, _)| holdings);
            (Some(reader), read)
        }
        Ok(None) => (None, Err(Refusal::NotInitialized.into())),
        Err(error) => (None, Err(error)),
    };
    Done { reader, read, took: Duration::from_nanos(thread_ns().saturating_sub(began_ns)) }
}

impl Session {
    /// Whether a reading goes on, or waits.
    pub(crate) fn is_reading_holdings(&self) -> bool {
        self.tensors.processes.values().any(|process| process.holdings.is_reading())
    }

    /// Reads once more what processes hold, and waits until that is known, or a signal comes.
    pub(crate) async fn read_holdings(&mut self, signals: &mut Signals) {
        for process in self.tensors.processes.values_mut() {
            process.holdings.is_asked_for = true;
        }
        let until = tokio::time::Instant::now() + LONGEST_READING;
        while self.is_reading_holdings() && self.is_anybody_left() {
            tokio::select! {
                () = self.advance() => {}
                () = tokio::time::sleep_until(until) => return,
                _ = signals.any() => return,
            }
        }
    }
}
