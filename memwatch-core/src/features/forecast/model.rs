//! Forecasts whether and when the memory of a GPU runs out.
//!
//! The forecast follows the memory that is **needed**. For a PyTorch process this is the maximum of
//! its tensors within a window of at least one step, or its segments in use, whichever is more: its
//! allocator frees the rest before a request fails. For everything else it is NVML's number. Need
//! that grows within memory that PyTorch has reserved already is no danger until that memory is
//! full, and is not counted twice.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::calibration;
use super::line::{NeedTrend, may_grow};
use crate::allocators::TensorLedger;
use crate::allocators::pytorch::DeviceAllocator;
use crate::attribution::device::resolve;
use crate::attribution::process::Process;
use crate::features::fragments::model::releasable_bytes;
use crate::features::trend::{TrendPoint, TrendSeries, as_f64};
use crate::input::{DeviceFacts, DeviceReading};
use crate::ledger::totals::DeviceRef;
use crate::words::{GpuUuid, Ordinal, Tgid};

/// Number of recent windows kept, and the lengths of recent spans that are examined besides the
/// whole series: growth may have begun lately.
const RECENT: usize = 64;
const SCALES: [usize; 3] = [RECENT, 32, 16];
/// Maximum bend of a straight line: the logarithm of 1.5, the ratio of the later half's rate to the
/// whole's.
const STRAIGHT: f64 = 0.405;
/// Minimum width of a range to either side, in windows: nothing is reported between two windows.
const SLACK_WINDOWS: f64 = 2.0;
/// Minimum confidence for a level above low, however near the end seems.
const SURE_ENOUGH: f64 = 0.5;
/// Levels by the maximum time left, in seconds.
const LEFT_SECONDS: [(f64, Level); 3] = [(60.0, Level::Critical), (600.0, Level::High), (3600.0, Level::Medium)];

/// How soon memory runs out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Level {
    /// The need does not grow.
    #[default]
    None,
    /// The need grows, and lasts for more than an hour or an unknown time.
    Low,
    /// Memory runs out within an hour.
    Medium,
    /// Memory runs out within ten minutes.
    High,
    /// Memory runs out within a minute.
    Critical,
}

/// Time at which memory runs out if the growth continues.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exhaustion {
    /// Time by the straight line, in seconds from now.
    pub seconds: f64,
    /// Bytes left, in multiples of the growth so far.
    pub reach: f64,
    /// Range of times in which memory runs out, in seconds from now; `None` if no measured forecast
    /// reached so far ahead.
    pub range: Option<ExhaustionRange>,
}

/// A range of times with its confidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExhaustionRange {
    /// Start of the range, in seconds from now.
    pub earliest_seconds: f64,
    /// End of the range, in seconds from now.
    pub latest_seconds: f64,
    /// Fraction of such forecasts that came true.
    pub confidence: f64,
}

/// Forecast for a GPU, or for a process on it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outlook {
    /// How soon memory runs out.
    pub level: Level,
    /// Trend of the need; `None` if it was observed for too short a time.
    pub line: Option<NeedTrend>,
    /// Time at which memory runs out; `None` if the need does not grow or the limit is unknown.
    pub end: Option<Exhaustion>,
    /// Bytes needed in the last window.
    pub needed_bytes: u64,
}

/// Need of one GPU, or of one process on it, over time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NeedSeries {
    whole: TrendSeries,
    recent: VecDeque<TrendPoint>,
}

/// A process: its pid, and its start of observation, which distinguishes processes that reused the
/// pid.
type ForecastProcessKey = (Tgid, u64);

/// Use of a GPU in NVML's last reading.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct UsageOutsidePyTorch {
    /// Bytes used beyond the segments of PyTorch processes.
    bytes: u64,
    /// Processes whose segments were subtracted.
    without: BTreeSet<ForecastProcessKey>,
    /// Processes on the GPU.
    company: BTreeSet<Tgid>,
}

/// Needs of all GPUs, and of all processes on them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MemoryForecasts {
    gpus: BTreeMap<GpuUuid, NeedSeries>,
    processes: BTreeMap<(ForecastProcessKey, GpuUuid), NeedSeries>,
    rest: BTreeMap<GpuUuid, UsageOutsidePyTorch>,
    windows: BTreeMap<ForecastProcessKey, u64>,
    /// Processes that have begun to train; what they needed before was for set-up.
    training: BTreeSet<ForecastProcessKey>,
}

impl Default for NeedSeries {
    fn default() -> Self {
        Self { whole: TrendSeries::of_most(), recent: VecDeque::with_capacity(RECENT) }
    }
}

