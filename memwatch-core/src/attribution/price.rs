//! What tracing a program's tensors will cost it, before it is paid: events per second times what one costs on this machine.

use std::num::NonZeroU64;

use super::trial::Trial;
use crate::input::{LevelChoice, Measured, Stacks, TensorLevel, Windows};
use crate::words::Tgid;

/// What one probe costs where nobody has measured it: as on the slowest machine that was measured (docs/overhead.md), nanoseconds.
const DEFAULT_TRAP_NS: u64 = 1_400;
/// What one event costs at a level, in hundredths of a probe that only counts: docs/overhead.md, "The price of a level".
const BLOCKS_PERCENT: u64 = 265;
const SITES_PERCENT: u64 = 310;
const ALL_SITES_PERCENT: u64 = 340;
const LAYERS_PERCENT: u64 = 500;
/// The same where several probes show each tensor: builds whose code does not show where one would do.
const SEVERAL_BLOCKS_PERCENT: u64 = 305;
const SEVERAL_SITES_PERCENT: u64 = 380;
const SEVERAL_ALL_SITES_PERCENT: u64 = 415;
const SEVERAL_LAYERS_PERCENT: u64 = 580;

const SECOND_NS: u128 = 1_000_000_000;
/// What one probe costs on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prices {
    /// A probe that does nothing but count, nanoseconds.
    pub trap_ns: NonZeroU64,
}

impl Default for Prices {
    fn default() -> Self {
        Self { trap_ns: NonZeroU64::new(DEFAULT_TRAP_NS).expect("it is not 0") }
    }
}

impl Prices {
    /// What a tensor that is allocated or freed costs the program at a level, nanoseconds.
    pub const fn event_ns(self, level: TensorLevel, stacks: Stacks, several_probes: bool) -> u64 {
        let (one, several) = match (level, stacks) {
            (TensorLevel::Off | TensorLevel::Read, _) => (0, 0),
            (TensorLevel::Blocks, _) => (BLOCKS_PERCENT, SEVERAL_BLOCKS_PERCENT),
            (TensorLevel::Sites, Stacks::ByBytes) => (SITES_PERCENT, SEVERAL_SITES_PERCENT),
            (TensorLevel::Sites, Stacks::All) => (ALL_SITES_PERCENT, SEVERAL_ALL_SITES_PERCENT),
            (TensorLevel::Layers, _) => (LAYERS_PERCENT, SEVERAL_LAYERS_PERCENT),
        };
        let percent = if several_probes { several } else { one };
        self.trap_ns.get().saturating_mul(percent) / 100
    }
}

/// What tracing may take of a program's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// As much as it takes.
    None,
    /// So many nanoseconds of each second of one processor; 0 where nothing may be traced.
    Part(u64),
}

impl Default for Budget {
    /// 2 %.
    fn default() -> Self {
        Self::Part(20_000_000)
    }
}

impl Budget {
    /// Nanoseconds per second; `None` without a limit.
    pub const fn ns_per_second(self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Part(ns_per_second) => Some(ns_per_second),
        }
    }

    /// Whether no probe may be placed at all.
    pub const fn is_nothing(self) -> bool {
        matches!(self, Self::Part(0))
    }

    /// Whether so many nanoseconds per second are within it.
    pub fn allows(self, price_ns: u64) -> bool {
        self.has_room(price_ns, 100)
    }

    fn has_room(self, price_ns: u64, percent: u64) -> bool {
        match self {
            Self::None => true,
            Self::Part(most_ns) => u128::from(price_ns) * 100 <= u128::from(most_ns) * u128::from(percent),
        }
    }
}

/// A window of tracing lasts no longer, nanoseconds, and a cycle of a window and what is not traced after it neither, where that can be had.
const LONGEST_WINDOW_NS: u64 = 200_000_000;
const LONGEST_CYCLE_NS: u64 = 10_000_000_000;
/// Nor shorter: probes are put in and taken out by the rhythm at which records are fetched.
const SHORTEST_WINDOW_NS: u64 = 20_000_000;
/// What may be spent on windows, in percent of the budget: to put probes in and to take them out costs as well.
const WINDOWS_PERCENT: u64 = 80;

/// What is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// How much.
    pub level: TensorLevel,
    /// Of which blocks, where lines are traced and no modules.
    pub stacks: Stacks,
    /// Several probes show each tensor, and not one.
    pub several_probes: bool,
    /// Nobody asked for the level by name: it may be lowered.
    pub by_default: bool,
    /// What it may cost.
    pub budget: Budget,
    /// What things cost here.
    pub prices: Prices,
    /// Probes are put in and taken out fast enough for windows.
    pub has_windows: bool,
    /// What can be done at each event beside tracing to measure what that costs, in hundredths of a probe that only counts; `None` where nothing can.
    pub load_percent: Option<NonZeroU64>,
}

