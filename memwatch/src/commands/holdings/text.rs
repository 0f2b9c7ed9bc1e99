//! Text output of `memwatch holdings`.

use std::io;

use memwatch_core::features::holdings::view::{HoldingGrouping, HoldingsView};
use memwatch_core::input::holdings::{AdviceKind, Cut, HoldingClass, MemoryAdvice};

use super::HoldingsReading;
use crate::render::Tone;
use crate::render::causes;
use crate::render::format::{UNKNOWN, bytes, count, percent, plural, printable};
use crate::render::holdings::{self, name_of, shape};
use crate::render::sentences::Sentence;
use crate::render::text::grid::{Align, TextGrid};
use crate::render::text::{TableOptions, TextPage};
use crate::render::wall_clock::WallClock;

/// Writes the live objects of each process.
///
/// # Errors
/// The error of `out`.
pub(super) fn write(
    out: &mut impl io::Write,
    found: &[HoldingsReading],
    clock: &WallClock,
    options: &TableOptions,
) -> io::Result<()> {
    let mut page = TextPage { text: String::new(), options: *options };
    for found in found {
        process(&mut page, found, clock);
    }
    out.write_all(page.text.as_bytes())?;
    out.flush()
}

fn process(page: &mut TextPage, found: &HoldingsReading, clock: &WallClock) {
    let view = &found.view;
    if view.devices.is_empty() && view.groups.is_empty() {
        let text = format!("PID {}  {}: PyTorch holds no GPU memory", view.tgid.0, printable(&found.command));
        page.line(&Sentence::new(Tone::Heading, text));
        return;
    }
    for line in &causes::lines(&found.causes()) {
        page.line(line);
    }
    page.line(&Sentence::new(Tone::Heading, heading(found)));
    if view.by != HoldingGrouping::Class {
        page.line(&Sentence::new(Tone::Plain, holdings::classes(view, bytes, " · ")));
    }
    page.grid(&groups(view));
    if view.more_groups > 0 {
        let text = format!("{} more: --top", plural(view.more_groups, "group", "groups"));
        page.line(&Sentence::new(Tone::Faint, text));
    }
    page.line(&Sentence::new(Tone::Faint, read_at(view, clock)));
    for advice in &view.advice {
        page.line(&Sentence::new(Tone::Plain, advised(advice)));
    }
    if let Some(parent) = found.copy_of {
        let text = format!(
            "it was forked from PID {parent} and has its allocator at the same place: this is a copy of what that one holds, and no more memory"
        );
        page.line(&Sentence::new(Tone::Warning, text));
    }
    for doubt in doubts(view) {
        page.line(&Sentence::new(Tone::Warning, doubt));
    }
}

fn heading(found: &HoldingsReading) -> String {
    let view = &found.view;
    let devices: Vec<_> = view
        .devices
        .iter()
        .map(|device| {
            let (allocated, reserved) = (bytes(device.allocated_bytes), bytes(device.reserved_bytes));
            let at_least = if device.changing_bytes.is_some() { "at least " } else { "" };
            format!("cuda:{} allocated {at_least}{allocated} of {reserved} reserved", device.ordinal.0)
        })
        .collect();
    let named = percent(view.named_bytes, view.allocated_bytes);
    format!("PID {}  {}  {} · {named} named", view.tgid.0, printable(&found.command), devices.join(" · "))
}

fn groups(view: &HoldingsView) -> TextGrid {
    let what = match view.by {
        HoldingGrouping::Name => "NAME",
        HoldingGrouping::Class => "EXAMPLE",
        HoldingGrouping::Dtype => "DTYPE",
        HoldingGrouping::Module => "MODULE",
        HoldingGrouping::Retainer => "KEEPER",
    };
    let columns = [
        ("BYTES", Align::Right),
        ("%", Align::Right),
        ("COUNT", Align::Right),
        ("CLASS", Align::Left),
        ("SHAPE", Align::Left),
        ("DTYPE", Align::Left),
        (what, Align::Left),
    ];
    let mut grid = TextGrid::new(&columns);
    for group in &view.groups {
        grid.push(vec![
            bytes(group.bytes),
            percent(group.bytes, view.allocated_bytes),
            count(group.count),
            group.class.map_or(UNKNOWN, HoldingClass::label).to_owned(),
            group.shape.as_deref().map_or_else(|| UNKNOWN.to_owned(), shape),
            group.dtype.as_deref().unwrap_or(UNKNOWN).to_owned(),
            name_of(view.by, group),
        ]);
    }
    grid
}

/// Formats `read at 14:03:20`, `read at 14:03:20; 12.0 MiB came later`.
fn read_at(view: &HoldingsView, clock: &WallClock) -> String {
    let later = holdings::later_bytes(view);
    let later = if later > 0 { format!("; {} came later", bytes(later)) } else { String::new() };
    format!("read at {}{later}", clock.time_of_day(view.read_ns))
}

fn advised(advice: &MemoryAdvice) -> String {
    let (size, example) = (bytes(advice.bytes), printable(&advice.example).into_owned());
    let blocks = plural(advice.count, "block", "blocks");
    match advice.kind {
        AdviceKind::FullPrecisionCopies => {
            format!("float32 copies of 16-bit parameters: {size} in {blocks}, such as {example}")
        }
        AdviceKind::MostlyUnusedStorage => {
            format!("views keep storages of which less than half is used: {size} in {blocks}, such as {example}")
        }
        AdviceKind::NoGradient => format!("parameters without a gradient: {size} in {blocks}, such as {example}"),
        AdviceKind::Traceback => format!("only a traceback keeps {size} in {blocks}, such as {example}"),
        AdviceKind::Unreachable => {
            format!("no variable leads to {size} in {blocks}, such as {example}: gc.collect() may free it")
        }
    }
}

fn doubts(view: &HoldingsView) -> Vec<String> {
    let mut doubts = Vec::new();
    doubts.extend(view.without_names.as_ref().map(|why| format!("no names: {}", printable(why))));
    let changing: u64 = view.devices.iter().filter_map(|device| device.changing_bytes).sum();
    if view.devices.iter().any(|device| device.changing_bytes.is_some()) {
        let text = "the program allocates without a pause: these are the blocks that stood still for 80 ms";
        doubts.push(format!("{text}; {} more came and went", bytes(changing)));
    }
    if view.dropped_names > 0 {
        let names = plural(view.dropped_names, "name was", "names were");
        doubts.push(format!("{names} left out: what leads to them changed while it was read"));
    }
    if view.is_partial {
        let why = match view.cut_by {
            Some(Cut::Time) => "the time for a reading was over",
            Some(Cut::Size) => "a reading stops at 10 million objects or 1 GiB",
            None => "the program changed its objects while they were read",
        };
        let objects = plural(view.objects, "object", "objects");
        doubts.push(format!("names may be missing: {why} ({objects} were looked at)"));
    }
    doubts
}
