//! Outlooks of processes: leaks and the time until memory runs out, formatted for the live view.

use memwatch_core::features::forecast::view::{ForecastsView, ProcessForecastView};
use memwatch_core::features::holdings::view::HoldingsView;
use memwatch_core::features::leak::model::Verdict;
use memwatch_core::features::leak::view::{LeakView, LeaksView};
use memwatch_core::snapshot::{ProcessView, SiteView};
use memwatch_core::words::{GpuUuid, Tgid};

use super::size::{growth, time};
use crate::render::Tone;
use crate::render::places;
use crate::render::sentences::level::is_sampled;

/// Minimum growth for a warning, in bytes per minute.
pub(crate) const WARNED_BYTES_PER_MINUTE: f64 = 1_048_576.0;

/// Leaks, forecasts and named objects at one point in time. Empty if the analysis is off.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Outlooks {
    /// Leak analysis per process.
    pub(crate) leaks: Vec<LeaksView>,
    /// Forecasts of the time at which memory runs out.
    pub(crate) forecasts: ForecastsView,
    /// Live objects by name, per process.
    pub(crate) holdings: Vec<ProcessObjects>,
}

/// Live objects of one process, by name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProcessObjects {
    /// Process id.
    pub(crate) tgid: Tgid,
    /// Start of the observation: `CLOCK_BOOTTIME`, nanoseconds.
    pub(crate) observed_since_ns: u64,
    /// Sums by name.
    pub(crate) view: HoldingsView,
}

/// Converts growth per minute to growth per step if the program counts steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GrowthPace {
    /// Steps per second; `None` if the program counts no steps.
    pub(crate) steps_per_second: Option<f64>,
}

impl GrowthPace {
    /// Returns the growth in bytes per step, or per minute if there are no steps.
    pub(crate) fn of(self, bytes_per_minute: f64) -> f64 {
        self.steps_per_second.map_or(bytes_per_minute, |steps| bytes_per_minute / 60.0 / steps)
    }

    /// `+126 MiB/step`, `+126 MiB/min`.
    pub(crate) fn text(self, bytes_per_minute: f64) -> String {
        let unit = if self.steps_per_second.is_some() { "step" } else { "min" };
        format!("{}/{unit}", growth(self.of(bytes_per_minute)))
    }
}

impl Outlooks {
    /// Returns the live objects of a process by name; `None` if they were not read.
    pub(crate) fn holdings(&self, process: &ProcessView) -> Option<&HoldingsView> {
        let is_it =
            |own: &&ProcessObjects| (own.tgid, own.observed_since_ns) == (process.tgid, process.observed_since_ns);
        self.holdings.iter().find(is_it).map(|own| &own.view)
    }

    /// Returns the leak analysis of a process.
    pub(crate) fn leaks(&self, process: &ProcessView) -> Option<&LeaksView> {
        let is_it = |own: &&LeaksView| (own.tgid, own.observed_since_ns) == (process.tgid, process.observed_since_ns);
        self.leaks.iter().find(is_it)
    }

    /// Returns the leaks of a process, fastest first.
    pub(crate) fn leaking(&self, process: &ProcessView) -> impl Iterator<Item = &LeakView> {
        let leaks = self.leaks(process).into_iter().flat_map(|own| &own.findings);
        leaks.filter(|leak| leak.verdict == Verdict::Leak && leak.bytes_per_minute >= WARNED_BYTES_PER_MINUTE)
    }

    /// Returns the growth of a line in bytes per minute; `None` if the line was not observed for
    /// long enough.
    pub(crate) fn growth(&self, process: &ProcessView, site: &SiteView, uuid: Option<&GpuUuid>) -> Option<f64> {
        let is_it = |leak: &&LeakView| {
            leak.kind.as_ref() == Some(&site.kind)
                && (&leak.file, leak.line, &leak.function) == (&site.file, site.line, &site.function)
                && leak.held == site.held
                && leak.uuid.as_ref() == uuid
        };
        let found = self.leaks(process)?.findings.iter().find(is_it)?;
        Some(if found.verdict.grows() { found.bytes_per_minute } else { 0.0 })
    }

    /// Returns the forecast of a process if running out of memory is likely.
    fn end(&self, process: &ProcessView) -> Option<&ProcessForecastView> {
        let is_it = |own: &&ProcessForecastView| {
            (own.tgid, own.observed_since_ns) == (process.tgid, process.observed_since_ns)
                && own.outlook.end.is_some()
                && matches!(&*own.outlook.level, "medium" | "high" | "critical")
        };
        self.forecasts.processes.iter().find(is_it)
    }

    /// Returns a short status for a column: `OOM 1m20s`, `leak`.
    pub(crate) fn status(&self, process: &ProcessView) -> Option<(Tone, String)> {
        if let Some(end) = self.end(process).and_then(|found| found.outlook.end) {
            let earliest = end.range.map_or(end.seconds, |range| range.earliest_seconds);
            return Some((Tone::Bad, format!("OOM {}", time(earliest))));
        }
        self.leaking(process).next().map(|_| (Tone::Warning, "leak".to_owned()))
    }

