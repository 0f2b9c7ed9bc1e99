//! Memory over time: sampled as time passes; names are resolved when a report is requested.

pub mod view;

use std::collections::BTreeMap;

use crate::attribution::device::resolve;
use crate::attribution::process::Process;
use crate::decode::{Call, TensorEvent};
use crate::features::oom::OomLog;
use crate::features::profile::view::{
    CourseView, DeviceProfileView, GpuProfileView, ProcessProfileView, ProfileView, RatioView,
};
use crate::features::samples::course::{ByteSeries, Peak, SeriesSample, SeriesSummary, percentiles};
use crate::features::samples::{MemorySamples, ProcessLifetime, SeriesKey, of_life};
use crate::features::timeline::events::Events;
use crate::ledger::totals::DeviceRef;
use crate::state::State;
use crate::state::event::{Detector, Event};
use crate::words::{GpuUuid, Tgid};

/// Series of memory, and the names of processes that have exited.
#[derive(Clone, Debug)]
pub struct MemoryProfile {
    pub(crate) samples: MemorySamples,
    pub(crate) gone: BTreeMap<ProcessLifetime, ProcessProfileView>,
    pub(crate) events: Option<Events>,
}

impl Detector for MemoryProfile {
    #[inline]
    fn on(&mut self, event: &Event<'_>, state: &State) {
        match event {
            Event::Time(time_ns) => self.samples.advance(*time_ns),
            Event::Call(call) => self.observe_call(call, state),
            Event::Resynced { tgid, time_ns } => self.observe(*tgid, *time_ns, state),
            Event::Tensor(event) => self.observe_tensors(event, state),
            Event::Counters(numbers) => {
                if let Some(process) = state.processes.get(&numbers.tgid) {
                    self.samples.observe_reported(process, numbers.time_ns);
                }
            }
            Event::Reading => self.samples.read(&state.reading, &state.processes.values()),
            Event::Ends { tgid, time_ns } => self.end(*tgid, *time_ns, state),
            _ => {}
        }
    }
}

impl MemoryProfile {
    /// Creates a profile that samples at this interval, in nanoseconds.
    pub fn new(interval_ns: u64) -> Self {
        Self { samples: MemorySamples::new(interval_ns), gone: BTreeMap::new(), events: None }
    }

    /// Starts the series with the present state, if the profile is turned on in the middle of a
    /// session.
    pub fn begin(&mut self, state: &State) {
        self.samples.begin(&state.reading, &state.processes.values(), state.now_ns);
    }

    /// Returns the report.
    pub fn report(&self, state: &State) -> ProfileView {
        let samples = &self.samples;
        let mut lives: Vec<ProcessLifetime> = samples.tracks().keys().filter_map(SeriesKey::life).collect();
        lives.sort_by_key(|life| (life.since_ns, life.tgid));
        lives.dedup();
        ProfileView {
            interval_ns: samples.interval_ns(),
            asked_interval_ns: samples.asked_ns(),
            begun_ns: samples.begun_ns().unwrap_or(state.now_ns),
            last_ns: state.now_ns,
            gpus: self.gpu_profiles(state),
            processes: lives.into_iter().map(|life| self.process_profile(state, life)).collect(),
        }
    }

    fn observe(&mut self, tgid: Tgid, time_ns: u64, state: &State) {
        if let Some(process) = state.processes.get(&tgid) {
            self.samples.observe(process, &state.reading, time_ns);
        }
    }

    fn observe_call(&mut self, call: &Call, state: &State) {
        self.observe(call.tgid, call.returned_ns, state);
        let process = state.processes.get(&call.tgid);
        if let Some((events, process)) = self.events.as_mut().zip(process) {
            events.observe_call(process, call);
        }
    }

    fn observe_tensors(&mut self, event: &TensorEvent, state: &State) {
        let Some(process) = state.processes.get(&event.tgid) else { return };
        self.samples.observe_tensors(process, event);
        if let Some(events) = &mut self.events {
            events.observe_tensors(process, event);
        }
    }

    /// Ends the series of a process that is about to exit or to execute another image.
    fn end(&mut self, tgid: Tgid, time_ns: u64, state: &State) {
        self.samples.advance(time_ns);
        if let Some(process) = state.processes.get(&tgid) {
            self.leave(process, time_ns, Some(time_ns));
        }
    }

