//! The summary of `run`, and of a session whose targets have ended: peak, calls and what was not freed.

use memwatch_core::snapshot::{ProcessGpuView, ProcessView, Snapshot};

use super::format::{bytes, count, duration, plural, printable};
use super::sentences::{self, MANAGED};
use super::wall_clock::WallClock;

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;

/// The summary of a watch, several lines of text.
pub(crate) fn render(snapshot: &Snapshot, clock: &WallClock) -> String {
    let reported: Vec<_> =
        snapshot.processes.iter().filter(|process| process.target || !process.gpus.is_empty()).collect();
    let mut lines = Vec::new();
    for process in &reported {
        lines.push(title(process));
        for (label, text) in facts(snapshot, process, clock) {
            lines.push(format!("  {label:<12}{text}"));
        }
    }
    if reported.is_empty() {
        lines.push("memwatch: no process used GPU memory".to_owned());
    }
    let trust: Vec<_> = sentences::trust(snapshot, clock).into_iter().map(|part| part.text).collect();
    lines.push(trust.join(" · "));
    lines.extend(next_step(snapshot).map(str::to_owned));
    lines.join("\n") + "\n"
}

/// `PID 1234 train.py: peaks reset; peak was 12.3 GiB on GPU 0, now 2.0 GiB`.
pub(crate) fn peaks_reset(snapshot: &Snapshot, process: &ProcessView) -> String {
    let on_gpu = |gpu: &ProcessGpuView| {
        let number = sentences::gpu_number(snapshot, gpu.uuid.as_ref());
        format!("peak was {} on GPU {number}, now {}", bytes(gpu.peak_bytes), bytes(gpu.live_bytes))
    };
    let peaks: Vec<String> = process.gpus.iter().map(on_gpu).collect();
    format!("PID {} {}: peaks reset; {}", process.tgid.0, sentences::short_command(process), peaks.join("; "))
}

fn title(process: &ProcessView) -> String {
    let user = process.user.as_deref().map(|user| format!(", {}", printable(user))).unwrap_or_default();
    format!("memwatch: PID {}{user}: {}", process.tgid.0, sentences::command(process))
}

fn facts(snapshot: &Snapshot, process: &ProcessView, clock: &WallClock) -> Vec<(&'static str, String)> {
    let mut facts = vec![("observed", observed(snapshot, process, clock))];
    for gpu in &process.gpus {
        facts.push(("peak", peak(snapshot, gpu)));
        let (allocations, frees) = (plural(gpu.allocations, "allocation", "allocations"), count(gpu.frees));
        facts.push(("calls", format!("{allocations}, {frees} freed, {} failed", count(gpu.failed_allocations))));
        if process.ended_ns.is_none() {
            facts.push(("allocated", bytes(gpu.live_bytes)));
        }
    }
    if process.gpus.is_empty() {
        facts.push(("calls", "no GPU memory allocated".to_owned()));
    }
    facts.extend(process.failures.iter().map(|failure| ("failed", sentences::failure(snapshot, failure, clock).text)));
    if process.host.pinned_peak_bytes > 0 {
        facts.push(("host memory", format!("peak {} pinned", bytes(process.host.pinned_peak_bytes))));
    }
    if process.ended_ns.is_some() {
        facts.push(("at its end", left(process)));
    }
    let notes = sentences::holdings(process).into_iter().chain(sentences::doubts(process, clock));
    facts.extend(notes.map(|note| ("note", note.text)));
    facts
}

/// `51 s, from its start at 14:02:30 to its end at 14:03:21`.
fn observed(snapshot: &Snapshot, process: &ProcessView, clock: &WallClock) -> String {
    let until_ns = process.ended_ns.unwrap_or(snapshot.time_ns);
    let start = if process.from_start { "from its start at" } else { "from" };
    let end = if process.ended_ns.is_some() { "to its end at" } else { "to" };
    format!(
        "{}, {start} {} {end} {}",
        duration(until_ns.saturating_sub(process.observed_since_ns)),
        clock.time_of_day(process.observed_since_ns),
        clock.time_of_day(until_ns),
    )
}

/// `44.0 GiB on GPU 0; by kind device 40.0 GiB, pool 4.0 GiB; managed 3.0 GiB (not included)`.
fn peak(snapshot: &Snapshot, gpu: &ProcessGpuView) -> String {
    let on = match &gpu.uuid {
        Some(uuid) => format!(" on GPU {}", sentences::gpu_number(snapshot, Some(uuid))),
        None => String::new(),
    };
    let most = |name: &str| {
        let kind = gpu.kinds.get(name)?;
        let about = if kind.estimated { "~" } else { "" };
        Some(format!("{about}{}", bytes(kind.peak_bytes)))
    };
    let of_kind = |name: &&'static str| Some(format!("{name} {}", most(name)?));
    let kinds: Vec<_> = sentences::KINDS.iter().filter(|name| **name != MANAGED).filter_map(of_kind).collect();
    let by_kind = if kinds.is_empty() { String::new() } else { format!("; by kind {}", kinds.join(", ")) };
    let managed = most(MANAGED).map(|most| format!("; managed {most} (not included)")).unwrap_or_default();
    format!("{}{on}{by_kind}{managed}", bytes(gpu.peak_bytes))
}

fn left(process: &ProcessView) -> String {
    match process.implicit_frees {
        0 => "everything was freed".to_owned(),
        left => format!("{} not freed by the program", plural(left, "allocation", "allocations")),
    }
}

/// The command that helps on, where there is one.
fn next_step(snapshot: &Snapshot) -> Option<&'static str> {
    let mut failures = snapshot.processes.iter().flat_map(|process| &process.failures);
    if snapshot.coverage.libraries.iter().all(|library| library.error.is_some()) {
        return Some("Nothing was traced. To find out why: memwatch doctor");
    }
    failures.any(|failure| failure.status == OUT_OF_MEMORY).then_some("Other users of the GPU: memwatch ps")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::fixture;

    #[test]
    fn each_process_is_reported_with_peak_calls_and_what_it_left() {
        let reported = render(&fixture::busy_node(), &fixture::clock());
        assert_eq!(reported, include_str!("summary/busy_node.txt"));
    }

    #[test]
    fn a_watch_without_any_gpu_memory_points_to_the_doctor() {
        let reported = render(&fixture::empty_node(), &fixture::clock());
        assert!(reported.starts_with("memwatch: no process used GPU memory\n"), "{reported}");
        assert!(reported.ends_with("memwatch doctor\n"), "{reported}");
    }

    #[test]
    fn a_target_that_used_no_gpu_is_reported_too() {
        let mut snapshot = fixture::quiet_node();
        let process = &mut snapshot.processes[0];
        process.gpus.clear();
        process.failures.clear();
        process.ended_ns = Some(snapshot.time_ns);
        let reported = render(&snapshot, &fixture::clock());
        assert!(reported.contains("  calls       no GPU memory allocated\n"), "{reported}");
        assert!(!reported.contains("memwatch ps"), "{reported}");
    }
}
