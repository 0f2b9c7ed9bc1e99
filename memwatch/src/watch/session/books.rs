//! When the books of a process's caching allocators are read: at the attach, and whenever what was followed has become doubtful.
//!
//! It happens between two fetches of the ring: no event of the process that came before is later than the reading, so that the pipeline knows which
//! of them the books have already. A reading takes a few milliseconds, which the ring holds a hundred times.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::{Duration, Instant};

use memwatch_core::input::Input;
use memwatch_core::input::books::{BookBlock, BookState};
use memwatch_core::words::{Ordinal, Tgid};
use memwatch_inspect::pytorch::Refusal;

use super::intake::Intake;
use crate::frameworks::pytorch::{BooksError, BooksReader};
use crate::printable::printable;

/// Between two tries while the allocators are at work.
const BETWEEN_TRIES: Duration = Duration::from_millis(20);
/// After so many tries that met them at work, they are made less often.
const QUICK_TRIES: u32 = 100;
const BETWEEN_LATER_TRIES: Duration = Duration::from_secs(1);
/// So many readings of blocks that change are settled by events, or never: each is in a recording with all its blocks.
const MOVING_TRIES: u32 = 150;

/// While no event is traced, blocks are read this often: in the beginning, when it shows which of them come and go, and later.
const BETWEEN_FIRST_STANDING: Duration = Duration::from_millis(100);
const FIRST_STANDING: u32 = 10;
const BETWEEN_STANDING: Duration = Duration::from_secs(1);
/// A reading is repeated no sooner than after so many times what it has taken.
const STANDING_TIMES: u32 = 100;

/// The books of a process.
#[derive(Debug)]
pub(super) struct ProcessBooks {
    reader: Reader,
    tries: u32,
    standing: Standing,
    /// The last try has read all of them.
    was_read: bool,
    tried: Option<Instant>,
}

/// The readings of blocks while no event is traced.
#[derive(Debug)]
struct Standing {
    readings: u32,
    /// When the last one was made, and what it has taken.
    last: Option<(Instant, Duration)>,
    /// A number for what it has found; the next one is of no use where it finds the same.
    found: Option<u64>,
}

#[derive(Debug)]
enum Reader {
    NotOpened,
    Open(Box<BooksReader>),
    /// They cannot be read, which was reported.
    Refused,
}

impl ProcessBooks {
    /// Not read yet.
    pub(super) const fn new() -> Self {
        Self { reader: Reader::NotOpened, tries: 0, standing: Standing::NEW, was_read: false, tried: None }
    }

    /// Events are traced from now on: what they have had when they were read last has become another's since.
    pub(super) fn begin_window(&mut self) {
        (self.tries, self.was_read, self.tried) = (0, false, None);
        self.standing = Standing::NEW;
    }

    /// When the blocks are to be read next while no event is traced; `None` where they cannot be.
    pub(super) fn standing_due(&self, now: Instant) -> Option<Instant> {
        let is_refused = matches!(self.reader, Reader::Refused);
        (!is_refused).then(|| self.standing.last.map_or(now, |(at, taken)| at + self.standing.pause(taken)))
    }

    /// Reads the blocks while no event is traced: which of them stand where they were.
    pub(super) fn read_standing(&mut self, tgid: u32, pipeline: &mut Intake) {
        let begun = Instant::now();
        if self.standing_due(begun).is_none_or(|due| due > begun) {
            return;
        }
        let read = self.try_once(tgid, true);
        self.standing.last = Some((begun, begun.elapsed()));
        self.standing.readings = self.standing.readings.saturating_add(1);
        let Ok(Some(books)) = read else { return };
        let found = fingerprint(&books);
        if self.standing.readings <= FIRST_STANDING || self.standing.found != Some(found) {
            self.standing.found = Some(found);
            pipeline.step(books);
        }
    }

    /// When they are to be read next, if they would say more than is known.
    pub(super) fn due(&self, tgid: u32, pipeline: &Intake, now: Instant) -> Option<Instant> {
        if matches!(self.reader, Reader::Refused) || !pipeline.wants_books(Tgid(tgid)) {
            return None;
        }
        Some(self.tried.map_or(now, |tried| tried + self.between()))
    }

