//! Chooses the tracing level of each process by its overhead. The overhead is predicted before
//! tracing and checked again every second.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use memwatch_core::attribution::governor::{Governor, Trying};
use memwatch_core::attribution::overhead;
use memwatch_core::attribution::price::{ProbeCost, TracingRequest, per_second};
use memwatch_core::input::{LevelChoice, MeasuredSlowdown, TensorLevel, Windows};
use memwatch_core::words::Tgid;

use super::SessionOptions;
use crate::frameworks::probes::measure_trap;
use crate::frameworks::watch::TensorRequest;
use crate::render::sentences::level;
use crate::sources::clock;
use crate::sources::kernel::load::{KernelHalf, Mechanism};

/// Interval for checking a process's event rate.
const AGAIN: Duration = Duration::from_secs(1);
/// Minimum interval for checking during a burst.
const AT_LEAST: Duration = Duration::from_millis(100);

/// Chooses the level of each process.
pub(crate) struct OverheadGuard {
    asked: TracingRequest,
    is_measured: bool,
    speaks: bool,
    /// Processes that exceed the budget because of an explicit option; a warning was printed.
    warned: BTreeSet<u32>,
    /// Level of each process with a measured overhead.
    measured: BTreeMap<u32, TensorLevel>,
    choices: Vec<LevelChoice>,
}

/// How tensor events of a process are traced.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Probing {
    /// Whether several probes fire per event instead of one.
    pub(super) several: bool,
    /// Extra work that a measurement can add per event, in hundredths of a counting probe.
    pub(super) load_percent: Option<NonZeroU64>,
    /// Part of the time in which its busiest GPU runs kernels, percent; `None` if unknown.
    pub(super) gpu_percent: Option<u32>,
}

/// Step of an overhead measurement.
pub(super) enum Tried {
    /// No result yet.
    Wait,
    /// Switch the extra work per event on or off.
    Load(bool),
    /// The measurement is finished: the previous level and the new one.
    Chosen { before: TensorLevel, level: TensorLevel },
}

/// Tensor event rate of one process.
pub(super) struct Rate {
    since: Instant,
    events: u64,
    /// Time up to which events are counted.
    known: Instant,
    /// Events per second between the last two readings of the allocators' own count.
    latest: u64,
    /// Events per second at the last check.
    last: Option<u64>,
}

impl Rate {
    /// Starts counting now.
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { since: now, events: 0, known: now, latest: 0, last: None }
    }

    /// Adds this many events, counted up to now.
    pub(super) fn count(&mut self, events: u64) {
        let now = Instant::now();
        // Time without any check is not part of the rate.
        if self.events == 0 && now.saturating_duration_since(self.known) > AGAIN {
            self.since = now;
        }
        self.events = self.events.saturating_add(events);
        self.known = now;
    }

    /// Adds this many events, by which the allocators' own count rose since its previous reading.
    pub(super) fn count_read(&mut self, events: u64) {
        self.latest = rate(events, self.known.elapsed().max(AT_LEAST));
        self.count(events);
    }

    /// Notes that no event has arrived up to now.
    pub(super) fn pass(&mut self) {
        self.known = Instant::now();
    }

    /// Returns when the next check is due; `None` without events if the level cannot rise.
    pub(super) fn due(&self, may_rise: bool) -> Option<Instant> {
        (self.events > 0 || may_rise).then(|| self.since + AGAIN)
    }

    /// Returns the events per second once per second. Returns early if the count already exceeds
    /// `most`, the limit for a whole second.
    fn take(&mut self, most: u64) -> Option<u64> {
        let elapsed = self.known.saturating_duration_since(self.since);
        let is_time = elapsed >= AGAIN || (elapsed >= AT_LEAST && self.events > most);
        if !is_time {
            return None;
        }
        let mean = rate(self.events, elapsed);
        // A burst may have started within this interval.
        let rate = if elapsed < AGAIN { mean.max(self.latest) } else { mean };
        *self = Self { since: self.known, events: 0, known: self.known, latest: 0, last: Some(rate) };
        Some(rate)
    }
}

