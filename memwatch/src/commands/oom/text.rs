//! Text output of `memwatch oom`: a paragraph for each failed allocation.

use std::io;

use memwatch_core::features::oom::view::{CacheView, OomView, SurvivedView};
use memwatch_core::snapshot::{ArenaView, GpuView, ProcessView, SiteView, Snapshot, largest};
use memwatch_core::words::Framework;

use super::{forecast_text as forecast, names};
use crate::commands::oom::words::{Failed, OomReport, advice, arena, holders, outcome, unwatched_bytes};
use crate::render::Tone;
use crate::render::causes;
use crate::render::explained::refused;
use crate::render::format::{UNKNOWN, bytes, count, duration, known, percent, plural, printable};
use crate::render::places;
use crate::render::sentences::{self, Sentence};
use crate::render::text::{TableOptions, TextPage};
use crate::render::wall_clock::WallClock;

/// Maximum number of processes, and of lines, that are listed.
const LISTED: usize = 5;

/// Writes the explanation of each failed allocation.
///
/// # Errors
/// The error of `out`.
pub(crate) fn write(
    out: &mut impl io::Write,
    report: &OomReport<'_>,
    snapshot: &Snapshot,
    clock: &WallClock,
    options: &TableOptions,
) -> io::Result<()> {
    let OomReport { failed, forecasts, changes } = *report;
    let mut page = TextPage { text: String::new(), options: *options };
    section(&mut page, failed, clock);
    // If all processes have exited, the failures are the whole report, without a forecast.
    if failed.ooms.is_empty() || snapshot.processes.iter().any(|process| process.ended_ns.is_none()) {
        forecast::show(&mut page, (forecasts, changes), snapshot, clock);
    }
    page.trust(snapshot, clock);
    out.write_all(page.text.as_bytes())?;
    out.flush()
}

/// Writes one failure as soon as it happens.
///
/// # Errors
/// The error of `out`.
pub(crate) fn write_failure(
    out: &mut impl io::Write,
    oom: &OomView,
    clock: &WallClock,
    options: &TableOptions,
) -> io::Result<()> {
    let mut page = TextPage { text: String::new(), options: *options };
    paragraph(&mut page, oom, false, clock);
    out.write_all(page.text.as_bytes())?;
    out.flush()
}

fn paragraph(page: &mut TextPage, oom: &OomView, has_cause: bool, clock: &WallClock) {
    page.line(&Sentence::new(Tone::Bad, title(oom, clock)));
    for (label, text) in facts(oom, has_cause) {
        page.line(&Sentence::new(Tone::Plain, format!("  {label:<12}{text}")));
    }
}

/// Writes the failures as a section of another report.
pub(crate) fn section(page: &mut TextPage, failed: &Failed, clock: &WallClock) {
    for line in &causes::lines(&failed.causes) {
        page.line(line);
    }
    for oom in &failed.ooms {
        paragraph(page, oom, failed.has_cause(oom.tgid), clock);
    }
    if failed.ooms.is_empty() {
        let seen =
            if failed.unseen.is_empty() { "No out-of-memory failure." } else { "No out-of-memory failure was seen." };
        page.line(&Sentence::new(Tone::Plain, seen));
    }
    for unseen in &failed.unseen {
        let ooms = plural(unseen.ooms, "out-of-memory error", "out-of-memory errors");
        let text = format!(
            "PID {}: PyTorch has counted {ooms} that no event showed: before this watch, or between its readings",
            unseen.tgid.0
        );
        page.line(&Sentence::new(Tone::Bad, text));
    }
    if failed.forgotten > 0 {
        page.line(&Sentence::new(Tone::Faint, format!("and {} more before these", count(failed.forgotten))));
    }
    write_survived(page, failed, clock);
}

/// Writes requests that the kernel driver refused without a failure, the latest first.
fn write_survived(page: &mut TextPage, failed: &Failed, clock: &WallClock) {
    let requests = failed.survived_forgotten + failed.survived.len() as u64;
    if requests == 0 {
        return;
    }
    let heading = format!("{} refused by the kernel driver without a failure", plural(requests, "request", "requests"));
    page.line(&Sentence::new(Tone::Plain, heading));
    for one in failed.survived.iter().rev().take(LISTED) {
        let SurvivedView { tgid, refused: request, .. } = one;
        let ((asked, called), time) = (refused(request), clock.time_of_day(request.time_ns));
        let text = format!("  {asked:>10}  {time}  PID {}  {called}: {}", tgid.0, outcome(one));
        page.line(&Sentence::new(Tone::Faint, text));
    }
}

/// Formats `CUDA OUT OF MEMORY  14:05:20  PID 1234 python3 train.py  GPU 0`.
fn title(oom: &OomView, clock: &WallClock) -> String {
    let name = of(oom).map(sentences::short_command).unwrap_or_default();
    let on = oom
        .gpu()
        .map_or_else(String::new, |gpu| format!("  GPU {}", sentences::gpu_number(&oom.snapshot, Some(&gpu.uuid))));
    let time = clock.time_of_day(oom.time_ns);
    let what = match oom.framework {
        Some(Framework::Jax | Framework::TensorFlow) => "RESOURCE_EXHAUSTED: OUT OF MEMORY",
        _ => "CUDA OUT OF MEMORY",
    };
    format!("{what}  {time}  PID {} {name}{on}", oom.tgid.0)
}

