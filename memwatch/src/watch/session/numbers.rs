//! What the allocators of a process have counted, read from its memory: all that is known of one of which no event is traced, and of every one how fast
//! its tensors come and go, however far behind its events are taken in.

use std::time::{Duration, Instant};

use memwatch_core::input::Input;
use memwatch_core::input::books::{DeviceNumbers, Numbers};

use super::intake::Intake;
use crate::frameworks::pytorch::{BooksReader, events};

/// How often it is read.
const BETWEEN: Duration = Duration::from_millis(500);
/// And while its events are traced: a burst of them is not to last.
const BETWEEN_TRACED: Duration = Duration::from_millis(100);
/// Where they cannot be read, it is tried again after twice the time of the last try, and after this at the latest.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The readings of one process.
#[derive(Debug, Default)]
pub(super) struct ProcessNumbers {
    reader: Option<Box<BooksReader>>,
    tried: Option<Instant>,
    /// So long it is not tried again, since it has failed.
    pause: Duration,
    /// What was read last.
    last: Vec<DeviceNumbers>,
    /// How many blocks had come and gone by then.
    events: Option<u64>,
    /// When that was: `CLOCK_BOOTTIME`, nanoseconds.
    time_ns: u64,
    /// Where the allocators are, by device.
    allocators: Vec<(u32, u64)>,
    /// The kernel half does not know that yet.
    are_new: bool,
}

impl ProcessNumbers {
    /// Reads them where it is time. Returns how many tensors have come and gone since the last reading; `None` where that is not known.
    pub(super) fn read(&mut self, tgid: u32, is_traced: bool, pipeline: &mut Intake) -> Option<u64> {
        let between = if is_traced { BETWEEN_TRACED } else { BETWEEN };
        if self.tried.is_some_and(|tried| tried.elapsed() < between.max(self.pause)) {
            return None;
        }
        self.tried = Some(Instant::now());
        self.pause = (2 * self.pause).clamp(between, LONGEST_PAUSE);
        let numbers = self.numbers(tgid)?;
        self.pause = Duration::ZERO;
        let place = |device: &DeviceNumbers| Some((u32::try_from(device.ordinal.0).ok()?, device.allocator));
        let allocators: Vec<_> = numbers.devices.iter().filter_map(place).collect();
        self.are_new |= allocators != self.allocators;
        self.allocators = allocators;
        let now = events(&numbers)?;
        self.time_ns = numbers.time_ns;
        let before = self.events.replace(now)?;
        if !is_traced && numbers.devices != self.last {
            self.last.clone_from(&numbers.devices);
            pipeline.step(Input::Numbers(Box::new(numbers)));
        }
        // A program may set its totals to 0.
        Some(now.checked_sub(before).unwrap_or(now))
    }

    fn numbers(&mut self, tgid: u32) -> Option<Numbers> {
        if self.reader.is_none() {
            let opened = BooksReader::open(tgid);
            let failed = |error: &_| log::info!("process {tgid}: its allocators are not read: {error}");
            self.reader = opened.inspect_err(failed).ok().flatten().map(Box::new);
        }
        // It may have none yet, or be in the midst of something.
        let failed = |error: &_| log::debug!("process {tgid}: its allocators were not read: {error}");
        self.reader.as_mut()?.read_numbers().inspect_err(failed).ok()
    }

    /// Where the allocators are, by device, if that has changed since the last time.
    pub(super) fn take_allocators(&mut self) -> Option<&[(u32, u64)]> {
        std::mem::take(&mut self.are_new).then_some(&*self.allocators)
    }

    /// When they are to be read next.
    pub(super) fn due(&self, now: Instant) -> Instant {
        self.tried.map_or(now, |tried| tried + BETWEEN.max(self.pause))
    }

    /// When they are to be read next while events are traced.
    pub(super) fn due_traced(&self, now: Instant) -> Instant {
        self.tried.map_or(now, |tried| tried + BETWEEN_TRACED.max(self.pause))
    }

    /// When they were read last, `CLOCK_BOOTTIME` in nanoseconds, and how many blocks had come and gone by then.
    pub(super) fn counted(&self) -> Option<(u64, u64)> {
        self.events.map(|events| (self.time_ns, events))
    }

    /// Whether they say how many tensors come and go.
    pub(super) const fn are_known(&self) -> bool {
        self.events.is_some()
    }

    /// What is read next is to be reported, whether it is new or not.
    pub(super) fn forget(&mut self) {
        self.tried = None;
        self.last.clear();
    }
}
