//! What tracing costs each process: predicted before it is traced, and looked at again every second.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use memwatch_core::attribution::governor::{Governor, Trying};
use memwatch_core::attribution::overhead;
use memwatch_core::attribution::price::{Asked, Prices, per_second};
use memwatch_core::input::{LevelChoice, Measured, TensorLevel, Windows};
use memwatch_core::words::Tgid;

use super::SessionOptions;
use crate::frameworks::probes::measure_trap;
use crate::frameworks::pytorch::TensorRequest;
use crate::render::sentences::level;
use crate::sources::clock;
use crate::sources::kernel::load::{Kernel, Mechanism};

/// How often the events of a process are looked at again.
const AGAIN: Duration = Duration::from_secs(1);
/// A burst is looked at after this.
const AT_LEAST: Duration = Duration::from_millis(100);

/// Chooses the level of each process.
pub(crate) struct PriceGuard {
    asked: Asked,
    is_measured: bool,
    speaks: bool,
    /// Processes that pay more for what was asked for by name than others may: that was printed.
    warned: BTreeSet<u32>,
    /// At which level a process goes on since it was measured what tracing costs it.
    measured: BTreeMap<u32, TensorLevel>,
    choices: Vec<LevelChoice>,
}

/// How the tensors of a process are seen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Probing {
    /// By several probes each, and not one.
    pub(super) several: bool,
    /// What can be done at each beside that, to measure what tracing costs, in hundredths of a probe that only counts.
    pub(super) load_percent: Option<NonZeroU64>,
}

/// What comes of a measurement.
pub(super) enum Tried {
    /// Nothing yet.
    Wait,
    /// At each event something is done beside tracing, or nothing is.
    Load(bool),
    /// It is over: the level before, and the one from now on.
    Chosen { before: TensorLevel, level: TensorLevel },
}

/// The tensor events of one process.
pub(super) struct Rate {
    since: Instant,
    events: u64,
    /// When they were last known.
    known: Instant,
    /// Per second, between the last two readings of the allocators' own count.
    latest: u64,
    /// Per second, when it was looked at last.
    last: Option<u64>,
}

impl Rate {
    /// From now on.
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { since: now, events: 0, known: now, latest: 0, last: None }
    }

    /// So many more, up to now.
    pub(super) fn count(&mut self, events: u64) {
        let now = Instant::now();
        // A pause is no part of a rate: nobody has looked while it lasted.
        if self.events == 0 && now.saturating_duration_since(self.known) > AGAIN {
            self.since = now;
        }
        self.events = self.events.saturating_add(events);
        self.known = now;
    }

    /// So many more by the allocators' own count, since it was read before.
    pub(super) fn count_read(&mut self, events: u64) {
        self.latest = rate(events, self.known.elapsed().max(AT_LEAST));
        self.count(events);
    }

    /// No more, up to now.
    pub(super) fn pass(&mut self) {
        self.known = Instant::now();
    }

    /// When it is looked at again, if there is anything to see: events, or a level that may be raised.
    pub(super) fn due(&self, may_rise: bool) -> Option<Instant> {
        (self.events > 0 || may_rise).then(|| self.since + AGAIN)
    }

    /// Events per second, every second; sooner, where there are more of them by now than there may be in a second.
    fn take(&mut self, most: u64) -> Option<u64> {
        let elapsed = self.known.saturating_duration_since(self.since);
        let is_time = elapsed >= AGAIN || (elapsed >= AT_LEAST && self.events > most);
        if !is_time {
            return None;
        }
        let mean = rate(self.events, elapsed);
        // A burst may have begun in the midst of this time.
        let rate = if elapsed < AGAIN { mean.max(self.latest) } else { mean };
        *self = Self { since: self.known, events: 0, known: self.known, latest: 0, last: Some(rate) };
        Some(rate)
    }
}

