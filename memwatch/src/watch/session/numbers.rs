//! Allocator counters of a process, read from its memory. Without traced events the counters are
//! the only source. With traced events they show how fast tensors are allocated and freed even when
//! the events lag behind.

use std::time::{Duration, Instant};

use memwatch_core::input::Input;
use memwatch_core::input::allocator_state::{AllocatorNumbers, DeviceNumbers};

use super::input_sink::InputSink;
use crate::frameworks::pytorch::{StateReader, events};

/// Interval between readings.
const BETWEEN: Duration = Duration::from_millis(500);
/// Interval while events are traced, short enough to catch a burst.
const BETWEEN_TRACED: Duration = Duration::from_millis(100);
/// Maximum pause after failed readings. The pause doubles with each failure.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Readings of one process.
#[derive(Debug, Default)]
pub(super) struct ProcessNumbers {
    reader: Option<Box<StateReader>>,
    tried: Option<Instant>,
    /// Pause after the last failure.
    pause: Duration,
    /// Counters at the last reading.
    last: Vec<DeviceNumbers>,
    /// Number of blocks allocated and freed by the time of the last reading.
    events: Option<u64>,
    /// Time of the last reading: `CLOCK_BOOTTIME`, nanoseconds.
    time_ns: u64,
    /// Addresses of the allocators, each with its device.
    allocators: Vec<(u32, u64)>,
    /// Whether the addresses have changed since the last call of [`Self::take_allocators`].
    are_new: bool,
}

impl ProcessNumbers {
    /// Reads the counters if due. Returns the number of tensors allocated and freed since the last
    /// reading; `None` if unknown.
    pub(super) fn read(&mut self, tgid: u32, is_traced: bool, sink: &mut InputSink) -> Option<u64> {
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
            sink.step(Input::Numbers(Box::new(numbers)));
        }
        // A program may reset its counters.
        Some(now.checked_sub(before).unwrap_or(now))
    }

    fn numbers(&mut self, tgid: u32) -> Option<AllocatorNumbers> {
        if self.reader.is_none() {
            let opened = StateReader::open(tgid);
            let failed = |error: &_| log::info!("process {tgid}: its allocators are not read: {error}");
            self.reader = opened.inspect_err(failed).ok().flatten().map(Box::new);
        }
        // The process may have no allocators yet, or may be changing them.
        let failed = |error: &_| log::debug!("process {tgid}: its allocators were not read: {error}");
        self.reader.as_mut()?.read_numbers().inspect_err(failed).ok()
    }

    /// Returns the addresses of the allocators, each with its device, if changed since the last
    /// call.
    pub(super) fn take_allocators(&mut self) -> Option<&[(u32, u64)]> {
        std::mem::take(&mut self.are_new).then_some(&*self.allocators)
    }

    /// Returns when the next reading is due.
    pub(super) fn due(&self, now: Instant) -> Instant {
        self.tried.map_or(now, |tried| tried + BETWEEN.max(self.pause))
    }

    /// Returns when the next reading is due while events are traced.
    pub(super) fn due_traced(&self, now: Instant) -> Instant {
        self.tried.map_or(now, |tried| tried + BETWEEN_TRACED.max(self.pause))
    }

    /// Returns the time of the last reading (`CLOCK_BOOTTIME`, nanoseconds) and the number of
    /// blocks allocated and freed by then.
    pub(super) fn counted(&self) -> Option<(u64, u64)> {
        self.events.map(|events| (self.time_ns, events))
    }

    /// Whether the counters include the number of tensors.
    pub(super) const fn are_known(&self) -> bool {
        self.events.is_some()
    }

    /// Makes the next reading be reported even if nothing has changed.
    pub(super) fn forget(&mut self) {
        self.tried = None;
        self.last.clear();
    }
}
