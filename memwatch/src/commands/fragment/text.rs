//! Text output of `memwatch fragment`: the numbers, and a map of segments.

use std::io;

use memwatch_core::features::fragments::view::{MomentView, PinView, ShapeView};
use memwatch_core::snapshot::Snapshot;

use crate::commands::fragment::map as layout;
use crate::commands::fragment::map::SegmentMapCell;
use crate::commands::fragment::words::{
    FragmentFindings, FragmentReport, blocks, nothing_known, pool_name, remarks, scattered_part, unused_part,
};
use crate::render::Tone;
use crate::render::format::{bytes, count, known, percent, plural};
use crate::render::places;
use crate::render::sentences::{self, Sentence};
use crate::render::text::grid::{Align, TextGrid};
use crate::render::text::{TableOptions, TextPage};
use crate::render::wall_clock::WallClock;

const COLUMNS: [(&str, Align); 12] = [
    ("SEGMENTS", Align::Left),
    ("NUMBER", Align::Right),
    ("RESERVED", Align::Right),
    ("ALLOCATED", Align::Right),
    ("FREE", Align::Right),
    ("RELEASABLE", Align::Right),
    ("REUSABLE", Align::Right),
    ("STRANDED", Align::Right),
    ("INACTIVE SPLIT", Align::Right),
    ("LARGEST FREE BLOCK", Align::Right),
    ("CACHED", Align::Right),
    ("FRAGMENTATION", Align::Right),
];
/// Columns of streams and private pools.
const POOL_COLUMNS: [(&str, Align); 8] = [
    ("STREAM OR POOL", Align::Left),
    ("RESERVED", Align::Right),
    ("ALLOCATED", Align::Right),
    ("FREE", Align::Right),
    ("RELEASABLE", Align::Right),
    ("REUSABLE", Align::Right),
    ("STRANDED", Align::Right),
    ("LARGEST FREE BLOCK", Align::Right),
];
/// Columns of lines and modules; the last one gets their title.
const PIN_COLUMNS: [(&str, Align); 3] = [("SHARE", Align::Right), ("ALONE", Align::Right), ("HELD", Align::Right)];
/// Columns of driver allocations.
const DRIVER_COLUMNS: [(&str, Align); 7] = [
    ("PID", Align::Right),
    ("GPU", Align::Right),
    ("KIND", Align::Left),
    ("LIVE", Align::Right),
    ("BACKED", Align::Right),
    ("UNUSED", Align::Right),
    ("WHY", Align::Left),
];
/// Maximum number of lines of the map, and of cells per line if the width of the terminal is
/// unknown.
const LINES: usize = 12;
const CELLS: usize = 96;
/// Label in front of the time series.
const COURSE: &str = "inactive split  ";
const EIGHTHS: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
const EIGHTHS_ASCII: [&str; 8] = [".", ".", ":", ":", "+", "+", "#", "#"];

/// Writes the fragmentation of each allocator.
///
/// # Errors
/// The error of `out`.
pub(crate) fn write(
    out: &mut impl io::Write,
    (found, top): (&FragmentFindings, usize),
    snapshot: &Snapshot,
    clock: &WallClock,
    options: &TableOptions,
) -> io::Result<()> {
    let mut page = TextPage { text: String::new(), options: *options };
    section(&mut page, (found, top), snapshot, clock);
    page.trust(snapshot, clock);
    out.write_all(page.text.as_bytes())?;
    out.flush()
}

/// Writes the content of [`write`] as a section of another report, with at most `top` rows per
/// list.
pub(crate) fn section(
    page: &mut TextPage,
    (found, top): (&FragmentFindings, usize),
    snapshot: &Snapshot,
    clock: &WallClock,
) {
    for one in &found.allocators {
        device(page, (one, top), snapshot, clock);
    }
    driver(page, (found, top), snapshot, clock);
    if found.allocators.is_empty() && found.drivers.is_empty() {
        page.line(&Sentence::new(Tone::Plain, "No process with GPU memory."));
    }
}

