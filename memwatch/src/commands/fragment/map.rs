//! Map of segments and their blocks: cells for a terminal, a picture for a browser.

use std::fmt::Write as _;

use memwatch_core::features::fragments::view::{SegmentBlockState, SegmentView};
use memwatch_core::snapshot::Snapshot;

use super::words::{FragmentReport, remarks};
use crate::printable::printable;
use crate::render::format::{bytes, plural};
use crate::render::sentences;

/// Width of the map, height of a row, and distance between rows, in pixels.
const WIDTH: u64 = 1_200;
const ROW: u64 = 14;
const ROW_STEP: u64 = 20;
/// Margin around the map, in pixels.
const MARGIN: u64 = 16;
/// Gap between two segments, in pixels.
const GAP: u64 = 3;
/// Number of rows that the segments fill; with the gaps between them the map has at most about
/// twice as many.
const ROWS: u64 = 24;
/// Minimum number of bytes per cell.
const LEAST_CELL_BYTES: u64 = 512;

/// Colours and names of block states.
const STATES: [(SegmentBlockState, &str, &str); 3] = [
    (SegmentBlockState::Allocated, "#2f6f9f", "tensors"),
    (SegmentBlockState::Pending, "#d08a2e", "freed, still used by a stream"),
    (SegmentBlockState::Free, "#e4e4e4", "free"),
];

/// Follows the system's dark mode; there, free memory is also darker than used memory.
const STYLE: &str = "text{fill:#111111}.t{font-size:14px;font-weight:bold}@media(prefers-color-scheme:dark){text{fill:#e6e6e6}\
                     .b{fill:#14171b}rect[fill=\"#e4e4e4\"]{fill:#33393f}rect[fill=none]{stroke:#8a929a}}";

/// Format of the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Picture {
    /// An SVG file.
    Svg,
    /// An HTML page with the picture.
    Html,
}

/// A cell of the map on a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentMapCell {
    /// Used eighths of the cell: at least 1 if any byte is used, at most 7 if it is not full.
    Used(u64),
    /// End of a segment.
    Edge,
}

/// Returns at most `most` cells, and the bytes per cell.
pub(crate) fn cells(segments: &[SegmentView], most: usize) -> (Vec<SegmentMapCell>, u64) {
    let total: u64 = segments.iter().map(|segment| segment.bytes).sum();
    let most = u64::try_from(most).unwrap_or(u64::MAX);
    // Each segment needs an edge, and may have a cell that is not full.
    let room = most.saturating_sub(2 * segments.len() as u64).max(most / 4).max(1);
    let each = total.div_ceil(room).next_multiple_of(LEAST_CELL_BYTES).max(LEAST_CELL_BYTES);
    let mut cells = Vec::new();
    for segment in segments {
        let mut used = vec![0; usize::try_from(segment.bytes.div_ceil(each)).unwrap_or(0)];
        let mut at = 0;
        for block in &segment.blocks {
            if block.state != SegmentBlockState::Free {
                fill(&mut used, each, (at, at + block.bytes));
            }
            at += block.bytes;
        }
        let last = used.len().saturating_sub(1);
        cells.extend(used.into_iter().enumerate().map(|(index, used)| {
            let size = if index == last { segment.bytes - each * last as u64 } else { each };
            SegmentMapCell::Used(if used == size { 8 } else { (used * 8 / size.max(1)).clamp(u64::from(used > 0), 7) })
        }));
        cells.push(SegmentMapCell::Edge);
    }
    (cells, each)
}

fn fill(used: &mut [u64], each: u64, (from, to): (u64, u64)) {
    let mut at = from;
    while at < to {
        let end = (at / each + 1) * each;
        if let Some(cell) = usize::try_from(at / each).ok().and_then(|index| used.get_mut(index)) {
            *cell += end.min(to) - at;
        }
        at = end;
    }
}

/// Renders the picture of all allocators, one below the other.
pub(crate) fn write(reported: &[FragmentReport], snapshot: &Snapshot, picture: Picture) -> String {
    let svg = svg(reported, snapshot);
    match picture {
        Picture::Svg => svg,
        Picture::Html => page(reported, snapshot, &svg),
    }
}

