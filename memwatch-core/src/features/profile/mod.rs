//! Memory over time: sampled as time passes; names are resolved when a report is requested.

pub mod view;

use std::collections::BTreeMap;

use crate::Pipeline;
use crate::attribution::device::resolve;
use crate::attribution::process::Process;
use crate::decode::{Call, TensorEvent};
use crate::features::profile::view::{
    CourseView, DeviceProfileView, GpuProfileView, ProcessProfileView, ProfileView, RatioView,
};
use crate::features::samples::course::{ByteSeries, Peak, SeriesSample, SeriesSummary, percentiles};
use crate::features::samples::{MemorySamples, ProcessLifetime, SeriesKey};
use crate::features::timeline::events::Events;
use crate::input::allocator_state::AllocatorNumbers;
use crate::ledger::totals::DeviceRef;
use crate::words::{GpuUuid, Tgid};

/// Series of memory, and the names of processes that have exited.
#[derive(Clone, Debug)]
pub(crate) struct MemoryProfile {
    pub(crate) samples: MemorySamples,
    pub(crate) gone: BTreeMap<ProcessLifetime, ProcessProfileView>,
    pub(crate) events: Option<Events>,
}

impl Pipeline {
    /// Turns sampling of the memory of GPUs and processes on, at this interval in nanoseconds.
    pub fn watch_samples(&mut self, interval_ns: u64) {
        let followed =
            || MemoryProfile { samples: MemorySamples::new(interval_ns), gone: BTreeMap::new(), events: None };
        self.detectors.followed.get_or_insert_with(|| Box::new(followed()));
    }

    /// Returns the report; `None` before [`Pipeline::watch_samples`].
    pub fn profile(&self) -> Option<ProfileView> {
        let followed = self.detectors.followed.as_deref()?;
        let samples = &followed.samples;
        let mut lives: Vec<ProcessLifetime> = samples.tracks().keys().filter_map(SeriesKey::life).collect();
        lives.sort_by_key(|life| (life.since_ns, life.tgid));
        lives.dedup();
        Some(ProfileView {
            interval_ns: samples.interval_ns(),
            asked_interval_ns: samples.asked_ns(),
            begun_ns: samples.begun_ns().unwrap_or(self.now_ns),
            last_ns: self.now_ns,
            gpus: self.gpu_profiles(samples),
            processes: lives.into_iter().map(|life| self.process_profile(followed, life)).collect(),
        })
    }

    /// Takes the samples due up to this time, before the events of this time are processed.
    pub(crate) fn follow_time(&mut self, time_ns: u64) {
        if let Some(followed) = &mut self.detectors.followed {
            followed.samples.advance(time_ns);
        }
    }

    /// Adds a change of a process's ledger.
    pub(crate) fn follow_process(&mut self, tgid: Tgid, time_ns: u64) {
        let Self { detectors, processes, reading, .. } = self;
        let Some(followed) = &mut detectors.followed else { return };
        if let Some(process) = processes.get(&tgid) {
            followed.samples.observe(process, reading, time_ns);
        }
    }

    /// Adds a change of a process's ledger by a call.
    pub(crate) fn follow_call(&mut self, call: &Call) {
        self.follow_process(call.tgid, call.returned_ns);
        let Self { detectors, processes, .. } = self;
        let (followed, churn) = (&mut detectors.followed, &mut detectors.churn);
        let events = followed.as_mut().and_then(|followed| followed.events.as_mut());
        if events.is_none() && churn.is_none() {
            return;
        }
        let Some(process) = processes.get(&call.tgid) else { return };
        if let Some(events) = events {
            events.observe_call(process, call);
        }
        if let Some(churn) = churn {
            churn.observe_call(process, call);
        }
    }

    /// Adds an event of a process's caching allocators after it was processed.
    pub(crate) fn follow_tensors(&mut self, event: &TensorEvent) {
        let Self { detectors, processes, .. } = self;
        let (followed, churn) = (&mut detectors.followed, &mut detectors.churn);
        if followed.is_none() && churn.is_none() {
            return;
        }
        let Some(process) = processes.get(&event.tgid) else { return };
        if let Some(followed) = followed {
            followed.samples.observe_tensors(process, event);
            if let Some(events) = &mut followed.events {
                events.observe_tensors(process, event);
            }
        }
        if let Some(churn) = churn {
            churn.observe_tensors(process, event);
        }
    }

    /// Adds counters read from a process's caching allocators.
    pub(crate) fn follow_numbers(&mut self, numbers: &AllocatorNumbers) {
        let Self { detectors, processes, .. } = self;
        let Some(followed) = &mut detectors.followed else { return };
        if let Some(process) = processes.get(&numbers.tgid) {
            followed.samples.observe_reported(process, numbers.time_ns);
        }
    }

    /// Adds an NVML reading.
    pub(crate) fn follow_reading(&mut self) {
        let Self { detectors, processes, reading, .. } = self;
        let Some(followed) = &mut detectors.followed else { return };
        followed.samples.read(reading, &processes.values());
    }

