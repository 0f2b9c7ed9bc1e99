//! Whether tracing slows a program, measured while it runs and is traced: in turns, more is done at each of its events than tracing does, and its own speed is
//! compared with and without.
//!
//! What tracing costs a thread grows with what is done at each event, and no slower the more that is: a thread that waits for its GPU has time to spare, and pays
//! only for what goes beyond it. So what another `load` costs it is at least as much as tracing itself costs, in proportion, and where it costs nothing, tracing
//! costs nothing. Nothing of the program is missed meanwhile, as it would be if tracing were switched off to see how fast the program is without.

use std::num::NonZeroU64;

/// A stretch is no shorter and no longer than this, nanoseconds.
const SHORTEST_NS: u64 = 1_000_000_000;
const LONGEST_NS: u64 = 4_000_000_000;
/// What changes with a stretch is given this time, nanoseconds.
const SETTLING_NS: u64 = 100_000_000;
/// So many steps make a stretch, where the program has steps.
const STEPS: usize = 10;
/// Fewer say nothing of its speed.
const LEAST_STEPS: usize = 4;
/// So many stretches are measured at least, and at most: without load and with it, in turns.
const LEAST: usize = 5;
const MOST: usize = 25;
/// After so many, what seems to pay is taken to.
const DOUBTFUL: usize = 11;
/// A program that is slower than this under load is slowed, whatever else there is to be measured: a part of its speed.
const MUCH: f64 = 0.12;
/// So many standard errors are taken for certain.
const SURE: f64 = 2.0;

/// A verdict, and what it rests on: parts of the program's time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slowdown {
    /// What tracing takes at most.
    pub part: f64,
    /// Its standard error.
    pub error: f64,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Turn {
    /// Nothing yet.
    Wait,
    /// The next stretch is with load, or without.
    Load(bool),
    /// It is known what tracing costs, or at least that it is more, or not surely less, than the budget.
    Known {
        /// Whether it is surely within the budget.
        fits: bool,
        /// What was measured.
        slowdown: Slowdown,
    },
}

/// One measurement.
#[derive(Clone, Debug)]
pub struct Trial {
    /// What tracing costs for each part that the load costs.
    scale: f64,
    began_ns: u64,
    is_loaded: bool,
    /// Of the present stretch: when its allocators had counted how many events.
    counts: Vec<(u64, u64)>,
    /// When its steps began.
    steps: Vec<u64>,
    stretches: Vec<Stretch>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Stretch {
    events_per_second: Option<f64>,
    steps_per_second: Option<f64>,
}

impl Trial {
    /// Begins now, without load. Tracing costs `traced_ns` for each event, and the load `load_ns` on top.
    #[expect(clippy::cast_precision_loss, reason = "times of some microseconds")]
    pub fn new(now_ns: u64, traced_ns: u64, load_ns: NonZeroU64) -> Self {
        Self {
            scale: traced_ns as f64 / load_ns.get() as f64,
            began_ns: now_ns,
            is_loaded: false,
            counts: Vec::new(),
            steps: Vec::new(),
            stretches: Vec::new(),
        }
    }

    /// Its allocators have counted so many events by now.
    pub fn count(&mut self, time_ns: u64, events: u64) {
        if time_ns >= self.began_ns + SETTLING_NS && self.counts.last().is_none_or(|last| last.0 < time_ns) {
            self.counts.push((time_ns, events));
        }
    }

    /// A step of an optimizer began.
    pub fn step(&mut self, time_ns: u64) {
        if time_ns >= self.began_ns + SETTLING_NS && self.steps.last().is_none_or(|last| *last < time_ns) {
            self.steps.push(time_ns);
        }
    }