/// Writes the driver allocations of processes.
fn driver(page: &mut TextPage, (found, top): (&FragmentFindings, usize), snapshot: &Snapshot, clock: &WallClock) {
    let rows = found.driver_rows();
    if !rows.is_empty() {
        page.line(&Sentence::new(Tone::Heading, "Memory allocated directly from the driver"));
        let mut grid = TextGrid::new(&DRIVER_COLUMNS);
        for row in rows.iter().take(top) {
            let about = |bytes_of: Option<u64>| {
                let mark = if row.is_estimated && bytes_of.is_some_and(|bytes| bytes > 0) { "~" } else { "" };
                format!("{mark}{}", known(bytes_of, bytes))
            };
            let when =
                row.driver.at_worst_ns.map(|time_ns| format!(", at its worst at {}", clock.time_of_day(time_ns)));
            grid.push(vec![
                row.driver.tgid.0.to_string(),
                sentences::gpu_number(snapshot, row.gpu.uuid.as_ref()),
                row.kind.to_owned(),
                bytes(row.live_bytes),
                about(row.backed_bytes),
                about(row.unused_bytes),
                format!("{}{}", row.why, when.unwrap_or_default()),
            ]);
        }
        page.grid(&grid);
        if rows.len() > top {
            let others = plural((rows.len() - top) as u64, "row", "rows");
            page.line(&Sentence::new(Tone::Faint, format!("{others} with less unused")));
        }
    }
    for remark in found.driver_remarks(snapshot) {
        page.line(&Sentence::new(Tone::Plain, format!("so  {remark}")));
    }
}

