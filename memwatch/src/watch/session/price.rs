//! What tracing costs each process: predicted before it is traced, and looked at again every second while it is.

use std::time::{Duration, Instant};

use memwatch_core::attribution::price::{Asked, per_second};
use memwatch_core::input::{LevelChoice, TensorLevel};
use memwatch_core::words::Tgid;

use super::SessionOptions;
use crate::render::sentences::level;
use crate::sources::clock;

/// How often the events of a process are looked at again.
const AGAIN: Duration = Duration::from_secs(1);

/// Chooses the level of each process.
pub(crate) struct PriceGuard {
    asked: Asked,
    speaks: bool,
    choices: Vec<LevelChoice>,
}

/// The tensor events of one process.
pub(super) struct Rate {
    since: Instant,
    events: u64,
}

impl Rate {
    /// From now on.
    pub(super) fn new() -> Self {
        Self { since: Instant::now(), events: 0 }
    }

    /// One more.
    pub(super) const fn count(&mut self) {
        self.events += 1;
    }

    /// Events per second, every second.
    fn take(&mut self) -> Option<u64> {
        let elapsed = self.since.elapsed();
        if elapsed < AGAIN {
            return None;
        }
        let elapsed_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        let rate = per_second(self.events, elapsed_ns);
        *self = Self::new();
        Some(rate)
    }
}

impl PriceGuard {
    /// As these options say.
    pub(super) const fn new(options: &SessionOptions) -> Self {
        let (level, reports_only) = (options.tensors.level, options.tensors.reports_only);
        let asked = Asked { level, reports_only, by_default: options.tensors_by_default };
        Self { asked, speaks: !options.is_screen, choices: Vec::new() }
    }

    /// How much is traced of a process that has so many events per second.
    pub(super) fn decide(&mut self, tgid: u32, events_per_second: u64) -> TensorLevel {
        let choice = self.asked.choose((Tgid(tgid), clock::boottime_ns()), self.asked.level, events_per_second);
        self.keep(choice)
    }

    /// The level to which a process is to be lowered, where its events cost more by now than they may.
    pub(super) fn look_again(&mut self, tgid: u32, present: TensorLevel, rate: &mut Rate) -> Option<TensorLevel> {
        let events_per_second = rate.take().filter(|_| self.asked.by_default)?;
        let choice = self.asked.choose((Tgid(tgid), clock::boottime_ns()), present, events_per_second);
        (choice.chosen < present).then(|| self.keep(choice))
    }

    /// The choices since the last time, oldest first.
    pub(super) fn take_choices(&mut self) -> Vec<LevelChoice> {
        std::mem::take(&mut self.choices)
    }

    fn keep(&mut self, choice: LevelChoice) -> TensorLevel {
        let sentence = level::lowered(&choice).or_else(|| level::obeyed(&choice));
        if let Some(sentence) = sentence.filter(|_| self.speaks) {
            eprintln!("memwatch: {sentence}");
        }
        self.choices.push(choice);
        choice.chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(by_default: bool) -> PriceGuard {
        let asked = Asked { level: TensorLevel::Layers, reports_only: false, by_default };
        PriceGuard { asked, speaks: false, choices: Vec::new() }
    }

    /// A second of so many events, which is over.
    fn rate(events: u64) -> Rate {
        let since = Instant::now().checked_sub(AGAIN).expect("the machine runs for longer than that");
        Rate { since, events }
    }

    #[test]
    fn a_rate_that_rises_while_it_is_traced_lowers_the_level_and_leaves_a_choice() {
        let mut guard = guard(true);
        assert_eq!(guard.decide(7, 100), TensorLevel::Layers);
        assert_eq!(guard.look_again(7, TensorLevel::Layers, &mut rate(100)), None);
        assert_eq!(guard.look_again(7, TensorLevel::Layers, &mut rate(200_000)), Some(TensorLevel::Off));
        let chosen: Vec<_> = guard.take_choices().iter().map(|choice| choice.chosen).collect();
        assert_eq!(chosen, [TensorLevel::Layers, TensorLevel::Off]);
        assert_eq!(guard.take_choices(), []);
    }

    #[test]
    fn a_level_that_was_asked_for_by_name_stays() {
        let mut guard = guard(false);
        assert_eq!(guard.decide(7, 200_000), TensorLevel::Layers);
        assert_eq!(guard.look_again(7, TensorLevel::Layers, &mut rate(200_000)), None);
    }

    #[test]
    fn it_is_looked_again_only_after_a_second() {
        let mut fresh = Rate::new();
        (0..200_000).for_each(|_| fresh.count());
        assert_eq!(guard(true).look_again(7, TensorLevel::Layers, &mut fresh), None);
    }
}
