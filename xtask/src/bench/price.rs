//! `cargo xtask bench price`: measures the overhead of each tracing level for the two programs with
//! the highest event rates, compared with the goals.
//!
//! The programs are a small model in training and a decode loop, both limited by the CPU. Added
//! time and nanoseconds per event are computed from the fastest tenth of the steps in the faster
//! rounds, which a busy machine disturbs least.

use super::DOCUMENT;
use super::report::{ARENAS, PRICE};
use super::training::{
    StepMeasurement, TENSORFLOW, Tools, TracingMode, Training, VERSION, in_turns, lower_quarter, middle,
};
use crate::args::TaskArgs;
use crate::document;
use crate::repo::Repo;
use crate::table::MarkdownTable;
use anyhow::{Result, bail};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

const ROUNDS: u64 = 6;
/// Minimum event rate per second for a meaningful test.
const LEAST_RATE: f64 = 100_000.0;
/// Programs with their options and steps per round. A training step takes as long as several
/// decoding steps.
const PROGRAMS: [(&str, &[&str], u64); 2] =
    [("a small model, training", &[], 300), ("decoding with a KV cache", &["--decode"], 1_500)];

/// Goal for the overhead of a mode.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Goal {
    /// No goal.
    None,
    /// Maximum added time of a step, in percent.
    Percent(f64),
    /// Maximum multiple of the time that empty counting probes add.
    Times(f64),
}

/// Modes with their goals. The number of probes per event depends on the mode: an allocation is
/// reported and traced; a free is reported, its request completed, and traced. At `modules`, graph
/// nodes have probes as well.
const MODES: [(TracingMode, Goal); 9] = [
    (TracingMode::Nobody, Goal::None),
    (TracingMode::Memwatch(&[]), Goal::Percent(2.0)),
    (TracingMode::Memwatch(&["--budget=0"]), Goal::Percent(0.2)),
    (TracingMode::Memwatch(&["--tensors=blocks"]), Goal::Times(1.3)),
    (TracingMode::Memwatch(&["--tensors=lines"]), Goal::Times(1.6)),
    (TracingMode::Memwatch(&["--tensors=lines", "--stacks=all"]), Goal::None),
    (TracingMode::Memwatch(&["--tensors=modules"]), Goal::Times(3.0)),
    (TracingMode::History, Goal::None),
    (TracingMode::Count, Goal::None),
];

/// Traces driver calls only. If this is measured, the cost of an event is the difference from it.
const DRIVER_ALONE: TracingMode = TracingMode::Memwatch(&["--tensors=off"]);

/// Modes for chunks of an arena.
const ARENA_MODES: [(TracingMode, Goal); 5] = [
    (TracingMode::Nobody, Goal::None),
    (DRIVER_ALONE, Goal::None),
    (TracingMode::Memwatch(&["--tensors=blocks"]), Goal::Times(1.3)),
    (TracingMode::Memwatch(&["--tensors=lines"]), Goal::None),
    (TracingMode::Count, Goal::None),
];

/// Starts a program on this simulated driver.
type StartTraining = fn(&Repo, &Path) -> Result<Training>;

/// Cost per event in one mode.
struct EventCost {
    /// Added time of a step, in percent.
    added_percent: f64,
    /// Cost per event, in nanoseconds.
    event_ns: f64,
    /// Multiple of the time that empty counting probes add.
    times: f64,
}

/// Builds everything, measures, prints the tables and writes them into docs/project/overhead.md.
pub(super) fn task(repo: &Repo, mut args: TaskArgs) -> Result<()> {
    let rounds = args.count("--rounds")?.unwrap_or(ROUNDS);
    args.finish()?;
    let tools = Tools::build(repo, "price")?;
    let bpftrace = crate::run::first_line(Command::new("bpftrace").arg("--version"))?;
    let mut text = format!("{}, PyTorch {VERSION}, {bpftrace}.\n", document::machine()?);
    for (program, words, steps) in PROGRAMS {
        let mut training = Training::start(repo, &tools.driver, words)?;
        let measured = in_turns(&mut training, &tools, &MODES.map(|(mode, _)| mode), (rounds, steps))?;
        let rate = measured[0].rate();
        if rate < LEAST_RATE {
            bail!("{program} has {rate:.0} tensor events per second, which is no test of the price");
        }
        text.push_str(&part((program, rounds, steps), (&measured, &MODES))?);
    }
    println!("{text}");
    document::update(&repo.path(DOCUMENT), &PRICE, &text)
}