impl MemoryForecasts {
    /// Adds an NVML reading.
    pub fn observe_reading(&mut self, processes: &BTreeMap<Tgid, Process>, reading: &DeviceReading) {
        let is_there = |uuid: &GpuUuid| reading.devices.iter().any(|device| device.uuid == *uuid);
        self.rest.retain(|uuid, _| is_there(uuid));
        self.gpus.retain(|uuid, _| is_there(uuid));
        for device in &reading.devices {
            let Some(used_bytes) = device.used_bytes else {
                self.rest.remove(&device.uuid);
                continue;
            };
            let mut rest = UsageOutsidePyTorch { company: company(device), ..UsageOutsidePyTorch::default() };
            let mut segments_bytes = 0_u64;
            for process in processes.values() {
                let own = allocators_on(process, &device.uuid, &reading.devices);
                let reserved: Vec<u64> = own.filter_map(|(_, one)| Some(one.reported()?.reserved_bytes)).collect();
                if !reserved.is_empty() {
                    rest.without.insert(key(process));
                    segments_bytes = segments_bytes.saturating_add(reserved.iter().sum());
                }
            }
            rest.bytes = used_bytes.saturating_sub(segments_bytes);
            // A different set of processes starts a new series, and so does a process whose PyTorch
            // has started.
            let is_other =
                |before: &UsageOutsidePyTorch| before.company != rest.company || before.without != rest.without;
            if self.rest.get(&device.uuid).is_some_and(is_other) {
                self.gpus.remove(&device.uuid);
            }
            self.rest.insert(device.uuid.clone(), rest);
        }
    }

    /// Forgets all processes that had this pid.
    pub fn forget(&mut self, tgid: Tgid) {
        self.processes.retain(|((own, _), _), _| *own != tgid);
        self.windows.retain(|(own, _), _| *own != tgid);
        self.training.retain(|(own, _)| *own != tgid);
    }

    /// Returns the number of processes in the state.
    #[cfg(test)]
    pub(crate) fn known(&self) -> usize {
        let tracks = self.processes.keys().map(|(key, _)| key);
        let all: BTreeSet<&ForecastProcessKey> = tracks.chain(self.windows.keys()).chain(&self.training).collect();
        all.len()
    }

    /// Adds the needs of all GPUs and processes at this time.
    pub fn observe(&mut self, processes: &BTreeMap<Tgid, Process>, devices: &[DeviceFacts], now_ns: u64) {
        for process in processes.values() {
            self.begin_training(process);
        }
        let fresh: BTreeSet<ForecastProcessKey> =
            processes.values().filter_map(|process| self.has_window(process)).collect();
        for process in processes.values().filter(|process| fresh.contains(&key(process))) {
            for (uuid, bytes) in needs(process, devices) {
                self.processes.entry((key(process), uuid)).or_default().push(now_ns, bytes);
            }
        }
        for (uuid, rest) in &self.rest {
            let mut sum_bytes = rest.bytes;
            let (mut own, mut is_fresh) = (BTreeSet::new(), rest.without.is_empty());
            for process in processes.values() {
                if allocators_on(process, uuid, devices).any(|(_, one)| one.reported().is_some()) {
                    own.insert(key(process));
                    is_fresh |= fresh.contains(&key(process));
                    sum_bytes = sum_bytes.saturating_add(tensors_need(process, uuid, devices));
                }
            }
            // Between a reading and the first report of a process's allocator, the process's memory
            // would be counted twice or not at all.
            if own == rest.without && is_fresh {
                self.gpus.entry(uuid.clone()).or_default().push(now_ns, sum_bytes);
            }
        }
    }

    /// Starts a new series with the first optimizer step.
    fn begin_training(&mut self, process: &Process) {
        let steps = process.tensors.as_ref().map_or(0, |tensors| tensors.threads().steps());
        if steps > 0 && self.training.insert(key(process)) {
            let own = self.processes.extract_if(.., |(whose, _), _| *whose == key(process));
            let uuids: Vec<GpuUuid> = own.map(|((_, uuid), _)| uuid).collect();
            self.gpus.retain(|uuid, _| !uuids.contains(uuid));
        }
    }

    /// Returns the process's key if a window was closed since the last call; always for a process
    /// without PyTorch.
    fn has_window(&mut self, process: &Process) -> Option<ForecastProcessKey> {
        let Some(tensors) = process.current_tensors() else { return Some(key(process)) };
        let taken = self.windows.insert(key(process), tensors.windows());
        (taken != Some(tensors.windows())).then(|| key(process))
    }

    /// Returns the forecast for a GPU; `None` if its use was never observed.
    pub fn of_gpu(&self, device: &DeviceFacts) -> Option<Outlook> {
        let track = self.gpus.get(&device.uuid)?;
        Some(track.outlook(device.total_bytes.map(as_f64)))
    }