    /// `OOM in 1m20s to 2m42s (70 %): +126 MiB/step at train_leak.py:10 forward`, or only the leak.
    pub(crate) fn warning(&self, process: &ProcessView, pace: GrowthPace) -> Option<(Tone, String)> {
        let at = |leak: &LeakView| {
            let line = places::leak(leak).unwrap_or_else(|| "driver allocations".to_owned());
            // Growth between sampling windows is not seen.
            let at_least = if leak.level == "tensor" && is_sampled(process) { "at least " } else { "" };
            format!("{at_least}{} at {line}", pace.text(leak.bytes_per_minute))
        };
        // Blocks allocated between two windows have no line. A leak with a line is more useful.
        let has_line = |leak: &&LeakView| !is_sampled(process) || leak.file.is_some();
        let cause = self.leaking(process).find(has_line).or_else(|| self.leaking(process).next()).map(at);
        if let Some(found) = self.end(process) {
            let end = found.outlook.end?;
            let when = end.range.map_or_else(
                || format!("OOM in about {}", time(end.seconds)),
                |range| {
                    let (earliest, latest) = (time(range.earliest_seconds), time(range.latest_seconds));
                    format!("OOM in {earliest} to {latest} ({:.0} %)", range.confidence * 100.0)
                },
            );
            return Some((Tone::Bad, cause.map_or_else(|| when.clone(), |cause| format!("{when}: {cause}"))));
        }
        cause.map(|cause| (Tone::Warning, format!("leak: {cause}")))
    }
}

#[cfg(test)]
mod tests {
    use memwatch_core::snapshot::WindowsView;

    use super::*;
    use crate::render::tui::fixture::{leaking_node, leaking_outlooks};

    #[test]
    fn a_warning_names_time_growth_and_line() {
        let snapshot = leaking_node();
        let mut outlooks = leaking_outlooks();
        let pace = GrowthPace { steps_per_second: Some(3.0) };
        let warning = |outlooks: &Outlooks| outlooks.warning(&snapshot.processes[0], pace);
        let (tone, text) = warning(&outlooks).expect("it runs out");
        assert_eq!(tone, Tone::Bad);
        assert_eq!(text, "OOM in 1m20s to 2m42s (70 %): +126 MiB/step at train_leak.py:10 forward");
        assert_eq!(outlooks.status(&snapshot.processes[0]), Some((Tone::Bad, "OOM 1m20s".to_owned())));
        outlooks.forecasts = ForecastsView::default();
        let (tone, text) = warning(&outlooks).expect("it leaks");
        assert_eq!((tone, &*text), (Tone::Warning, "leak: +126 MiB/step at train_leak.py:10 forward"));
        assert_eq!(outlooks.status(&snapshot.processes[0]), Some((Tone::Warning, "leak".to_owned())));
        assert_eq!(warning(&Outlooks::default()), None);
    }

    #[test]
    fn growth_that_only_windows_have_shown_is_at_least_so_much() {
        let mut snapshot = leaking_node();
        let outlooks = Outlooks { forecasts: ForecastsView::default(), ..leaking_outlooks() };
        let tensors = snapshot.processes[0].tensors.as_mut().expect("PyTorch");
        tensors.windows = Some(WindowsView { windows: 5, discarded: 0, open_ns: 1_000_000_000 });
        let (_, text) =
            outlooks.warning(&snapshot.processes[0], GrowthPace { steps_per_second: None }).expect("it leaks");
        assert!(text.starts_with("leak: at least +"), "{text}");
        let mut between = outlooks.clone();
        let faster = LeakView { kind: Some("preexisting".into()), file: None, ..between.leaks[0].findings[0].clone() };
        between.leaks[0].findings.insert(0, faster);
        let (_, same) =
            between.warning(&snapshot.processes[0], GrowthPace { steps_per_second: None }).expect("it leaks");
        assert_eq!(same, text, "what has no line names none");
    }

    #[test]
    fn without_steps_growth_is_a_minute() {
        let pace = GrowthPace { steps_per_second: None };
        assert_eq!(pace.text(63_000_000.0), "+60 MiB/min");
    }

    #[test]
    fn a_line_that_was_not_observed_for_long_enough_has_no_growth() {
        let (snapshot, outlooks) = (leaking_node(), leaking_outlooks());
        let process = &snapshot.processes[0];
        let device = &process.tensors.as_ref().expect("PyTorch").attribution.devices[0];
        let growth: Vec<_> =
            device.sites.iter().map(|site| outlooks.growth(process, site, device.uuid.as_ref()).is_some()).collect();
        assert_eq!(growth, [true, true, false]);
    }
}