/// Measures the arenas of JAX and TensorFlow. These programs have fewer events, so the result is
/// the cost per event, without a goal per level.
pub(super) fn arenas(repo: &Repo, mut args: TaskArgs) -> Result<()> {
    const STEPS: u64 = 1_000;
    let rounds = args.count("--rounds")?.unwrap_or(ROUNDS);
    args.finish()?;
    let tools = Tools::build(repo, "arenas")?;
    let bpftrace = crate::run::first_line(Command::new("bpftrace").arg("--version"))?;
    let mut text = format!("{}, {bpftrace}.\n", document::machine()?);
    let operators = format!("operators of TensorFlow {TENSORFLOW}, with their names in `lines`");
    for (title, start) in
        [("arrays of JAX", Training::start_arrays as StartTraining), (&operators, Training::start_operators)]
    {
        let mut program = start(repo, &tools.driver)?;
        let measured = in_turns(&mut program, &tools, &ARENA_MODES.map(|(mode, _)| mode), (rounds, STEPS))?;
        text.push_str(&part((title, rounds, STEPS), (&measured, &ARENA_MODES))?);
    }
    println!("{text}");
    document::update(&repo.path(DOCUMENT), &ARENAS, &text)
}

/// Returns the table of a program, and the goals that were missed.
fn part(
    (program, rounds, steps): (&str, u64, u64),
    (measured, modes): (&[StepMeasurement], &[(TracingMode, Goal)]),
) -> Result<String> {
    let (events, rate) = (measured[0].events_per_step, measured[0].rate());
    let mut text = String::new();
    write!(
        text,
        "\n**{program}**: {rounds} rounds of {steps} steps, {events:.0} tensor events in each, {rate:.0} a second while nobody watches; milliseconds per step.\n\n"
    )?;
    let mut table = MarkdownTable::new(&[
        "watched by",
        "fastest tenth",
        "median",
        "95 % of the median",
        "added to the fastest tenth, %",
        "ns per tensor event",
        "times the count",
        "goal",
        "reached",
    ]);
    let prices = prices(measured);
    let mut missed = String::new();
    for ((measured, price), (_, goal)) in measured.iter().zip(&prices).zip(modes) {
        let (low, high) = interval(&measured.median_ns);
        let is_base = measured.mode == TracingMode::Nobody;
        let added = |of: String| if is_base { String::new() } else { of };
        let (wanted, reached) = judged(*goal, price);
        table.row(vec![
            measured.mode.title(),
            format!("{:.3}", measured.fast_ns() / 1e6),
            format!("{:.3}", middle(&measured.median_ns) / 1e6),
            format!("{:.3} to {:.3}", low / 1e6, high / 1e6),
            added(format!("{:.1}", price.added_percent)),
            added(format!("{:.0}", price.event_ns)),
            added(format!("{:.2}", price.times)),
            wanted,
            reached.map_or_else(String::new, |reached| if reached { "yes" } else { "no" }.to_owned()),
        ]);
        if reached == Some(false) {
            writeln!(missed, "* {}: {}", measured.mode.title(), excess(*goal, price))?;
        }
    }
    text.push_str(&table.text());
    if !missed.is_empty() {
        write!(text, "\nMissed:\n\n{missed}")?;
    }
    Ok(text)
}

impl StepMeasurement {
    /// Returns the duration of fast steps: the tenth percentile of a round, at the lower quartile
    /// of the rounds. The shortest step is short by chance, and whole rounds are slower by a
    /// quarter while the host is busy.
    fn fast_ns(&self) -> f64 {
        lower_quarter(&self.tenth_ns)
    }

    /// Returns the events per second in fast steps.
    fn rate(&self) -> f64 {
        self.events_per_step / (self.fast_ns() / 1e9)
    }
}

fn prices(measured: &[StepMeasurement]) -> Vec<EventCost> {
    let (base_ns, events) = (measured[0].fast_ns(), measured[0].events_per_step);
    let added_ns = |one: &StepMeasurement| one.fast_ns() - base_ns;
    let count_ns = measured.iter().find(|one| one.mode == TracingMode::Count).map_or(f64::NAN, added_ns);
    let driver_ns = measured.iter().find(|one| one.mode == DRIVER_ALONE).map_or(0.0, added_ns);
    let price = |one: &StepMeasurement| {
        let has_driver = matches!(one.mode, TracingMode::Memwatch(_)) && one.mode != DRIVER_ALONE;
        let events_ns = added_ns(one) - if has_driver { driver_ns } else { 0.0 };
        EventCost {
            added_percent: 100.0 * added_ns(one) / base_ns,
            event_ns: events_ns / events,
            times: events_ns / count_ns,
        }
    };
    measured.iter().map(price).collect()
}

/// Returns a goal in words, and whether it is reached.
fn judged(goal: Goal, price: &EventCost) -> (String, Option<bool>) {
    match goal {
        Goal::None => (String::new(), None),
        Goal::Percent(most) => (format!("≤ {most} %"), Some(price.added_percent <= most)),
        Goal::Times(most) => (format!("≤ {most} ×"), Some(price.times <= most)),
    }
}

