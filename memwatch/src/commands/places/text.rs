//! Text output of `memwatch where`.

use std::io;

use memwatch_core::allocators::sampling::Estimate;
use memwatch_core::snapshot::{
    AttributionView, DeviceAttributionView, ModuleView, ProcessView, Snapshot, SumView, TruncatableRow, largest,
    largest_at_peak,
};

use crate::render::Tone;
use crate::render::format::{bytes, count, duration, known, percent, printable, signed_bytes};
use crate::render::places::{self, AttributionList, AttributionQuery, FrameDetail};
use crate::render::sentences::{self, Sentence};
use crate::render::text::grid::{Align, TextGrid};
use crate::render::text::{TableOptions, TextPage};
use crate::render::wall_clock::WallClock;

/// Maximum number of large blocks and failed allocations listed.
pub(super) const LISTED: usize = 5;
/// Columns that every list has.
const SUMS: [(&str, Align); 7] = [
    ("ALLOCATED", Align::Right),
    ("AT PEAK", Align::Right),
    ("PEAK", Align::Right),
    ("TOTAL ALLOCATED", Align::Right),
    ("ALLOCS", Align::Right),
    ("FREES", Align::Right),
    ("LIFETIME", Align::Right),
];

/// Writes one list for each process with traced tensors, with at most `top` rows.
///
/// # Errors
/// The error of `out`.
pub(crate) fn write(
    out: &mut impl io::Write,
    snapshot: &Snapshot,
    AttributionQuery { which, top, frames }: AttributionQuery,
    clock: &WallClock,
    options: &TableOptions,
) -> io::Result<()> {
    let mut page = TextPage { text: String::new(), options: *options };
    page.lists(snapshot, (&[which], top, frames), clock);
    page.trust(snapshot, clock);
    out.write_all(page.text.as_bytes())?;
    out.flush()
}

/// Writes every list for each process with traced tensors, with at most `top` rows per list; writes
/// nothing if there is no such process.
pub(crate) fn section(page: &mut TextPage, snapshot: &Snapshot, top: usize, clock: &WallClock) {
    let all = [AttributionList::Phases, AttributionList::Modules, AttributionList::Sites];
    page.lists(snapshot, (&all, top, FrameDetail::Lines), clock);
}

fn heading(
    snapshot: &Snapshot,
    process: &ProcessView,
    places: &AttributionView,
    device: &DeviceAttributionView,
) -> String {
    let steps = places.steps.map_or_else(String::new, |steps| format!("  {} steps", count(steps)));
    let ended = if process.ended_ns.is_some() { "  ended: ranked AT PEAK" } else { "" };
    format!(
        "PID {}  {}  GPU {}  allocated {}  peak {}{steps}{ended}",
        process.tgid.0,
        sentences::short_command(process),
        sentences::gpu_number(snapshot, device.uuid.as_ref()),
        bytes(device.allocated_bytes),
        bytes(device.peak_bytes()),
    )
}

fn sums(sum: &SumView) -> [String; 7] {
    // If small blocks of a line are sampled, all but two columns cover only blocks with a stack. If
    // tracing was interrupted, all values are lower bounds.
    let at_least = |text: String| if sum.is_lower_bound() { format!("≥{text}") } else { text };
    [
        sum.sampled_live.map_or_else(|| bytes(sum.live_bytes), sampled),
        at_least(bytes(sum.at_peak_bytes)),
        at_least(bytes(sum.peak_bytes)),
        sum.sampled.map_or_else(|| at_least(bytes(sum.total_bytes)), sampled),
        at_least(count(sum.allocations)),
        at_least(count(sum.frees)),
        known(
            sum.mean_lifetime_ns,
            |mean_ns| if sum.at_least { format!("≈{}", lifetime(mean_ns)) } else { lifetime(mean_ns) },
        ),
    ]
}

/// Formats `≈1.20 GiB ± 0.11 GiB`: an estimate from the traced windows, or from the sampled small
/// blocks.
fn sampled(estimate: Estimate) -> String {
    let error = estimate.standard_error_bytes.map_or_else(String::new, |error| format!(" ± {}", bytes(error)));
    format!("≈{}{error}", bytes(estimate.bytes))
}

/// Formats a lifetime. Blocks of a step live for less than a tenth of a second, so this uses
/// shorter units than a table of processes.
fn lifetime(lifetime_ns: u64) -> String {
    match lifetime_ns {
        0..1_000_000 => format!("{} us", lifetime_ns / 1_000),
        1_000_000..1_000_000_000 => format!("{} ms", lifetime_ns / 1_000_000),
        longer => duration(longer),
    }
}

