//! Samples of the memory of GPUs and processes over time.
//!
//! Time advances with the events, and samples are taken at multiples of the interval on the
//! machine's clock. Two sessions on one machine, and the replay of a recording, therefore take
//! their samples at the same times, whatever drives them.

pub mod course;

use std::collections::BTreeMap;

use super::samples::course::ByteSeries;
use crate::attribution::device::resolve;
use crate::attribution::process::Process;
use crate::decode::{TensorChange, TensorEvent};
use crate::input::{DeviceReading, NvmlState};
use crate::ledger::totals::{AllocationKind, DeviceRef};
use crate::state::State;
use crate::words::{GpuUuid, Ordinal, Tgid};

/// One lifetime of a process or of its executed image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessLifetime {
    /// The process.
    pub tgid: Tgid,
    /// Distinguishes processes that reused the same number: [`Process::observed_since_ns`].
    pub since_ns: u64,
}

impl ProcessLifetime {
    /// Returns the lifetime of a process.
    pub const fn of(process: &Process) -> Self {
        Self { tgid: process.tgid, since_ns: process.observed_since_ns }
    }
}

/// Returns the process with this lifetime.
pub(crate) fn of_life(state: &State, life: ProcessLifetime) -> Option<&Process> {
    state.processes.values().chain(state.ended.iter()).find(|process| ProcessLifetime::of(process) == life)
}

/// Identity of a series.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SeriesKey {
    /// NVML's used bytes of a GPU.
    GpuUsed(GpuUuid),
    /// Live bytes of all traced processes on a GPU.
    GpuLive(GpuUuid),
    /// Live bytes of a process on a GPU; `None` if the GPU is unknown.
    Live(ProcessLifetime, Option<GpuUuid>),
    /// NVML's used bytes of a process on a GPU.
    Used(ProcessLifetime, GpuUuid),
    /// Bytes allocated from the caching allocator of a device.
    Allocated(ProcessLifetime, Ordinal),
    /// Bytes that the caching allocator of a device reserves from the driver.
    Reserved(ProcessLifetime, Ordinal),
    /// Pinned host memory of a process.
    Pinned(ProcessLifetime),
}

impl SeriesKey {
    /// Returns the process that the series belongs to, if any.
    pub const fn life(&self) -> Option<ProcessLifetime> {
        match self {
            Self::GpuUsed(_) | Self::GpuLive(_) => None,
            Self::Live(life, _)
            | Self::Used(life, _)
            | Self::Allocated(life, _)
            | Self::Reserved(life, _)
            | Self::Pinned(life) => Some(*life),
        }
    }
}

/// All series.
#[derive(Clone, Debug)]
pub struct MemorySamples {
    asked_ns: u64,
    interval_ns: u64,
    /// Time of the last sample, or start of the session.
    looked_ns: Option<u64>,
    begun_ns: Option<u64>,
    tracks: BTreeMap<SeriesKey, ByteSeries>,
    /// GPUs of the processes' devices, as far as they are known.
    gpus: BTreeMap<(ProcessLifetime, DeviceRef), Option<GpuUuid>>,
}

impl MemorySamples {
    /// Creates an empty set with this interval, at least a nanosecond.
    pub fn new(interval_ns: u64) -> Self {
        let interval_ns = interval_ns.max(1);
        let (tracks, gpus) = (BTreeMap::new(), BTreeMap::new());
        Self { asked_ns: interval_ns, interval_ns, looked_ns: None, begun_ns: None, tracks, gpus }
    }

    /// Returns the requested interval in nanoseconds.
    pub const fn asked_ns(&self) -> u64 {
        self.asked_ns
    }

    /// Returns the interval in nanoseconds; longer than requested if there were too many points to
    /// keep.
    pub const fn interval_ns(&self) -> u64 {
        self.interval_ns
    }

    /// Returns the time of the first event: `CLOCK_BOOTTIME`, in nanoseconds.
    pub const fn begun_ns(&self) -> Option<u64> {
        self.begun_ns
    }

    /// Returns all series.
    pub const fn tracks(&self) -> &BTreeMap<SeriesKey, ByteSeries> {
        &self.tracks
    }

