//! Counts a process's tensor events before any is traced, to predict the overhead of a trace level.
//!
//! The allocators' own counters are read. If they are not readable, the cheapest possible probe
//! counts the events.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use memwatch_common::tensor::TensorMeaning;
use memwatch_core::attribution::price::per_second;

use super::look::FoundLibrary;
use crate::frameworks::FRAMEWORKS;
use crate::frameworks::descriptor::BlockCounter;
use crate::frameworks::probes::{self as tensor_probes, TensorProbes};
use crate::sources::kernel::load::KernelHalf;

/// Duration of a count.
const COUNTED: Duration = Duration::from_millis(200);
/// Interval for reading counters again that changed while they were read.
const BETWEEN_TRIES: Duration = Duration::from_millis(20);
/// Time from which a probe counts the events of allocators whose counters never stand still.
const LONGEST: Duration = Duration::from_millis(600);

/// A running count of a process's tensor events, and the libraries that wait for the result.
pub(super) struct EventCount {
    begun: Instant,
    over: Instant,
    way: Way,
    pub(super) waiting: Vec<FoundLibrary>,
}

/// Events per second; `None` if the process has exited or its events cannot be counted.
pub(super) struct EventRate(pub(super) Option<u64>);

/// Source of the count.
enum Way {
    /// The allocators' own counters.
    Allocators(Box<dyn BlockCounter>),
    /// A counting probe.
    Probe(TensorProbes),
}

impl EventCount {
    /// Begins a count with the library that reports tensors; `None` if they cannot be counted.
    pub(super) fn begin(kernel: &mut KernelHalf, found: &FoundLibrary) -> Option<Self> {
        let way = by_allocators(found).or_else(|| by_probe(kernel, found))?;
        let begun = Instant::now();
        Some(Self { begun, over: begun + COUNTED, way, waiting: Vec::new() })
    }

    /// Returns when the count has run long enough or is tried again.
    pub(super) fn over(&self) -> Instant {
        self.over
    }

    /// Returns the events per second of a count that has run long enough; `None` if it goes on,
    /// because the allocators changed their counters during each reading so far.
    pub(super) fn advance(&mut self, kernel: &mut KernelHalf, tgid: u32) -> Option<EventRate> {
        // Detaching a probe takes a while in which nothing is counted.
        let elapsed = self.begun.elapsed();
        let is_probed = matches!(self.way, Way::Probe(_));
        let count = match &mut self.way {
            Way::Allocators(counter) => counter.events(),
            Way::Probe(probes) => counted(kernel, tgid, std::mem::take(probes)),
        };
        let now = Instant::now();
        let rate = count.map(|count| per_second(count, u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)));
        if is_probed || rate.is_some() {
            return Some(EventRate(rate));
        }
        if elapsed < LONGEST {
            self.over = now + BETWEEN_TRIES;
            return None;
        }
        let Some(way) = self.waiting.iter().find_map(|found| by_probe(kernel, found)) else {
            return Some(EventRate(None));
        };
        *self = Self { begun: now, over: now + COUNTED, way, waiting: std::mem::take(&mut self.waiting) };
        None
    }

    /// Ends the count early and detaches the probe, if any.
    pub(super) fn abandon(self, kernel: &mut KernelHalf, tgid: u32) {
        if let Way::Probe(probes) = self.way {
            counted(kernel, tgid, probes);
        }
    }
}

fn by_allocators(found: &FoundLibrary) -> Option<Way> {
    FRAMEWORKS.begin_count(found.id, found.tgid).map(Way::Allocators)
}

fn by_probe(kernel: &mut KernelHalf, found: &FoundLibrary) -> Option<Way> {
    let points = found.points.as_ref().ok();
    let reports = points.and_then(|all| all.iter().find(|point| point.row.meaning == TensorMeaning::Reported));
    let (point, tgid) = (reports?, NonZeroU32::new(found.tgid)?);
    let begun = tensor_probes::begin_count(kernel, &found.file.path(), tgid, point);
    let failed = |error: &String| log::warn!("process {tgid}: its tensor events are not counted: {error}");
    begun.inspect_err(failed).ok().map(Way::Probe)
}

fn counted(kernel: &mut KernelHalf, tgid: u32, probes: TensorProbes) -> Option<u64> {
    let counted = tensor_probes::counted(kernel, tgid);
    if let Err(error) = tensor_probes::detach(kernel, probes) {
        log::warn!("process {tgid}: cannot detach the counting probe: {error}");
    }
    let counted = counted.and_then(|count| tensor_probes::forget_count(kernel, tgid).map(|()| count));
    counted.inspect_err(|error| log::warn!("process {tgid}: {error}")).ok().flatten()
}
