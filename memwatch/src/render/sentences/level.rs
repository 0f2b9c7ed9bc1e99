//! Sentences on the tracing level: which PyTorch events are not traced to limit the overhead, and
//! the overhead of a level that the user requested.

use memwatch_core::attribution::price::Budget;
use memwatch_core::input::{LevelChoice, MeasuredSlowdown, TensorLevel};
use memwatch_core::snapshot::{ProcessView, Snapshot};

use super::{LISTED, Sentence};
use crate::render::Tone;
use crate::render::format::{count, plural};

/// Nanoseconds per second in a hundredth of a processor.
const PERCENT_NS: u64 = 10_000_000;

/// `modules and lines are off: at 120,000 tensor events/s they would slow PID 1136 by about 65 %
/// (budget 2 %). To trace anyway: --budget none`.
pub(crate) fn lowered(choice: &LevelChoice) -> Option<String> {
    if choice.chosen >= choice.asked {
        return None;
    }
    let (rate, percent) = numbers(choice);
    let budget = choice.budget_ns_per_second.map(|budget| format!(" (budget {})", percent_of(budget)));
    let slows = |who: &str| {
        let budget = budget.as_deref().unwrap_or_default();
        let tgid = choice.tgid.0;
        match choice.measured {
            MeasuredSlowdown::Slowdown { part, error } => format!(
                "at {rate} tensor events/s tracing all slows PID {tgid} by {}{budget}, as measured",
                slowdown(part, error)
            ),
            MeasuredSlowdown::Not | MeasuredSlowdown::Now => {
                format!("at {rate} tensor events/s {who} would slow PID {tgid} by about {percent} %{budget}")
            }
        }
    };
    let first = match (choice.chosen, choice.asked) {
        (TensorLevel::Read, _) if choice.budget_ns_per_second == Some(0) => {
            let tgid = choice.tgid.0;
            return Some(format!("tensors of PID {tgid} are read from its memory, not traced: the budget is 0"));
        }
        (TensorLevel::Off, _) => format!("tensors are off: {}", slows("they")),
        (TensorLevel::Read, asked) if let Some(windows) = choice.windows => {
            let parts = if asked >= TensorLevel::Modules { "lines and modules" } else { "lines" };
            let (open, every) = (short(windows.open_ns), short(windows.every_ns));
            format!("{parts} are sampled, {open} of every {every}: {}", slows("tracing all"))
        }
        (TensorLevel::Read, _) => format!("tensors are read from memory, not traced: {}", slows("tracing")),
        (TensorLevel::Blocks, TensorLevel::Modules) => format!("modules and lines are off: {}", slows("they")),
        (TensorLevel::Blocks, _) => format!("lines are off: {}", slows("they")),
        _ => format!("modules are off: {}", slows("they")),
    };
    Some(format!("{first}. To trace anyway: --budget none"))
}

/// Returns the measured slowdown, or that the measurement is running; `None` if the level was
/// chosen by its predicted overhead alone.
pub(crate) fn measured(choice: &LevelChoice) -> Option<String> {
    let (tgid, budget) = (choice.tgid.0, choice.budget_ns_per_second.map(percent_of));
    let budget = budget.map(|budget| format!(" (budget {budget})")).unwrap_or_default();
    match choice.measured {
        MeasuredSlowdown::Not => None,
        MeasuredSlowdown::Now => {
            let (rate, percent) = numbers(choice);
            Some(format!(
                "measuring for a few seconds whether tracing slows PID {tgid}: at {rate} tensor events/s it takes about {percent} % of a processor{budget}"
            ))
        }
        MeasuredSlowdown::Slowdown { .. } if choice.chosen < choice.asked => lowered(choice),
        MeasuredSlowdown::Slowdown { part, error } => Some(format!(
            "all of PID {tgid} is traced: that slows it by {}{budget}, as measured",
            slowdown(part, error)
        )),
    }
}

/// `0.1 ± 0.3 %`. `part` and `error` are in units of 0.01 %. A negative measurement is noise and is
/// shown as 0.
fn slowdown(part: i64, error: u64) -> String {
    let tenths = |parts: u64| format!("{}.{}", parts.saturating_add(5) / 100, parts.saturating_add(5) / 10 % 10);
    format!("{} ± {} %", tenths(part.max(0).unsigned_abs()), tenths(error))
}

/// `lines of PID 1136 are traced again: at 900 tensor events/s that takes about 0.5 %`; `None` if
/// the level did not rise.
pub(crate) fn raised(choice: &LevelChoice, before: TensorLevel) -> Option<String> {
    if choice.chosen <= before {
        return None;
    }
    let parts = match choice.chosen {
        TensorLevel::Modules => "tensors, lines and modules",
        TensorLevel::Lines => "tensors and lines",
        _ => "tensors",
    };
    let (tgid, rate, price) = (choice.tgid.0, count(choice.events_per_second), percent_of(choice.chosen_ns_per_second));
    Some(format!(
        "{parts} of PID {tgid} are traced again: at {rate} tensor events/s that takes about {price} of its time"
    ))
}

