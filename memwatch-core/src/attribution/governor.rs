//! Chooses the tracing level of a process over time: by the predicted overhead of its events, and,
//! where the prediction exceeds the budget, by the measured speed of the program.

use super::price::{Budget, MOST_TRIED_NS, TracingRequest};
use super::trial::{OverheadTrial, TrialStep};
use crate::input::{LevelChoice, MeasuredSlowdown, TensorLevel};
use crate::words::Tgid;

/// Headroom for raising a level: the higher level must take at most this part of the budget, in
/// percent, so that it need not be lowered at once.
const ROOM_PERCENT: u64 = 70;
/// Time for which a higher level must have fitted the budget before it is chosen, in nanoseconds.
/// Doubles, up to [`LONGEST_CALM_NS`], each time the level has to be lowered soon after it was
/// raised.
const CALM_NS: u64 = 3_000_000_000;
const LONGEST_CALM_NS: u64 = 300_000_000_000;

/// Time for which a verdict is valid, in nanoseconds. Doubles with each further equal verdict, up
/// to [`LONGEST_AGAIN_NS`]. A program that was slowed is measured again earlier if the predicted
/// overhead is below [`CHANGED_PERCENT`] percent of the overhead at the verdict: after [`SOON_NS`],
/// and only as often as measurements fit the budget on average. [`SOON_NS`] doubles with each such
/// measurement in vain: the event rate of a server rises and falls all the time.
const AGAIN_NS: u64 = 30_000_000_000;
const LONGEST_AGAIN_NS: u64 = 600_000_000_000;
const SOON_NS: u64 = 2_000_000_000;
const CHANGED_PERCENT: u64 = 70;
/// Event rate up to which a verdict without a slowdown holds, in percent of the rate at the
/// measurement.
const MORE_PERCENT: u64 = 125;

/// Controls the level of one process: lowers it at once if it costs too much, and raises it again
/// once a higher level has fitted the budget for a while.
///
/// If the predicted overhead exceeds the budget, the governor first measures, while everything is
/// traced, whether the program is slowed at all.
#[derive(Clone, Debug)]
pub struct Governor {
    present: TensorLevel,
    /// Time since which a higher level has fitted: `CLOCK_BOOTTIME`, nanoseconds.
    calm_since_ns: Option<u64>,
    /// Time for which a higher level has to fit before it is chosen, in nanoseconds.
    calm_ns: u64,
    /// Time at which the level was last raised: `CLOCK_BOOTTIME`, nanoseconds.
    raised_ns: Option<u64>,
    /// Running overhead measurement.
    trial: Option<Box<OverheadTrial>>,
    /// Why the running measurement began.
    why: Outdated,
    /// Verdict of the last measurement.
    judged: Option<Judged>,
}

/// Verdict of an overhead measurement.
#[derive(Clone, Copy, Debug)]
struct Judged {
    fits: bool,
    /// Event rate at the measurement. `price_ns` is the overhead at this rate, in nanoseconds per
    /// second of one processor.
    events_per_second: u64,
    price_ns: u64,
    time_ns: u64,
    /// Number of equal verdicts directly before this one.
    times: u32,
    /// The level was lowered since, because the event rate had risen.
    is_interrupted: bool,
    /// Number of measurements because of a changed event rate that found a slowdown, since the
    /// program was last traced in full for as long as a verdict is valid.
    in_vain: u32,
}

/// Why another measurement may lead to another verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outdated {
    /// There is none, or it is old.
    ByTime,
    /// The event rate has changed.
    ByRate,
}

impl Judged {
    /// Whether everything may be traced without another measurement. A program that was not slowed
    /// may be slowed later at the same event rate, so the verdict expires.
    fn allows(&self, now_ns: u64, events_per_second: u64) -> bool {
        let is_recent = now_ns.saturating_sub(self.time_ns) < self.again_ns();
        let has_more = events_per_second.saturating_mul(100) > self.events_per_second.saturating_mul(MORE_PERCENT);
        self.fits && is_recent && !has_more
    }

    /// Returns the time for which the verdict is valid, in nanoseconds.
    fn again_ns(&self) -> u64 {
        AGAIN_NS.saturating_mul(1 << self.times.min(5)).min(LONGEST_AGAIN_NS)
    }

    /// Returns the time after which a changed rate is a reason to measure again, in nanoseconds.
    fn soon_ns(&self) -> u64 {
        SOON_NS.saturating_mul(1 << self.in_vain.min(9)).min(LONGEST_AGAIN_NS)
    }

