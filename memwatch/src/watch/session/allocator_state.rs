//! Schedules reading the state of a process's caching allocators: when the session attaches, and
//! whenever the traced state has become doubtful.
//!
//! The state is read between two fetches of the ring. Every event already fetched is then older
//! than the reading, so the pipeline knows which events the reading includes. A reading takes a few
//! milliseconds; the ring buffers a hundred times that.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::{Duration, Instant};

use memwatch_core::input::Input;
use memwatch_core::input::allocator_state::{StateBlock, StateBlockUse};
use memwatch_core::words::{Ordinal, Tgid};
use memwatch_inspect::pytorch::ReadRefusal;

use super::input_sink::InputSink;
use crate::frameworks::pytorch::{StateReadError, StateReader};
use crate::printable::printable;

/// Time between two attempts while the allocators are busy.
const BETWEEN_TRIES: Duration = Duration::from_millis(20);
/// After this many attempts that found the allocators busy, attempts become less frequent.
const QUICK_TRIES: u32 = 100;
const BETWEEN_LATER_TRIES: Duration = Duration::from_secs(1);
/// Maximum number of readings while blocks change. After that, only events can resolve the
/// remaining unknown blocks. The limit keeps recordings small: a recording stores each reading with
/// all blocks.
const MOVING_TRIES: u32 = 150;

/// Interval of block readings while no event is traced. The first readings are closer together, to
/// show which blocks change often.
const BETWEEN_FIRST_STANDING: Duration = Duration::from_millis(100);
const FIRST_STANDING: u32 = 10;
const BETWEEN_STANDING: Duration = Duration::from_secs(1);
/// Minimum pause after a reading, as a multiple of its duration.
const STANDING_TIMES: u32 = 100;

/// Allocator readings of one process.
#[derive(Debug)]
pub(super) struct AllocatorStatePolls {
    reader: AllocatorReaderState,
    tries: u32,
    standing: UntracedReadings,
    /// Whether the last attempt read the complete state.
    was_read: bool,
    tried: Option<Instant>,
}

/// Block readings while no event is traced.
#[derive(Debug)]
struct UntracedReadings {
    readings: u32,
    /// Time and duration of the last reading.
    last: Option<(Instant, Duration)>,
    /// Fingerprint of the blocks found. A reading with the same fingerprint adds no information.
    found: Option<u64>,
}

#[derive(Debug)]
enum AllocatorReaderState {
    NotOpened,
    Open(Box<StateReader>),
    /// The state cannot be read; a message was logged.
    Refused,
}

impl AllocatorStatePolls {
    /// Creates a schedule without any reading.
    pub(super) const fn new() -> Self {
        Self {
            reader: AllocatorReaderState::NotOpened,
            tries: 0,
            standing: UntracedReadings::NEW,
            was_read: false,
            tried: None,
        }
    }

    /// Notes that events are traced from now on: blocks of the last reading may have been freed and
    /// reused since.
    pub(super) fn begin_window(&mut self) {
        (self.tries, self.was_read, self.tried) = (0, false, None);
        self.standing = UntracedReadings::NEW;
    }

    /// Returns when the next block reading is due while no event is traced; `None` if blocks cannot
    /// be read.
    pub(super) fn standing_due(&self, now: Instant) -> Option<Instant> {
        let is_refused = matches!(self.reader, AllocatorReaderState::Refused);
        (!is_refused).then(|| self.standing.last.map_or(now, |(at, taken)| at + self.standing.pause(taken)))
    }

    /// Reads the blocks while no event is traced, to find the blocks that stay allocated.
    pub(super) fn read_standing(&mut self, tgid: u32, sink: &mut InputSink) {
        let begun = Instant::now();
        if self.standing_due(begun).is_none_or(|due| due > begun) {
            return;
        }
        let read = self.try_once(tgid, true);
        self.standing.last = Some((begun, begun.elapsed()));
        self.standing.readings = self.standing.readings.saturating_add(1);
        let Ok(Some(allocator_state)) = read else { return };
        let found = fingerprint(&allocator_state);
        if self.standing.readings <= FIRST_STANDING || self.standing.found != Some(found) {
            self.standing.found = Some(found);
            sink.step(allocator_state);
        }
    }

    /// Returns when the next reading is due; `None` if a reading would add nothing.
    pub(super) fn due(&self, tgid: u32, sink: &InputSink, now: Instant) -> Option<Instant> {
        if matches!(self.reader, AllocatorReaderState::Refused) || !sink.state().wants_allocator_state(Tgid(tgid)) {
            return None;
        }
        Some(self.tried.map_or(now, |tried| tried + self.between()))
    }