    /// Takes the samples due up to this time, before a later change is added.
    pub fn advance(&mut self, time_ns: u64) {
        let Some(looked_ns) = self.looked_ns else {
            (self.looked_ns, self.begun_ns) = (Some(time_ns), Some(time_ns));
            return;
        };
        let mut moment_ns = (looked_ns / self.interval_ns + 1).saturating_mul(self.interval_ns);
        if moment_ns > time_ns {
            return;
        }
        while moment_ns <= time_ns {
            self.tracks.values_mut().for_each(|course| course.look(moment_ns));
            self.looked_ns = Some(moment_ns);
            if self.tracks.values().any(ByteSeries::is_full) {
                self.interval_ns = self.interval_ns.saturating_mul(2);
                let interval_ns = self.interval_ns;
                self.tracks.values_mut().for_each(|course| course.thin(interval_ns));
            }
            moment_ns = (moment_ns / self.interval_ns + 1).saturating_mul(self.interval_ns);
        }
    }

    /// Starts in the middle of a session: adds all processes, including idle ones with constant
    /// memory.
    pub fn begin<'a>(
        &mut self,
        reading: &DeviceReading,
        processes: &(impl Iterator<Item = &'a Process> + Clone),
        time_ns: u64,
    ) {
        self.advance(time_ns);
        for process in processes.clone() {
            self.observe(process, reading, time_ns);
            self.observe_reported(process, time_ns);
        }
        // NVML's last reading is taken as the current state.
        if reading.state == NvmlState::Ok {
            self.read(&DeviceReading { end_ns: time_ns, ..reading.clone() }, processes);
        }
    }

    /// Adds the driver memory of a process at this time.
    pub fn observe(&mut self, process: &Process, reading: &DeviceReading, time_ns: u64) {
        let life = ProcessLifetime::of(process);
        let mut sums: BTreeMap<Option<GpuUuid>, u64> = BTreeMap::new();
        for (device, totals) in process.ledger.totals().devices() {
            let resolved = || resolve(process, device, &reading.devices);
            let gpu = self.gpus.entry((life, device)).or_insert_with(resolved);
            let live_bytes = if process.checkpointed { 0 } else { totals.owned.live_bytes };
            let sum = sums.entry(gpu.clone()).or_insert(0);
            *sum = sum.saturating_add(live_bytes);
        }
        for (gpu, bytes) in sums {
            let track = SeriesKey::Live(life, gpu.clone());
            let before_bytes = self.tracks.get(&track).map_or(0, ByteSeries::bytes);
            self.set(track, time_ns, bytes);
            if let Some(uuid) = gpu {
                self.shift(uuid, time_ns, before_bytes, bytes);
            }
        }
        let pinned_bytes = process.ledger.totals().host().kind(AllocationKind::PinnedHost).live_bytes;
        if pinned_bytes > 0 || self.tracks.contains_key(&SeriesKey::Pinned(life)) {
            self.set(SeriesKey::Pinned(life), time_ns, pinned_bytes);
        }
    }

    /// Adds the totals in an allocator event.
    pub fn observe_tensors(&mut self, process: &Process, event: &TensorEvent) {
        let (TensorChange::Reported { ordinal, allocated_bytes, reserved_bytes, .. }
        | TensorChange::OutOfMemory { ordinal, allocated_bytes, reserved_bytes, .. }) = event.what
        else {
            return;
        };
        self.set_tensors(ProcessLifetime::of(process), ordinal, event.time_ns, (allocated_bytes, reserved_bytes));
    }

    /// Adds the known totals of the process's caching allocators.
    pub fn observe_reported(&mut self, process: &Process, time_ns: u64) {
        for (ordinal, allocator) in process.tensors.iter().flat_map(|tensors| tensors.allocators()) {
            let Some(now) = allocator.reported() else { continue };
            self.set_tensors(
                ProcessLifetime::of(process),
                *ordinal,
                time_ns,
                (now.allocated_bytes, now.reserved_bytes),
            );
        }
    }