    /// Returns why another measurement may lead to another verdict, if it may.
    fn outdated(&self, now_ns: u64, price_ns: u64, budget: Budget) -> Option<Outdated> {
        let since_ns = now_ns.saturating_sub(self.time_ns);
        if self.fits {
            // The event rate has risen, or the verdict has expired, or the level was lowered meanwhile.
            let is_old = since_ns >= self.again_ns();
            let by_rate = (self.in_vain == 0 || since_ns >= self.soon_ns()).then_some(Outdated::ByRate);
            return if is_old { Some(Outdated::ByTime) } else { by_rate };
        }
        // A measurement takes some seconds in which everything is traced. On average that must be
        // within the budget, too.
        let dear = price_ns.checked_div(budget.ns_per_second().unwrap_or(0)).unwrap_or(0).saturating_mul(3_000_000_000);
        let has_changed = price_ns.saturating_mul(100) < self.price_ns.saturating_mul(CHANGED_PERCENT);
        if has_changed && since_ns >= self.soon_ns().max(dear) {
            return Some(Outdated::ByRate);
        }
        (since_ns >= self.again_ns().max(dear).min(LONGEST_AGAIN_NS)).then_some(Outdated::ByTime)
    }

    /// Returns the number of measurements in vain after another verdict.
    fn in_vain_after(before: Option<Self>, fits: bool, why: Outdated, now_ns: u64) -> u32 {
        let Some(before) = before else { return 0 };
        let lasted = before.fits && !before.is_interrupted && now_ns.saturating_sub(before.time_ns) >= AGAIN_NS;
        let until_now = if lasted { 0 } else { before.in_vain };
        until_now.saturating_add(u32::from(!fits && why == Outdated::ByRate))
    }
}

/// Next step of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trying {
    /// Nothing to do.
    Wait,
    /// Switch the extra load at each event on or off.
    Load(bool),
    /// The measurement is finished, and the process is traced at this level.
    Chosen(LevelChoice),
}

impl Governor {
    /// Creates the governor of a process that is traced at this level.
    pub const fn new(present: TensorLevel) -> Self {
        Self {
            present,
            calm_since_ns: None,
            calm_ns: CALM_NS,
            raised_ns: None,
            trial: None,
            why: Outdated::ByTime,
            judged: None,
        }
    }

    /// Returns the current level.
    pub const fn present(&self) -> TensorLevel {
        self.present
    }