    /// Ends the series of a process at this time. `ended_ns` is the end of the process, if it is
    /// known to have ended.
    pub(crate) fn leave(&mut self, process: &Process, time_ns: u64, ended_ns: Option<u64>) {
        let life = ProcessLifetime::of(process);
        self.samples.end(life, time_ns);
        self.gone.insert(life, named(process, ended_ns));
    }

    /// Adds the failures of a log after this time (`CLOCK_BOOTTIME`, nanoseconds), of which there was
    /// no call.
    pub(crate) fn learn_failures(&mut self, log: &OomLog, after_ns: u64, state: &State) {
        let Some(events) = &mut self.events else { return };
        for failure in log.failures().0.filter(|failure| failure.time_ns > after_ns) {
            if let Some(process) = state.processes.get(&failure.tgid).or_else(|| state.ended.last(failure.tgid)) {
                events.learn_failure(process, failure);
            }
        }
    }

    fn gpu_profiles(&self, state: &State) -> Vec<GpuProfileView> {
        let course = |track: &SeriesKey| self.samples.tracks().get(track);
        let mut uuids: Vec<&GpuUuid> = state.reading.devices.iter().map(|device| &device.uuid).collect();
        let of_gpus = self.samples.tracks().keys().filter_map(|track| match track {
            SeriesKey::GpuUsed(uuid) | SeriesKey::GpuLive(uuid) => Some(uuid),
            _ => None,
        });
        for uuid in of_gpus {
            if !uuids.contains(&uuid) {
                uuids.push(uuid);
            }
        }
        let view = |uuid: &GpuUuid| {
            let total_bytes = total_bytes(state, uuid);
            let used = course(&SeriesKey::GpuUsed(uuid.clone())).map(|course| looked_at(state, course));
            let live = course(&SeriesKey::GpuLive(uuid.clone())).map(|course| counted(state, course));
            let utilization = used.and_then(|used| used.part_of(total_bytes));
            GpuProfileView { uuid: uuid.clone(), total_bytes, used, live, utilization }
        };
        uuids.into_iter().map(view).collect()
    }

    /// Returns the identity of a process, without numbers.
    pub(crate) fn life_named(&self, state: &State, life: ProcessLifetime) -> ProcessProfileView {
        let now = of_life(state, life).map(|process| named(process, process.ended.map(|ended| ended.time_ns)));
        now.or_else(|| self.gone.get(&life).cloned()).unwrap_or_default()
    }

    fn process_profile(&self, state: &State, life: ProcessLifetime) -> ProcessProfileView {
        let process = of_life(state, life);
        let mut view = self.life_named(state, life);
        let mut gpus: BTreeMap<(bool, Option<GpuUuid>), DeviceProfileView> = BTreeMap::new();
        let mut reserved: Vec<(Option<GpuUuid>, Vec<SeriesSample>, Vec<SeriesSample>)> = Vec::new();
        for (track, course) in samples_of(&self.samples, life) {
            let uuid = match track {
                SeriesKey::Live(_, uuid) => uuid.clone(),
                SeriesKey::Used(_, uuid) => Some(uuid.clone()),
                SeriesKey::Allocated(_, ordinal) | SeriesKey::Reserved(_, ordinal) => {
                    let device = DeviceRef::Ordinal(*ordinal);
                    process.and_then(|process| resolve(process, device, &state.reading.devices))
                }
                _ => {
                    view.pinned = Some(counted(state, course));
                    continue;
                }
            };
            let row = gpus.entry((uuid.is_none(), uuid.clone())).or_default();
            row.uuid.clone_from(&uuid);
            match track {
                SeriesKey::Live(..) => row.live = Some(counted(state, course)),
                SeriesKey::Used(..) => row.used = Some(looked_at(state, course)),
                SeriesKey::Allocated(_, ordinal) => {
                    row.allocated = Some(counted(state, course));
                    let other = self.samples.tracks().get(&SeriesKey::Reserved(life, *ordinal));
                    let other = other.map_or_else(Vec::new, |course| course.points(state.now_ns));
                    reserved.push((uuid, course.points(state.now_ns), other));
                }
                _ => row.reserved = Some(counted(state, course)),
            }
        }
        for row in gpus.values_mut() {
            row.total_bytes = row.uuid.as_ref().and_then(|uuid| total_bytes(state, uuid));
            let own = reserved.iter().find(|(uuid, ..)| *uuid == row.uuid);
            row.utilization = row.used.or(row.live).and_then(|course| course.part_of(row.total_bytes));
            row.fragmentation = own.and_then(|(_, allocated, reserved)| fragmentation(allocated, reserved));
        }
        view.gpus = gpus.into_values().collect();
        view
    }
}