    /// What is to be done now, where tracing may take this part of the program's time.
    pub fn turn(&mut self, now_ns: u64, budget: f64) -> Turn {
        let elapsed_ns = now_ns.saturating_sub(self.began_ns);
        let has_steps = self.steps.len() > STEPS || (self.steps.is_empty() && self.counts.len() >= LEAST_STEPS);
        if elapsed_ns < SHORTEST_NS || (elapsed_ns < LONGEST_NS && !has_steps) {
            return Turn::Wait;
        }
        self.stretches.push(self.stretch());
        let is_over = self.stretches.len() >= LEAST || self.is_much();
        // A stretch with load is compared with those on both its sides.
        if is_over && (!self.is_loaded || self.is_much()) {
            let slowdown = self.slowdown();
            let fits = slowdown.is_some_and(|slowdown| slowdown.part + SURE * slowdown.error <= budget);
            // In doubt it pays, after a while.
            let sure = if self.stretches.len() >= DOUBTFUL { 0.0 } else { 1.0 };
            let pays = slowdown.is_none_or(|slowdown| slowdown.part - sure * slowdown.error > budget);
            if fits || pays || self.stretches.len() >= MOST {
                return Turn::Known {
                    fits,
                    slowdown: slowdown.unwrap_or(Slowdown { part: f64::NAN, error: f64::NAN }),
                };
            }
        }
        self.is_loaded = !self.is_loaded;
        self.began_ns = now_ns;
        self.counts.clear();
        self.steps.clear();
        Turn::Load(self.is_loaded)
    }

    /// The events per second of the stretches without load, on average; `None` where that is not known.
    pub fn events_per_second(&self) -> Option<f64> {
        let own = self.stretches.iter().step_by(2).filter_map(|stretch| stretch.events_per_second);
        let all: Vec<f64> = own.collect();
        (!all.is_empty()).then(|| mean(&all))
    }

    #[expect(clippy::cast_precision_loss, reason = "a rate needs no sixteen digits")]
    fn stretch(&self) -> Stretch {
        let seconds = |from_ns: u64, to_ns: u64| to_ns.saturating_sub(from_ns) as f64 / 1e9;
        let ends = self.counts.first().zip(self.counts.last()).filter(|(first, last)| first.0 < last.0);
        let steps = self.steps.first().zip(self.steps.last()).filter(|_| self.steps.len() > LEAST_STEPS);
        Stretch {
            events_per_second: ends
                .map(|(first, last)| last.1.saturating_sub(first.1) as f64 / seconds(first.0, last.0))
                .filter(|rate| *rate > 0.0),
            steps_per_second: steps.map(|(first, last)| (self.steps.len() - 1) as f64 / seconds(*first, *last)),
        }
    }

    /// By its steps where all stretches have them: a stretch has a whole number of those.
    fn speeds(&self) -> Option<Vec<f64>> {
        let by_steps: Option<Vec<f64>> = self.stretches.iter().map(|stretch| stretch.steps_per_second).collect();
        by_steps.or_else(|| self.stretches.iter().map(|stretch| stretch.events_per_second).collect())
    }

    /// Whether the last stretch, with load, was much slower than the one before.
    fn is_much(&self) -> bool {
        let speeds = self.speeds().filter(|_| self.is_loaded).unwrap_or_default();
        matches!(speeds[..], [.., plain, loaded] if loaded < plain * (1.0 - MUCH))
    }

