//! Forecasts of memory use: updated on every NVML reading and tick; names are resolved when a
//! report is requested.

pub mod alarm;
pub mod calibration;
pub mod line;
pub mod model;
pub mod view;

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::attribution::device::resolve;
use crate::attribution::process::Process;
use crate::features::forecast::alarm::{Alarm, ForecastChange};
use crate::features::forecast::line::NeedTrend;
use crate::features::forecast::model::{Exhaustion, ExhaustionRange, Level, MemoryForecasts, Outlook, company};
use crate::features::forecast::view::{
    EndView, ForecastChangeView, ForecastsView, GpuForecastView, GrowthView, OutlookView, ProcessForecastView,
    TimeRangeView,
};
use crate::features::leak::model::{Leaks, Verdict};
use crate::features::leak::view::LeakView;
use crate::features::oom::cache;
use crate::features::oom::view::CacheView;
use crate::features::trend::as_f64;
use crate::input::{DeviceFacts, place};
use crate::ledger::totals::DeviceRef;
use crate::state::State;
use crate::state::event::{Detector, Event};
use crate::words::{GpuUuid, Name};

/// Minimum growth of a call site that is named as a cause of a forecast, in bytes per minute.
const NAMED_BYTES_PER_MINUTE: f64 = 1_048_576.0;
/// Minimum size of blocks that come from segments that can fragment: `kSmallSize` is 1 MiB.
const LARGE_BYTES: u64 = 2 << 20;

/// Maximum number of changes kept until they are taken.
const KEPT: usize = 64;

/// Forecasts, and the state of the alerts on them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ForecastState {
    forecasts: MemoryForecasts,
    alarms: BTreeMap<GpuUuid, Alarm>,
    /// Thresholds in percent of a GPU's memory.
    #[serde(skip)]
    thresholds: Vec<f64>,
    /// Changes at the last tick that are not described yet.
    #[serde(skip)]
    unnamed: Vec<(GpuUuid, ForecastChange)>,
    #[serde(skip)]
    changes: VecDeque<ForecastChangeView>,
}

#[cfg(test)]
impl ForecastState {
    /// Returns the number of processes in the state.
    pub(crate) fn processes(&self) -> usize {
        self.forecasts.known()
    }
}

impl Detector for ForecastState {
    #[inline]
    fn on(&mut self, event: &Event<'_>, state: &State) {
        match event {
            Event::Reading => self.forecasts.observe_reading(&state.processes, &state.reading),
            // The need of a process does not predict the need of its successor.
            Event::Ends { tgid, .. } => self.forecasts.forget(*tgid),
            Event::Tick => self.tick(state),
            _ => {}
        }
    }
}

impl ForecastState {
    /// Sets the thresholds, in percent of a GPU's memory, that changes report when the need passes
    /// them.
    pub fn warn_at(&mut self, thresholds: &[f64]) {
        self.thresholds = thresholds.to_vec();
    }

    /// Takes the changes since the last call, oldest first; at most the last 64.
    pub fn take_changes(&mut self) -> VecDeque<ForecastChangeView> {
        std::mem::take(&mut self.changes)
    }

    /// Returns the current forecasts, with the growth that `leaks` found.
    pub fn report(&self, state: &State, leaks: Option<&Leaks>) -> ForecastsView {
        let mut view = ForecastsView { time_ns: state.now_ns, ..ForecastsView::default() };
        let leaks = leaks.map_or_else(Vec::new, |leaks| leaks.report(state, NAMED_BYTES_PER_MINUTE));
        for device in &state.reading.devices {
            let Some(outlook) = self.outlook(state, device) else { continue };
            view.gpus.push(GpuForecastView {
                uuid: device.uuid.clone(),
                number: place(device.nvml_index, device.mig.as_ref()),
                total_bytes: device.total_bytes,
                used_bytes: device.used_bytes,
                outlook: reported(&outlook),
            });
            for process in state.processes.values() {
                let Some(outlook) = self.forecasts.of_process(process, device) else { continue };
                let own = leaks
                    .iter()
                    .find(|own| own.tgid == process.tgid && own.observed_since_ns == process.observed_since_ns);
                let on_it =
                    |leak: &&LeakView| leak.verdict == Verdict::Leak && leak.uuid.as_ref() == Some(&device.uuid);
                let facts = process.facts.as_ref();
                view.processes.push(ProcessForecastView {
                    tgid: process.tgid,
                    comm: facts.map(|facts| facts.comm.clone()).unwrap_or_default(),
                    command: facts.map(|facts| facts.command.clone()).unwrap_or_default(),
                    observed_since_ns: process.observed_since_ns,
                    uuid: device.uuid.clone(),
                    outlook: reported(&outlook),
                    cache: cache_on(process, device, &state.reading.devices),
                    growing: own.into_iter().flat_map(|own| &own.findings).filter(on_it).cloned().collect(),
                });
            }
        }
        let seconds = |process: &ProcessForecastView| process.outlook.end.map_or(f64::INFINITY, |end| end.seconds);
        view.processes.sort_by(|one, other| seconds(one).total_cmp(&seconds(other)));
        view
    }