    /// Returns the forecast for a process on a GPU if all other processes stay as they are; `None`
    /// if it was never observed.
    pub fn of_process(&self, process: &Process, device: &DeviceFacts) -> Option<Outlook> {
        let track = self.processes.get(&(key(process), device.uuid.clone()))?;
        let all = self.gpus.get(&device.uuid).and_then(NeedSeries::needed_bytes);
        let own = track.needed_bytes();
        // Memory that the others need is not available to the process.
        let left = all.zip(own).zip(device.total_bytes);
        Some(track.outlook(left.map(|((all, own), total)| as_f64(total.saturating_sub(all.saturating_sub(own))))))
    }
}

impl NeedSeries {
    /// Adds a window.
    pub(crate) fn push(&mut self, time_ns: u64, bytes: u64) {
        self.whole.push(time_ns, bytes);
        if self.recent.len() >= RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(TrendPoint { time_ns, bytes });
    }

    fn needed_bytes(&self) -> Option<u64> {
        self.recent.back().map(|point| point.bytes)
    }

    fn line(&self) -> Option<NeedTrend> {
        self.line_of(|_| true)
    }

    /// Returns the line if it grows. Cheap if it does not.
    pub(crate) fn growth(&self) -> Option<NeedTrend> {
        self.line_of(may_grow).filter(NeedTrend::grows)
    }

    /// Returns the line of the longest span up to now that is straight and grows; else the
    /// straightest line that grows; else the line of the longest span. Considers only the spans
    /// that `is_wanted` accepts.
    fn line_of(&self, is_wanted: impl Fn(&[TrendPoint]) -> bool) -> Option<NeedTrend> {
        let recent: Vec<TrendPoint> = self.recent.iter().copied().collect();
        let last = |windows: usize| recent.get(recent.len().saturating_sub(windows)..).unwrap_or_default();
        let scales = SCALES.iter().filter(|windows| **windows == RECENT || **windows < recent.len());
        let all = std::iter::once(self.whole.points()).chain(scales.map(|windows| last(*windows)));
        let mut bent = Vec::new();
        for line in all.filter(|points| is_wanted(points)).filter_map(NeedTrend::through) {
            if line.grows() && line.bend() < STRAIGHT {
                return Some(line);
            }
            bent.push(line);
        }
        let growing = bent.iter().filter(|line| line.grows());
        growing.min_by(|one, other| one.bend().total_cmp(&other.bend())).or(bent.first()).copied()
    }

    fn outlook(&self, limit_bytes: Option<f64>) -> Outlook {
        let line = self.line();
        let growing = line.filter(NeedTrend::grows);
        let end = growing.zip(limit_bytes).and_then(|(line, limit_bytes)| end(&line, limit_bytes));
        let level = if growing.is_some() { end.map_or(Level::Low, |end| level(&end)) } else { Level::None };
        Outlook { level, line, end, needed_bytes: self.needed_bytes().unwrap_or(0) }
    }
}

/// Returns when a line reaches the limit.
pub(crate) fn end(line: &NeedTrend, limit_bytes: f64) -> Option<Exhaustion> {
    let rate = line.bytes_per_second;
    let grown_bytes = rate * line.span_seconds;
    let levels_off = line.ceiling_bytes().is_some_and(|ceiling_bytes| ceiling_bytes < limit_bytes);
    if grown_bytes <= 0.0 || levels_off {
        return None;
    }
    let left_bytes = (limit_bytes - line.top_bytes).max(0.0);
    let (seconds, reach) = (left_bytes / rate, left_bytes / grown_bytes);
    let slack = SLACK_WINDOWS * line.span_seconds / as_f64(line.points.max(2) as u64 - 1);
    let range = calibration::bin(reach).map(|bin| ExhaustionRange {
        earliest_seconds: (seconds * bin.earliest - slack).max(0.0),
        latest_seconds: seconds * bin.latest + slack,
        confidence: bin.confidence,
    });
    Some(Exhaustion { seconds, reach, range })
}

fn level(end: &Exhaustion) -> Level {
    let is_sure = end.range.is_some_and(|range| range.confidence >= SURE_ENOUGH);
    let near = LEFT_SECONDS.iter().find(|(seconds, _)| is_sure && end.seconds <= *seconds);
    near.map_or(Level::Low, |(_, level)| *level)
}

fn key(process: &Process) -> ForecastProcessKey {
    (process.tgid, process.observed_since_ns)
}

/// Returns the processes on a GPU in an NVML reading.
pub(crate) fn company(device: &DeviceFacts) -> BTreeSet<Tgid> {
    device.processes.iter().flatten().map(|entry| entry.tgid).collect()
}