fn svg(reported: &[FragmentReport], snapshot: &Snapshot) -> String {
    let mut body = String::new();
    let mut y = MARGIN;
    for one in reported {
        let (title, numbers) = (escaped(&title(one, snapshot)), numbers(one));
        let _ = writeln!(body, "<text x=\"{MARGIN}\" y=\"{}\" class=\"t\">{title}</text>", y + 14);
        let _ = writeln!(body, "<text x=\"{MARGIN}\" y=\"{}\">{numbers}</text>", y + 32);
        y = legend(&mut body, y + 42);
        y = segments(&mut body, &one.view.segments, y + 8) + 2 * MARGIN;
    }
    let (width, height) = (WIDTH + 2 * MARGIN, y);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<style>{STYLE}</style>\n\
         <rect class=\"b\" width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    )
}

/// Formats `PID 7 train.py on GPU 0`.
fn title(reported: &FragmentReport, snapshot: &Snapshot) -> String {
    let command = reported.process(snapshot).map(sentences::short_command).unwrap_or_default();
    let gpu = sentences::gpu_number(snapshot, reported.view.uuid.as_ref());
    format!("PID {} {command} on GPU {gpu}", reported.view.tgid.0)
}

/// Formats `1.20 GiB in 60 segments, 540.0 MiB in tensors, 660.0 MiB free, the largest piece 9.0
/// MiB`.
fn numbers(reported: &FragmentReport) -> String {
    let all = reported.all();
    let when = if reported.view.at_worst_ns.is_some() { "at its worst: " } else { "" };
    format!(
        "{when}{} in {}, {} in tensors, {} free, the largest piece {}",
        bytes(all.reserved_bytes),
        plural(all.segments, "segment", "segments"),
        bytes(all.allocated_bytes),
        bytes(all.free_bytes),
        bytes(all.largest_free_bytes)
    )
}

fn legend(body: &mut String, y: u64) -> u64 {
    let mut x = MARGIN;
    for (_, colour, name) in STATES {
        let _ =
            write!(body, "<rect x=\"{x}\" y=\"{y}\" width=\"12\" height=\"12\" fill=\"{colour}\" stroke=\"#999999\"/>");
        let _ = writeln!(body, "<text x=\"{}\" y=\"{}\">{name}</text>", x + 18, y + 11);
        x += 40 + 7 * name.len() as u64;
    }
    y + 16
}

/// Draws segments in address order, left to right and row by row; a large segment continues on the
/// next row. Returns the bottom of the map.
fn segments(body: &mut String, segments: &[SegmentView], top: u64) -> u64 {
    let total: u64 = segments.iter().map(|segment| segment.bytes).sum();
    let each = total.div_ceil(WIDTH * ROWS).max(4_096);
    let (mut x, mut y) = (0, top);
    for segment in segments {
        let whole = segment.bytes.div_ceil(each).max(1);
        if x > 0 && x + whole.min(WIDTH) > WIDTH {
            (x, y) = (0, y + ROW_STEP);
        }
        let _ = writeln!(body, "<g><title>{}</title>", escaped(&described(segment)));
        let (mut at, begin) = (0, x);
        for block in &segment.blocks {
            // Computed from the end of the block, so that rounding errors do not add up.
            let from = begin + at / each;
            at += block.bytes;
            let to = begin + at / each;
            let (_, colour, name) = STATES.iter().find(|(state, ..)| *state == block.state).unwrap_or(&STATES[2]);
            let text = format!("{name}: {} in {}", bytes(block.bytes), described(segment));
            draw(body, (from, to.max(from + 1)), y, (colour, &escaped(&text)));
        }
        let end = begin + whole;
        outline(body, (begin, end), y);
        body.push_str("</g>\n");
        y += end / WIDTH * ROW_STEP;
        x = if end.is_multiple_of(WIDTH) { 0 } else { end % WIDTH + GAP };
    }
    y + ROW_STEP
}

/// Splits a range of the map at the ends of rows.
fn pieces((from, to): (u64, u64), y: u64) -> impl Iterator<Item = (u64, u64, u64)> {
    (from / WIDTH..=(to - 1) / WIDTH).map(move |row| {
        let (left, right) = (from.max(row * WIDTH), to.min((row + 1) * WIDTH));
        (MARGIN + left - row * WIDTH, y + row * ROW_STEP, right - left)
    })
}

fn draw(body: &mut String, range: (u64, u64), y: u64, (colour, title): (&str, &str)) {
    for (x, y, width) in pieces(range, y) {
        let _ = writeln!(
            body,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{ROW}\" fill=\"{colour}\"><title>{title}</title></rect>"
        );
    }
}

fn outline(body: &mut String, range: (u64, u64), y: u64) {
    for (x, y, width) in pieces(range, y) {
        let _ = writeln!(
            body,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{ROW}\" fill=\"none\" stroke=\"#444444\" stroke-width=\"0.7\"/>"
        );
    }
}

