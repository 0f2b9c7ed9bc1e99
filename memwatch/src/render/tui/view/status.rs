//! The last lines: completeness of the numbers, tracing overhead, and the keys.

use std::collections::BTreeSet;

use memwatch_core::input::{LibraryCoverage, ProbeCoverage};
use memwatch_core::snapshot::Snapshot;
use ratatui::text::Line;

use super::{FrameInput, ScreenPage, ViewState};
use crate::render::Tone;
use crate::render::format::{percent, plural, printable};
use crate::render::sentences::{self, Sentence, level};
use crate::render::tui::size::size;
use crate::render::tui::state::Overlay;

const SECOND_NS: u64 = 1_000_000_000;
/// Overhead from which the status line warns, in nanoseconds per second.
const FELT_NS: u64 = 50_000_000;

/// Returns the status in a number of lines that depends on the height, and the keys if they fit.
pub(crate) fn lines(state: &ViewState, shown: &FrameInput, width: usize, height: usize) -> Vec<Line<'static>> {
    let mut lines = shown.look.joined(&sentences(shown.snapshot), width);
    lines.truncate(match height {
        0..4 => 0,
        4..14 => 1,
        _ => 3,
    });
    if height >= 10 {
        lines.push(keys(state, shown, width));
    }
    lines
}

/// Returns the sentences that apply to the snapshot.
fn sentences(snapshot: &Snapshot) -> Vec<Sentence> {
    let mut parts = sentences::gaps(snapshot);
    parts.extend(overhead(snapshot));
    let living = snapshot.processes.iter().filter(|process| process.ended_ns.is_none() && process.has_touched_gpu());
    let older = living.filter(|process| !process.from_start).count();
    if older > 0 {
        let text = format!("{} started before attach", plural(number(older), "process", "processes"));
        parts.push(Sentence::new(Tone::Faint, text));
    }
    parts.extend(hidden(snapshot));
    let levels = snapshot.processes.iter().filter(|process| process.ended_ns.is_none());
    let lowered = levels.filter_map(|process| level::lowered(process.level.as_ref()?));
    parts.extend(lowered.map(|text| Sentence::new(Tone::Warning, text)));
    parts.extend(coverage(&snapshot.coverage));
    parts
}

/// `overhead 0.4 % CPU`, summed over all processes, and skipped stacks. Empty if the overhead is
/// unknown.
fn overhead(snapshot: &Snapshot) -> Vec<Sentence> {
    let known = || snapshot.processes.iter().filter_map(|process| process.overhead.as_ref());
    let rates: Vec<u64> = known().filter_map(|overhead| overhead.ns_per_second).collect();
    let mut parts = Vec::new();
    if !rates.is_empty() {
        let all_ns = rates.iter().copied().fold(0, u64::saturating_add);
        let tone = if all_ns >= FELT_NS { Tone::Warning } else { Tone::Faint };
        parts.push(Sentence::new(tone, format!("overhead {} CPU", percent(all_ns, SECOND_NS))));
    }
    let skipped = known().map(|overhead| overhead.stacks_left_out).fold(0, u64::saturating_add);
    if skipped > 0 {
        let text = format!("{} skipped to limit overhead", plural(skipped, "stack", "stacks"));
        parts.push(Sentence::new(Tone::Warning, text));
    }
    parts
}

/// `2 processes of other users hold 3.00 GiB`.
fn hidden(snapshot: &Snapshot) -> Option<Sentence> {
    let hidden = snapshot.hidden.as_ref().filter(|hidden| hidden.processes > 0)?;
    let held = hidden.gpus.iter().map(|gpu| gpu.used_bytes.unwrap_or(0).max(gpu.live_bytes)).sum();
    let verb = if hidden.processes == 1 { "holds" } else { "hold" };
    let processes = plural(hidden.processes, "process", "processes");
    Some(Sentence::new(Tone::Faint, format!("{processes} of other users {verb} {}", size(held))))
}

/// Returns libraries and functions without probes. Functions that an older driver lacks are not
/// reported, and neither are library files that no process uses.
fn coverage(coverage: &ProbeCoverage) -> Vec<Sentence> {
    let libraries = &coverage.libraries;
    if libraries.is_empty() {
        return vec![Sentence::new(Tone::Warning, "no libcuda found yet: nothing is traced")];
    }
    let is_covered = libraries.iter().any(|library| library.error.is_none());
    let used = || libraries.iter().filter(|library| library.in_use || !is_covered);
    let mut parts: Vec<Sentence> = used().filter_map(refused).collect();
    let names: BTreeSet<&String> = used().flat_map(|library| &library.probes_refused).collect();
    if !names.is_empty() {
        let functions = plural(number(names.len()), "driver function has", "driver functions have");
        parts.push(Sentence::new(Tone::Warning, format!("{functions} no probe")));
    }
    if coverage.libraries_over_limit > 0 {
        let files = plural(coverage.libraries_over_limit, "libcuda file has", "libcuda files have");
        parts.push(Sentence::new(Tone::Warning, format!("{files} no probes: there are too many")));
    }
    parts
}