/// Formats a failure and its outcome in one line, for a log.
pub(crate) fn event(oom: &OomView, clock: &WallClock) -> String {
    let user = of(oom).and_then(|process| process.user.as_deref()).map(|user| format!("  user {user}"));
    let (title, user) = (title(oom, clock), user.unwrap_or_default());
    printable(&format!("{title}{user}: {}", summary(oom))).into_owned()
}

/// Formats `requested 2.00 GiB, 409.6 MiB free; the process ended 1.2 s after it`.
pub(crate) fn summary(oom: &OomView) -> String {
    let at_most = if oom.gpu().is_some_and(|gpu| has_taken_more(oom, gpu)) { "at most " } else { "" };
    let free = oom.free_bytes().map(|free_bytes| format!(", {at_most}{} free", bytes(free_bytes)));
    let outcome = fate(oom).map(|fate| format!("; {fate}"));
    format!("requested {}{}{}", bytes(oom.wanted_bytes), free.unwrap_or_default(), outcome.unwrap_or_default())
}

fn of(oom: &OomView) -> Option<&ProcessView> {
    oom.snapshot.processes.iter().rfind(|process| process.tgid == oom.tgid)
}

fn facts(oom: &OomView, has_cause: bool) -> Vec<(&'static str, String)> {
    let mut facts = vec![("requested", requested(oom))];
    facts.extend(refused_requests(oom));
    facts.extend(oom.gpu().map(|gpu| ("free", free(oom, gpu))));
    facts.extend(oom.largest_fitting_bytes().map(|fits| ("fits", fitting(fits))));
    facts.extend(oom.gpu().map(|gpu| ("total", total(oom, gpu))));
    facts.extend(holding(oom));
    facts.extend(arena(oom).map(|arena| ("arena", of_arena(arena))));
    facts.extend(lines(oom));
    facts.extend(names::facts(oom));
    facts.extend(fate(oom).map(|fate| ("outcome", fate)));
    let mut labels = ["advice", "also"].into_iter();
    facts.extend(advice(oom, has_cause).into_iter().map(|sentence| (labels.next().unwrap_or("also"), sentence)));
    facts
}

/// Describes what happened to the process afterwards.
fn fate(oom: &OomView) -> Option<String> {
    let later = |end_ns: u64| duration(end_ns.saturating_sub(oom.time_ns));
    match (oom.ended_ns, oom.exited_ns) {
        (Some(ended_ns), _) => Some(format!("the process ended {} after it", later(ended_ns))),
        (None, Some(exited_ns)) => {
            Some(format!("survived: the process continued, and ended {} later", later(exited_ns)))
        }
        (None, None) => oom.is_survived.then(|| "survived: the process continued".to_owned()),
    }
}

/// Formats `1.90 GiB  backward of train.py:14 train_step, step 35`.
fn requested(oom: &OomView) -> String {
    let framework = oom.framework.unwrap_or(Framework::PyTorch).title();
    let by = format!("by {}", oom.symbol.as_deref().unwrap_or(framework));
    let whose = oom.whose.as_ref().map_or(by, places::whose);
    let steps = of(oom).and_then(|process| process.tensors.as_ref()?.attribution.steps);
    let step = steps.map_or_else(String::new, |steps| format!(", after {}", plural(steps, "step", "steps")));
    let more = match oom.more {
        0 => String::new(),
        more => format!(", {} within a second", plural(more, "more failure", "more failures")),
    };
    format!("{:>10}  {whose}{step}{more}", bytes(oom.wanted_bytes))
}

/// Formats `1.90 GiB  by the kernel driver in cuMemAlloc_v2 by PyTorch` for the last request refused
/// before the failure, if libcuda made one. Later ones belong to failures merged into this one.
fn refused_requests(oom: &OomView) -> Option<(&'static str, String)> {
    let before = oom.refused.iter().filter(|request| request.time_ns <= oom.time_ns);
    let (count, last) = before.fold((0_u64, None), |(count, _), request| (count + 1, Some(request)));
    let (asked, called) = refused(last?);
    let others = match count - 1 {
        0 => String::new(),
        others => format!(", after {}", plural(others, "other request", "other requests")),
    };
    let place = if called == UNKNOWN { String::new() } else { format!(" in {called}") };
    Some(("refused", format!("{asked:>10}  by the kernel driver{place}{others}")))
}

/// Formats `409.6 MiB  (+ 1.70 GiB reserved but unallocated, largest block 1.50 GiB)`.
fn free(oom: &OomView, gpu: &GpuView) -> String {
    let at_most = if has_taken_more(oom, gpu) { "  at most, by the calls traced" } else { "" };
    let cached = oom.cache.as_ref().map(|cache| {
        let cached = cache.reserved_bytes.saturating_sub(cache.allocated_bytes);
        let largest = bytes(cache.largest_free_bytes);
        format!("  (+ {} reserved but unallocated, largest block {largest})", bytes(cached))
    });
    format!("{:>10}{at_most}{}", known(oom.free_bytes(), bytes), cached.unwrap_or_default())
}

