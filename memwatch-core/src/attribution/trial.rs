//! Measures whether tracing slows a program while the program is traced. Stretches with and without
//! an extra load at each event alternate, and the speed of the program is compared.
//!
//! The slowdown of a thread grows at least in proportion to the work per event: a thread that waits
//! for its GPU has idle time, and only work beyond the idle time slows it. So an extra `load` slows
//! the thread, in proportion, at least as much as tracing itself, and if the load costs nothing,
//! tracing costs nothing. No event is missed during the measurement, as would happen if tracing
//! were switched off for comparison.

use std::num::NonZeroU64;

/// Minimum and maximum length of a stretch, nanoseconds.
const SHORTEST_NS: u64 = 1_000_000_000;
const LONGEST_NS: u64 = 4_000_000_000;
/// Time at the start of a stretch that is not measured, nanoseconds, so that the effect of the
/// switch settles.
const SETTLING_NS: u64 = 100_000_000;
/// Number of steps after which a stretch is long enough, if the program has steps.
const STEPS: usize = 10;
/// Minimum number of steps, or of event counts, from which a speed can be computed.
const LEAST_STEPS: usize = 4;
/// Minimum and maximum number of stretches, which alternate without and with load.
const LEAST: usize = 5;
const MOST: usize = 25;
/// Number of stretches after which a measured slowdown above the budget counts even if it is
/// uncertain.
const DOUBTFUL: usize = 11;
/// Slowdown under load, as a part of the program's speed, at which the measurement ends at once.
const MUCH: f64 = 0.12;
/// Number of standard errors that counts as certain.
const SURE: f64 = 2.0;

/// Measured slowdown, as parts of the program's time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slowdown {
    /// Upper bound of the slowdown by tracing.
    pub part: f64,
    /// Standard error of the slowdown; NaN if a single comparison gives none.
    pub error: f64,
}

impl Slowdown {
    fn known_error(self) -> f64 {
        if self.error.is_nan() { 0.0 } else { self.error }
    }
}

/// Next step of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TrialStep {
    /// Continue the current stretch.
    Wait,
    /// Start the next stretch, with load or without.
    Load(bool),
    /// The measurement is finished: the slowdown is within the budget, above it, or not certainly
    /// within it.
    Known {
        /// Whether the slowdown is certainly within the budget.
        fits: bool,
        /// The measured slowdown.
        slowdown: Slowdown,
    },
}

/// A running measurement.
#[derive(Clone, Debug)]
pub struct OverheadTrial {
    /// Ratio of the cost of tracing to the cost of the load, per event.
    scale: f64,
    began_ns: u64,
    is_loaded: bool,
    /// Event counts of the current stretch, by the allocators' own count: time, and number of
    /// events.
    counts: Vec<(u64, u64)>,
    /// Start times of the steps in the current stretch.
    steps: Vec<u64>,
    stretches: Vec<Stretch>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Stretch {
    events_per_second: Option<f64>,
    steps_per_second: Option<f64>,
}

impl OverheadTrial {
    /// Starts a measurement, without load. Tracing costs `traced_ns` per event, and the load
    /// `load_ns` in addition.
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

    /// Notes the number of events that the allocators have counted by this time.
    pub fn count(&mut self, time_ns: u64, events: u64) {
        if time_ns >= self.began_ns + SETTLING_NS && self.counts.last().is_none_or(|last| last.0 < time_ns) {
            self.counts.push((time_ns, events));
        }
    }

    /// Notes that a step of an optimizer has begun.
    pub fn step(&mut self, time_ns: u64) {
        if time_ns >= self.began_ns + SETTLING_NS && self.steps.last().is_none_or(|last| *last < time_ns) {
            self.steps.push(time_ns);
        }
    }

    /// Returns the next step of the measurement. `budget` is the part of the program's time that
    /// tracing may take.
    pub fn turn(&mut self, now_ns: u64, budget: f64) -> TrialStep {
        let elapsed_ns = now_ns.saturating_sub(self.began_ns);
        let has_steps = self.steps.len() > STEPS || (self.steps.is_empty() && self.counts.len() >= LEAST_STEPS);
        if elapsed_ns < SHORTEST_NS || (elapsed_ns < LONGEST_NS && !has_steps) {
            return TrialStep::Wait;
        }
        self.stretches.push(self.stretch());
        let is_over = self.stretches.len() >= LEAST || self.is_much();
        // A stretch with load is compared with its neighbours on both sides, so the last stretch
        // must be one without load, unless the slowdown is large.
        if is_over && (!self.is_loaded || self.is_much()) {
            let slowdown = self.slowdown();
            // With an unknown error this is false.
            let fits = slowdown.is_some_and(|slowdown| slowdown.part + SURE * slowdown.error <= budget);
            // After many stretches, doubt counts as a slowdown.
            let sure = if self.stretches.len() >= DOUBTFUL { 0.0 } else { 1.0 };
            let lowest = |slowdown: Slowdown| slowdown.part - sure * slowdown.known_error();
            let pays = slowdown.is_none_or(|slowdown| lowest(slowdown) > budget);
            if fits || pays || self.stretches.len() >= MOST {
                return TrialStep::Known {
                    fits,
                    slowdown: slowdown.unwrap_or(Slowdown { part: f64::NAN, error: f64::NAN }),
                };
            }
        }
        self.is_loaded = !self.is_loaded;
        self.began_ns = now_ns;
        self.counts.clear();
        self.steps.clear();
        TrialStep::Load(self.is_loaded)
    }

    /// Returns the mean event rate of the stretches without load; `None` if unknown.
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

