//! What tracing a program's tensors will cost it, before it is paid: events per second times what one was measured to cost.

use crate::input::{LevelChoice, TensorLevel};
use crate::words::Tgid;

/// The most that a level may cost that nobody asked for by name: 5 % of one processor, nanoseconds per second.
pub const MOST_NS_PER_SECOND: u64 = 50_000_000;

/// What a tensor that is allocated or freed costs the program, in nanoseconds: docs/overhead.md, "The price guard".
const BLOCKS_NS: u64 = 3_100;
const SITES_NS: u64 = 3_870;
const LAYERS_NS: u64 = 5_410;
/// The same where one probe reports each tensor and no others are in place.
const REPORTED_NS: u64 = 3_140;
const REPORTED_LAYERS_NS: u64 = 4_570;

const SECOND_NS: u128 = 1_000_000_000;

/// What is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// How much.
    pub level: TensorLevel,
    /// Only what the allocator reports of each tensor: one probe for each instead of three.
    pub reports_only: bool,
    /// Nobody asked for the level by name: it may be lowered.
    pub by_default: bool,
}

impl Asked {
    /// What a level is predicted to take of one processor at so many tensor events per second, nanoseconds per second.
    fn price_ns(self, level: TensorLevel, events_per_second: u64) -> u64 {
        let event_ns = match (level, self.reports_only) {
            (TensorLevel::Off, _) => 0,
            (TensorLevel::Blocks, false) => BLOCKS_NS,
            (TensorLevel::Sites, false) => SITES_NS,
            (TensorLevel::Layers, false) => LAYERS_NS,
            (TensorLevel::Layers, true) => REPORTED_LAYERS_NS,
            (_, true) => REPORTED_NS,
        };
        events_per_second.saturating_mul(event_ns)
    }

    /// The level at which a process is traced that has so many tensor events per second: the highest up to `ceiling` that costs no more than
    /// [`MOST_NS_PER_SECOND`], or what was asked for by name.
    pub fn choose(self, (tgid, time_ns): (Tgid, u64), ceiling: TensorLevel, events_per_second: u64) -> LevelChoice {
        let price_ns = |level| self.price_ns(level, events_per_second);
        let ceiling = ceiling.min(self.level);
        let fits = |level: &TensorLevel| *level <= ceiling && price_ns(*level) <= MOST_NS_PER_SECOND;
        let cheapest = || TensorLevel::ALL.into_iter().rfind(fits).unwrap_or_default();
        let chosen = if self.by_default { cheapest() } else { ceiling };
        LevelChoice {
            tgid,
            time_ns,
            asked: self.level,
            chosen,
            events_per_second,
            asked_ns_per_second: price_ns(self.level),
            chosen_ns_per_second: price_ns(chosen),
        }
    }
}

/// Events per second, of so many in this time; 0 where no time has passed.
pub fn per_second(events: u64, elapsed_ns: u64) -> u64 {
    let rate = (u128::from(events) * SECOND_NS).checked_div(u128::from(elapsed_ns)).unwrap_or(0);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use TensorLevel::{Blocks, Layers, Off, Sites};

    const DEFAULT: Asked = Asked { level: Layers, reports_only: false, by_default: true };

    fn chosen(asked: Asked, ceiling: TensorLevel, events_per_second: u64) -> TensorLevel {
        asked.choose((Tgid(7), 5), ceiling, events_per_second).chosen
    }

    #[test]
    fn the_highest_level_is_chosen_that_takes_no_more_than_a_twentieth_of_a_processor() {
        let rates = [0, 1_000, 9_242, 9_243, 12_919, 12_920, 16_129, 16_130, 120_000, u64::MAX];
        let levels = rates.map(|rate| chosen(DEFAULT, Layers, rate));
        assert_eq!(levels, [Layers, Layers, Layers, Sites, Sites, Blocks, Blocks, Off, Off, Off]);
    }

    #[test]
    fn a_level_that_was_asked_for_by_name_is_obeyed_and_its_price_is_known_all_the_same() {
        for level in TensorLevel::ALL {
            let asked = Asked { level, by_default: false, ..DEFAULT };
            let choice = asked.choose((Tgid(7), 5), Layers, 120_000);
            assert_eq!((choice.asked, choice.chosen), (level, level));
            assert_eq!(choice.asked_ns_per_second, choice.chosen_ns_per_second);
        }
        let choice = Asked { by_default: false, ..DEFAULT }.choose((Tgid(7), 5), Layers, 120_000);
        assert_eq!(choice.asked_ns_per_second, 649_200_000, "65 % of a processor, as it was measured on an H100");
    }

    #[test]
    fn a_lowered_level_is_never_raised_and_what_was_asked_for_is_remembered() {
        assert_eq!(chosen(DEFAULT, Blocks, 10), Blocks);
        assert_eq!(chosen(DEFAULT, Blocks, 120_000), Off);
        assert_eq!(chosen(Asked { level: Sites, ..DEFAULT }, Layers, 10), Sites);
        let choice = DEFAULT.choose((Tgid(7), 5), Blocks, 120_000);
        assert_eq!((choice.asked, choice.chosen, choice.chosen_ns_per_second), (Layers, Off, 0));
        assert_eq!(choice.asked_ns_per_second, 649_200_000);
    }

    #[test]
    fn fewer_probes_cost_less() {
        let reported = Asked { reports_only: true, ..DEFAULT };
        assert_eq!((chosen(reported, Layers, 10_900), chosen(DEFAULT, Layers, 10_900)), (Layers, Sites));
    }

    #[test]
    fn a_rate_is_of_the_time_that_passed() {
        assert_eq!(per_second(24_000, 200_000_000), 120_000);
        assert_eq!((per_second(0, 5), per_second(5, 0), per_second(u64::MAX, 1)), (0, 0, u64::MAX));
    }
}
