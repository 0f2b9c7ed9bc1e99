//! Predicts the overhead of tracing a program's tensors before it is traced: events per second
//! times the cost per event on this machine.

use std::num::NonZeroU64;

use super::trial::OverheadTrial;
use crate::input::{LevelChoice, MeasuredSlowdown, StackSelection, TensorLevel, Windows};
use crate::words::Tgid;

/// Cost of one probe if it was not measured, in nanoseconds: that of the slowest machine measured
/// (docs/project/overhead.md).
const DEFAULT_TRAP_NS: u64 = 1_400;
/// Cost per event at each level, in percent of a counting probe: docs/project/overhead.md, "The price of a
/// level".
const BLOCKS_PERCENT: u64 = 265;
const SITES_PERCENT: u64 = 310;
const ALL_SITES_PERCENT: u64 = 340;
const MODULES_PERCENT: u64 = 500;
/// Cost per event where several probes fire per tensor event, because the code of the build does
/// not allow a single one.
const SEVERAL_BLOCKS_PERCENT: u64 = 305;
const SEVERAL_SITES_PERCENT: u64 = 380;
const SEVERAL_ALL_SITES_PERCENT: u64 = 415;
const SEVERAL_MODULES_PERCENT: u64 = 580;

const SECOND_NS: u128 = 1_000_000_000;
/// Cost of one probe on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeCost {
    /// Cost of a counting probe, nanoseconds.
    pub trap_ns: NonZeroU64,
}

impl Default for ProbeCost {
    fn default() -> Self {
        Self { trap_ns: NonZeroU64::new(DEFAULT_TRAP_NS).expect("it is not 0") }
    }
}

impl ProbeCost {
    /// Returns the cost to the program of a tensor allocation or free at a level, in nanoseconds.
    pub const fn event_ns(self, level: TensorLevel, stacks: StackSelection, several_probes: bool) -> u64 {
        let (one, several) = match (level, stacks) {
            (TensorLevel::Off | TensorLevel::Read, _) => (0, 0),
            (TensorLevel::Blocks, _) => (BLOCKS_PERCENT, SEVERAL_BLOCKS_PERCENT),
            (TensorLevel::Lines, StackSelection::ByBytes) => (SITES_PERCENT, SEVERAL_SITES_PERCENT),
            (TensorLevel::Lines, StackSelection::All) => (ALL_SITES_PERCENT, SEVERAL_ALL_SITES_PERCENT),
            (TensorLevel::Modules, _) => (MODULES_PERCENT, SEVERAL_MODULES_PERCENT),
        };
        let percent = if several_probes { several } else { one };
        self.trap_ns.get().saturating_mul(percent) / 100
    }
}

/// Limit on the overhead of tracing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// No limit.
    None,
    /// Nanoseconds per second of one processor; 0 if nothing may be traced.
    Part(u64),
}

impl Default for Budget {
    /// Returns the default budget, 2 %.
    fn default() -> Self {
        Self::Part(20_000_000)
    }
}

impl Budget {
    /// Returns the budget in nanoseconds per second; `None` without a limit.
    pub const fn ns_per_second(self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Part(ns_per_second) => Some(ns_per_second),
        }
    }

    /// Whether the budget forbids any probe.
    pub const fn is_nothing(self) -> bool {
        matches!(self, Self::Part(0))
    }

    /// Whether an overhead of this many nanoseconds per second is within the budget.
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

/// Maximum length of a sampling window, and maximum interval between the starts of two windows
/// where the budget allows it, in nanoseconds.
const LONGEST_WINDOW_NS: u64 = 200_000_000;
const LONGEST_CYCLE_NS: u64 = 10_000_000_000;
/// Minimum length of a window, in nanoseconds. Probes are attached and removed at the interval at
/// which records are fetched.
const SHORTEST_WINDOW_NS: u64 = 20_000_000;
/// Part of the budget for windows, in percent. The rest is for attaching and removing probes.
const WINDOWS_PERCENT: u64 = 80;

/// Tracing that the user requests, and its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TracingRequest {
    /// Requested level.
    pub level: TensorLevel,
    /// Blocks that get stacks, where lines are traced and no modules.
    pub stacks: StackSelection,
    /// Whether several probes fire per tensor event.
    pub several_probes: bool,
    /// Whether the level is the default and not an explicit option, so that it may be lowered.
    pub by_default: bool,
    /// Limit on the overhead.
    pub budget: Budget,
    /// Measured costs on this machine.
    pub prices: ProbeCost,
    /// Whether probes can be attached and removed fast enough for windows.
    pub has_windows: bool,
    /// Extra load that can be added per event for a measurement, in percent of a counting probe;
    /// `None` if none can be added.
    pub load_percent: Option<NonZeroU64>,
    /// Part of the time in which the busiest GPU of the process runs kernels, percent; `None` if
    /// unknown.
    pub gpu_percent: Option<u32>,
}