    /// From each stretch with load and those on its sides.
    fn slowdown(&self) -> Option<Slowdown> {
        let speeds: Vec<f64> = self.speeds()?.into_iter().map(f64::ln).collect();
        let differences: Vec<f64> = (1..speeds.len())
            .step_by(2)
            .map(|at| {
                let after = speeds.get(at + 1).copied().unwrap_or(speeds[at - 1]);
                f64::midpoint(speeds[at - 1], after) - speeds[at]
            })
            .collect();
        if differences.is_empty() {
            return None;
        }
        let (part, count) = (mean(&differences), precise(differences.len()));
        let spread = differences.iter().map(|one| (one - part).powi(2)).sum::<f64>();
        // Two that agree by chance are no proof: what differs from stretch to stretch without load is noise, too.
        let plain: Vec<f64> = speeds.iter().copied().step_by(2).collect();
        let noise: Vec<f64> = plain.array_windows::<2>().map(|[one, next]| (next - one).powi(2) * 0.75).collect();
        let of_differences = if count > 1.0 { spread / (count - 1.0) } else { 0.0 };
        let of_noise = if noise.is_empty() { 0.0 } else { mean(&noise) };
        let error = (of_differences.max(of_noise) / count).sqrt();
        Some(Slowdown { part: part * self.scale, error: error * self.scale })
    }
}

fn mean(all: &[f64]) -> f64 {
    all.iter().sum::<f64>() / precise(all.len())
}

#[expect(clippy::cast_precision_loss, reason = "some tens")]
const fn precise(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    /// A program whose thread computes for `cpu_ns` in each step, with so many events, and whose GPU needs `gpu_ns`: the slower of both decides. Each step
    /// takes a little more or less, as the noise says, in thousandths.
    struct Program {
        cpu_ns: f64,
        gpu_ns: f64,
        events: u64,
        noise: Vec<i32>,
        has_steps: bool,
    }

    impl Program {
        fn step_ns(&self, index: usize, event_ns: f64) -> u64 {
            let noise = self.noise.get(index % self.noise.len().max(1)).copied().unwrap_or(0);
            #[expect(clippy::cast_precision_loss, reason = "a test")]
            let cpu_ns = self.cpu_ns + self.events as f64 * event_ns;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a test")]
            let ns = (cpu_ns.max(self.gpu_ns) * (1.0 + f64::from(noise) / 1000.0)) as u64;
            ns
        }

        /// Its verdict, and after how many seconds.
        fn judge(&self) -> (Turn, u64) {
            let (mut trial, mut now_ns, mut events, mut is_loaded) =
                (Trial::new(0, 5_000, NonZeroU64::new(3_000).expect("a price")), 0, 0, false);
            for index in 0..1_000_000 {
                now_ns += self.step_ns(index, if is_loaded { 8_000.0 } else { 5_000.0 });
                events += self.events;
                if self.has_steps {
                    trial.step(now_ns);
                }
                trial.count(now_ns, events);
                match trial.turn(now_ns, 0.02) {
                    Turn::Wait => {}
                    Turn::Load(is_on) => is_loaded = is_on,
                    known @ Turn::Known { .. } => return (known, now_ns / 1_000_000_000),
                }
            }
            panic!("no verdict")
        }

        fn fits(&self) -> (bool, u64) {
            let (Turn::Known { fits, .. }, seconds) = self.judge() else { panic!("no verdict") };
            (fits, seconds)
        }
    }

    const fn program(cpu_ms: f64, gpu_ms: f64, events: u64) -> Program {
        Program { cpu_ns: cpu_ms * 1e6, gpu_ns: gpu_ms * 1e6, events, noise: Vec::new(), has_steps: true }
    }

    #[test]
    fn a_program_that_waits_for_its_gpu_pays_nothing_and_that_is_known_within_seconds() {
        let training = program(40.0, 100.0, 2_000);
        assert_eq!(training.judge().1, 5);
        let (Turn::Known { fits, slowdown }, _) = training.judge() else { panic!("no verdict") };
        assert!(fits && slowdown.part.abs() < 0.001, "{slowdown:?}");
        assert!(Program { has_steps: false, ..training }.fits().0, "by its events, too");
    }

    #[test]
    fn a_program_that_keeps_its_processor_busy_pays_what_an_event_costs() {
        let decoding = program(10.0, 1.0, 100);
        let (Turn::Known { fits, slowdown }, _) = decoding.judge() else { panic!("no verdict") };
        assert!(!fits && (slowdown.part - 0.05).abs() < 0.01, "{slowdown:?}: 100 times 5 of 10,500 microseconds");
        assert_eq!(program(10.0, 1.0, 1_000).fits(), (false, 2), "much is seen at once");
        assert!(program(10.0, 1.0, 20).fits().0, "a tenth of a millisecond of ten is within the budget");
    }

    #[test]
    fn time_that_is_spared_only_just_does_not_fit() {
        // With tracing it waits for 0.1 ms of 100: half of the load is more.
        assert!(!program(89.9, 100.0, 2_000).fits().0);
    }

    #[test]
    fn one_that_does_nothing_is_not_taken_for_fast() {
        let mut trial = Trial::new(0, 5_000, NonZeroU64::new(3_000).expect("a price"));
        let turns: Vec<Turn> = (1..40).map(|second| trial.turn(second * 1_000 * MS, 0.02)).collect();
        let known = turns.iter().find(|turn| matches!(turn, Turn::Known { .. }));
        assert!(matches!(known, Some(Turn::Known { fits: false, .. })), "{turns:?}");
    }

    proptest! {
        #[test]
        fn noise_makes_nothing_fit_that_pays(
            noise in prop::collection::vec(-60..60i32, 40..200), cpu_ms in 20.0..60.0f64, has_steps in any::<bool>()
        ) {
            // What tracing takes: 10 % and more of its time, and nothing is waited for.
            let events = 1_500;
            let pays = Program { noise, has_steps, ..program(cpu_ms, 1.0, events) };
            prop_assert!(!pays.fits().0);
        }
    }
}
