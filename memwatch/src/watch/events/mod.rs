//! Events of a machine, as a pipeline shows them: allocations that failed, changes of forecasts, and
//! GPU memory that stays charged to exited processes.

pub(crate) mod bounded;
#[cfg(test)]
pub(crate) mod fixture;

use std::collections::{BTreeMap, BTreeSet};

use memwatch_core::Pipeline;
use memwatch_core::features::forecast::view::{ForecastChangeView, OutlookView};
use memwatch_core::features::left_behind::view::LeftBehindChangeView;
use memwatch_core::features::oom::view::OomView;
use memwatch_core::snapshot::{ProcessView, Snapshot, Viewer};
use memwatch_core::words::{GpuUuid, Tgid};

/// Maximum number of processes that an event is about.
pub(crate) const SUBJECTS: usize = 16;

/// Something that happened on a machine.
#[derive(Clone, Debug)]
pub(crate) enum MachineEvent {
    /// An allocation failed for lack of memory.
    OutOfMemory(Box<OomView>),
    /// The forecast of a GPU changed.
    Forecast(Box<ForecastEvent>),
    /// GPU memory began to stay charged to an exited process, or no longer is.
    LeftBehind(Box<LeftBehindChangeView>),
}

/// A change of a GPU's forecast.
#[derive(Clone, Debug)]
pub(crate) struct ForecastEvent {
    /// The change, with the growing processes only.
    pub(crate) change: ForecastChangeView,
    /// Identity of the processes that grow on the GPU, nearest end first. If none grows after the
    /// change, those that grew before it.
    pub(crate) subjects: Vec<ProcessView>,
}

impl MachineEvent {
    /// Returns the name of the kind in JSON.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::OutOfMemory(_) => "out_of_memory",
            Self::Forecast(_) => "forecast",
            Self::LeftBehind(_) => "left_behind",
        }
    }

    /// Returns the time: `CLOCK_BOOTTIME`, in nanoseconds.
    pub(crate) fn time_ns(&self) -> u64 {
        match self {
            Self::OutOfMemory(oom) => oom.time_ns,
            Self::Forecast(event) => event.change.time_ns,
            Self::LeftBehind(change) => change.time_ns,
        }
    }

    /// Returns the processes that the event is about, the most important one first; none if they are
    /// not known.
    pub(crate) fn subjects(&self) -> Vec<&ProcessView> {
        match self {
            Self::OutOfMemory(oom) => failed(oom).into_iter().collect(),
            Self::Forecast(event) => event.subjects.iter().collect(),
            Self::LeftBehind(change) => vec![&*change.process],
        }
    }

    /// Returns the user of the first subject, which is the owner of the event; `None` if the user is
    /// not known.
    pub(crate) fn owner(&self) -> Option<u32> {
        self.subjects().first().and_then(|process| process.uid)
    }

    /// Returns what a viewer may see of it; `None` if it is about no process that is shown to the
    /// viewer.
    pub(crate) fn observed_by(&self, viewer: Viewer) -> Option<Self> {
        if viewer == Viewer::Everything {
            return Some(self.clone());
        }
        match self {
            Self::OutOfMemory(oom) => {
                failed(oom).filter(|process| process.is_shown_to(viewer))?;
                let mut own = oom.clone();
                *own.snapshot = oom.snapshot.observed_by(viewer);
                Some(Self::OutOfMemory(own))
            }
            Self::Forecast(event) => {
                let mut own = event.clone();
                own.subjects.retain(|process| process.is_shown_to(viewer));
                own.change.processes.retain(|forecast| {
                    let key = (forecast.tgid, forecast.observed_since_ns);
                    own.subjects.iter().any(|process| (process.tgid, process.observed_since_ns) == key)
                });
                (!own.subjects.is_empty()).then_some(Self::Forecast(own))
            }
            Self::LeftBehind(change) => Some(Self::LeftBehind(Box::new(change.observed_by(viewer)?))),
        }
    }
}

/// Returns the process whose allocation failed.
pub(crate) fn failed(oom: &OomView) -> Option<&ProcessView> {
    // A number may have been reused, and the last of several processes is the one that failed.
    oom.snapshot.processes.iter().rfind(|process| process.tgid == oom.tgid)
}

/// Whether it is known how the process continued, which the log of failures decides after a while.
const fn is_decided(oom: &OomView) -> bool {
    oom.is_survived || oom.ended_ns.is_some() || oom.exited_ns.is_some()
}