/// Formats `a segment of 20.0 MiB at 0x300000200000, for larger requests, stream 0x0`.
fn described(segment: &SegmentView) -> String {
    let size = if segment.small { "requests up to 1 MiB" } else { "larger requests" };
    let grows = if segment.expandable { " that grows" } else { "" };
    let private = match segment.private_pool {
        (0, 0) => String::new(),
        (first, second) => format!(", private pool {first}_{second}"),
    };
    let (all, address, stream) = (bytes(segment.bytes), segment.address, segment.stream);
    format!("a segment{grows} of {all} at {address:#x}, for {size}, stream {stream:#x}{private}")
}

fn page(reported: &[FragmentReport], snapshot: &Snapshot, svg: &str) -> String {
    let mut list = String::new();
    for one in reported {
        for remark in remarks(one) {
            let _ = writeln!(list, "<li>PID {}: {}</li>", one.view.tgid.0, escaped(&remark));
        }
    }
    let names = reported.iter().map(|one| title(one, snapshot)).collect::<Vec<_>>().join("; ");
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>{}</title>\n\
         <style>:root{{color-scheme:light dark}}body{{font-family:sans-serif;margin:1em}}svg{{max-width:100%;height:auto}}\
         @media(prefers-color-scheme:dark){{body{{background:#14171b}}}}</style>\n\
         {svg}<ul>\n{list}</ul>\n<p>Point at a block for its size and segment. Written by memwatch {}.</p>\n</html>\n",
        escaped(&names),
        env!("CARGO_PKG_VERSION"),
    )
}

fn escaped(text: &str) -> String {
    printable(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use memwatch_core::features::fragments::view::{SegmentBlockState, SegmentBlockView, SegmentView};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn segment(blocks: &[(u64, SegmentBlockState)]) -> SegmentView {
        let blocks: Vec<_> =
            blocks.iter().map(|(bytes, state)| SegmentBlockView { bytes: *bytes, state: *state }).collect();
        let bytes = blocks.iter().map(|block| block.bytes).sum();
        let (address, stream, private_pool) = (1 << 40, 0, (0, 0));
        SegmentView { address, bytes, small: false, expandable: false, stream, private_pool, blocks }
    }

    #[test]
    fn fragment_map_cell_is_full_or_empty_only_if_all_of_it_is() {
        use SegmentBlockState::{Allocated, Free};
        let one = segment(&[(4 * MIB, Allocated), (512, Allocated), (4 * MIB - 1024, Free), (512, Allocated)]);
        let (cells, each) = cells(&[one], 4);
        assert_eq!(each, 4 * MIB);
        assert_eq!(cells, [SegmentMapCell::Used(8), SegmentMapCell::Used(1), SegmentMapCell::Edge]);
        let (many, _) = super::cells(&[segment(&[(100 * MIB, Free)])], 40);
        assert!(
            many.len() <= 40 && many.iter().filter(|cell| **cell == SegmentMapCell::Used(0)).count() == many.len() - 1
        );
    }

    #[test]
    fn fragment_map_piece_past_the_row_end_continues_in_the_next_row() {
        let pieces: Vec<_> = pieces((1_100, 2_500), 10).collect();
        assert_eq!(pieces, [(MARGIN + 1_100, 10, 100), (MARGIN, 30, 1_200), (MARGIN, 50, 100)]);
        assert_eq!(pieces.iter().map(|(.., width)| width).sum::<u64>(), 1_400);
    }

    #[test]
    fn every_block_is_drawn_within_the_picture() {
        use SegmentBlockState::{Allocated, Free, Pending};
        let all: Vec<SegmentView> = (1..200_u64)
            .map(|number| segment(&[(number * MIB, Allocated), (MIB, Pending), (number * 3 * MIB, Free)]))
            .collect();
        let mut body = String::new();
        let end = segments(&mut body, &all, 0);
        assert!(end <= 4 * ROWS * ROW_STEP, "{end}");
        assert!(body.matches("tensors:").count() >= 199 && body.matches("still used by a stream").count() >= 199);
        for rect in body.lines().filter_map(|line| line.strip_prefix("<rect x=\"")) {
            let number = |name: &str| {
                let text = rect.split(&format!("{name}=\"")).nth(1).expect("it has one");
                text.split('"').next().and_then(|text| text.parse::<u64>().ok()).expect("a number")
            };
            let x: u64 = rect.split('"').next().and_then(|text| text.parse().ok()).expect("a number");
            assert!(x + number("width") <= WIDTH + MARGIN && number(" y") < end, "{rect}");
        }
    }
}