/// Part of the time in which a GPU runs kernels, percent, below which a program that exceeds the
/// budget counts as slowed without a measurement: the GPU waits for the program, not the program
/// for the GPU, and a measurement traces everything for seconds.
const WAITING_GPU_PERCENT: u32 = 50;

/// Predicted overhead up to which a measurement is tried, in nanoseconds per second of one
/// processor: a thread that waits for its GPU has fewer events.
pub(super) const MOST_TRIED_NS: u64 = 500_000_000;
impl TracingRequest {
    /// Returns the predicted overhead of a level at this rate of tensor events, in nanoseconds per
    /// second of one processor.
    pub const fn price_ns(self, level: TensorLevel, events_per_second: u64) -> u64 {
        events_per_second.saturating_mul(self.event_ns(level))
    }

    /// Returns the cost per tensor event at a level, in nanoseconds.
    pub const fn event_ns(self, level: TensorLevel) -> u64 {
        self.prices.event_ns(level, self.stacks, self.several_probes)
    }

    /// Chooses the level of a process with this rate of tensor events: the highest level that fits
    /// the budget, or the level of an explicit option.
    pub fn choose(self, moment: (Tgid, u64), events_per_second: u64) -> LevelChoice {
        let chosen = self.highest(events_per_second, 100);
        self.choice(moment, chosen, events_per_second)
    }

    /// Returns the sampling windows in which everything can be traced although no level with lines
    /// fits the budget. Returns `None` if nothing may be spent, or no lines are requested.
    pub fn windows(self, events_per_second: u64) -> Option<Windows> {
        let most_ns = self.budget.ns_per_second().filter(|_| self.has_windows && self.by_default)?;
        if self.level < TensorLevel::Lines {
            return None;
        }
        let most_ns = u128::from(most_ns) * u128::from(WINDOWS_PERCENT) / 100;
        let price_ns =
            u128::from(events_per_second) * u128::from(self.prices.event_ns(self.level, StackSelection::All, false));
        let nanoseconds = |value: u128| u64::try_from(value).unwrap_or(u64::MAX);
        let open_ns = nanoseconds((u128::from(LONGEST_CYCLE_NS) * most_ns).checked_div(price_ns)?);
        let open_ns = open_ns.clamp(SHORTEST_WINDOW_NS, LONGEST_WINDOW_NS);
        let every_ns = nanoseconds((u128::from(open_ns) * price_ns).checked_div(most_ns)?).max(open_ns);
        Some(Windows { open_ns, every_ns })
    }

    /// Returns the maximum number of events per second at a level; `u64::MAX` without a limit or
    /// with an explicit option.
    pub const fn most_events(self, level: TensorLevel) -> u64 {
        let most_ns = self.budget.ns_per_second();
        match (most_ns, self.event_ns(level)) {
            (Some(most_ns), event_ns @ 1..) if self.by_default => most_ns / event_ns,
            _ => u64::MAX,
        }
    }

    /// Whether a level is within the budget at this rate of tensor events.
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

    /// Whether the slowdown by full tracing can be measured, for a program with this rate of tensor
    /// events whose predicted overhead exceeds the budget.
    pub(super) fn can_be_tried(self, events_per_second: u64) -> bool {
        let price_ns = self.price_ns(self.level, events_per_second);
        let has_budget = matches!(self.budget, Budget::Part(1..));
        self.by_default
            && has_budget
            && self.level >= TensorLevel::Lines
            && self.load_percent.is_some()
            && self.gpu_percent.is_none_or(|percent| percent >= WAITING_GPU_PERCENT)
            && !self.budget.allows(price_ns)
            && price_ns <= MOST_TRIED_NS
    }

    /// Starts a measurement.
    pub(super) fn trial(self, now_ns: u64) -> Option<OverheadTrial> {
        let load_ns = self.prices.trap_ns.get().saturating_mul(self.load_percent?.get()) / 100;
        Some(OverheadTrial::new(now_ns, self.event_ns(self.level), NonZeroU64::new(load_ns)?))
    }

    /// Returns the budget as a part of the program's time.
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
            measured: MeasuredSlowdown::Not,
        }
    }
}