fn list(first: &[(&'static str, Align)], last: Option<&'static str>) -> TextGrid {
    let last = last.map(|title| (title, Align::Left));
    TextGrid::new(&first.iter().copied().chain(SUMS).chain(last).collect::<Vec<_>>())
}

/// Number of rows, and their order.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowRank {
    pub(super) top: usize,
    /// Whether to rank by the memory at the peak, as for a program that has exited.
    pub(super) at_peak: bool,
}

pub(super) fn ranked<R: TruncatableRow + Clone>(rows: &[R], rank: RowRank) -> Vec<R> {
    if rank.at_peak { largest_at_peak(rows.to_vec(), rank.top) } else { largest(rows.to_vec(), rank.top) }
}

fn sites(device: &DeviceAttributionView, rank: RowRank) -> TextGrid {
    let mut grid = list(&[], Some("LINE"));
    for site in ranked(&device.sites, rank) {
        grid.push(sums(&site.sum).into_iter().chain([places::site_and_library(&site)]).collect());
    }
    grid
}

fn phases(page: &mut TextPage, device: &DeviceAttributionView, rank: RowRank) {
    let mut grid = list(&[("PHASE", Align::Left), ("SHARE", Align::Right)], None);
    for phase in &device.phases {
        let held = |sum: &SumView| if rank.at_peak { sum.at_peak_bytes } else { sum.live_bytes };
        let share = percent(held(&phase.sum), held(&device.total));
        grid.push([places::phase(phase), share].into_iter().chain(sums(&phase.sum)).collect());
    }
    page.grid(&grid);
    if device.ranges.iter().any(|range| range.kind != "none") {
        let own = [("RANGE", Align::Left), ("TEMPORARY", Align::Right), ("MOST PER RUN", Align::Right)];
        let mut grid = list(&own, None);
        for range in ranked(&device.ranges, rank) {
            let own = [range.temporary_bytes, range.most_temporary_bytes].map(|some| known(some, bytes));
            grid.push([places::range(&range)].into_iter().chain(own).chain(sums(&range.sum)).collect());
        }
        page.grid(&grid);
    }
}

fn modules(device: &DeviceAttributionView, rank: RowRank) -> TextGrid {
    let is_of_several = {
        let mut models: Vec<_> = device.modules.iter().filter_map(|module| module.model.as_deref()).collect();
        models.sort_unstable();
        models.dedup();
        models.len() > 1
    };
    let own = [("MODULE", Align::Left), ("CLASS", Align::Left), ("MODEL", Align::Left)];
    let by_phase = ["FORWARD", "BACKWARD"].map(|title| (title, Align::Right));
    let own = &own[..if is_of_several { 3 } else { 2 }];
    let extra = extra_columns(device);
    let extra_titles = extra.iter().map(|(title, _)| (*title, Align::Right));
    let mut grid =
        TextGrid::new(&own.iter().copied().chain(SUMS).chain(by_phase).chain(extra_titles).collect::<Vec<_>>());
    for module in ranked(&device.modules, rank) {
        let text = |text: &Option<String>| known(text.as_deref(), |text| printable(text).into_owned());
        let mut row = vec![places::module(&module), text(&module.class)];
        if is_of_several {
            row.push(text(&module.model));
        }
        row.extend(sums(&module.sum));
        row.extend(["forward", "backward"].map(|phase| allocated_in(&module, phase)));
        row.extend(extra.iter().map(|(_, cell)| cell(&module)));
        grid.push(row);
    }
    grid
}

/// An optional column of modules: its title and its cell. Columns without any value are left out.
type ModuleColumn = (&'static str, fn(&ModuleView) -> String);

fn extra_columns(device: &DeviceAttributionView) -> Vec<ModuleColumn> {
    let any = |has: fn(&ModuleView) -> bool| device.modules.iter().any(has);
    let columns: [(bool, ModuleColumn); 3] = [
        (
            any(|module| module.host_duration_ns.is_some()),
            ("DURATION", |module| known(module.host_duration_ns, lifetime)),
        ),
        (
            any(|module| module.total_rounding_bytes.is_some()),
            ("ROUNDING", |module| known(module.total_rounding_bytes, bytes)),
        ),
        (
            any(|module| module.nearby_split_bytes.is_some()),
            ("SPLIT NEARBY", |module| known(module.nearby_split_bytes, bytes)),
        ),
    ];
    columns.into_iter().filter(|(is_known, _)| *is_known).map(|(_, column)| column).collect()
}

fn allocated_in(module: &ModuleView, phase: &str) -> String {
    bytes(module.phases.get(phase).map_or(0, |bytes| bytes.total_bytes))
}

impl TextPage {
    /// Writes these lists for each process; returns false if there is none.
    fn lists(
        &mut self,
        snapshot: &Snapshot,
        (wanted, top, frames): (&[AttributionList], usize, FrameDetail),
        clock: &WallClock,
    ) -> bool {
        let mut any = false;
        for process in &snapshot.processes {
            let Some(tensors) = &process.tensors else { continue };
            for device in &tensors.attribution.devices {
                any = true;
                self.line(&Sentence::new(Tone::Heading, heading(snapshot, process, &tensors.attribution, device)));
                let rank = RowRank { top, at_peak: process.ended_ns.is_some() };
                for which in wanted {
                    match which {
                        AttributionList::Sites => self.grid(&sites(device, rank)),
                        AttributionList::Phases => phases(self, device, rank),
                        AttributionList::Modules => self.grid(&modules(device, rank)),
                    }
                }
                self.doubts(&tensors.attribution, device);
                self.large(device, clock, wanted);
                self.frames(device, frames, rank);
            }
            let has_native = |device: &DeviceAttributionView| device.sites.iter().any(|site| site.kind == "native");
            if frames == FrameDetail::Native
                || (wanted.contains(&AttributionList::Sites) && tensors.attribution.devices.iter().any(has_native))
            {
                self.missing_frames(tensors);
            }
            if let Some(buffers) = tensors.buffers.as_ref().filter(|buffers| buffers.older_unknown) {
                any = true;
                let text = format!("PID {}: {}", process.tgid.0, sentences::older_buffers(buffers.framework));
                self.line(&Sentence::new(Tone::Warning, text));
            }
            let pools = tensors.pools.iter().flat_map(|view| &view.pools);
            if pools.into_iter().any(|pool| pool.older_unknown && pool.bytes_in_use.is_none()) {
                any = true;
                let text = format!("PID {}: {}", process.tgid.0, sentences::OLDER_BLOCKS);
                self.line(&Sentence::new(Tone::Warning, text));
            }
            self.refused(snapshot, &tensors.attribution, clock);
        }
        any
    }

    /// Writes why rows do not add up to the total, and why modules are unknown.
    fn doubts(&mut self, places: &AttributionView, device: &DeviceAttributionView) {
        if device.unplaced_bytes != 0 {
            // A known block may be missed between two windows until the allocator's state is read
            // again.
            let why = if device.total.at_least { "blocks went while not traced" } else { "events were lost" };
            let text = format!("{} in no row: {why}", signed_bytes(device.unplaced_bytes));
            self.line(&Sentence::new(Tone::Warning, text));
        }
        if device.peak_bytes() > device.total.peak_bytes {
            let (seen, own) = (bytes(device.total.peak_bytes), bytes(device.peak_bytes()));
            let text =
                format!("AT PEAK is of {seen}, the most while lines were traced; the allocator's own peak is {own}");
            self.line(&Sentence::new(Tone::Warning, text));
        }
        if places.ambiguous_nodes > 0 {
            let nodes = count(places.ambiguous_nodes);
            let text = format!("{nodes} backward nodes may be of several threads: their layer is not known");
            self.line(&Sentence::new(Tone::Warning, text));
        }
    }

    fn large(&mut self, device: &DeviceAttributionView, clock: &WallClock, wanted: &[AttributionList]) {
        if !wanted.contains(&AttributionList::Sites) {
            return;
        }
        for block in device.large.iter().take(LISTED) {
            let since = match block.granted_ns {
                None => "from before attach".to_owned(),
                Some(granted_ns) => format!("since {}", clock.time_of_day(granted_ns)),
            };
            let text = format!("large block: {} {since}: {}", bytes(block.bytes), places::whose(&block.whose));
            self.line(&Sentence::new(Tone::Plain, text));
        }
        if device.large.len() > LISTED {
            let others = count((device.large.len() - LISTED) as u64);
            self.line(&Sentence::new(Tone::Faint, format!("and {others} more large blocks")));
        }
    }

    fn refused(&mut self, snapshot: &Snapshot, places: &AttributionView, clock: &WallClock) {
        let earlier = places.refusals.len().saturating_sub(LISTED);
        for refusal in &places.refusals[earlier..] {
            let device = places.devices.iter().find(|device| device.device == refusal.device);
            let gpu = sentences::gpu_number(snapshot, device.and_then(|device| device.uuid.as_ref()));
            let time = clock.time_of_day(refusal.time_ns);
            let wanted = bytes(refusal.wanted_bytes);
            let text = format!("out of memory at {time} on GPU {gpu}: {wanted} for {}", places::whose(&refusal.whose));
            self.line(&Sentence::new(Tone::Bad, text));
        }
    }
}

#[cfg(test)]
mod tests;