    /// Checks the level at the current rate of tensor events. Returns the new level if it changes.
    pub fn look(&mut self, asked: TracingRequest, moment: (Tgid, u64), events_per_second: u64) -> Option<LevelChoice> {
        let (_, now_ns) = moment;
        if self.is_trying() {
            return None;
        }
        let is_allowed = self.judged.is_some_and(|judged| judged.allows(now_ns, events_per_second));
        if is_allowed && self.present == asked.level {
            return None;
        }
        let price_ns = asked.price_ns(asked.level, events_per_second);
        if let Some(judged) = &mut self.judged {
            // An untraced program is not slowed by tracing, so its event rate may be higher than
            // during the measurement.
            judged.price_ns = judged.price_ns.max(if judged.fits { 0 } else { price_ns });
        }
        let judged = self.judged;
        let why = judged.map_or(Some(Outdated::ByTime), |judged| judged.outdated(now_ns, price_ns, asked.budget));
        if let Some(why) = why.filter(|_| asked.can_be_tried(events_per_second)) {
            self.trial = asked.trial(now_ns).map(Box::new);
            self.why = why;
            let choice = asked.choice(moment, asked.level, events_per_second);
            return Some(self.take(LevelChoice { measured: MeasuredSlowdown::Now, ..choice }));
        }
        let most = asked.highest(events_per_second, 100);
        if most < self.present {
            let is_soon = self.raised_ns.is_some_and(|raised_ns| now_ns.saturating_sub(raised_ns) < 2 * self.calm_ns);
            self.calm_ns = if is_soon { self.calm_ns.saturating_mul(2).min(LONGEST_CALM_NS) } else { CALM_NS };
            if let Some(judged) = &mut self.judged {
                judged.is_interrupted = true;
            }
            return Some(self.take(asked.choice(moment, most, events_per_second)));
        }
        let higher = asked.highest(events_per_second, ROOM_PERCENT);
        if higher <= self.present {
            self.calm_since_ns = None;
            return None;
        }
        let since_ns = *self.calm_since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since_ns) < self.calm_ns {
            return None;
        }
        self.raised_ns = Some(now_ns);
        Some(self.take(asked.choice(moment, higher, events_per_second)))
    }

    /// Whether an overhead measurement is running.
    pub const fn is_trying(&self) -> bool {
        self.trial.is_some()
    }

    /// Notes that a step of the program's training has begun.
    pub fn note_step(&mut self, time_ns: u64) {
        if let Some(trial) = &mut self.trial {
            trial.step(time_ns);
        }
    }

    /// Advances the measurement. `counted`: a time, and the number of tensor events up to it.
    /// `rate`: events per second at the last check.
    pub fn try_out(
        &mut self,
        asked: TracingRequest,
        moment: (Tgid, u64),
        counted: Option<(u64, u64)>,
        rate: u64,
    ) -> Trying {
        let (_, now_ns) = moment;
        let Some(trial) = &mut self.trial else { return Trying::Wait };
        if let Some((time_ns, events)) = counted {
            trial.count(time_ns, events);
        }
        let (fits, slowdown, events_per_second) = match trial.turn(now_ns, asked.part()) {
            // A program with too many events for a measurement counts as slowed.
            TrialStep::Wait if asked.price_ns(asked.level, rate) > 2 * MOST_TRIED_NS => (false, None, rate),
            TrialStep::Wait => return Trying::Wait,
            TrialStep::Load(is_on) => return Trying::Load(is_on),
            TrialStep::Known { fits, slowdown } => {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate is above 0")]
                let own = trial.events_per_second().map_or(rate, |rate| rate as u64);
                (fits, Some(slowdown), own)
            }
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "parts in 10,000 of a slowdown")]
        let measured = slowdown.filter(|slowdown| slowdown.part.is_finite() && slowdown.error.is_finite()).map_or(
            MeasuredSlowdown::Not,
            |slowdown| MeasuredSlowdown::Slowdown {
                part: (slowdown.part * 1e4) as i64,
                error: (slowdown.error * 1e4).ceil() as u64,
            },
        );
        self.trial = None;
        let times = self.judged.filter(|judged| judged.fits == fits).map_or(0, |judged| judged.times + 1);
        let price_ns = asked.price_ns(asked.level, events_per_second);
        let in_vain = Judged::in_vain_after(self.judged, fits, self.why, now_ns);
        self.judged =
            Some(Judged { fits, events_per_second, price_ns, time_ns: now_ns, times, is_interrupted: false, in_vain });
        let chosen = if fits { asked.level } else { asked.highest(events_per_second, 100) };
        Trying::Chosen(self.take(LevelChoice { measured, ..asked.choice(moment, chosen, events_per_second) }))
    }

    const fn take(&mut self, choice: LevelChoice) -> LevelChoice {
        (self.present, self.calm_since_ns) = (choice.chosen, None);
        choice
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;
    use crate::attribution::price::tests::default;
    use TensorLevel::{Lines, Modules, Read};
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_level_is_lowered_at_once_and_raised_once_it_was_calm_for_a_while() {
        let mut governor = Governor::new(Modules);
        let mut look =
            |second: u64, rate| governor.look(default(), (Tgid(7), second * SECOND), rate).map(|choice| choice.chosen);
        assert_eq!(look(1, 1_000), None);
        assert_eq!(look(2, 200_000), Some(Read));
        assert_eq!([look(3, 1_000), look(4, 1_000), look(5, 1_000)], [None; 3]);
        assert_eq!(look(6, 1_000), Some(Modules));
        assert_eq!(look(7, 200_000), Some(Read), "it comes and goes");
        assert_eq!((8..14).find_map(|second| look(second, 1_000)), None, "so it is waited longer");
        assert_eq!(look(14, 1_000), Some(Modules));
    }

    #[test]
    fn program_whose_gpu_waits_for_it_is_not_measured() {
        let at = |gpu_percent| {
            let asked = TracingRequest { load_percent: NonZeroU64::new(300), gpu_percent, ..default() };
            Governor::new(Modules).look(asked, (Tgid(7), SECOND), 40_000).map(|choice| (choice.chosen, choice.measured))
        };
        let measured = Some((Modules, MeasuredSlowdown::Now));
        assert_eq!([at(None), at(Some(97)), at(Some(50))], [measured; 3]);
        assert_eq!([at(Some(49)), at(Some(0))], [Some((Read, MeasuredSlowdown::Not)); 2]);
    }

    /// Simulates a program whose thread waits for its GPU in the seconds for which `waits` is true.
    /// Tracing and the extra load slow the program only in the other seconds. Returns the chosen
    /// levels, each with its second.
    fn course(seconds: u64, rate: impl Fn(u64) -> u64, waits: impl Fn(u64) -> bool) -> Vec<(u64, TensorLevel)> {
        let asked = TracingRequest { load_percent: NonZeroU64::new(300), ..default() };
        let (mut governor, mut chosen, mut events, mut is_loaded) = (Governor::new(Modules), Vec::new(), 0.0, false);
        for tenth in 0..seconds * 10 {
            let (now_ns, second) = (tenth * SECOND / 10, tenth / 10);
            let traced = if governor.present() == Modules { 5_000 } else { 0 };
            let event_ns = traced + if is_loaded { 3_000 } else { 0 };
            #[expect(clippy::cast_precision_loss, reason = "a test")]
            let (rate, pays) = (rate(second) as f64, f64::from(event_ns) / 1e9);
            let speed = if waits(second) { rate } else { rate / (1.0 + rate * pays) };
            events += speed / 10.0;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a test")]
            let (counted, speed) = (events as u64, speed as u64);
            let before = governor.present();
            match governor.try_out(asked, (Tgid(7), now_ns), Some((now_ns, counted)), speed) {
                Trying::Wait => {}
                Trying::Load(is_on) => is_loaded = is_on,
                Trying::Chosen(_) => is_loaded = false,
            }
            if tenth % 10 == 9 {
                governor.look(asked, (Tgid(7), now_ns), speed);
            }
            if governor.present() != before {
                chosen.push((second, governor.present()));
            }
        }
        chosen
    }

    #[test]
    fn governor_traces_a_program_that_waits_for_its_gpu_in_full() {
        assert_eq!(course(600, |_| 20_000, |_| true), [], "10 % of a processor, and nothing of its time");
    }

    #[test]
    fn a_program_that_pays_is_lowered_within_seconds_and_tried_out_seldom() {
        let levels = course(600, |_| 20_000, |_| false);
        assert!(matches!(levels[..], [(2..6, Read), ..]), "{levels:?}");
        let raised = levels.iter().filter(|(_, level)| *level == Modules).count();
        assert!(raised <= 6, "{levels:?}");
    }

    #[test]
    fn a_program_that_turns_from_waiting_to_paying_and_back_is_followed() {
        let waits = |second| !(100..200).contains(&second);
        let levels = course(300, |second| if waits(second) { 10_000 } else { 40_000 }, waits);
        let (lowered, raised) = (levels.iter().find(|(_, level)| *level == Read), levels.last());
        assert!(lowered.is_some_and(|(second, _)| (100..106).contains(second)), "{levels:?}");
        assert!(raised.is_some_and(|(second, level)| (200..230).contains(second) && *level == Modules), "{levels:?}");
    }

    #[test]
    fn a_server_whose_rate_rises_and_falls_is_tried_out_seldom() {
        let levels = course(600, |second| if second % 6 < 3 { 13_000 } else { 55_000 }, |_| false);
        let raised = levels.iter().filter(|(_, level)| *level == Modules).count();
        assert!(raised <= 14, "{raised}: {levels:?}");
        let late = levels.iter().filter(|(second, level)| *second > 120 && *level == Modules).count();
        assert!(late <= 6, "{levels:?}");
        let pairs = levels.windows(2).filter(|pair| pair[1].1 == Modules);
        let shortest = pairs.map(|pair| pair[1].0 - pair[0].0).min();
        assert!(shortest >= Some(8), "at 6 % of a processor a second of tracing takes the budget of three: {levels:?}");
    }

    #[test]
    fn a_server_that_fits_in_its_calm_phases_is_tried_out_seldom() {
        let is_calm = |second: u64| second % 20 < 10;
        let levels = course(600, |second| if is_calm(second) { 10_000 } else { 55_000 }, is_calm);
        let late = levels.iter().filter(|(second, level)| *second > 200 && *level == Modules).count();
        assert!(late <= 12, "{late}: {levels:?}");
    }

    #[test]
    fn a_program_with_far_too_many_events_is_lowered_at_once() {
        let levels = course(30, |_| 300_000, |_| false);
        assert!(matches!(levels[..], [(0..3, Read)]), "{levels:?}");
    }

    #[test]
    fn governor_does_not_raise_to_a_level_that_barely_fits() {
        let mut governor = Governor::new(Read);
        let mut look = |second: u64| governor.look(default(), (Tgid(7), second * SECOND), 3_300).map(|one| one.chosen);
        assert_eq!((0..3).find_map(&mut look), None);
        assert_eq!(look(3), Some(Lines), "modules would take 96 % of the budget, lines 68 %");
        assert_eq!((4..60).find_map(&mut look), None);
    }

    proptest! {
        #[test]
        fn no_level_ever_costs_more_than_the_budget_at_the_rate_it_was_chosen_by(
            rates in prop::collection::vec(0_u64..500_000, 1..60), budget in 0_u64..100_000_000
        ) {
            let asked = TracingRequest { budget: Budget::Part(budget), ..default() };
            let mut governor = Governor::new(Modules);
            for (second, rate) in (1..).zip(rates) {
                governor.look(asked, (Tgid(7), second * SECOND), rate);
                let price_ns = asked.price_ns(governor.present(), rate);
                prop_assert!(price_ns <= budget && governor.present() >= Read);
            }
        }
    }
}