/// `at 120,000 tensor events/s tracing PID 1136 takes about 65 % of a processor from it: less where it
/// waits for its GPU, more on a busy machine`; `None` unless the requested level is active and exceeds
/// the default budget.
pub(crate) fn obeyed(choice: &LevelChoice) -> Option<String> {
    let usual_ns = Budget::default().ns_per_second();
    let is_felt = choice.chosen == choice.asked && Some(choice.asked_ns_per_second) > usual_ns;
    is_felt.then(|| {
        let (rate, percent) = numbers(choice);
        format!(
            "at {rate} tensor events/s tracing PID {} takes about {percent} % of a processor from it: less where it waits for its GPU, more on a busy machine",
            choice.tgid.0
        )
    })
}

/// `PID 1136 sets its CUDA context 60,000 times a second, which is no longer traced: tracing would
/// take 9 % of its time (budget 2 %). ...`.
pub(crate) fn changes_spared((tgid, rate): (u32, u64), (price_ns, budget): (u64, Budget)) -> String {
    let budget = budget.ns_per_second().map(|budget| format!(" (budget {})", percent_of(budget)));
    format!(
        "PID {tgid} sets its CUDA context {} times a second, which is no longer traced: tracing would take {} of its time{}. With a single context, no number depends on these calls",
        count(rate),
        percent_of(price_ns),
        budget.unwrap_or_default()
    )
}

/// Returns whether the numbers of lines are lower bounds or estimates: events are traced in windows
/// only, or small blocks are sampled.
pub(crate) fn is_sampled(process: &ProcessView) -> bool {
    process.tensors.as_ref().is_some_and(|tensors| tensors.windows.is_some()) || samples_blocks(process)
}

/// Returns whether only sampled small blocks of the process have a line.
fn samples_blocks(process: &ProcessView) -> bool {
    let devices = process.tensors.iter().flat_map(|tensors| &tensors.attribution.devices);
    devices.flat_map(|device| &device.sites).any(|site| site.kind == "not_sampled")
}

/// `blocks of PID 1136 below 1 MiB are sampled, one per MiB: ≈ marks what is estimated from them.
/// For each one's line: --stacks=all`.
fn sampled(process: &ProcessView) -> Option<String> {
    samples_blocks(process).then(|| {
        let tgid = process.tgid.0;
        format!(
            "blocks of PID {tgid} below 1 MiB are sampled, one per MiB: ≈ marks what is estimated from them. For each one's line: --stacks=all"
        )
    })
}

fn numbers(choice: &LevelChoice) -> (String, u64) {
    (count(choice.events_per_second), choice.asked_ns_per_second.saturating_add(PERCENT_NS / 2) / PERCENT_NS)
}

/// `120 ms`, `3.5 s`.
fn short(time_ns: u64) -> String {
    let tenths = time_ns.saturating_add(50_000_000) / 100_000_000;
    if tenths < 10 { format!("{} ms", time_ns / 1_000_000) } else { format!("{}.{} s", tenths / 10, tenths % 10) }
}

/// `2 %` of a processor's time, `0.5 %`.
pub(crate) fn percent_of(ns_per_second: u64) -> String {
    let tenths = ns_per_second.saturating_add(PERCENT_NS / 20) / (PERCENT_NS / 10);
    if tenths.is_multiple_of(10) { format!("{} %", tenths / 10) } else { format!("{}.{} %", tenths / 10, tenths % 10) }
}