    /// Returns the speed of each stretch: in steps if all stretches have steps, since these give an
    /// exact speed, else in events.
    fn speeds(&self) -> Option<Vec<f64>> {
        let by_steps: Option<Vec<f64>> = self.stretches.iter().map(|stretch| stretch.steps_per_second).collect();
        by_steps.or_else(|| self.stretches.iter().map(|stretch| stretch.events_per_second).collect())
    }

    /// Whether the last stretch, with load, was much slower than the one before.
    fn is_much(&self) -> bool {
        let speeds = self.speeds().filter(|_| self.is_loaded).unwrap_or_default();
        matches!(speeds[..], [.., plain, loaded] if loaded < plain * (1.0 - MUCH))
    }

    /// Computes the slowdown from each stretch with load and its neighbours.
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
        // A few differences may agree by chance, so the variation between stretches without load is
        // an additional measure of the noise.
        let plain: Vec<f64> = speeds.iter().copied().step_by(2).collect();
        let noise: Vec<f64> = plain.array_windows::<2>().map(|[one, next]| (next - one).powi(2) * 0.75).collect();
        let of_differences = if count > 1.0 { spread / (count - 1.0) } else { 0.0 };
        let of_noise = if noise.is_empty() { 0.0 } else { mean(&noise) };
        let is_single = differences.len() == 1 && noise.is_empty();
        let error = if is_single { f64::NAN } else { (of_differences.max(of_noise) / count).sqrt() };
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

    /// A program whose thread computes for `cpu_ns` in each step, with a number of events, and
    /// whose GPU needs `gpu_ns`. The slower of both decides. The noise varies each step, in
    /// thousandths.
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

        /// Returns the verdict, and the number of seconds it took.
        fn judge(&self) -> (TrialStep, u64) {
            let (mut trial, mut now_ns, mut events, mut is_loaded) =
                (OverheadTrial::new(0, 5_000, NonZeroU64::new(3_000).expect("a price")), 0, 0, false);
            for index in 0..1_000_000 {
                now_ns += self.step_ns(index, if is_loaded { 8_000.0 } else { 5_000.0 });
                events += self.events;
                if self.has_steps {
                    trial.step(now_ns);
                }
                trial.count(now_ns, events);
                match trial.turn(now_ns, 0.02) {
                    TrialStep::Wait => {}
                    TrialStep::Load(is_on) => is_loaded = is_on,
                    known @ TrialStep::Known { .. } => return (known, now_ns / 1_000_000_000),
                }
            }
            panic!("no verdict")
        }

        fn fits(&self) -> (bool, u64) {
            let (TrialStep::Known { fits, .. }, seconds) = self.judge() else { panic!("no verdict") };
            (fits, seconds)
        }
    }

    const fn program(cpu_ms: f64, gpu_ms: f64, events: u64) -> Program {
        Program { cpu_ns: cpu_ms * 1e6, gpu_ns: gpu_ms * 1e6, events, noise: Vec::new(), has_steps: true }
    }

    #[test]
    fn trial_of_a_program_waiting_for_its_gpu_finds_no_slowdown_in_seconds() {
        let training = program(40.0, 100.0, 2_000);
        assert_eq!(training.judge().1, 5);
        let (TrialStep::Known { fits, slowdown }, _) = training.judge() else { panic!("no verdict") };
        assert!(fits && slowdown.part.abs() < 0.001, "{slowdown:?}");
        assert!(Program { has_steps: false, ..training }.fits().0, "by its events, too");
    }

    #[test]
    fn a_program_that_keeps_its_processor_busy_pays_what_an_event_costs() {
        let decoding = program(10.0, 1.0, 100);
        let (TrialStep::Known { fits, slowdown }, _) = decoding.judge() else { panic!("no verdict") };
        assert!(!fits && (slowdown.part - 0.05).abs() < 0.01, "{slowdown:?}: 100 times 5 of 10,500 microseconds");
        assert_eq!(program(10.0, 1.0, 1_000).fits(), (false, 2), "much is seen at once");
        assert!(program(10.0, 1.0, 20).fits().0, "a tenth of a millisecond of ten is within the budget");
    }

    #[test]
    fn a_single_comparison_has_no_error() {
        let (TrialStep::Known { fits, slowdown }, _) = program(10.0, 1.0, 1_000).judge() else { panic!("no verdict") };
        assert!(!fits && slowdown.part > 0.1 && slowdown.error.is_nan(), "{slowdown:?}");
    }

    #[test]
    fn trial_with_barely_enough_idle_time_does_not_fit() {
        // With tracing, the thread still waits for 0.1 ms of 100. Half of the load exceeds that.
        assert!(!program(89.9, 100.0, 2_000).fits().0);
    }

    #[test]
    fn trial_of_an_idle_program_does_not_fit() {
        let mut trial = OverheadTrial::new(0, 5_000, NonZeroU64::new(3_000).expect("a price"));
        let turns: Vec<TrialStep> = (1..40).map(|second| trial.turn(second * 1_000 * MS, 0.02)).collect();
        let known = turns.iter().find(|turn| matches!(turn, TrialStep::Known { .. }));
        assert!(matches!(known, Some(TrialStep::Known { fits: false, .. })), "{turns:?}");
    }

    proptest! {
        #[test]
        fn trial_noise_never_makes_an_expensive_program_fit(
            noise in prop::collection::vec(-60..60i32, 40..200), cpu_ms in 20.0..60.0f64, has_steps in any::<bool>()
        ) {
            // Tracing takes at least 10 % of the time, and the thread waits for nothing.
            let events = 1_500;
            let pays = Program { noise, has_steps, ..program(cpu_ms, 1.0, events) };
            prop_assert!(!pays.fits().0);
        }
    }
}