    /// Returns the forecast for a GPU. It is unknown from the exit of a process that was on the GPU
    /// until NVML is read again.
    fn outlook(&self, state: &State, device: &DeviceFacts) -> Option<Outlook> {
        let outlook = self.forecasts.of_gpu(device)?;
        let company = company(device);
        let has_ended = |process: &Process| process.ended.is_some_and(|ended| ended.time_ns >= state.reading.end_ns);
        let is_other = state.ended.iter().any(|process| has_ended(process) && company.contains(&process.tgid));
        let unknown = Outlook { needed_bytes: outlook.needed_bytes, ..Outlook::default() };
        Some(if is_other { unknown } else { outlook })
    }

    fn tick(&mut self, state: &State) {
        self.forecasts.observe(&state.processes, &state.reading.devices, state.now_ns);
        for device in &state.reading.devices {
            let outlook = self.outlook(state, device).unwrap_or_default();
            let percent = percent(outlook.needed_bytes, device.total_bytes);
            let alarm = self.alarms.entry(device.uuid.clone()).or_default();
            let changes = alarm.observe(outlook.level, percent, &self.thresholds, state.now_ns);
            self.unnamed.extend(changes.into_iter().map(|change| (device.uuid.clone(), change)));
        }
    }

    /// Describes the changes of the last tick, with the growth that `leaks` found.
    pub(crate) fn name_changes(&mut self, state: &State, leaks: Option<&Leaks>) {
        for (uuid, change) in std::mem::take(&mut self.unnamed) {
            self.name_change(&uuid, change, (state, leaks));
        }
    }

    fn name_change(&mut self, uuid: &GpuUuid, change: ForecastChange, (state, leaks): (&State, Option<&Leaks>)) {
        let mut view = self.report(state, leaks);
        let Some(gpu) = view.gpus.iter().find(|gpu| gpu.uuid == *uuid).cloned() else { return };
        view.processes.retain(|process| process.uuid == *uuid);
        let (before, threshold_percent) = match change {
            ForecastChange::Level { before, .. } => (Some(word(before)), None),
            ForecastChange::Threshold { percent } => (None, Some(percent)),
        };
        if self.changes.len() >= KEPT {
            self.changes.pop_front();
        }
        let time_ns = state.now_ns;
        self.changes.push_back(ForecastChangeView {
            time_ns,
            before,
            threshold_percent,
            gpu,
            processes: view.processes,
        });
    }
}

/// Returns the fraction of the total in percent.
fn percent(bytes: u64, total_bytes: Option<u64>) -> Option<f64> {
    let total = total_bytes.filter(|total| *total > 0)?;
    Some(as_f64(bytes) * 100.0 / as_f64(total))
}

/// Returns the memory that the process's PyTorch has on the GPU and does not use, for the first of
/// its devices that is this GPU.
fn cache_on(process: &Process, device: &DeviceFacts, devices: &[DeviceFacts]) -> Option<CacheView> {
    let on_it = |ordinal| resolve(process, DeviceRef::Ordinal(ordinal), devices).as_ref() == Some(&device.uuid);
    let mut own = process.current_tensors()?.allocators().iter().filter(|(ordinal, _)| on_it(**ordinal));
    own.next().and_then(|(_, allocator)| cache(allocator, LARGE_BYTES))
}

fn reported(outlook: &Outlook) -> OutlookView {
    OutlookView {
        level: outlook.line.as_ref().map_or_else(|| "unknown".into(), |_| word(outlook.level)),
        needed_bytes: outlook.needed_bytes,
        growth: outlook.line.as_ref().map(growth),
        end: outlook.end.as_ref().map(end),
    }
}

fn growth(line: &NeedTrend) -> GrowthView {
    GrowthView {
        grows: line.grows(),
        windows: line.points,
        span_seconds: line.span_seconds,
        bytes_per_second: line.bytes_per_second,
        low_bytes_per_second: line.low_bytes_per_second,
        high_bytes_per_second: line.high_bytes_per_second,
        p: line.whole.p,
    }
}

fn end(end: &Exhaustion) -> EndView {
    let range = |range: ExhaustionRange| TimeRangeView {
        earliest_seconds: range.earliest_seconds,
        latest_seconds: range.latest_seconds,
        confidence: range.confidence,
    };
    EndView { seconds: end.seconds, reach: end.reach, range: end.range.map(range) }
}

fn word(level: Level) -> Name {
    match level {
        Level::None => "none",
        Level::Low => "low",
        Level::Medium => "medium",
        Level::High => "high",
        Level::Critical => "critical",
    }
    .into()
}