    /// What has become doubtful since a reading may become so again with the next event.
    const fn between(&self) -> Duration {
        let is_quick = self.tries < QUICK_TRIES && !self.was_read;
        if is_quick { BETWEEN_TRIES } else { BETWEEN_LATER_TRIES }
    }

    /// Reads them where they say more than is known: whole while the allocators rest, else the blocks that they have while they work.
    pub(super) fn read(&mut self, tgid: u32, pipeline: &mut Intake) {
        let now = Instant::now();
        if self.due(tgid, pipeline, now).is_none_or(|due| due > now) {
            return;
        }
        self.tried = Some(Instant::now());
        match self.try_once(tgid, self.tries < MOVING_TRIES && pipeline.wants_blocks(Tgid(tgid))) {
            Ok(Some(books)) => {
                self.was_read = matches!(books, Input::Books(_));
                self.tries = self.tries.saturating_add(1);
                pipeline.step(books);
            }
            Ok(None) => self.tries = self.tries.saturating_add(1),
            Err(error) => {
                log::info!("process {tgid}: what it held before is not known: {error}");
                self.reader = Reader::Refused;
                // One that is ending has nothing to be read.
                if !matches!(error, BooksError::Unreadable(_) | BooksError::Refused(Refusal::Unreadable(_))) {
                    let reason = printable(&error.to_string()).into_owned().into();
                    pipeline.step(Input::BooksRefused { tgid: Tgid(tgid), reason });
                }
            }
        }
    }

    /// `None` where another try may do better.
    fn try_once(&mut self, tgid: u32, wants_blocks: bool) -> Result<Option<Input>, BooksError> {
        if matches!(self.reader, Reader::NotOpened) {
            // The library is there: probes are on it. What it has mapped may change while it starts.
            let Some(reader) = BooksReader::open(tgid)? else { return Ok(None) };
            self.reader = Reader::Open(Box::new(reader));
        }
        let Reader::Open(reader) = &mut self.reader else { return Ok(None) };
        match reader.read() {
            Ok(books) if books.devices.is_empty() => Ok(None),
            Ok(books) => Ok(Some(Input::Books(Box::new(books)))),
            Err(BooksError::Refused(Refusal::NotInitialized)) => Ok(None),
            Err(BooksError::Refused(refusal)) if refusal.is_passing() && wants_blocks => {
                Ok(reader.read_moving().ok().map(|books| Input::MovingBooks(Box::new(books))))
            }
            Err(BooksError::Refused(refusal)) if refusal.is_passing() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Standing {
    const NEW: Self = Self { readings: 0, last: None, found: None };

    /// Before the next reading, where the last has taken so long.
    fn pause(&self, taken: Duration) -> Duration {
        let between = if self.readings < FIRST_STANDING { BETWEEN_FIRST_STANDING } else { BETWEEN_STANDING };
        between.max(taken * STANDING_TIMES)
    }
}

/// A number that another set of blocks hardly has.
fn fingerprint(books: &Input) -> u64 {
    let mut blocks: Vec<(Ordinal, &BookBlock)> = Vec::new();
    match books {
        Input::Books(books) => {
            for device in &books.devices {
                blocks.extend(device.blocks().map(|block| (device.ordinal, block)));
            }
        }
        Input::MovingBooks(books) => {
            for device in &books.devices {
                blocks.extend(device.blocks.iter().map(|block| (device.ordinal, block)));
            }
        }
        _ => {}
    }
    let allocated = blocks.into_iter().filter(|(_, block)| block.state == BookState::ActiveAllocated);
    let mut allocated: Vec<_> = allocated.map(|(ordinal, block)| (ordinal, block.address, block.bytes)).collect();
    allocated.sort_unstable();
    let mut hasher = DefaultHasher::new();
    allocated.hash(&mut hasher);
    hasher.finish()
}