/// Writes the owners of the blocks that pin free memory: at most `top` rows, and a sum of the rest.
fn pins(page: &mut TextPage, (title, all): (&'static str, &[PinView]), top: usize) {
    if all.iter().all(|pin| matches!(&*pin.place.kind, "not_asked" | "pending")) {
        return;
    }
    let mut grid = TextGrid::new(&[PIN_COLUMNS[0], PIN_COLUMNS[1], PIN_COLUMNS[2], (title, Align::Left)]);
    let mut row = |pin: &[PinView], alone: Option<u64>, name: String| {
        let sum = |of: fn(&PinView) -> u64| bytes(pin.iter().map(of).sum());
        grid.push(vec![sum(|pin| pin.share_bytes), known(alone, bytes), sum(|pin| pin.held_bytes), name]);
    };
    let (shown, others) = all.split_at(all.len().min(top));
    for pin in shown {
        row(std::slice::from_ref(pin), pin.alone_bytes, places::place(&pin.place));
    }
    if !others.is_empty() {
        row(others, None, plural(others.len() as u64, "other", "others"));
    }
    page.grid(&grid);
}

fn device(page: &mut TextPage, (reported, top): (&FragmentReport, usize), snapshot: &Snapshot, clock: &WallClock) {
    let command = reported.process(snapshot).map(sentences::short_command).unwrap_or_default();
    let gpu = sentences::gpu_number(snapshot, reported.view.uuid.as_ref());
    let when = reported
        .view
        .at_worst_ns
        .map_or_else(|| "now".to_owned(), |time_ns| format!("at its worst moment, {}", clock.time_of_day(time_ns)));
    page.line(&Sentence::new(Tone::Heading, format!("PID {}  {command} on GPU {gpu}, {when}", reported.view.tgid.0)));
    if let Some(sentence) = nothing_known(reported) {
        page.line(&Sentence::new(Tone::Warning, sentence));
        return;
    }
    let mut grid = TextGrid::new(&COLUMNS);
    grid.push(row("up to 1 MiB", &reported.view.small));
    grid.push(row("larger", &reported.view.large));
    grid.push(row("all", &reported.all()));
    page.grid(&grid);
    pools(page, reported, top);
    for line in map(reported, page.options) {
        page.line(&Sentence::new(Tone::Plain, line));
    }
    let all = reported.all();
    if all.pending_bytes > 0 {
        let text = format!("{} were freed and are still used by a stream", bytes(all.pending_bytes));
        page.line(&Sentence::new(Tone::Plain, text));
    }
    if all.expandable_bytes > 0 {
        let (grow, holes) = (bytes(all.expandable_bytes), bytes(all.hole_bytes));
        let text = format!(
            "{grow} are in segments that grow, with holes of {holes} between their pieces, which take no memory"
        );
        page.line(&Sentence::new(Tone::Plain, text));
    }
    pins(page, ("INACTIVE SPLIT, BY LINE", &reported.view.sites), top);
    pins(page, ("INACTIVE SPLIT, BY MODULE", &reported.view.modules), top);
    for line in course(reported, page.options, clock) {
        page.line(&Sentence::new(Tone::Plain, line));
    }
    for remark in remarks(reported) {
        page.line(&Sentence::new(Tone::Plain, format!("so  {remark}")));
    }
}

/// Writes each stream and each private pool, if there is more than one.
fn pools(page: &mut TextPage, reported: &FragmentReport, top: usize) {
    let all = &reported.view.pools;
    if all.len() < 2 {
        return;
    }
    let mut grid = TextGrid::new(&POOL_COLUMNS);
    let mut row = |name: String, shape: &ShapeView| {
        let [reserved, allocated, free] = [shape.reserved_bytes, shape.allocated_bytes, shape.free_bytes].map(bytes);
        let (parts, largest) = (parts(shape), bytes(shape.largest_free_bytes));
        grid.push([name, reserved, allocated, free].into_iter().chain(parts).chain([largest]).collect());
    };
    let (shown, others) = all.split_at(all.len().min(top));
    for pool in shown {
        row(pool_name(pool), &pool.shape);
    }
    if !others.is_empty() {
        let sum = others.iter().fold(ShapeView::default(), |sum, pool| sum.and(pool.shape));
        row(plural(others.len() as u64, "other", "others"), &sum);
    }
    page.grid(&grid);
}

/// Returns releasable, reusable and stranded bytes, which add up to the free bytes.
fn parts(shape: &ShapeView) -> [String; 3] {
    [shape.unused_segment_bytes, shape.reusable_bytes(), shape.stranded_bytes].map(bytes)
}

fn row(name: &str, shape: &ShapeView) -> Vec<String> {
    let part = |part: f64| format!("{:.1} %", part * 100.0);
    let free = format!("{} in {}", bytes(shape.free_bytes), blocks(shape.free_blocks));
    let held =
        [name.to_owned(), count(shape.segments), bytes(shape.reserved_bytes), bytes(shape.allocated_bytes), free];
    let lies = [shape.split_bytes, shape.largest_free_bytes].map(bytes);
    let scattered = [unused_part(shape), scattered_part(shape)].map(part);
    held.into_iter().chain(parts(shape)).chain(lies).chain(scattered).collect()
}

/// Draws the segments in address order: how full each piece of them is.
fn map(reported: &FragmentReport, options: TableOptions) -> Vec<String> {
    let width = options.columns.unwrap_or(CELLS).clamp(16, 160);
    let (cells, each) = layout::cells(&reported.view.segments, width * LINES);
    if cells.is_empty() {
        return Vec::new();
    }
    let letter = |cell: &SegmentMapCell| match (cell, options.ascii) {
        (SegmentMapCell::Edge, _) => "|",
        (SegmentMapCell::Used(8), false) => "█",
        (SegmentMapCell::Used(5..=7), false) => "▓",
        (SegmentMapCell::Used(1..=4), false) => "▒",
        (SegmentMapCell::Used(_), false) => "░",
        (SegmentMapCell::Used(8), true) => "#",
        (SegmentMapCell::Used(5..=7), true) => "+",
        (SegmentMapCell::Used(1..=4), true) => "-",
        (SegmentMapCell::Used(_), true) => ".",
    };
    let mut lines: Vec<String> = cells.chunks(width).map(|line| line.iter().map(letter).collect::<String>()).collect();
    let (full, partly, free) = if options.ascii { ("#", "+ -", ".") } else { ("█", "▓ ▒", "░") };
    let each = bytes(each);
    lines.push(format!("{full} tensors   {partly} in part   {free} free   | a segment ends; a cell is {each}"));
    lines
}

/// Draws free memory over time, and the worst fragmentation.
fn course(reported: &FragmentReport, options: TableOptions, clock: &WallClock) -> Vec<String> {
    let moments = &reported.view.moments;
    let Some(worst) = reported.view.worst.filter(|worst| worst.split_bytes > 0) else { return Vec::new() };
    let letters = if options.ascii { EIGHTHS_ASCII } else { EIGHTHS };
    // The worst fragmentation may lie between two polls.
    let top = moments.iter().map(|moment| moment.split_bytes).max().unwrap_or(0);
    let is_drawn = top > 0 && moments.len() > 1;
    let letter = |moment: &MomentView| letters[usize::try_from(moment.split_bytes * 7 / top.max(1)).unwrap_or(7)];
    let room = options.columns.map_or(CELLS, |columns| columns.saturating_sub(COURSE.len()).clamp(8, CELLS));
    let thin = moments.len().div_ceil(room).max(1);
    let line: String = moments.iter().step_by(thin).map(letter).collect();
    let text = format!(
        "at its worst at {}: {} inactive split, {} of {} reserved",
        clock.time_of_day(worst.time_ns),
        bytes(worst.split_bytes),
        percent(worst.split_bytes, worst.reserved_bytes),
        bytes(worst.reserved_bytes)
    );
    if is_drawn { vec![format!("{COURSE}{line}"), text] } else { vec![text] }
}

#[cfg(test)]
mod tests;