fn refused(library: &LibraryCoverage) -> Option<Sentence> {
    let error = library.error.as_ref()?;
    Some(Sentence::new(Tone::Bad, format!("no probes on {}: {}", printable(&library.path), printable(error))))
}

/// Returns the keys of the page, or in their place the filter being typed or the last notice.
fn keys(state: &ViewState, shown: &FrameInput, width: usize) -> Line<'static> {
    let look = shown.look;
    if state.is_typing() {
        let text = format!("filter: {}_", printable(state.filter()));
        return look.keys_after(&text, &[("Enter", "keep"), ("Esc", "clear")], width);
    }
    if let Some(notice) = state.notice() {
        return Line::from(look.span(Tone::Warning, printable(notice)));
    }
    let keys: &[(&str, &str)] = match (state.overlay(), state.page()) {
        (Some(Overlay::Help | Overlay::Detail), _) => &[("Esc", "back"), ("Up Down", "scroll"), ("q", "quit")],
        (None, ScreenPage::List) => &[
            ("Enter", "open"),
            ("/", "filter"),
            ("s", "sort"),
            ("t", "tree"),
            ("Space", "pause"),
            ("?", "help"),
            ("q", "quit"),
        ],
        (None, ScreenPage::Process(_)) => &[
            ("Enter", "details"),
            ("1-6", "tabs"),
            ("/", "filter"),
            ("s", "sort"),
            ("Space", "pause"),
            ("Esc", "list"),
            ("?", "help"),
            ("q", "quit"),
        ],
    };
    look.keys(keys, width)
}

fn number(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use memwatch_common::loss::Loss;
    use memwatch_core::snapshot::OverheadView;

    use super::*;
    use crate::render::fixture::{busy_node, quiet_node};

    fn texts(snapshot: &Snapshot) -> Vec<String> {
        sentences(snapshot).into_iter().map(|sentence| sentence.text).collect()
    }

    #[test]
    fn tui_status_without_problems_is_complete_and_overhead() {
        let mut snapshot = quiet_node();
        let overhead = OverheadView { events: 1, total_ns: 5, ns_per_second: Some(4_000_000), stacks_left_out: 0 };
        snapshot.processes[0].overhead = Some(overhead);
        assert_eq!(texts(&snapshot), ["complete", "overhead 0.4 % CPU"]);
    }

    #[test]
    fn tui_status_names_each_problem_once_and_no_newer_driver_functions() {
        let mut snapshot = busy_node();
        let library = snapshot.coverage.libraries[0].clone();
        snapshot.coverage.libraries.push(LibraryCoverage { error: Some("no room".to_owned()), ..library });
        assert_eq!(
            texts(&snapshot),
            [
                "12 events dropped (ring full): peak and totals of PID 2002 may be wrong",
                "1 process started before attach",
                "no probes on /usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06: no room",
            ]
        );
    }

    #[test]
    fn tui_status_has_drops_beside_unwatched_processes_and_none_without_losses() {
        let mut snapshot = busy_node();
        let mut unwatched = snapshot.processes[0].clone();
        (unwatched.tgid.0, unwatched.exact) = (7, false);
        unwatched.losses.insert(Loss::LibraryUnreadable.name().into(), 1);
        snapshot.processes.push(unwatched);
        let shown = texts(&snapshot);
        assert!(shown[0].starts_with("12 events dropped (ring full)"), "{shown:?}");
        assert!(shown[1].starts_with("calls of PID 7 are not "), "{shown:?}");
        let mut snapshot = quiet_node();
        snapshot.complete = false;
        assert_eq!(texts(&snapshot)[0], "incomplete: any number may be wrong");
    }

    #[test]
    fn skipped_stacks_are_counted() {
        let mut snapshot = quiet_node();
        let overhead = OverheadView { events: 1, total_ns: 5, ns_per_second: Some(90_000_000), stacks_left_out: 1234 };
        snapshot.processes[0].overhead = Some(overhead);
        assert_eq!(texts(&snapshot)[1..], ["overhead 9.0 % CPU", "1,234 stacks skipped to limit overhead"]);
    }
}