/// Formats `409.6 MiB  at most would have been granted instead`.
fn fitting(bytes_at_most: u64) -> String {
    format!("{:>10}  at most would have been granted instead", bytes(bytes_at_most))
}

/// Formats `79.60 GiB  NVML used 70.10 GiB 0.8 s before`.
fn total(oom: &OomView, gpu: &GpuView) -> String {
    let before = duration(oom.time_ns.saturating_sub(gpu.sampled_ns));
    let earlier = if has_taken_more(oom, gpu) { ", ahead of the last allocations" } else { "" };
    let (total, used) = (known(gpu.total_bytes, bytes), known(gpu.used_bytes, bytes));
    format!("{total:>10}  NVML used {used} {before} before{earlier}")
}

/// Returns whether the calls traced since NVML's last reading have taken more.
fn has_taken_more(oom: &OomView, gpu: &GpuView) -> bool {
    oom.free_bytes() < gpu.total_bytes.zip(gpu.used_bytes).map(|(total, used)| total.saturating_sub(used))
}

/// Lists the memory by process: the failed process with its parts, the others, and memory of no
/// traced process.
fn holding(oom: &OomView) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    let holders = holders(oom);
    for holder in holders.iter().take(LISTED) {
        let is_own = holder.process.tgid == oom.tgid;
        let name = match &oom.cache {
            Some(cache) if is_own => format!("this process: {}", parts(holder.held_bytes, cache)),
            _ if is_own => "this process".to_owned(),
            _ => format!("PID {}  {}", holder.process.tgid.0, sentences::short_command(holder.process)),
        };
        facts.push(("", format!("{:>10}  {name}", bytes(holder.held_bytes))));
    }
    if holders.len() > LISTED {
        let rest: u64 = holders[LISTED..].iter().map(|holder| holder.held_bytes).sum();
        facts.push(("", format!("{:>10}  {} more processes", bytes(rest), count((holders.len() - LISTED) as u64))));
    }
    if let Some(unwatched) = unwatched_bytes(oom).filter(|bytes| *bytes > 0) {
        let others = oom.gpu().and_then(|gpu| gpu.unwatched_processes).filter(|others| *others > 0);
        let whose = match others {
            Some(others) => format!("{} outside this watch, and the driver", plural(others, "process", "processes")),
            None => "contexts and the driver".to_owned(),
        };
        facts.push(("", format!("{:>10}  {whose}", bytes(unwatched))));
    }
    facts
}

/// Formats `allocated 75.00 GiB, cached 1.70 GiB, outside PyTorch 0.50 GiB`.
fn parts(held_bytes: u64, cache: &CacheView) -> String {
    let cached = cache.reserved_bytes.saturating_sub(cache.allocated_bytes);
    let other = match held_bytes.saturating_sub(cache.reserved_bytes) {
        0 => String::new(),
        other => format!(", outside PyTorch {}", bytes(other)),
    };
    format!("allocated {}, cached {}{other}", bytes(cache.allocated_bytes), bytes(cached))
}

/// Formats `600.0 MiB  in use of 768.0 MiB that GPU_0_bfc has reserved from the driver`.
fn of_arena(arena: &ArenaView) -> String {
    let name = arena.name.as_deref().unwrap_or("it");
    format!(
        "{:>10}  in use of {} that {name} has reserved from the driver",
        known(arena.bytes_in_use, bytes),
        bytes(arena.pool_bytes)
    )
}

/// Lists the program's call sites with most memory on the device.
fn lines(oom: &OomView) -> Vec<(&'static str, String)> {
    let tensors = of(oom).and_then(|process| process.tensors.as_ref());
    let devices = tensors.into_iter().flat_map(|tensors| &tensors.attribution.devices);
    let device = devices.filter(|device| Some(device.device) == oom.device).find(|device| device.total.live_bytes > 0);
    let Some(device) = device else { return Vec::new() };
    let held = device.sites.iter().filter(|site| site.sum.live_bytes > 0).cloned().collect();
    let rows = largest(held, LISTED).into_iter().enumerate();
    let row = |(at, site): (usize, SiteView)| {
        let live = site.sum.live_bytes;
        let part = percent(live, device.total.live_bytes);
        let count = site.sum.allocations.saturating_sub(site.sum.frees);
        // Allocations older than the session were not counted.
        let blocks = if count == 0 { String::new() } else { plural(count, "tensor", "tensors") };
        (
            if at == 0 { "top" } else { "" },
            format!("{:>10}  {part:>7}  {}  {blocks}", bytes(live), places::site_and_library(&site))
                .trim_end()
                .to_owned(),
        )
    };
    rows.map(row).collect()
}

#[cfg(test)]
mod tests;