fn total_bytes(state: &State, uuid: &GpuUuid) -> Option<u64> {
    state.reading.devices.iter().find(|device| device.uuid == *uuid)?.total_bytes
}

/// Returns the view of a series from traced changes.
fn counted(state: &State, course: &ByteSeries) -> CourseView {
    let summary = course.summary(state.now_ns);
    let Peak { bytes, time_ns } = summary.peak;
    CourseView { peak_bytes: Some(bytes), peak_ns: Some(time_ns), ..view_of(&summary) }
}

/// Returns the view of a series from readings.
fn looked_at(state: &State, course: &ByteSeries) -> CourseView {
    view_of(&course.summary(state.now_ns))
}

fn samples_of(samples: &MemorySamples, life: ProcessLifetime) -> impl Iterator<Item = (&SeriesKey, &ByteSeries)> {
    samples.tracks().iter().filter(move |(track, _)| track.life() == Some(life))
}

fn named(process: &Process, ended_ns: Option<u64>) -> ProcessProfileView {
    let facts = process.facts.as_ref();
    ProcessProfileView {
        tgid: process.tgid,
        comm: facts.map(|facts| facts.comm.clone()).unwrap_or_default(),
        command: facts.map(|facts| facts.command.clone()).unwrap_or_default(),
        observed_since_ns: process.observed_since_ns,
        ended_ns,
        exact: process.is_exact(),
        ..ProcessProfileView::default()
    }
}

fn view_of(summary: &SeriesSummary) -> CourseView {
    let [p50_bytes, p90_bytes, p95_bytes, p99_bytes] = summary.percentiles;
    CourseView {
        current_bytes: summary.current_bytes,
        average_bytes: summary.average_bytes,
        minimum_bytes: summary.minimum_bytes,
        maximum_bytes: summary.maximum_bytes,
        peak_bytes: None,
        peak_ns: None,
        p50_bytes,
        p90_bytes,
        p95_bytes,
        p99_bytes,
        samples: summary.samples,
        begun_ns: summary.begun_ns,
        last_ns: summary.last_ns,
    }
}

/// Returns the fraction of the reserved bytes that is not allocated; `None` if no sample has
/// reserved bytes.
#[expect(clippy::cast_precision_loss, reason = "a part needs no sixteen digits")]
fn fragmentation(allocated: &[SeriesSample], reserved: &[SeriesSample]) -> Option<RatioView> {
    let part = |allocated: u64, reserved: u64| reserved.saturating_sub(allocated) as f64 / reserved as f64;
    let pairs = allocated.iter().zip(reserved).filter(|(_, reserved)| reserved.bytes > 0);
    let ratios: Vec<(f64, u64)> = pairs.map(|(own, all)| (part(own.bytes, all.bytes), all.weight_ns)).collect();
    let samples = ratios.len() as u64;
    let maximum = ratios.iter().map(|(ratio, _)| *ratio).max_by(f64::total_cmp)?;
    let weight: f64 = ratios.iter().map(|(_, weight)| *weight as f64).sum();
    let area: f64 = ratios.iter().map(|(ratio, weight)| ratio * *weight as f64).sum();
    let average = if weight > 0.0 { area / weight } else { ratios.last().map_or(0.0, |(ratio, _)| *ratio) };
    let last = allocated.last().zip(reserved.last()).filter(|(_, reserved)| reserved.bytes > 0);
    let current = last.map(|(own, all)| part(own.bytes, all.bytes));
    let [p50, p90, p95, p99] = percentiles(ratios, f64::total_cmp)?;
    Some(RatioView { current, average, maximum, p50, p90, p95, p99, samples })
}