/// Returns the sentences on the first [`LISTED`] processes that are not traced completely, and the
/// number of the others.
pub(super) fn sentences(snapshot: &Snapshot) -> Vec<Sentence> {
    // A process that has ended still shows estimates, so `sampled` applies to it as well.
    let texts = |process: &ProcessView| -> Vec<String> {
        let level = process.level.as_ref().filter(|_| process.ended_ns.is_none());
        level.and_then(lowered).into_iter().chain(sampled(process)).collect()
    };
    let mut processes: Vec<_> = snapshot.processes.iter().map(texts).filter(|texts| !texts.is_empty()).collect();
    let others = processes.split_off(processes.len().min(LISTED)).len();
    let mut texts: Vec<String> = processes.into_iter().flatten().collect();
    if others > 0 {
        let others = plural(u64::try_from(others).unwrap_or(u64::MAX), "more process", "more processes");
        texts.push(format!("{others} not traced completely"));
    }
    texts.into_iter().map(|text| Sentence::new(Tone::Warning, text)).collect()
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use memwatch_core::attribution::price::{ProbeCost, TracingRequest};
    use memwatch_core::words::Tgid;

    use super::*;
    use crate::render::fixture::crowded_node;

    fn choice(level: TensorLevel, by_default: bool, events_per_second: u64) -> LevelChoice {
        let prices = ProbeCost { trap_ns: NonZeroU64::new(1_000).expect("a price") };
        let asked = TracingRequest { level, by_default, prices, ..TracingRequest::default() };
        asked.choose((Tgid(1136), 5), events_per_second)
    }

    #[test]
    fn lowered_level_sentence_states_overhead_budget_and_remedy() {
        let text = |level, rate| lowered(&choice(level, true, rate)).unwrap_or_default();
        assert_eq!(
            text(TensorLevel::Modules, 120_000),
            "tensors are read from memory, not traced: at 120,000 tensor events/s tracing would slow PID 1136 by about 60 % (budget 2 %). To trace anyway: --budget none"
        );
        assert!(text(TensorLevel::Modules, 7_000).starts_with("modules and lines are off: at 7,000 tensor events/s"));
        assert!(text(TensorLevel::Modules, 5_000).starts_with("modules are off: "));
        assert!(text(TensorLevel::Lines, 7_000).starts_with("lines are off: "));
        assert_eq!(text(TensorLevel::Modules, 3_000), "");
        let nothing = LevelChoice { budget_ns_per_second: Some(0), ..choice(TensorLevel::Modules, true, 120_000) };
        let text = "tensors of PID 1136 are read from its memory, not traced: the budget is 0";
        assert_eq!(lowered(&nothing).as_deref(), Some(text));
    }

    #[test]
    fn raised_level_sentence_states_its_overhead() {
        let again = choice(TensorLevel::Modules, true, 900);
        assert_eq!(
            raised(&again, TensorLevel::Read).as_deref(),
            Some(
                "tensors, lines and modules of PID 1136 are traced again: at 900 tensor events/s that takes about 0.5 % of its time"
            )
        );
        assert_eq!((raised(&again, TensorLevel::Modules), percent_of(20_000_000)), (None, "2 %".to_owned()));
    }

    #[test]
    fn measured_level_sentence_states_the_slowdown_and_its_error() {
        let of = |chosen, measured| {
            let by_price = choice(TensorLevel::Modules, true, 20_000);
            LevelChoice { chosen, measured, windows: None, ..by_price }
        };
        let text = |chosen, measured| super::measured(&of(chosen, measured)).unwrap_or_default();
        let slowdown = |part, error| MeasuredSlowdown::Slowdown { part, error };
        assert_eq!(
            text(TensorLevel::Modules, slowdown(12, 34)),
            "all of PID 1136 is traced: that slows it by 0.1 ± 0.3 % (budget 2 %), as measured"
        );
        assert!(text(TensorLevel::Modules, slowdown(-40, 30)).contains("by 0.0 ± 0.3 %"));
        assert_eq!(
            text(TensorLevel::Read, slowdown(1_230, 90)),
            "tensors are read from memory, not traced: at 20,000 tensor events/s tracing all slows PID 1136 by 12.3 ± 0.9 % (budget 2 %), as measured. To trace anyway: --budget none"
        );
        assert!(
            text(TensorLevel::Modules, MeasuredSlowdown::Now)
                .contains("it takes about 10 % of a processor (budget 2 %)")
        );
        assert_eq!(text(TensorLevel::Read, MeasuredSlowdown::Not), "");
    }

    #[test]
    fn obeyed_level_sentence_states_a_noticeable_overhead() {
        let text = |rate| obeyed(&choice(TensorLevel::Modules, false, rate));
        let expected = "at 120,000 tensor events/s tracing PID 1136 takes about 60 % of a processor from it: less where it waits for its GPU, more on a busy machine";
        assert_eq!(text(120_000).as_deref(), Some(expected));
        assert_eq!((text(3_000), lowered(&choice(TensorLevel::Modules, false, 120_000))), (None, None));
    }

    #[test]
    fn untraced_context_changes_sentence_states_their_overhead() {
        assert_eq!(
            changes_spared((1136, 60_000), (90_000_000, Budget::default())),
            "PID 1136 sets its CUDA context 60,000 times a second, which is no longer traced: tracing would take 9 % of its time (budget 2 %). With a single context, no number depends on these calls"
        );
    }

    #[test]
    fn of_many_processes_the_first_are_named_and_ended_ones_are_not() {
        let mut snapshot = crowded_node(6);
        for process in &mut snapshot.processes {
            process.level = Some(choice(TensorLevel::Modules, true, 120_000));
        }
        snapshot.processes[5].ended_ns = Some(snapshot.time_ns);
        let texts: Vec<String> = sentences(&snapshot).into_iter().map(|sentence| sentence.text).collect();
        assert_eq!(texts.len(), 4, "{texts:?}");
        assert!(texts[2].ends_with("--budget none"), "{texts:?}");
        assert_eq!(texts[3], "2 more processes not traced completely");
    }
}
