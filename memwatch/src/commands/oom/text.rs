//! `memwatch oom` as text: a paragraph for each allocation that failed.

use std::io;

use memwatch_core::features::oom::view::OomView;
use memwatch_core::snapshot::{GpuView, ProcessView, Snapshot, largest};

use super::forecast_text as forecast;
use crate::commands::oom::words::{Holder, OomReport, advice, gpu, holders, unwatched_bytes};
use crate::render::Tone;
use crate::render::format::{bytes, count, duration, known};
use crate::render::places;
use crate::render::sentences::{self, Sentence};
use crate::render::text::{Page, TableOptions};
use crate::render::wall_clock::WallClock;

/// So many processes, and so many lines, are listed.
const LISTED: usize = 5;

/// Writes why each allocation failed.
///
/// # Errors
/// What `out` answers.
pub(crate) fn write(
    out: &mut impl io::Write,
    report: &OomReport<'_>,
    snapshot: &Snapshot,
    clock: &WallClock,
    options: &TableOptions,
) -> io::Result<()> {
    let OomReport { ooms, forgotten, forecasts, changes } = *report;
    let mut page = Page { text: String::new(), options: *options };
    forecast::show(&mut page, (forecasts, changes), snapshot, clock);
    section(&mut page, (ooms, forgotten), clock);
    page.trust(snapshot, clock);
    out.write_all(page.text.as_bytes())?;
    out.flush()
}

/// The same within another report.
pub(crate) fn section(page: &mut Page, (ooms, forgotten): (&[&OomView], u64), clock: &WallClock) {
    for oom in ooms {
        page.line(&Sentence::new(Tone::Bad, title(oom, clock)));
        for (label, text) in facts(oom) {
            page.line(&Sentence::new(Tone::Plain, format!("  {label:<12}{text}")));
        }
    }
    if ooms.is_empty() {
        page.line(&Sentence::new(Tone::Plain, "No allocation has failed for want of memory."));
    }
    if forgotten > 0 {
        page.line(&Sentence::new(Tone::Faint, format!("and {} more before these", count(forgotten))));
    }
}

/// `Out of memory at 14:05:20 in PID 1234 train.py: 2.0 GiB wanted on GPU 0`.
fn title(oom: &OomView, clock: &WallClock) -> String {
    let own = of(oom);
    let name = own.map(sentences::short_command).unwrap_or_default();
    let on = gpu(oom)
        .map_or_else(String::new, |gpu| format!(" on GPU {}", sentences::gpu_number(&oom.snapshot, Some(&gpu.uuid))));
    let by = oom.symbol.as_ref().map_or_else(|| "by PyTorch".to_owned(), |symbol| format!("by {symbol}"));
    let more =
        if oom.more > 0 { format!(", and {} more times within a second", count(oom.more)) } else { String::new() };
    let time = clock.time_of_day(oom.time_ns);
    format!("Out of memory at {time} in PID {} {name}: {} wanted{on} {by}{more}", oom.tgid.0, bytes(oom.wanted_bytes))
}

fn of(oom: &OomView) -> Option<&ProcessView> {
    oom.snapshot.processes.iter().rfind(|process| process.tgid == oom.tgid)
}

fn facts(oom: &OomView) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    facts.extend(oom.whose.as_ref().map(|whose| ("for", places::whose(whose))));
    let holders = holders(oom);
    facts.extend(gpu(oom).map(|gpu| ("the GPU", of_gpu(oom, gpu, &holders))));
    for holder in holders.iter().take(LISTED) {
        let name = sentences::short_command(holder.process);
        facts.push(("held by", format!("{:>10}  PID {}  {name}", bytes(holder.held_bytes), holder.process.tgid.0)));
    }
    if holders.len() > LISTED {
        let rest: u64 = holders[LISTED..].iter().map(|holder| holder.held_bytes).sum();
        facts.push(("", format!("{:>10}  {} more processes", bytes(rest), count((holders.len() - LISTED) as u64))));
    }
    if let Some(unwatched) = unwatched_bytes(oom).filter(|bytes| *bytes > 0) {
        facts.push(("", format!("{:>10}  processes that are not watched, and the driver itself", bytes(unwatched))));
    }
    if let Some(cache) = &oom.cache {
        let (has, of) = (bytes(cache.allocated_bytes), bytes(cache.reserved_bytes));
        let (unused, split, hole) =
            (bytes(cache.unused_segment_bytes), bytes(cache.split_bytes), bytes(cache.largest_free_bytes));
        facts.push(("PyTorch", format!("tensors had {has} of the {of} that it had of the driver")));
        facts.push((
            "",
            format!("free: {unused} that it could give back, {split} between tensors, the largest piece {hole}"),
        ));
    }
    facts.extend(lines(oom));
    facts.extend(advice(oom).into_iter().map(|sentence| ("so", sentence)));
    facts
}

/// What of the GPU was used: by NVML's last reading, unless more had been taken since than that says.
fn of_gpu(oom: &OomView, gpu: &GpuView, holders: &[Holder<'_>]) -> String {
    let before = duration(oom.time_ns.saturating_sub(gpu.sampled_ns));
    let (total, used) = (known(gpu.total_bytes, bytes), known(gpu.used_bytes, bytes));
    let held_bytes: u64 = holders.iter().map(|holder| holder.held_bytes).sum();
    if held_bytes > gpu.used_bytes.unwrap_or(0) {
        return format!(
            "{total} in all; at least {} used, by the calls that were seen (by NVML {before} before: {used})",
            bytes(held_bytes)
        );
    }
    let free = gpu.total_bytes.zip(gpu.used_bytes).map(|(total, used)| total.saturating_sub(used));
    format!("{total} in all; {used} used, {} free by NVML {before} before", known(free, bytes))
}

/// The lines of the program that held most on the device.
fn lines(oom: &OomView) -> Vec<(&'static str, String)> {
    let tensors = of(oom).and_then(|process| process.tensors.as_ref());
    let devices = tensors.into_iter().flat_map(|tensors| &tensors.places.devices);
    let device = devices.filter(|device| Some(device.device) == oom.device).find(|device| device.total.live_bytes > 0);
    let Some(device) = device else { return Vec::new() };
    let held = device.sites.iter().filter(|site| site.sum.live_bytes > 0).cloned().collect();
    let rows = largest(held, LISTED).into_iter();
    rows.map(|site| ("most held", format!("{:>10}  {}", bytes(site.sum.live_bytes), places::site(&site)))).collect()
}

#[cfg(test)]
mod tests;