/// So many events per second.
fn rate(events: u64, elapsed: Duration) -> u64 {
    per_second(events, u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
}

impl PriceGuard {
    /// As these options say.
    pub(super) fn new(options: &SessionOptions) -> Self {
        let asked = Asked {
            level: options.tensors.level,
            stacks: options.tensors.stacks,
            several_probes: false,
            by_default: options.tensors.budget.is_some(),
            budget: options.tensors.budget.unwrap_or_default(),
            prices: Prices::default(),
            has_windows: false,
            load_percent: None,
        };
        let (warned, measured, choices) = (BTreeSet::new(), BTreeMap::new(), Vec::new());
        Self { asked, is_measured: false, speaks: !options.is_screen, warned, measured, choices }
    }

    /// Measures what a probe costs here, before the first process is looked at.
    pub(super) fn measure(&mut self, kernel: &mut Kernel) {
        if self.is_measured {
            return;
        }
        self.is_measured = true;
        // One link per function is taken out with a wait of the kernel's for each.
        self.asked.has_windows = kernel.mechanism == Mechanism::UprobeMulti && kernel.mechanism.attaches_to_processes();
        match measure_trap(kernel) {
            Ok(trap_ns) => {
                log::info!("a probe costs {trap_ns} ns on this machine");
                self.asked.prices = Prices { trap_ns };
            }
            Err(error) => log::warn!("what a probe costs here could not be measured: {error}"),
        }
    }

    /// What a call of the driver costs here, nanoseconds.
    pub(super) fn call_ns(&mut self, kernel: &mut Kernel) -> u64 {
        self.measure(kernel);
        overhead::call_ns(self.asked.prices.trap_ns)
    }

    /// What is asked for of a process.
    const fn asked(&self, probes: Probing) -> Asked {
        Asked { several_probes: probes.several, load_percent: probes.load_percent, ..self.asked }
    }

    /// How much is traced of a process that has so many events per second, of which several probes show each, or one.
    pub(super) fn decide(&mut self, tgid: u32, (events_per_second, several): (u64, bool)) -> TensorLevel {
        let asked = self.asked(Probing { several, load_percent: None });
        // Another program may have had this number.
        self.warned.remove(&tgid);
        self.measured.remove(&tgid);
        self.keep(asked.choose((Tgid(tgid), clock::boottime_ns()), events_per_second), None)
    }

    /// The level at which a process is to be traced from now on, where that is another.
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

    /// Goes on with the measurement of what tracing costs a process, if there is one: `counted` is when its allocators had counted how many events.
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

    /// The windows in which a process may be traced that is not traced else, by its last rate.
    pub(super) fn windows(&self, governor: &Governor, rate: &Rate) -> Option<Windows> {
        let is_read = governor.present() == TensorLevel::Read && !governor.is_trying();
        rate.last.filter(|_| is_read).and_then(|rate| self.asked.windows(rate))
    }

    /// All that was asked for, with as few probes as may be.
    pub(super) const fn in_window(&self) -> TensorRequest {
        TensorRequest::of_reports(self.asked.level)
    }

    /// The choices since the last time, oldest first.
    pub(super) fn take_choices(&mut self) -> Vec<LevelChoice> {
        std::mem::take(&mut self.choices)
    }

    /// Whether there are any.
    pub(super) const fn has_choices(&self) -> bool {
        !self.choices.is_empty()
    }

    fn keep(&mut self, choice: LevelChoice, before: Option<TensorLevel>) -> TensorLevel {
        let raised = before.and_then(|before| level::raised(&choice, before));
        let is_known = self.measured.get(&choice.tgid.0) == Some(&choice.chosen) && choice.chosen == choice.asked;
        if matches!(choice.measured, Measured::Slowdown { .. }) {
            self.measured.insert(choice.tgid.0, choice.chosen);
        }
        let sentence = match choice.measured {
            Measured::Not => raised.or_else(|| level::lowered(&choice)),
            Measured::Now | Measured::Slowdown { .. } if is_known => None,
            Measured::Now | Measured::Slowdown { .. } => level::measured(&choice),
        };
        if let Some(sentence) = sentence.filter(|_| self.speaks) {
            eprintln!("memwatch: {sentence}");
        }
        self.warn(&choice);
        self.choices.push(choice);
        choice.chosen
    }

    /// What a process pays for what was asked for by name, once: one that rests when it is met may pay for it later.
    fn warn(&mut self, choice: &LevelChoice) {
        let is_named = choice.measured == Measured::Not;
        let sentence = level::obeyed(choice).filter(|_| is_named && self.warned.insert(choice.tgid.0));
        if let Some(sentence) = sentence.filter(|_| self.speaks) {
            eprintln!("memwatch: {sentence}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(by_default: bool) -> PriceGuard {
        let asked = Asked { level: TensorLevel::Layers, by_default, ..Asked::default() };
        let (warned, measured, choices) = (BTreeSet::new(), BTreeMap::new(), Vec::new());
        PriceGuard { asked, is_measured: true, speaks: false, warned, measured, choices }
    }

    /// A second of so many events, which is over.
    fn rate(events: u64) -> Rate {
        let known = Instant::now();
        let since = known.checked_sub(AGAIN).expect("the machine runs for longer than that");
        Rate { since, events, known, latest: 0, last: None }
    }

    #[test]
    fn a_rate_that_rises_while_it_is_traced_lowers_the_level_and_leaves_a_choice() {
        let mut guard = guard(true);
        let mut governor = Governor::new(guard.decide(7, (100, false)));
        assert_eq!(guard.look_again((7, Probing::default()), &mut governor, &mut rate(100)), None);
        let lowered = guard.look_again((7, Probing::default()), &mut governor, &mut rate(200_000));
        assert_eq!(lowered, Some((TensorLevel::Layers, TensorLevel::Read)));
        let chosen: Vec<_> = guard.take_choices().iter().map(|choice| choice.chosen).collect();
        assert_eq!(chosen, [TensorLevel::Layers, TensorLevel::Read]);
        assert_eq!(guard.take_choices(), []);
    }

    #[test]
    fn a_level_that_was_asked_for_by_name_stays() {
        let mut guard = guard(false);
        let mut governor = Governor::new(guard.decide(7, (200_000, false)));
        assert_eq!(governor.present(), TensorLevel::Layers);
        assert_eq!(guard.look_again((7, Probing::default()), &mut governor, &mut rate(200_000)), None);
    }

    #[test]
    fn of_a_program_that_was_calm_at_first_it_is_printed_later_and_once_what_it_pays() {
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
    fn it_is_looked_again_after_a_second_and_sooner_where_a_burst_has_taken_all_of_it() {
        let known = Instant::now();
        let rate = |before, events| {
            let since = known.checked_sub(before).expect("the machine runs for longer than that");
            let lowered = guard(true).look_again(
                (7, Probing::default()),
                &mut Governor::new(TensorLevel::Layers),
                &mut Rate { since, events, known, latest: 0, last: None },
            );
            lowered.is_some()
        };
        assert!(
            !rate(Duration::ZERO, 200_000) && !rate(AT_LEAST, 2_000) && rate(AT_LEAST, 20_000) && rate(AGAIN, 20_000)
        );
    }

    #[test]
    fn a_burst_is_not_thought_slower_for_the_calm_before_it() {
        let now = Instant::now();
        let known = now.checked_sub(2 * AT_LEAST).expect("the machine runs for longer than that");
        let since = known.checked_sub(3 * AT_LEAST).expect("likewise");
        let mut burst = Rate { since, events: 0, known, latest: 0, last: None };
        burst.count_read(20_000);
        let mean = super::rate(20_000, burst.known.saturating_duration_since(since));
        assert!(burst.take(100).is_some_and(|rate| rate > mean), "{mean} a second");
    }

    #[test]
    fn a_time_of_which_nothing_is_known_does_not_count() {
        let (since, known) = (Instant::now().checked_sub(AGAIN).expect("a second ago"), Instant::now());
        let mut governor = Governor::new(TensorLevel::Read);
        let mut unknown = Rate { since, events: 0, known: since, latest: 0, last: None };
        assert_eq!(guard(true).look_again((7, Probing::default()), &mut governor, &mut unknown), None);
        assert!(unknown.take(0).is_none() && Rate { known, ..unknown }.take(0) == Some(0));
    }
}