/// Events per second for this count.
fn rate(events: u64, elapsed: Duration) -> u64 {
    per_second(events, u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
}

impl OverheadGuard {
    /// Creates the guard from the options.
    pub(super) fn new(options: &SessionOptions) -> Self {
        let asked = TracingRequest {
            level: options.tensors.level,
            stacks: options.tensors.stacks,
            several_probes: false,
            by_default: options.tensors.budget.is_some(),
            budget: options.tensors.budget.unwrap_or_default(),
            prices: ProbeCost::default(),
            has_windows: false,
            load_percent: None,
            gpu_percent: None,
        };
        let (warned, measured, choices) = (BTreeSet::new(), BTreeMap::new(), Vec::new());
        Self { asked, is_measured: false, speaks: !options.is_screen, warned, measured, choices }
    }

    /// Measures the cost of a probe on this machine, before the first prediction.
    pub(super) fn measure(&mut self, kernel: &mut KernelHalf) {
        if self.is_measured {
            return;
        }
        self.is_measured = true;
        // Without uprobe_multi, removing links waits in the kernel once per function, which is too
        // slow for windows.
        self.asked.has_windows = kernel.mechanism == Mechanism::UprobeMulti && kernel.mechanism.attaches_to_processes();
        match measure_trap(kernel) {
            Ok(trap_ns) => {
                log::info!("a probe costs {trap_ns} ns on this machine");
                self.asked.prices = ProbeCost { trap_ns };
            }
            Err(error) => log::warn!("cannot measure the cost of a probe: {error}"),
        }
    }

    /// Returns the cost of tracing one driver call on this machine, in nanoseconds.
    pub(super) fn call_ns(&mut self, kernel: &mut KernelHalf) -> u64 {
        self.measure(kernel);
        overhead::call_ns(self.asked.prices.trap_ns)
    }

    /// Returns the user's request, as it applies to a process with these probes.
    const fn asked(&self, probes: Probing) -> TracingRequest {
        let Probing { several, load_percent, gpu_percent } = probes;
        TracingRequest { several_probes: several, load_percent, gpu_percent, ..self.asked }
    }

    /// Chooses the level of a process with this event rate, given whether several probes fire per
    /// event.
    pub(super) fn decide(&mut self, tgid: u32, (events_per_second, several): (u64, bool)) -> TensorLevel {
        let asked = self.asked(Probing { several, ..Probing::default() });
        // The number may have belonged to another program.
        self.warned.remove(&tgid);
        self.measured.remove(&tgid);
        self.keep(asked.choose((Tgid(tgid), clock::boottime_ns()), events_per_second), None)
    }

    /// Checks the level of a process. Returns the previous level and the new one if the level
    /// changes.
    pub(super) fn look_again(
        &mut self,
        (tgid, probes): (u32, Probing),
        governor: &mut Governor,
        rate: &mut Rate,
    ) -> Option<(TensorLevel, TensorLevel)> {
        let (before, asked) = (governor.present(), self.asked(probes));
        let events_per_second = rate.take(asked.most_events(before))?;
        if !asked.by_default {
            self.warn(&asked.choose((Tgid(tgid), clock::boottime_ns()), events_per_second));
            return None;
        }
        let choice = governor.look(asked, (Tgid(tgid), clock::boottime_ns()), events_per_second)?;
        Some((before, self.keep(choice, Some(before))))
    }

    /// Advances a running overhead measurement of a process. `counted`: a time, and the allocators'
    /// event count at that time.
    pub(super) fn try_out(
        &mut self,
        (tgid, probes): (u32, Probing),
        governor: &mut Governor,
        rate: &Rate,
        counted: Option<(u64, u64)>,
    ) -> Tried {
        let (before, asked) = (governor.present(), self.asked(probes));
        let moment = (Tgid(tgid), clock::boottime_ns());
        match governor.try_out(asked, moment, counted, rate.last.unwrap_or(0)) {
            Trying::Wait => Tried::Wait,
            Trying::Load(is_on) => Tried::Load(is_on),
            Trying::Chosen(choice) => {
                let level = self.keep(choice, Some(before));
                Tried::Chosen { before, level }
            }
        }
    }

    /// Returns the sampling windows of a process that is otherwise not traced, computed from its
    /// last rate.
    pub(super) fn windows(&self, governor: &Governor, rate: &Rate) -> Option<Windows> {
        let is_read = governor.present() == TensorLevel::Read && !governor.is_trying();
        rate.last.filter(|_| is_read).and_then(|rate| self.asked.windows(rate))
    }

    /// Returns what is traced within a window: everything requested, with the minimum of probes.
    pub(super) const fn in_window(&self) -> TensorRequest {
        TensorRequest::of_reports(self.asked.level)
    }

    /// Takes the choices made since the last call, oldest first.
    pub(super) fn take_choices(&mut self) -> Vec<LevelChoice> {
        std::mem::take(&mut self.choices)
    }

    /// Whether there are new choices.
    pub(super) const fn has_choices(&self) -> bool {
        !self.choices.is_empty()
    }

    fn keep(&mut self, choice: LevelChoice, before: Option<TensorLevel>) -> TensorLevel {
        let raised = before.and_then(|before| level::raised(&choice, before));
        let is_known = self.measured.get(&choice.tgid.0) == Some(&choice.chosen) && choice.chosen == choice.asked;
        if matches!(choice.measured, MeasuredSlowdown::Slowdown { .. }) {
            self.measured.insert(choice.tgid.0, choice.chosen);
        }
        let sentence = match choice.measured {
            MeasuredSlowdown::Not => raised.or_else(|| level::lowered(&choice)),
            MeasuredSlowdown::Now | MeasuredSlowdown::Slowdown { .. } if is_known => None,
            MeasuredSlowdown::Now | MeasuredSlowdown::Slowdown { .. } => level::measured(&choice),
        };
        if let Some(sentence) = sentence.filter(|_| self.speaks) {
            eprintln!("memwatch: {sentence}");
        }
        self.warn(&choice);
        self.choices.push(choice);
        choice.chosen
    }

    /// Warns once about the overhead of an explicit option. A process that is idle at first may
    /// exceed the budget later.
    fn warn(&mut self, choice: &LevelChoice) {
        let is_named = choice.measured == MeasuredSlowdown::Not;
        let sentence = level::obeyed(choice).filter(|_| is_named && self.warned.insert(choice.tgid.0));
        if let Some(sentence) = sentence.filter(|_| self.speaks) {
            eprintln!("memwatch: {sentence}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(by_default: bool) -> OverheadGuard {
        let asked = TracingRequest { level: TensorLevel::Modules, by_default, ..TracingRequest::default() };
        let (warned, measured, choices) = (BTreeSet::new(), BTreeMap::new(), Vec::new());
        OverheadGuard { asked, is_measured: true, speaks: false, warned, measured, choices }
    }

    /// A finished second with this many events.
    fn rate(events: u64) -> Rate {
        let known = Instant::now();
        let since = known.checked_sub(AGAIN).expect("the machine runs for longer than that");
        Rate { since, events, known, latest: 0, last: None }
    }

    #[test]
    fn event_rate_rise_lowers_the_level_and_records_a_choice() {
        let mut guard = guard(true);
        let mut governor = Governor::new(guard.decide(7, (100, false)));
        assert_eq!(guard.look_again((7, Probing::default()), &mut governor, &mut rate(100)), None);
        let lowered = guard.look_again((7, Probing::default()), &mut governor, &mut rate(200_000));
        assert_eq!(lowered, Some((TensorLevel::Modules, TensorLevel::Read)));
        let chosen: Vec<_> = guard.take_choices().iter().map(|choice| choice.chosen).collect();
        assert_eq!(chosen, [TensorLevel::Modules, TensorLevel::Read]);
        assert_eq!(guard.take_choices(), []);
    }

    #[test]
    fn a_level_that_was_asked_for_by_name_stays() {
        let mut guard = guard(false);
        let mut governor = Governor::new(guard.decide(7, (200_000, false)));
        assert_eq!(governor.present(), TensorLevel::Modules);
        assert_eq!(guard.look_again((7, Probing::default()), &mut governor, &mut rate(200_000)), None);
    }

    #[test]
    fn overhead_warning_of_a_program_idle_at_first_is_printed_once_later() {
        let mut guard = guard(false);
        let mut governor = Governor::new(guard.decide(7, (0, false)));
        assert!(guard.warned.is_empty());
        guard.look_again((7, Probing::default()), &mut governor, &mut rate(200_000));
        assert!(guard.warned.contains(&7) && !guard.warned.insert(7));
        assert_eq!(guard.take_choices().len(), 1, "the level is the same");
        guard.decide(7, (0, false));
        assert!(guard.warned.is_empty(), "this is another program with its number");
    }

    #[test]
    fn event_rate_is_polled_each_second_and_earlier_after_a_burst() {
        let known = Instant::now();
        let rate = |before, events| {
            let since = known.checked_sub(before).expect("the machine runs for longer than that");
            let lowered = guard(true).look_again(
                (7, Probing::default()),
                &mut Governor::new(TensorLevel::Modules),
                &mut Rate { since, events, known, latest: 0, last: None },
            );
            lowered.is_some()
        };
        assert!(
            !rate(Duration::ZERO, 200_000) && !rate(AT_LEAST, 2_000) && rate(AT_LEAST, 20_000) && rate(AGAIN, 20_000)
        );
    }

    #[test]
    fn event_rate_of_a_burst_exceeds_the_mean_with_the_idle_time_before() {
        let now = Instant::now();
        let known = now.checked_sub(2 * AT_LEAST).expect("the machine runs for longer than that");
        let since = known.checked_sub(3 * AT_LEAST).expect("likewise");
        let mut burst = Rate { since, events: 0, known, latest: 0, last: None };
        burst.count_read(20_000);
        let mean = super::rate(20_000, burst.known.saturating_duration_since(since));
        assert!(burst.take(100).is_some_and(|rate| rate > mean), "{mean} a second");
    }

    #[test]
    fn event_rate_excludes_time_without_a_reading() {
        let (since, known) = (Instant::now().checked_sub(AGAIN).expect("a second ago"), Instant::now());
        let mut governor = Governor::new(TensorLevel::Read);
        let mut unknown = Rate { since, events: 0, known: since, latest: 0, last: None };
        assert_eq!(guard(true).look_again((7, Probing::default()), &mut governor, &mut unknown), None);
        assert!(unknown.take(0).is_none() && Rate { known, ..unknown }.take(0) == Some(0));
    }
}