/// Returns the events per second for a count of events in this time; 0 if no time has passed.
pub fn per_second(events: u64, elapsed_ns: u64) -> u64 {
    let rate = (u128::from(events) * SECOND_NS).checked_div(u128::from(elapsed_ns)).unwrap_or(0);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use TensorLevel::{Blocks, Lines, Modules, Off, Read};

    pub(in crate::attribution) fn default() -> TracingRequest {
        let prices = ProbeCost { trap_ns: NonZeroU64::new(1_000).expect("a price") };
        TracingRequest {
            level: Modules,
            stacks: StackSelection::All,
            several_probes: false,
            by_default: true,
            budget: Budget::default(),
            prices,
            has_windows: true,
            load_percent: None,
            gpu_percent: None,
        }
    }

    fn chosen(asked: TracingRequest, events_per_second: u64) -> TensorLevel {
        asked.choose((Tgid(7), 5), events_per_second).chosen
    }

    #[test]
    fn the_highest_level_is_chosen_that_fits_the_budget() {
        let rates = [0, 1_000, 4_000, 4_001, 5_882, 5_883, 7_547, 7_548, 120_000, u64::MAX];
        let levels = rates.map(|rate| chosen(default(), rate));
        assert_eq!(levels, [Modules, Modules, Modules, Lines, Lines, Blocks, Blocks, Read, Read, Read]);
        assert_eq!(chosen(TracingRequest { level: Lines, ..default() }, 10), Lines);
        assert_eq!(chosen(TracingRequest { level: Off, ..default() }, 10), Off);
        let fitting = TensorLevel::ALL.map(|level| default().fits(level, 5_883));
        assert_eq!(fitting, [true, true, true, false, false]);
    }

    #[test]
    fn without_a_limit_all_is_traced_and_with_nothing_to_spend_nothing() {
        assert_eq!(chosen(TracingRequest { budget: Budget::None, ..default() }, u64::MAX), Modules);
        assert_eq!(chosen(TracingRequest { budget: Budget::Part(0), ..default() }, 0), Read);
    }

    #[test]
    fn level_requested_by_name_is_obeyed_and_its_overhead_is_known() {
        for level in TensorLevel::ALL {
            let choice = TracingRequest { level, by_default: false, ..default() }.choose((Tgid(7), 5), 120_000);
            assert_eq!((choice.asked, choice.chosen), (level, level));
            assert_eq!(choice.asked_ns_per_second, choice.chosen_ns_per_second);
        }
        let choice = TracingRequest { by_default: false, ..default() }.choose((Tgid(7), 5), 120_000);
        assert_eq!(choice.asked_ns_per_second, 600_000_000, "60 % of a processor");
        assert_eq!(choice.budget_ns_per_second, Some(20_000_000));
    }

    #[test]
    fn fewer_probes_cost_less_and_a_slower_machine_more() {
        let several = TracingRequest { several_probes: true, ..default() };
        assert_eq!((chosen(several, 4_000), chosen(default(), 4_000)), (Lines, Modules));
        let slow =
            TracingRequest { prices: ProbeCost { trap_ns: NonZeroU64::new(3_000).expect("a price") }, ..default() };
        assert_eq!((chosen(slow, 2_000), chosen(default(), 2_000)), (Blocks, Modules));
    }

    #[test]
    fn windows_are_as_long_and_as_far_apart_as_the_budget_allows() {
        let windows = |rate| default().windows(rate).map(|windows| (windows.open_ns, windows.every_ns));
        assert_eq!(windows(20_000), Some((200_000_000, 1_250_000_000)), "100 ms of a second, where 16 may be spent");
        assert_eq!(windows(400_000), Some((80_000_000, 10_000_000_000)));
        assert_eq!(windows(100_000_000), Some((20_000_000, 625_000_000_000)), "so seldom, but never more");
        assert_eq!(windows(0), None, "all of it fits");
        assert_eq!(TracingRequest { budget: Budget::None, ..default() }.windows(400_000), None);
        assert_eq!(TracingRequest { budget: Budget::Part(0), ..default() }.windows(400_000), None);
        assert_eq!(TracingRequest { level: Blocks, ..default() }.windows(400_000), None);
        assert_eq!(default().choose((Tgid(7), 5), 20_000).windows, default().windows(20_000));
        assert_eq!(default().choose((Tgid(7), 5), 100).windows, None);
    }

    #[test]
    fn a_rate_is_of_the_time_that_passed() {
        assert_eq!(per_second(24_000, 200_000_000), 120_000);
        assert_eq!((per_second(0, 5), per_second(5, 0), per_second(u64::MAX, 1)), (0, 0, u64::MAX));
    }
}
