//! The line's look ahead: needs are taken in with each reading and each tick, and told with names when they are asked for.

use crate::Pipeline;
use crate::analysis::forecast::{End, Level, Outlook, Range};
use crate::analysis::line::Line;
use crate::attribution::device::resolve;
use crate::attribution::process::Process;
use crate::input::{DeviceFacts, place};
use crate::ledger::totals::DeviceRef;
use crate::oom::cache;
use crate::snapshot::{
    CacheView, EndView, ForecastsView, GpuForecastView, GrowthView, LeakView, OutlookView, ProcessForecastView,
    RangeView,
};
use crate::words::Name;

/// Growth of a line of less than this is not named as what drives a forecast: bytes a minute.
const NAMED_BYTES_PER_MINUTE: f64 = 1_048_576.0;
/// Blocks from this size on come from the segments that fragment: `kSmallSize` is 1 MiB.
const LARGE_BYTES: u64 = 2 << 20;

impl Pipeline {
    /// From now on it is looked ahead, and what keeps growing is looked for.
    pub fn watch_forecasts(&mut self) {
        self.forecasts.get_or_insert_default();
        self.watch_leaks();
    }

    /// What is to be expected now; nothing before [`Pipeline::watch_forecasts`].
    pub fn forecasts(&self) -> ForecastsView {
        let mut view = ForecastsView { time_ns: self.now_ns, ..ForecastsView::default() };
        let Some(forecasts) = &self.forecasts else { return view };
        let leaks = self.leaks(NAMED_BYTES_PER_MINUTE);
        for device in &self.reading.devices {
            let Some(outlook) = forecasts.of_gpu(device) else { continue };
            view.gpus.push(GpuForecastView {
                uuid: device.uuid.clone(),
                number: place(device.nvml_index, device.mig.as_ref()),
                total_bytes: device.total_bytes,
                used_bytes: device.used_bytes,
                outlook: told(&outlook),
            });
            for process in self.processes.values() {
                let Some(outlook) = forecasts.of_process(process, device) else { continue };
                let own = leaks
                    .iter()
                    .find(|own| own.tgid == process.tgid && own.observed_since_ns == process.observed_since_ns);
                let on_it = |leak: &&LeakView| leak.verdict == "leak" && leak.uuid.as_ref() == Some(&device.uuid);
                let facts = process.facts.as_ref();
                view.processes.push(ProcessForecastView {
                    tgid: process.tgid,
                    comm: facts.map(|facts| facts.comm.clone()).unwrap_or_default(),
                    command: facts.map(|facts| facts.command.clone()).unwrap_or_default(),
                    observed_since_ns: process.observed_since_ns,
                    uuid: device.uuid.clone(),
                    outlook: told(&outlook),
                    cache: cache_on(process, device, &self.reading.devices),
                    growing: own.into_iter().flat_map(|own| &own.findings).filter(on_it).cloned().collect(),
                });
            }
        }
        let seconds = |process: &ProcessForecastView| process.outlook.end.map_or(f64::INFINITY, |end| end.seconds);
        view.processes.sort_by(|one, other| seconds(one).total_cmp(&seconds(other)));
        view
    }

    pub(crate) fn observe_reading(&mut self) {
        let Self { forecasts: Some(forecasts), processes, reading, .. } = self else { return };
        forecasts.observe_reading(processes.values(), reading);
    }

    pub(crate) fn observe_needs(&mut self) {
        let Self { forecasts: Some(forecasts), processes, reading, now_ns, .. } = self else { return };
        forecasts.observe(processes.values(), &reading.devices, *now_ns);
    }
}

/// What the process's PyTorch has there and does not use: of the first of its devices that is this GPU.
fn cache_on(process: &Process, device: &DeviceFacts, devices: &[DeviceFacts]) -> Option<CacheView> {
    let on_it = |ordinal| resolve(process, DeviceRef::Ordinal(ordinal), devices).as_ref() == Some(&device.uuid);
    let mut own = process.tensors.as_ref()?.allocators().iter().filter(|(ordinal, _)| on_it(**ordinal));
    own.next().and_then(|(_, allocator)| cache(allocator, LARGE_BYTES))
}

fn told(outlook: &Outlook) -> OutlookView {
    OutlookView {
        level: word(outlook.level),
        needed_bytes: outlook.needed_bytes,
        growth: outlook.line.as_ref().map(growth),
        end: outlook.end.as_ref().map(end),
    }
}

fn growth(line: &Line) -> GrowthView {
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

fn end(end: &End) -> EndView {
    let range = |range: Range| RangeView {
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
