//! Text output of memory over time.

use std::fmt::Write as _;

use memwatch_core::features::profile::view::{CourseView, GpuProfileView, ProcessProfileView, ProfileView, RatioView};
use memwatch_core::snapshot::Snapshot;

use crate::render::Tone;
use crate::render::format::{bytes, duration, known, printable};
use crate::render::sentences::{self, Sentence};
use crate::render::text::TextPage;
use crate::render::text::grid::{Align, TextGrid};
use crate::render::wall_clock::WallClock;

const COLUMNS: [(&str, Align); 11] = [
    ("PID", Align::Right),
    ("GPU", Align::Right),
    ("WHAT", Align::Left),
    ("NOW", Align::Right),
    ("AVERAGE", Align::Right),
    ("P50", Align::Right),
    ("P90", Align::Right),
    ("P95", Align::Right),
    ("P99", Align::Right),
    ("SAMPLED MAX", Align::Right),
    ("PEAK", Align::Right),
];

/// Writes the memory of GPUs and processes over time.
pub(crate) fn section(page: &mut TextPage, profile: &ProfileView, snapshot: &Snapshot, clock: &WallClock) {
    let length = duration(profile.last_ns.saturating_sub(profile.begun_ns));
    let every = seconds(profile.interval_ns);
    page.line(&Sentence::new(Tone::Heading, format!("{length}, sampled every {every}")));
    if profile.interval_ns > profile.asked_interval_ns {
        let text = format!("long duration: sampled every {every} instead of {}", seconds(profile.asked_interval_ns));
        page.line(&Sentence::new(Tone::Faint, text));
    }
    for gpu in &profile.gpus {
        page.line(&Sentence::new(Tone::Plain, of_gpu(gpu, snapshot)));
    }
    for process in &profile.processes {
        page.line(&Sentence::new(Tone::Plain, of_process(process, snapshot, clock)));
    }
    let mut grid = TextGrid::new(&COLUMNS);
    let gpus = profile.gpus.iter().flat_map(|gpu| gpu_rows(gpu, snapshot));
    let rows = gpus.chain(profile.processes.iter().flat_map(|process| process_rows(process, snapshot)));
    rows.for_each(|row| grid.push(row));
    if profile.gpus.is_empty() && profile.processes.is_empty() {
        page.line(&Sentence::new(Tone::Plain, "No GPU, and no process with GPU memory."));
        return;
    }
    page.grid(&grid);
    let text = "PEAK and AVERAGE count every call and event; the other columns, and all of NVML, are samples";
    page.line(&Sentence::new(Tone::Faint, text));
}

/// Formats `GPU 0  NVIDIA H200  139.80 GiB: 12.0 % used on average, 40.1 % at most`.
fn of_gpu(gpu: &GpuProfileView, snapshot: &Snapshot) -> String {
    let number = sentences::gpu_number(snapshot, Some(&gpu.uuid));
    let facts = snapshot.gpus.iter().find(|view| view.uuid == gpu.uuid);
    let name = facts.map(|facts| format!("  {}", sentences::gpu_name(facts))).unwrap_or_default();
    let total = known(gpu.total_bytes, bytes);
    let used = gpu.utilization.map_or_else(|| "used bytes are unknown".to_owned(), |used| parts(&used));
    format!("GPU {number}{name}  {total}: {used}")
}

fn parts(used: &RatioView) -> String {
    format!("{} used on average, {} at most", share(used.average), share(used.maximum))
}

/// Formats `PID 1234  python train.py: reserved and not allocated: 8.0 % now, 12.0 % on average,
/// 40.0 % at most`.
fn of_process(process: &ProcessProfileView, snapshot: &Snapshot, clock: &WallClock) -> String {
    let now_ns = snapshot.time_ns;
    let own = snapshot.process(process.tgid, process.observed_since_ns).map(sentences::short_command);
    let name = own.unwrap_or_else(|| printable(name_of(process)).into_owned());
    let mut text = format!("PID {}  {name}", process.tgid.0);
    if let Some(ended_ns) = process.ended_ns {
        let _ = write!(text, " (ended {})", clock.moment(ended_ns, now_ns));
    }
    for gpu in &process.gpus {
        if let Some(part) = &gpu.fragmentation {
            let (average, maximum) = (share(part.average), share(part.maximum));
            let now = known(part.current, share);
            let _ = write!(text, "; reserved and not allocated: {now} now, {average} on average, {maximum} at most");
        }
    }
    if !process.exact {
        text += "; inexact: events were dropped";
    }
    text
}

fn name_of(process: &ProcessProfileView) -> &str {
    if process.command.is_empty() { &process.comm } else { &process.command }
}

fn gpu_rows(gpu: &GpuProfileView, snapshot: &Snapshot) -> Vec<Vec<String>> {
    let number = sentences::gpu_number(snapshot, Some(&gpu.uuid));
    let rows = [("used (NVML)", gpu.used), ("allocated by all traced processes", gpu.live)];
    rows.into_iter().filter_map(|(what, course)| Some(row("", &number, what, &course?))).collect()
}

fn process_rows(process: &ProcessProfileView, snapshot: &Snapshot) -> Vec<Vec<String>> {
    let tgid = process.tgid.0.to_string();
    let mut rows = Vec::new();
    for gpu in &process.gpus {
        let number = sentences::gpu_number(snapshot, gpu.uuid.as_ref());
        let own = [
            ("used (NVML)", gpu.used),
            ("allocated by driver calls", gpu.live),
            ("reserved by PyTorch", gpu.reserved),
            ("allocated by PyTorch", gpu.allocated),
        ];
        rows.extend(own.into_iter().filter_map(|(what, course)| Some(row(&tgid, &number, what, &course?))));
    }
    rows.extend(process.pinned.map(|course| row(&tgid, "", "pinned host memory", &course)));
    rows
}

fn row(tgid: &str, gpu: &str, what: &str, course: &CourseView) -> Vec<String> {
    vec![
        tgid.to_owned(),
        gpu.to_owned(),
        what.to_owned(),
        bytes(course.current_bytes),
        known(course.average_bytes, bytes),
        bytes(course.p50_bytes),
        bytes(course.p90_bytes),
        bytes(course.p95_bytes),
        bytes(course.p99_bytes),
        bytes(course.maximum_bytes),
        known(course.peak_bytes, bytes),
    ]
}

/// Formats `12.0 %` for 0.12.
fn share(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

/// Formats `1 s`, `100 ms`, `2 min 8 s`.
fn seconds(time_ns: u64) -> String {
    if time_ns < 1_000_000_000 { format!("{} ms", time_ns / 1_000_000) } else { duration(time_ns) }
}

#[cfg(test)]
mod tests;
