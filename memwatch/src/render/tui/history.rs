//! Histories of used bytes and of step counts, collected from the displayed snapshots.

use std::collections::{BTreeMap, VecDeque};

use memwatch_core::snapshot::{ProcessView, Snapshot};
use memwatch_core::words::GpuUuid;

use super::grid::ProcessKey;
use super::size::seconds;
use crate::render::format::ratio;
use crate::render::order::by_holding;

/// Maximum number of points per history: a screen has no more columns.
const POINTS: usize = 240;
/// Maximum number of processes with a history. Those that use the most memory are kept.
const PROCESSES: usize = 200;
/// Number of most recent points that rates are computed over.
const RATE_POINTS: usize = 30;

/// Used bytes at one point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UsagePoint {
    /// `CLOCK_BOOTTIME`, nanoseconds.
    pub(crate) time_ns: u64,
    /// Used bytes.
    pub(crate) bytes: u64,
}

/// Points, oldest first.
pub(crate) type UsageSeries = VecDeque<UsagePoint>;

/// Histories of all GPUs and processes.
#[derive(Debug, Default)]
pub(crate) struct Histories {
    gpus: BTreeMap<GpuUuid, UsageSeries>,
    processes: BTreeMap<(ProcessKey, Option<GpuUuid>), UsageSeries>,
    steps: BTreeMap<ProcessKey, VecDeque<(u64, u64)>>,
}

impl Histories {
    /// Adds a snapshot. Histories of GPUs and processes that are not in it are dropped.
    pub(crate) fn take(&mut self, snapshot: &Snapshot) {
        let time_ns = snapshot.time_ns;
        let mut before = std::mem::take(self);
        for gpu in &snapshot.gpus {
            let series = before.gpus.remove(&gpu.uuid).unwrap_or_default();
            self.gpus.insert(gpu.uuid.clone(), with(series, gpu.used_bytes.map(|bytes| UsagePoint { time_ns, bytes })));
        }
        for process in by_holding(snapshot).into_iter().take(PROCESSES) {
            let key = ProcessKey::of(process);
            for gpu in &process.gpus {
                let place = (key, gpu.uuid.clone());
                let series = before.processes.remove(&place).unwrap_or_default();
                let bytes = gpu.used_bytes.unwrap_or(gpu.live_bytes);
                let point = process.ended_ns.is_none().then_some(UsagePoint { time_ns, bytes });
                self.processes.insert(place, with(series, point));
            }
            if let Some(steps) = steps(process) {
                let series = before.steps.remove(&key).unwrap_or_default();
                let point = process.ended_ns.is_none().then_some((time_ns, steps));
                self.steps.insert(key, with(series, point));
            }
        }
    }

    /// Returns the used bytes of a GPU as reported by NVML.
    pub(crate) fn gpu(&self, uuid: &GpuUuid) -> Option<&UsageSeries> {
        self.gpus.get(uuid)
    }

    /// Returns the used bytes of a process on a GPU as reported by NVML, or its live driver
    /// allocations if NVML does not report the process.
    pub(crate) fn process(&self, key: ProcessKey, uuid: Option<&GpuUuid>) -> Option<&UsageSeries> {
        self.processes.get(&(key, uuid.cloned()))
    }

    /// Returns the recent steps per second of a training; `None` if no step ended in that time.
    pub(crate) fn steps_per_second(&self, key: ProcessKey) -> Option<f64> {
        let points = self.steps.get(&key)?;
        let last = points.back()?;
        let first = points.get(points.len().saturating_sub(RATE_POINTS))?;
        let steps = last.1.checked_sub(first.1).filter(|steps| *steps > 0)?;
        Some(ratio(steps, 1) / seconds(first.0, last.0))
    }
}

/// Returns the number of steps that a process has completed.
pub(crate) fn steps(process: &ProcessView) -> Option<u64> {
    process.tensors.as_ref()?.attribution.steps
}

fn with<T>(mut series: VecDeque<T>, point: Option<T>) -> VecDeque<T> {
    series.extend(point);
    while series.len() > POINTS {
        series.pop_front();
    }
    series
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::fixture::{at, busy_node, training_node};

    #[test]
    fn histories_follow_processes_and_gpus_end_with_them_and_are_bounded() {
        let mut histories = Histories::default();
        let mut snapshot = busy_node();
        let key = ProcessKey::of(&snapshot.processes[0]);
        let uuid = snapshot.processes[0].gpus[0].uuid.clone();
        for step in 0..300 {
            snapshot.time_ns += 1;
            snapshot.processes[0].gpus[0].used_bytes = Some(step);
            histories.take(&snapshot);
        }
        let bytes: Vec<_> =
            histories.process(key, uuid.as_ref()).expect("it is there").iter().map(|at| at.bytes).collect();
        assert_eq!((bytes.len(), bytes.first(), bytes.last()), (POINTS, Some(&60), Some(&299)));
        assert_eq!(histories.gpu(&snapshot.gpus[0].uuid).map(VecDeque::len), Some(POINTS));
        let ended = ProcessKey::of(&snapshot.processes[2]);
        let of_ended = histories.process(ended, snapshot.processes[2].gpus[0].uuid.as_ref());
        assert_eq!(of_ended.map(VecDeque::len), Some(0), "what has ended uses nothing more");
        snapshot.processes.clear();
        histories.take(&snapshot);
        assert!(histories.process(key, uuid.as_ref()).is_none());
    }

    #[test]
    fn the_rate_of_steps_is_over_the_last_points_and_unknown_where_none_ends() {
        let mut histories = Histories::default();
        let mut snapshot = training_node();
        let key = ProcessKey::of(&snapshot.processes[0]);
        for second in 0..4 {
            snapshot.time_ns = at(14, 3, second);
            if let Some(tensors) = &mut snapshot.processes[0].tensors {
                tensors.attribution.steps = Some(100 + 3 * second);
            }
            histories.take(&snapshot);
            assert_eq!(histories.steps_per_second(key), (second > 0).then_some(3.0));
        }
    }
}