    /// Adds an NVML reading, which may also identify the GPUs of devices.
    pub fn read<'a>(&mut self, reading: &DeviceReading, processes: &(impl Iterator<Item = &'a Process> + Clone)) {
        let time_ns = reading.end_ns;
        for process in processes.clone() {
            self.place(process, reading, time_ns);
        }
        if reading.state != NvmlState::Ok {
            let of_nvml = |track: &&mut ByteSeries| track.ended_ns().is_none();
            let used = self
                .tracks
                .iter_mut()
                .filter(|(track, _)| matches!(track, SeriesKey::GpuUsed(_) | SeriesKey::Used(..)));
            used.map(|(_, course)| course).filter(of_nvml).for_each(|course| course.end(time_ns));
            return;
        }
        for device in &reading.devices {
            if let Some(used_bytes) = device.used_bytes {
                self.set(SeriesKey::GpuUsed(device.uuid.clone()), time_ns, used_bytes);
            }
            self.tracks.entry(SeriesKey::GpuLive(device.uuid.clone())).or_insert_with(|| ByteSeries::begin(time_ns, 0));
            for process in processes.clone() {
                let listed = device.processes.iter().flatten().find(|entry| entry.tgid == process.tgid);
                let track = SeriesKey::Used(ProcessLifetime::of(process), device.uuid.clone());
                match listed.map(|entry| entry.used_bytes) {
                    Some(Some(used_bytes)) => self.set(track, time_ns, used_bytes),
                    // NVML no longer lists the process, or does not report its bytes.
                    _ => {
                        if let Some(course) = self.tracks.get_mut(&track) {
                            course.end(time_ns);
                        }
                    }
                }
            }
        }
    }

    /// Ends the series of a process that has exited or executed another image.
    pub fn end(&mut self, life: ProcessLifetime, time_ns: u64) {
        let mut given_back = Vec::new();
        for (track, course) in self.tracks.iter_mut().filter(|(track, _)| track.life() == Some(life)) {
            if let SeriesKey::Live(_, Some(uuid)) = track {
                given_back.push((uuid.clone(), course.bytes()));
            }
            course.end(time_ns);
        }
        for (uuid, bytes) in given_back {
            self.shift(uuid, time_ns, bytes, 0);
        }
        self.gpus.retain(|(known, _), _| *known != life);
    }

    /// Updates the GPUs of the process's devices, which may have become known.
    fn place(&mut self, process: &Process, reading: &DeviceReading, time_ns: u64) {
        let life = ProcessLifetime::of(process);
        let mut has_changed = false;
        for ((_, device), gpu) in
            self.gpus.range_mut((life, DeviceRef::Unknown)..).take_while(|((of, _), _)| *of == life)
        {
            let now = resolve(process, *device, &reading.devices);
            if now.is_some() && now != *gpu {
                *gpu = now;
                has_changed = true;
            }
        }
        if !has_changed {
            return;
        }
        // If all devices are one GPU, memory on an unknown GPU is on this GPU.
        let unplaced = self.tracks.remove(&SeriesKey::Live(life, None));
        let gpus: Vec<&GpuUuid> =
            self.gpus.iter().filter(|((of, _), _)| *of == life).filter_map(|(_, gpu)| gpu.as_ref()).collect();
        if let ([uuid, others @ ..], Some(course)) = (&gpus[..], unplaced) {
            let uuid = (*uuid).clone();
            let is_one = others.iter().all(|other| **other == uuid);
            let track = SeriesKey::Live(life, Some(uuid.clone()));
            if is_one && !self.tracks.contains_key(&track) {
                let bytes = course.bytes();
                self.tracks.insert(track, course);
                self.shift(uuid, time_ns, 0, bytes);
            }
        }
        self.observe(process, reading, time_ns);
    }

    fn set_tensors(
        &mut self,
        life: ProcessLifetime,
        ordinal: Ordinal,
        time_ns: u64,
        (allocated, reserved): (u64, u64),
    ) {
        self.set(SeriesKey::Allocated(life, ordinal), time_ns, allocated);
        self.set(SeriesKey::Reserved(life, ordinal), time_ns, reserved);
    }

    fn set(&mut self, track: SeriesKey, time_ns: u64, bytes: u64) {
        self.tracks.entry(track).or_insert_with(|| ByteSeries::begin(time_ns, bytes)).set(time_ns, bytes);
    }

    /// Changes the sum of all processes on a GPU by the change of one.
    fn shift(&mut self, uuid: GpuUuid, time_ns: u64, before_bytes: u64, bytes: u64) {
        let course = self.tracks.entry(SeriesKey::GpuLive(uuid)).or_insert_with(|| ByteSeries::begin(time_ns, 0));
        let all_bytes = course.bytes().saturating_sub(before_bytes).saturating_add(bytes);
        course.set(time_ns, all_bytes);
    }
}