/// What takes more of a processor than this is not tried out, nanoseconds per second: a thread that waits for its GPU has not so many events.
pub(super) const MOST_TRIED_NS: u64 = 500_000_000;
impl Asked {
    /// What a level is predicted to take of one processor at so many tensor events per second, nanoseconds per second.
    pub const fn price_ns(self, level: TensorLevel, events_per_second: u64) -> u64 {
        events_per_second.saturating_mul(self.event_ns(level))
    }

    /// What one of them is, nanoseconds.
    pub const fn event_ns(self, level: TensorLevel) -> u64 {
        self.prices.event_ns(level, self.stacks, self.several_probes)
    }

    /// The level at which a process is traced that has so many tensor events per second: the highest that fits the budget, or what was asked for by
    /// name.
    pub fn choose(self, moment: (Tgid, u64), events_per_second: u64) -> LevelChoice {
        let chosen = self.highest(events_per_second, 100);
        self.choice(moment, chosen, events_per_second)
    }

    /// The windows in which everything can be traced where no level with lines fits; `None` where nothing may be spent, or no lines are asked for.
    pub fn windows(self, events_per_second: u64) -> Option<Windows> {
        let most_ns = self.budget.ns_per_second().filter(|_| self.has_windows && self.by_default)?;
        if self.level < TensorLevel::Sites {
            return None;
        }
        let most_ns = u128::from(most_ns) * u128::from(WINDOWS_PERCENT) / 100;
        let price_ns = u128::from(events_per_second) * u128::from(self.prices.event_ns(self.level, Stacks::All, false));
        let nanoseconds = |value: u128| u64::try_from(value).unwrap_or(u64::MAX);
        let open_ns = nanoseconds((u128::from(LONGEST_CYCLE_NS) * most_ns).checked_div(price_ns)?);
        let open_ns = open_ns.clamp(SHORTEST_WINDOW_NS, LONGEST_WINDOW_NS);
        let every_ns = nanoseconds((u128::from(open_ns) * price_ns).checked_div(most_ns)?).max(open_ns);
        Some(Windows { open_ns, every_ns })
    }

    /// So many events a level may have in a second; no end of them where there is no limit, or it was asked for by name.
    pub const fn most_events(self, level: TensorLevel) -> u64 {
        let most_ns = self.budget.ns_per_second();
        match (most_ns, self.event_ns(level)) {
            (Some(most_ns), event_ns @ 1..) if self.by_default => most_ns / event_ns,
            _ => u64::MAX,
        }
    }

    /// Whether a level is within the budget at so many tensor events per second.
    pub fn fits(self, level: TensorLevel, events_per_second: u64) -> bool {
        self.has_room(level, events_per_second, 100)
    }

    fn has_room(self, level: TensorLevel, events_per_second: u64, percent: u64) -> bool {
        self.budget.has_room(self.price_ns(level, events_per_second), percent)
    }

    pub(super) fn highest(self, events_per_second: u64, percent: u64) -> TensorLevel {
        let fits = |level: &TensorLevel| *level <= self.level && self.has_room(*level, events_per_second, percent);
        let nothing = self.budget.is_nothing();
        match self.level {
            TensorLevel::Off => TensorLevel::Off,
            level if !self.by_default => level,
            level if nothing => level.min(TensorLevel::Read),
            _ => TensorLevel::ALL.into_iter().rfind(fits).unwrap_or(TensorLevel::Read),
        }
    }

    /// Whether it can be measured what tracing all costs a program with so many tensor events per second, which is predicted to pay more than the budget.
    pub(super) fn can_be_tried(self, events_per_second: u64) -> bool {
        let price_ns = self.price_ns(self.level, events_per_second);
        let has_budget = matches!(self.budget, Budget::Part(1..));
        self.by_default
            && has_budget
            && self.level >= TensorLevel::Sites
            && self.load_percent.is_some()
            && !self.budget.allows(price_ns)
            && price_ns <= MOST_TRIED_NS
    }

    /// A measurement of that, from now on.
    pub(super) fn trial(self, now_ns: u64) -> Option<Trial> {
        let load_ns = self.prices.trap_ns.get().saturating_mul(self.load_percent?.get()) / 100;
        Some(Trial::new(now_ns, self.event_ns(self.level), NonZeroU64::new(load_ns)?))
    }

    /// The part of a program's time that it may take.
    #[expect(clippy::cast_precision_loss, reason = "a part of a second in nanoseconds")]
    pub(super) fn part(self) -> f64 {
        self.budget.ns_per_second().map_or(f64::INFINITY, |most_ns| most_ns as f64 / 1e9)
    }

