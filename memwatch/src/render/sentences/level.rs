//! What of PyTorch is not traced to keep a program fast, and what tracing costs where it was asked for.

use memwatch_core::attribution::price::MOST_NS_PER_SECOND;
use memwatch_core::input::{LevelChoice, TensorLevel};
use memwatch_core::snapshot::{ProcessView, Snapshot};

use super::{LISTED, Sentence, and_more};
use crate::render::Tone;
use crate::render::format::count;

/// Nanoseconds per second in a hundredth of a processor.
const PERCENT_NS: u64 = 10_000_000;

/// `modules and lines are off: at 120,000 tensor events/s they would slow PID 1136 by about 65 %. To trace anyway: --tensors=layers`.
pub(crate) fn lowered(choice: &LevelChoice) -> Option<String> {
    if choice.chosen >= choice.asked {
        return None;
    }
    let (parts, verb) = match (choice.chosen, choice.asked) {
        (TensorLevel::Off, _) => ("tensors", "are"),
        (TensorLevel::Blocks, TensorLevel::Layers) => ("modules and lines", "are"),
        (TensorLevel::Blocks, _) => ("lines", "are"),
        _ => ("modules", "are"),
    };
    let price = slows(choice);
    Some(format!("{parts} {verb} off: {price}. To trace anyway: --tensors={}", choice.asked.name()))
}

/// `at 120,000 tensor events/s tracing slows PID 1136 by about 65 %`, where that is asked for and more than nobody feels.
pub(crate) fn obeyed(choice: &LevelChoice) -> Option<String> {
    let is_felt = choice.chosen == choice.asked && choice.asked_ns_per_second > MOST_NS_PER_SECOND;
    is_felt.then(|| {
        let (rate, percent) = numbers(choice);
        format!("at {rate} tensor events/s tracing slows PID {} by about {percent} %", choice.tgid.0)
    })
}

fn slows(choice: &LevelChoice) -> String {
    let (rate, percent) = numbers(choice);
    format!("at {rate} tensor events/s they would slow PID {} by about {percent} %", choice.tgid.0)
}

fn numbers(choice: &LevelChoice) -> (String, u64) {
    (count(choice.events_per_second), choice.asked_ns_per_second.saturating_add(PERCENT_NS / 2) / PERCENT_NS)
}

/// One for each process of which less is traced than was asked for, and the number of the others.
pub(super) fn sentences(snapshot: &Snapshot) -> Vec<Sentence> {
    let running = snapshot.processes.iter().filter(|process| process.ended_ns.is_none());
    let lowered = |process: &ProcessView| process.level.as_ref().and_then(lowered);
    let mut texts: Vec<String> = running.filter_map(lowered).collect();
    let all = texts.len();
    texts.truncate(LISTED);
    if let Some(last) = texts.last_mut() {
        last.push_str(&and_more(all));
    }
    texts.into_iter().map(|text| Sentence::new(Tone::Warning, text)).collect()
}

#[cfg(test)]
mod tests {
    use memwatch_core::attribution::price::Asked;
    use memwatch_core::words::Tgid;

    use super::*;
    use crate::render::fixture::crowded_node;

    fn choice(level: TensorLevel, by_default: bool, events_per_second: u64) -> LevelChoice {
        let asked = Asked { level, reports_only: false, by_default };
        asked.choose((Tgid(1136), 5), level, events_per_second)
    }

    #[test]
    fn what_is_off_is_named_with_its_price_and_how_to_get_it() {
        let text = |level, rate| lowered(&choice(level, true, rate)).unwrap_or_default();
        assert_eq!(
            text(TensorLevel::Layers, 120_000),
            "tensors are off: at 120,000 tensor events/s they would slow PID 1136 by about 65 %. To trace anyway: --tensors=layers"
        );
        assert!(text(TensorLevel::Layers, 14_000).starts_with("modules and lines are off: at 14,000 tensor events/s"));
        assert!(text(TensorLevel::Layers, 10_000).starts_with("modules are off: "));
        assert!(text(TensorLevel::Sites, 14_000).starts_with("lines are off: "));
        assert_eq!(text(TensorLevel::Layers, 9_000), "");
    }

    #[test]
    fn what_was_asked_for_has_its_price_where_it_is_felt() {
        let text = |rate| obeyed(&choice(TensorLevel::Layers, false, rate));
        assert_eq!(text(120_000).as_deref(), Some("at 120,000 tensor events/s tracing slows PID 1136 by about 65 %"));
        assert_eq!((text(9_000), lowered(&choice(TensorLevel::Layers, false, 120_000))), (None, None));
    }

    #[test]
    fn of_many_processes_the_first_are_named_and_ended_ones_are_not() {
        let mut snapshot = crowded_node(6);
        for process in &mut snapshot.processes {
            process.level = Some(choice(TensorLevel::Layers, true, 120_000));
        }
        snapshot.processes[5].ended_ns = Some(snapshot.time_ns);
        let texts: Vec<String> = sentences(&snapshot).into_iter().map(|sentence| sentence.text).collect();
        assert_eq!(texts.len(), 3);
        assert!(texts[2].ends_with("--tensors=layers and 2 more"), "{texts:?}");
    }
}