    /// Pause between two attempts. It is long after a complete reading: a doubt that arose since
    /// may arise again with the next event.
    const fn between(&self) -> Duration {
        let is_quick = self.tries < QUICK_TRIES && !self.was_read;
        if is_quick { BETWEEN_TRIES } else { BETWEEN_LATER_TRIES }
    }

    /// Reads the state if due: completely while the allocators are idle, else only the blocks.
    pub(super) fn read(&mut self, tgid: u32, sink: &mut InputSink) {
        let now = Instant::now();
        if self.due(tgid, sink, now).is_none_or(|due| due > now) {
            return;
        }
        self.tried = Some(Instant::now());
        match self.try_once(tgid, self.tries < MOVING_TRIES && sink.state().wants_blocks(Tgid(tgid))) {
            Ok(Some(allocator_state)) => {
                self.was_read = matches!(allocator_state, Input::AllocatorState(_));
                self.tries = self.tries.saturating_add(1);
                sink.step(allocator_state);
            }
            Ok(None) => self.tries = self.tries.saturating_add(1),
            Err(error) => {
                log::info!(
                    "process {tgid}: cannot read its allocator state, so memory from before the attach is unknown: {error}"
                );
                self.reader = AllocatorReaderState::Refused;
                // An exiting process has no memory to read.
                if !matches!(error, StateReadError::Unreadable(_) | StateReadError::Refused(ReadRefusal::Unreadable(_)))
                {
                    let reason = printable(&error.to_string()).into_owned().into();
                    sink.step(Input::AllocatorStateRefused { tgid: Tgid(tgid), reason });
                }
            }
        }
    }

    /// Tries one reading. Returns `None` if a later attempt may succeed.
    fn try_once(&mut self, tgid: u32, wants_blocks: bool) -> Result<Option<Input>, StateReadError> {
        if matches!(self.reader, AllocatorReaderState::NotOpened) {
            // The library exists, since it has probes, but its mappings may still change while the
            // process starts.
            let Some(reader) = StateReader::open(tgid)? else { return Ok(None) };
            self.reader = AllocatorReaderState::Open(Box::new(reader));
        }
        let AllocatorReaderState::Open(reader) = &mut self.reader else { return Ok(None) };
        match reader.read() {
            Ok(allocator_state) if allocator_state.devices.is_empty() => Ok(None),
            Ok(allocator_state) => Ok(Some(Input::AllocatorState(Box::new(allocator_state)))),
            Err(StateReadError::Refused(ReadRefusal::NotInitialized)) => Ok(None),
            Err(StateReadError::Refused(refusal)) if refusal.is_passing() && wants_blocks => Ok(reader
                .read_moving()
                .ok()
                .map(|allocator_state| Input::MovingAllocatorState(Box::new(allocator_state)))),
            Err(StateReadError::Refused(refusal)) if refusal.is_passing() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl UntracedReadings {
    const NEW: Self = Self { readings: 0, last: None, found: None };

    /// Returns the pause before the next reading, given the duration of the last one.
    fn pause(&self, taken: Duration) -> Duration {
        let between = if self.readings < FIRST_STANDING { BETWEEN_FIRST_STANDING } else { BETWEEN_STANDING };
        between.max(taken * STANDING_TIMES)
    }
}

/// Returns a fingerprint of the allocated blocks. Collisions are unlikely.
fn fingerprint(allocator_state: &Input) -> u64 {
    let mut blocks: Vec<(Ordinal, &StateBlock)> = Vec::new();
    match allocator_state {
        Input::AllocatorState(allocator_state) => {
            for device in &allocator_state.devices {
                blocks.extend(device.blocks().map(|block| (device.ordinal, block)));
            }
        }
        Input::MovingAllocatorState(allocator_state) => {
            for device in &allocator_state.devices {
                blocks.extend(device.blocks.iter().map(|block| (device.ordinal, block)));
            }
        }
        _ => {}
    }
    let allocated = blocks.into_iter().filter(|(_, block)| block.state == StateBlockUse::ActiveAllocated);
    let mut allocated: Vec<_> = allocated.map(|(ordinal, block)| (ordinal, block.address, block.bytes)).collect();
    allocated.sort_unstable();
    let mut hasher = DefaultHasher::new();
    allocated.hash(&mut hasher);
    hasher.finish()
}