/// Describes by how much a goal is missed.
fn excess(goal: Goal, price: &EventCost) -> String {
    match goal {
        Goal::None => String::new(),
        Goal::Percent(most) => format!("{:.1} points above the goal.", price.added_percent - most),
        Goal::Times(most) => {
            let count_ns = price.event_ns / price.times;
            format!(
                "{:.2} × instead of {most}: {:.0} ns an event too many. The count, one trap an event, takes {count_ns:.0} of its {:.0} ns.",
                price.times,
                price.event_ns - most * count_ns,
                price.event_ns
            )
        }
    }
}

/// Returns the two values that enclose the true median with a probability of at least 95 %, for any
/// distribution; the lowest and the highest if there are too few values.
fn interval(values: &[f64]) -> (f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    // Binomial distribution: at most `left_out` values are on one side with a probability below 2.5
    // %.
    let all = 0.5_f64.powi(i32::try_from(sorted.len()).unwrap_or(i32::MAX));
    let (mut ways, mut below, mut left_out) = (1.0, all, 0);
    while below <= 0.025 && 2 * (left_out + 1) < sorted.len() {
        ways *= f64::from(u32::try_from(sorted.len() - left_out).unwrap_or(u32::MAX))
            / f64::from(u32::try_from(left_out + 1).unwrap_or(u32::MAX));
        below += ways * all;
        if below > 0.025 {
            break;
        }
        left_out += 1;
    }
    match (sorted.get(left_out), sorted.get(sorted.len().wrapping_sub(1 + left_out))) {
        (Some(low), Some(high)) => (*low, *high),
        _ => (f64::NAN, f64::NAN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(mode: TracingMode, tenth_ns: f64) -> StepMeasurement {
        let [shortest_ns, tenth_ns, median_ns] = [0.9, 1.0, 1.1].map(|times| vec![times * tenth_ns]);
        StepMeasurement { mode, shortest_ns, tenth_ns, median_ns, events_per_step: 100.0 }
    }

    #[test]
    fn bench_overhead_uses_the_fast_steps_relative_to_counting() {
        let all = [
            measured(TracingMode::Nobody, 1_000_000.0),
            measured(TracingMode::Memwatch(&[]), 1_010_000.0),
            measured(TracingMode::Count, 1_050_000.0),
        ];
        let prices = prices(&all);
        assert!((prices[1].added_percent - 1.0).abs() < 1e-9 && (prices[1].event_ns - 100.0).abs() < 1e-9);
        assert!((prices[1].times - 0.2).abs() < 1e-9 && (prices[2].times - 1.0).abs() < 1e-9);
    }

    #[test]
    fn bench_overhead_per_event_excludes_separately_measured_driver_calls() {
        let all = [
            measured(TracingMode::Nobody, 1_000_000.0),
            measured(DRIVER_ALONE, 1_200_000.0),
            measured(TracingMode::Memwatch(&["--tensors=blocks"]), 1_300_000.0),
            measured(TracingMode::Count, 1_050_000.0),
        ];
        let prices = prices(&all);
        assert!((prices[2].added_percent - 30.0).abs() < 1e-9 && (prices[2].event_ns - 1000.0).abs() < 1e-9);
        assert!((prices[2].times - 2.0).abs() < 1e-9 && (prices[1].event_ns - 2000.0).abs() < 1e-9);
    }

    #[test]
    fn a_goal_that_is_missed_says_by_how_much() {
        let price = EventCost { added_percent: 9.0, event_ns: 1_500.0, times: 3.0 };
        assert_eq!(judged(Goal::Percent(2.0), &price), ("≤ 2 %".to_owned(), Some(false)));
        assert_eq!(judged(Goal::Times(3.0), &price), ("≤ 3 ×".to_owned(), Some(true)));
        assert_eq!(excess(Goal::Percent(2.0), &price), "7.0 points above the goal.");
        assert!(excess(Goal::Times(1.3), &price).starts_with("3.00 × instead of 1.3: 850 ns an event too many."));
    }

    #[test]
    fn an_interval_of_a_median_is_of_two_of_the_values() {
        let values = |count: u32| (1..=count).map(f64::from).collect::<Vec<_>>();
        assert_eq!(interval(&values(3)), (1.0, 3.0));
        assert_eq!(interval(&values(6)), (1.0, 6.0));
        assert_eq!(interval(&values(9)), (2.0, 8.0));
        assert_eq!(interval(&values(15)), (4.0, 12.0));
        assert!(interval(&[]).0.is_nan());
    }
}
