//! The overhead of tracing for the traced programs, for the last line.

use memwatch_core::snapshot::{OverheadView, ProcessView, Snapshot};

use super::Sentence;
use crate::render::Tone;
use crate::render::format::{percent, plural};

const SECOND_NS: u64 = 1_000_000_000;
/// Overhead from which a process is named, in nanoseconds per second.
const DEAR_NS: u64 = 50_000_000;

/// `overhead 1.2 % CPU`, summed over all traced processes, with the most expensive process if it
/// reaches [`DEAR_NS`]. Reports skipped stacks too. Empty if the overhead is unknown.
pub(crate) fn sentences(snapshot: &Snapshot) -> Vec<Sentence> {
    let known = snapshot.processes.iter().filter_map(|process| Some((process, process.overhead.as_ref()?)));
    let known: Vec<(&ProcessView, &OverheadView)> = known.collect();
    let mut parts = Vec::new();
    let rates = || known.iter().filter_map(|(process, view)| Some((process, view.ns_per_second?)));
    if let Some((dearest, most_ns)) = rates().max_by_key(|(_, rate_ns)| *rate_ns) {
        let all_ns: u64 = rates().map(|(_, rate_ns)| rate_ns).fold(0, u64::saturating_add);
        let is_much = most_ns >= DEAR_NS;
        let most = format!(" (PID {}: {})", dearest.tgid.0, percent(most_ns, SECOND_NS));
        let most = if is_much && rates().count() > 1 { most } else { String::new() };
        let tone = if is_much { Tone::Warning } else { Tone::Faint };
        parts.push(Sentence::new(tone, format!("overhead {} CPU{most}", percent(all_ns, SECOND_NS))));
    }
    let left_out = known.iter().map(|(_, view)| view.stacks_left_out).fold(0, u64::saturating_add);
    if left_out > 0 {
        let text = format!("{} skipped to limit the overhead", plural(left_out, "stack", "stacks"));
        parts.push(Sentence::new(Tone::Warning, text));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::fixture::crowded_node;

    fn reported(overheads: &[Option<(u64, u64)>]) -> Vec<String> {
        let mut snapshot = crowded_node(u32::try_from(overheads.len()).expect("few"));
        for (process, overhead) in snapshot.processes.iter_mut().zip(overheads) {
            process.tgid.0 = 7;
            let view = |(ns, stacks_left_out)| OverheadView {
                events: 1,
                total_ns: 5,
                ns_per_second: Some(ns),
                stacks_left_out,
            };
            process.overhead = overhead.map(view);
        }
        sentences(&snapshot).into_iter().map(|sentence| sentence.text).collect()
    }

    #[test]
    fn overhead_sentence_is_the_sum_and_names_expensive_processes() {
        assert_eq!(reported(&[Some((12_000_000, 0))]), ["overhead 1.2 % CPU"]);
        assert_eq!(reported(&[Some((3_000_000, 0)), None, Some((12_000_000, 0))]), ["overhead 1.5 % CPU"]);
        assert_eq!(reported(&[Some((62_000_000, 0))]), ["overhead 6.2 % CPU"]);
        let much = "overhead 6.5 % CPU (PID 7: 6.2 %)";
        assert_eq!(reported(&[Some((3_000_000, 0)), Some((62_000_000, 0))]), [much]);
        assert_eq!(reported(&[None, None]), Vec::<String>::new());
    }

    #[test]
    fn skipped_stacks_are_counted() {
        let reported = reported(&[Some((400_000, 1)), Some((500_000, 1233))]);
        assert_eq!(reported, ["overhead 0.1 % CPU", "1,234 stacks skipped to limit the overhead"]);
    }
}
