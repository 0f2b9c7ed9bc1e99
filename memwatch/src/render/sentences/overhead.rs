//! What watching takes of the watched programs' time, for the trust line.

use memwatch_core::snapshot::{OverheadView, ProcessView, Snapshot};

use super::Sentence;
use crate::render::Tone;
use crate::render::format::{percent, plural};

const SECOND_NS: u64 = 1_000_000_000;
/// From this part of a processor on it matters, nanoseconds of a second.
const DEAR_NS: u64 = 50_000_000;

/// `watching takes PID 1234 about 12 ms a second, 1.2 % of a processor (estimated)`; nothing where that is not known.
pub(crate) fn sentences(snapshot: &Snapshot) -> Vec<Sentence> {
    let known = snapshot.processes.iter().filter_map(|process| Some((process, process.overhead.as_ref()?)));
    let known: Vec<(&ProcessView, &OverheadView)> = known.collect();
    let mut parts = Vec::new();
    let rates = || known.iter().filter_map(|(process, view)| Some((process, view.ns_per_second?)));
    if let Some((dearest, most_ns)) = rates().max_by_key(|(_, rate_ns)| *rate_ns) {
        let all_ns: u64 = rates().map(|(_, rate_ns)| rate_ns).fold(0, u64::saturating_add);
        let tone = if most_ns >= DEAR_NS { Tone::Warning } else { Tone::Faint };
        parts.push(Sentence::new(tone, rate(dearest.tgid.0, most_ns, (known.len() > 1).then_some(all_ns))));
    }
    let left_out = known.iter().map(|(_, view)| view.stacks_left_out).fold(0, u64::saturating_add);
    if left_out > 0 {
        let text = format!("{} left out to keep the program fast", plural(left_out, "stack", "stacks"));
        parts.push(Sentence::new(Tone::Warning, text));
    }
    parts
}

fn rate(tgid: u32, most_ns: u64, all_ns: Option<u64>) -> String {
    let share = percent(most_ns, SECOND_NS);
    let in_all = all_ns.map_or_else(String::new, |all_ns| format!(", {} in all", time(all_ns)));
    format!("watching takes PID {tgid} about {} a second, {share} of a processor{in_all} (estimated)", time(most_ns))
}

fn time(nanoseconds: u64) -> String {
    match nanoseconds {
        0..10_000_000 => format!("{} us", nanoseconds / 1000),
        more => format!("{} ms", more / 1_000_000),
    }
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
    fn what_watching_takes_is_reported_of_the_process_that_pays_most_and_of_all() {
        let one = "watching takes PID 7 about 12 ms a second, 1.2 % of a processor (estimated)";
        assert_eq!(reported(&[Some((12_000_000, 0))]), [one]);
        let both = "watching takes PID 7 about 12 ms a second, 1.2 % of a processor, 15 ms in all (estimated)";
        assert_eq!(reported(&[Some((3_000_000, 0)), None, Some((12_000_000, 0))]), [both]);
        assert_eq!(reported(&[None, None]), Vec::<String>::new());
    }

    #[test]
    fn stacks_that_were_left_out_are_reported() {
        let reported = reported(&[Some((400_000, 1)), Some((500_000, 1233))]);
        assert_eq!(reported[1], "1,234 stacks left out to keep the program fast");
        assert!(reported[0].contains("about 500 us a second, 0.0 %") || reported[0].contains("0.1 %"), "{reported:?}");
    }
}