    pub(super) fn choice(
        self,
        (tgid, time_ns): (Tgid, u64),
        chosen: TensorLevel,
        events_per_second: u64,
    ) -> LevelChoice {
        LevelChoice {
            tgid,
            time_ns,
            asked: self.level,
            chosen,
            events_per_second,
            asked_ns_per_second: self.price_ns(self.level, events_per_second),
            chosen_ns_per_second: self.price_ns(chosen, events_per_second),
            budget_ns_per_second: self.budget.ns_per_second(),
            trap_ns: Some(self.prices.trap_ns),
            windows: if chosen == TensorLevel::Read { self.windows(events_per_second) } else { None },
            measured: Measured::Not,
        }
    }
}

/// Events per second, of so many in this time; 0 where no time has passed.
pub fn per_second(events: u64, elapsed_ns: u64) -> u64 {
    let rate = (u128::from(events) * SECOND_NS).checked_div(u128::from(elapsed_ns)).unwrap_or(0);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use TensorLevel::{Blocks, Layers, Off, Read, Sites};

    pub(in crate::attribution) fn default() -> Asked {
        let prices = Prices { trap_ns: NonZeroU64::new(1_000).expect("a price") };
        Asked {
            level: Layers,
            stacks: Stacks::All,
            several_probes: false,
            by_default: true,
            budget: Budget::default(),
            prices,
            has_windows: true,
            load_percent: None,
        }
    }

    fn chosen(asked: Asked, events_per_second: u64) -> TensorLevel {
        asked.choose((Tgid(7), 5), events_per_second).chosen
    }

    #[test]
    fn the_highest_level_is_chosen_that_fits_the_budget() {
        let rates = [0, 1_000, 4_000, 4_001, 5_882, 5_883, 7_547, 7_548, 120_000, u64::MAX];
        let levels = rates.map(|rate| chosen(default(), rate));
        assert_eq!(levels, [Layers, Layers, Layers, Sites, Sites, Blocks, Blocks, Read, Read, Read]);
        assert_eq!(chosen(Asked { level: Sites, ..default() }, 10), Sites);
        assert_eq!(chosen(Asked { level: Off, ..default() }, 10), Off);
        let fitting = TensorLevel::ALL.map(|level| default().fits(level, 5_883));
        assert_eq!(fitting, [true, true, true, false, false]);
    }

    #[test]
    fn without_a_limit_all_is_traced_and_with_nothing_to_spend_nothing() {
        assert_eq!(chosen(Asked { budget: Budget::None, ..default() }, u64::MAX), Layers);
        assert_eq!(chosen(Asked { budget: Budget::Part(0), ..default() }, 0), Read);
    }

    #[test]
    fn a_level_that_was_asked_for_by_name_is_obeyed_and_its_price_is_known_all_the_same() {
        for level in TensorLevel::ALL {
            let choice = Asked { level, by_default: false, ..default() }.choose((Tgid(7), 5), 120_000);
            assert_eq!((choice.asked, choice.chosen), (level, level));
            assert_eq!(choice.asked_ns_per_second, choice.chosen_ns_per_second);
        }
        let choice = Asked { by_default: false, ..default() }.choose((Tgid(7), 5), 120_000);
        assert_eq!(choice.asked_ns_per_second, 600_000_000, "60 % of a processor");
        assert_eq!(choice.budget_ns_per_second, Some(20_000_000));
    }

    #[test]
    fn fewer_probes_cost_less_and_a_slower_machine_more() {
        let several = Asked { several_probes: true, ..default() };
        assert_eq!((chosen(several, 4_000), chosen(default(), 4_000)), (Sites, Layers));
        let slow = Asked { prices: Prices { trap_ns: NonZeroU64::new(3_000).expect("a price") }, ..default() };
        assert_eq!((chosen(slow, 2_000), chosen(default(), 2_000)), (Blocks, Layers));
    }

    #[test]
    fn windows_are_as_long_and_as_far_apart_as_the_budget_allows() {
        let windows = |rate| default().windows(rate).map(|windows| (windows.open_ns, windows.every_ns));
        assert_eq!(windows(20_000), Some((200_000_000, 1_250_000_000)), "100 ms of a second, where 16 may be spent");
        assert_eq!(windows(400_000), Some((80_000_000, 10_000_000_000)));
        assert_eq!(windows(100_000_000), Some((20_000_000, 625_000_000_000)), "so seldom, but never more");
        assert_eq!(windows(0), None, "all of it fits");
        assert_eq!(Asked { budget: Budget::None, ..default() }.windows(400_000), None);
        assert_eq!(Asked { budget: Budget::Part(0), ..default() }.windows(400_000), None);
        assert_eq!(Asked { level: Blocks, ..default() }.windows(400_000), None);
        assert_eq!(default().choose((Tgid(7), 5), 20_000).windows, default().windows(20_000));
        assert_eq!(default().choose((Tgid(7), 5), 100).windows, None);
    }

    #[test]
    fn a_rate_is_of_the_time_that_passed() {
        assert_eq!(per_second(24_000, 200_000_000), 120_000);
        assert_eq!((per_second(0, 5), per_second(5, 0), per_second(u64::MAX, 1)), (0, 0, u64::MAX));
    }
}