    /// Ends the series of a process that is about to exit or to execute another image.
    pub(crate) fn follow_end(&mut self, tgid: Tgid, time_ns: u64) {
        self.follow_time(time_ns);
        let is_wanted = self.detectors.followed.is_some() || self.detectors.churn.is_some();
        let Some(process) = self.processes.get(&tgid).filter(|_| is_wanted) else { return };
        let (life, view) = (ProcessLifetime::of(process), named(process, Some(time_ns)));
        if let Some(churn) = &mut self.detectors.churn {
            churn.end(life);
        }
        if let Some(followed) = &mut self.detectors.followed {
            followed.samples.end(life, time_ns);
            followed.gone.insert(life, view);
        }
    }

    fn gpu_profiles(&self, samples: &MemorySamples) -> Vec<GpuProfileView> {
        let course = |track: &SeriesKey| samples.tracks().get(track);
        let mut uuids: Vec<&GpuUuid> = self.reading.devices.iter().map(|device| &device.uuid).collect();
        let of_gpus = samples.tracks().keys().filter_map(|track| match track {
            SeriesKey::GpuUsed(uuid) | SeriesKey::GpuLive(uuid) => Some(uuid),
            _ => None,
        });
        for uuid in of_gpus {
            if !uuids.contains(&uuid) {
                uuids.push(uuid);
            }
        }
        let view = |uuid: &GpuUuid| {
            let total_bytes = self.total_bytes(uuid);
            let used = course(&SeriesKey::GpuUsed(uuid.clone())).map(|course| self.looked_at(course));
            let live = course(&SeriesKey::GpuLive(uuid.clone())).map(|course| self.counted(course));
            let utilization = used.and_then(|used| used.part_of(total_bytes));
            GpuProfileView { uuid: uuid.clone(), total_bytes, used, live, utilization }
        };
        uuids.into_iter().map(view).collect()
    }

    fn total_bytes(&self, uuid: &GpuUuid) -> Option<u64> {
        self.reading.devices.iter().find(|device| device.uuid == *uuid)?.total_bytes
    }

    /// Returns the process with this lifetime.
    pub(crate) fn of_life(&self, life: ProcessLifetime) -> Option<&Process> {
        self.processes.values().chain(self.ended.iter()).find(|process| ProcessLifetime::of(process) == life)
    }

    /// Returns the identity of a process, without numbers.
    pub(crate) fn life_named(&self, followed: &MemoryProfile, life: ProcessLifetime) -> ProcessProfileView {
        let now = self.of_life(life).map(|process| named(process, process.ended.map(|ended| ended.time_ns)));
        now.or_else(|| followed.gone.get(&life).cloned()).unwrap_or_default()
    }

    fn process_profile(&self, followed: &MemoryProfile, life: ProcessLifetime) -> ProcessProfileView {
        let process = self.of_life(life);
        let mut view = self.life_named(followed, life);
        let mut gpus: BTreeMap<(bool, Option<GpuUuid>), DeviceProfileView> = BTreeMap::new();
        let mut reserved: Vec<(Option<GpuUuid>, Vec<SeriesSample>, Vec<SeriesSample>)> = Vec::new();
        for (track, course) in samples_of(&followed.samples, life) {
            let uuid = match track {
                SeriesKey::Live(_, uuid) => uuid.clone(),
                SeriesKey::Used(_, uuid) => Some(uuid.clone()),
                SeriesKey::Allocated(_, ordinal) | SeriesKey::Reserved(_, ordinal) => {
                    let device = DeviceRef::Ordinal(*ordinal);
                    process.and_then(|process| resolve(process, device, &self.reading.devices))
                }
                _ => {
                    view.pinned = Some(self.counted(course));
                    continue;
                }
            };
            let row = gpus.entry((uuid.is_none(), uuid.clone())).or_default();
            row.uuid.clone_from(&uuid);
            match track {
                SeriesKey::Live(..) => row.live = Some(self.counted(course)),
                SeriesKey::Used(..) => row.used = Some(self.looked_at(course)),
                SeriesKey::Allocated(_, ordinal) => {
                    row.allocated = Some(self.counted(course));
                    let other = followed.samples.tracks().get(&SeriesKey::Reserved(life, *ordinal));
                    let other = other.map_or_else(Vec::new, |course| course.points(self.now_ns));
                    reserved.push((uuid, course.points(self.now_ns), other));
                }
                _ => row.reserved = Some(self.counted(course)),
            }
        }
        for row in gpus.values_mut() {
            row.total_bytes = row.uuid.as_ref().and_then(|uuid| self.total_bytes(uuid));
            let own = reserved.iter().find(|(uuid, ..)| *uuid == row.uuid);
            row.utilization = row.used.or(row.live).and_then(|course| course.part_of(row.total_bytes));
            row.fragmentation = own.and_then(|(_, allocated, reserved)| fragmentation(allocated, reserved));
        }
        view.gpus = gpus.into_values().collect();
        view
    }

    /// Returns the view of a series from traced changes.
    fn counted(&self, course: &ByteSeries) -> CourseView {
        let summary = course.summary(self.now_ns);
        let Peak { bytes, time_ns } = summary.peak;
        CourseView { peak_bytes: Some(bytes), peak_ns: Some(time_ns), ..view_of(&summary) }
    }

    /// Returns the view of a series from readings.
    fn looked_at(&self, course: &ByteSeries) -> CourseView {
        view_of(&course.summary(self.now_ns))
    }
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