/// Returns the caching allocators of a process on a GPU.
fn allocators_on<'a>(
    process: &'a Process,
    uuid: &'a GpuUuid,
    devices: &'a [DeviceFacts],
) -> impl Iterator<Item = (Ordinal, &'a DeviceAllocator)> {
    let all = process.current_tensors().into_iter().flat_map(TensorLedger::allocators);
    let on_it = move |ordinal| resolve(process, DeviceRef::Ordinal(ordinal), devices).as_ref() == Some(uuid);
    all.map(|(ordinal, allocator)| (*ordinal, allocator)).filter(move |(ordinal, _)| on_it(*ordinal))
}

/// Returns the need of a process by GPU, in bytes.
fn needs(process: &Process, devices: &[DeviceFacts]) -> BTreeMap<GpuUuid, u64> {
    let mut needs = BTreeMap::new();
    if let Some(tensors) = process.current_tensors().filter(|tensors| !tensors.allocators().is_empty()) {
        for (ordinal, allocator) in tensors.allocators() {
            if let Some(uuid) = resolve(process, DeviceRef::Ordinal(*ordinal), devices) {
                *needs.entry(uuid).or_default() += need(tensors, *ordinal, allocator);
            }
        }
        return needs;
    }
    for (device, totals) in process.ledger.totals().devices() {
        if let Some(uuid) = resolve(process, device, devices) {
            *needs.entry(uuid).or_default() += totals.owned.live_bytes;
        }
    }
    needs
}

fn tensors_need(process: &Process, uuid: &GpuUuid, devices: &[DeviceFacts]) -> u64 {
    let Some(tensors) = process.current_tensors() else { return 0 };
    allocators_on(process, uuid, devices).map(|(ordinal, one)| need(tensors, ordinal, one)).sum()
}

/// Returns the bytes that a caching allocator cannot do without.
fn need(tensors: &TensorLedger, ordinal: Ordinal, allocator: &DeviceAllocator) -> u64 {
    let reported = allocator.reported().unwrap_or_default();
    let high_water_bytes = tensors.high_water_bytes(ordinal).unwrap_or(reported.allocated_bytes);
    high_water_bytes.max(in_use_bytes(allocator).unwrap_or(0))
}

/// Returns the segment bytes that the allocator cannot release; `None` if its segments are not
/// traced.
fn in_use_bytes(allocator: &DeviceAllocator) -> Option<u64> {
    if allocator.shows_totals_alone() {
        return None;
    }
    let memory = allocator.memory();
    Some(memory.reserved_bytes().saturating_sub(releasable_bytes(memory)))
}

#[cfg(test)]
mod tests {
    use super::{Level, NeedSeries};

    const MIB: u64 = 1 << 20;

    fn track(windows: u64, bytes: impl Fn(u64) -> u64) -> NeedSeries {
        let mut track = NeedSeries::default();
        (0..windows).for_each(|second| track.push(second * 1_000_000_000, bytes(second)));
        track
    }

    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    const fn limit(mib: u64) -> f64 {
        (mib * MIB) as f64
    }

    #[test]
    fn forecast_ends_where_growth_reaches_the_limit() {
        let outlook = track(30, |second| (500 + 10 * second) * MIB).outlook(Some(limit(1_000)));
        let end = outlook.end.expect("it grows");
        assert!((end.seconds - 21.0).abs() < 0.1, "{outlook:?}");
        let range = end.range.expect("that near was measured");
        assert!(range.earliest_seconds < 21.0 && 21.0 < range.latest_seconds, "{outlook:?}");
        assert_eq!((outlook.level, outlook.needed_bytes), (Level::Critical, 790 * MIB));
    }

    #[test]
    fn forecast_finds_a_recent_leak_and_rates_a_distant_end_low() {
        let late = track(400, |second| (500 + 10 * second.saturating_sub(370)) * MIB);
        assert!(late.outlook(Some(limit(1_000))).end.is_some());
        let far = track(30, |second| (500 + second) * MIB).outlook(Some(limit(80_000)));
        assert_eq!((far.level, far.end.and_then(|end| end.range)), (Level::Low, None), "{far:?}");
    }

    #[test]
    fn without_a_limit_nothing_is_stated_of_the_end() {
        let outlook = track(30, |second| (500 + 10 * second) * MIB).outlook(None);
        assert_eq!((outlook.level, outlook.end), (Level::Low, None));
        assert!(outlook.line.is_some_and(|line| line.grows()));
    }

    #[test]
    fn forecast_has_no_end_without_growth_and_no_line_for_short_series() {
        let steady = track(30, |second| (500 + second % 3) * MIB).outlook(Some(limit(510)));
        assert_eq!((steady.level, steady.end), (Level::None, None), "{steady:?}");
        assert_eq!(track(5, |second| second * MIB).outlook(Some(limit(10))).line, None);
    }
}
