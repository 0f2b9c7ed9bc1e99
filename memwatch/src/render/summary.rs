//! The summary of `run` and of a session whose targets have ended: peak, calls and unfreed memory.

use std::collections::BTreeSet;
use std::path::Path;

use memwatch_core::snapshot::{
    AllocatorView, BuffersView, PoolView, ProcessGpuView, ProcessView, Snapshot, TensorsView,
};
use memwatch_core::words::{Framework, OUT_OF_MEMORY};

use super::failures::attempts;
use super::format::{bytes, count, duration, plural, printable};
use super::places;
use super::sentences::{self, MANAGED};
use super::wall_clock::WallClock;

/// Renders the summary of a session as several lines of text, with the command to run next.
pub(crate) fn render(snapshot: &Snapshot, clock: &WallClock, recording: Option<&Path>) -> String {
    let next = next_step(snapshot, recording).map(|step| step + "\n").unwrap_or_default();
    processes(snapshot, clock) + &next
}

/// Renders each process and the trust in the numbers as several lines of text.
pub(crate) fn processes(snapshot: &Snapshot, clock: &WallClock) -> String {
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
        lines.push("memwatch: no process with GPU memory".to_owned());
    }
    let trust: Vec<_> = sentences::trust(snapshot, clock).into_iter().map(|part| part.text).collect();
    lines.push(trust.join(" · "));
    lines.join("\n") + "\n"
}

/// `PID 1234 train.py: peaks reset; peak was 12.30 GiB on GPU 0, now 2.00 GiB`.
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
    facts.extend(pytorch(process));
    facts.extend(attempts(&process.failures).into_iter().map(|one| {
        let text = sentences::failure(snapshot, one.last, clock).text;
        ("failed", format!("{text}{}", one.suffix()))
    }));
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

/// `44.00 GiB on GPU 0; by kind device 40.00 GiB, pool 4.00 GiB; managed 3.00 GiB (not included)`.
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

/// Returns the peak of the frameworks on each device, and the line with the most memory at the
/// peak.
fn pytorch(process: &ProcessView) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    let Some(tensors) = &process.tensors else { return facts };
    for device in tensors.attribution.devices.iter().filter(|device| device.peak_bytes() > 0) {
        let allocator = tensors.allocators.iter().find(|allocator| allocator.device == device.device);
        let peak = |allocator: &AllocatorView| {
            allocator.statistics.get("reserved_bytes.all.peak").and_then(|one| one.value).map(i64::unsigned_abs)
        };
        let reserved = allocator.and_then(peak).map(|peak| format!(" · reserved {}", bytes(peak)));
        let steps = tensors.attribution.steps.map(|steps| format!(" · {}", plural(steps, "step", "steps")));
        let (reserved, steps) = (reserved.unwrap_or_default(), steps.unwrap_or_default());
        facts.push((
            framework_on(tensors, device.device),
            format!("peak allocated {}{reserved}{steps}", bytes(device.peak_bytes())),
        ));
        let top = device.sites.iter().filter(|site| site.line.is_some()).max_by_key(|site| site.sum.at_peak_bytes);
        if let Some(site) = top.filter(|site| site.sum.at_peak_bytes > 0) {
            // No line is known for a peak that occurred between two polls.
            let is_of_it = device.peak_bytes() <= device.total.peak_bytes;
            let of = if is_of_it {
                String::new()
            } else {
                format!("  (of {}, the most while lines were traced)", bytes(device.total.peak_bytes))
            };
            facts.push((
                "at peak",
                format!("{}  {}{of}", bytes(site.sum.at_peak_bytes), places::site_and_library(site)),
            ));
        }
    }
    facts
}

/// Returns the framework that owns the memory of a device.
fn framework_on(tensors: &TensorsView, device: i32) -> &'static str {
    let arenas = tensors.arenas.iter().filter(|arena| arena.device == Some(device)).filter_map(|arena| arena.framework);
    let is_torchs = tensors.allocators.iter().any(|allocator| allocator.device == device);
    let torch = is_torchs.then_some(Framework::PyTorch);
    let has_buffers = |view: &&BuffersView| view.devices.iter().any(|one| one.device == device);
    let buffers = tensors.buffers.as_ref().filter(has_buffers).map(|view| view.framework);
    let is_here = |pool: &&PoolView| pool.device == Some(device);
    let pools = tensors.pools.iter().flat_map(|view| &view.pools).filter(is_here).map(|pool| pool.framework);
    let all: BTreeSet<Framework> = torch.into_iter().chain(arenas).chain(buffers).chain(pools).collect();
    match all.first() {
        Some(_) if all.len() > 1 => "frameworks",
        Some(one) => one.name(),
        None => "tensors",
    }
}

fn left(process: &ProcessView) -> String {
    match process.implicit_frees {
        0 => "everything was freed".to_owned(),
        left => format!("{} not freed by the program", plural(left, "allocation", "allocations")),
    }
}

/// Returns the command to run next, if there is one.
fn next_step(snapshot: &Snapshot, recording: Option<&Path>) -> Option<String> {
    let mut failures = snapshot.processes.iter().flat_map(|process| &process.failures);
    if snapshot.coverage.libraries.iter().all(|library| library.error.is_some()) {
        return Some("No call could be traced. To find out why: memwatch doctor".to_owned());
    }
    let has_failed = failures.any(|failure| failure.status == OUT_OF_MEMORY && !failure.is_retried);
    match recording.map(Path::display) {
        Some(path) if has_failed => Some(format!("next: memwatch oom --in {path}")),
        Some(path) => Some(format!("next: memwatch where --in {path}")),
        None => has_failed.then(|| "Who else holds GPU memory now: memwatch ps".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::fixture;

    #[test]
    fn each_process_is_reported_with_peak_calls_and_what_it_left() {
        let reported = render(&fixture::busy_node(), &fixture::clock(), None);
        assert_eq!(reported, include_str!("summary/busy_node.txt"));
    }

    #[test]
    fn a_watch_without_any_gpu_memory_points_to_the_doctor() {
        let reported = render(&fixture::empty_node(), &fixture::clock(), None);
        assert!(reported.starts_with("memwatch: no process with GPU memory\n"), "{reported}");
        assert!(reported.ends_with("memwatch doctor\n"), "{reported}");
    }

    #[test]
    fn a_target_that_used_no_gpu_is_reported_too() {
        let mut snapshot = fixture::quiet_node();
        let process = &mut snapshot.processes[0];
        process.gpus.clear();
        process.failures.clear();
        process.ended_ns = Some(snapshot.time_ns);
        let reported = render(&snapshot, &fixture::clock(), None);
        assert!(reported.contains("  calls       no GPU memory allocated\n"), "{reported}");
        assert!(!reported.contains("memwatch ps"), "{reported}");
    }

    #[test]
    fn summary_has_the_pytorch_peak_and_the_next_command() {
        let mut snapshot = fixture::training_node();
        snapshot.processes[0].failures.clear();
        let file = Some(Path::new("job.mwr"));
        let text = render(&snapshot, &fixture::clock(), file);
        assert!(text.contains("\n  pytorch     peak allocated ") && text.contains("\n  at peak     "), "{text}");
        assert!(text.ends_with("\nnext: memwatch where --in job.mwr\n"), "{text}");
        snapshot.processes[0].failures.clone_from(&fixture::busy_node().processes[0].failures);
        let text = render(&snapshot, &fixture::clock(), file);
        assert!(text.ends_with("\nnext: memwatch oom --in job.mwr\n"), "{text}");
    }
}