/// Collects the events of a pipeline.
#[derive(Debug, Default)]
pub(crate) struct EventWatch {
    /// Failures that were returned, as long as the log of failures has them.
    returned: BTreeSet<(Tgid, u64)>,
    /// Number of returned failures that the log has dropped.
    dropped: u64,
    /// Processes of the last change of each GPU's forecast.
    growing: BTreeMap<GpuUuid, Vec<ProcessView>>,
}

impl EventWatch {
    /// Turns on the detectors that show events.
    pub(crate) fn prepare(pipeline: &mut Pipeline) {
        pipeline.watch_ooms();
        pipeline.watch_left_behind();
    }

    /// Turns on forecasts, which need about 14 KB per process.
    pub(crate) fn prepare_forecasts(pipeline: &mut Pipeline) {
        pipeline.watch_forecasts(&[]);
    }

    /// Returns what has happened since the last call. A failure is returned once its outcome is
    /// known, about ten seconds after it at most.
    pub(crate) fn take(&mut self, pipeline: &mut Pipeline) -> Vec<MachineEvent> {
        self.take_with(pipeline, is_decided)
    }

    /// Returns what has happened since the last call, with failures of unknown outcome.
    pub(crate) fn take_all(&mut self, pipeline: &mut Pipeline) -> Vec<MachineEvent> {
        self.take_with(pipeline, |_| true)
    }

    fn take_with(&mut self, pipeline: &mut Pipeline, is_due: impl Fn(&OomView) -> bool) -> Vec<MachineEvent> {
        let mut events = self.forecasts(pipeline);
        let left = pipeline.take_left_behind_changes().into_iter();
        events.extend(left.map(|change| MachineEvent::LeftBehind(Box::new(change))));
        let is_new = |oom: &&OomView| is_due(oom) && !self.returned.contains(&(oom.tgid, oom.time_ns));
        let new: Vec<OomView> = pipeline.ooms().0.filter(is_new).cloned().collect();
        if new.is_empty() {
            return events;
        }
        let logged: BTreeSet<_> = pipeline.ooms().0.map(|oom| (oom.tgid, oom.time_ns)).collect();
        let before = self.returned.len();
        self.returned.retain(|key| logged.contains(key));
        self.dropped += (before - self.returned.len()) as u64;
        self.returned.extend(new.iter().map(|oom| (oom.tgid, oom.time_ns)));
        events.extend(new.into_iter().map(|oom| MachineEvent::OutOfMemory(Box::new(oom))));
        events
    }

    /// Returns the number of failures that the log dropped before they were returned.
    pub(crate) fn missed(&self, pipeline: &Pipeline) -> u64 {
        let logged: BTreeSet<_> = pipeline.ooms().0.map(|oom| (oom.tgid, oom.time_ns)).collect();
        let gone = self.returned.difference(&logged).count() as u64;
        pipeline.ooms().1.saturating_sub(self.dropped + gone)
    }

    fn forecasts(&mut self, pipeline: &mut Pipeline) -> Vec<MachineEvent> {
        let changes = pipeline.take_forecast_changes();
        if changes.is_empty() {
            return Vec::new();
        }
        let snapshot = pipeline.snapshot();
        changes.into_iter().map(|change| MachineEvent::Forecast(Box::new(self.forecast(change, &snapshot)))).collect()
    }

    fn forecast(&mut self, mut change: ForecastChangeView, snapshot: &Snapshot) -> ForecastEvent {
        change.processes.retain(|forecast| is_growing(&forecast.outlook));
        change.processes.truncate(SUBJECTS);
        let known = change.processes.iter().filter_map(|forecast| {
            let key = (forecast.tgid, forecast.observed_since_ns);
            snapshot.processes.iter().find(|process| (process.tgid, process.observed_since_ns) == key)
        });
        let mut subjects: Vec<ProcessView> = known.map(ProcessView::identity).collect();
        let before = self.growing.remove(&change.gpu.uuid).unwrap_or_default();
        if subjects.is_empty() {
            subjects = before;
        } else {
            self.growing.insert(change.gpu.uuid.clone(), subjects.clone());
        }
        ForecastEvent { change, subjects }
    }
}

/// Whether there is growth to report.
fn is_growing(outlook: &OutlookView) -> bool {
    !["none", "unknown"].contains(&&*outlook.level)
}

#[cfg(test)]
mod tests;
