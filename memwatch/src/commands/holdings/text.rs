//! `memwatch holdings` as text.

use std::io;

use memwatch_core::features::holdings::view::{By, HoldingGroupView, HoldingsView};
use memwatch_core::input::holdings::{Advice, AdviceKind, HoldingClass};

use super::Found;
use crate::render::Tone;
use crate::render::format::{UNKNOWN, bytes, count, percent, plural, printable};
use crate::render::sentences::Sentence;
use crate::render::text::grid::{Align, Grid};
use crate::render::text::{Page, TableOptions};

/// Writes what each process holds.
///
/// # Errors
/// What `out` answers.
pub(super) fn write(out: &mut impl io::Write, found: &[Found], options: &TableOptions) -> io::Result<()> {
    let mut page = Page { text: String::new(), options: *options };
    for found in found {
        process(&mut page, found);
    }
    out.write_all(page.text.as_bytes())?;
    out.flush()
}

fn process(page: &mut Page, found: &Found) {
    let view = &found.view;
    page.line(&Sentence::new(Tone::Heading, heading(found)));
    if view.by != By::Class {
        page.line(&Sentence::new(Tone::Plain, classes(view)));
    }
    page.grid(&groups(view));
    if view.more_groups > 0 {
        let text = format!("{} more: --top", plural(view.more_groups, "group", "groups"));
        page.line(&Sentence::new(Tone::Faint, text));
    }
    for advice in &view.advice {
        page.line(&Sentence::new(Tone::Plain, advised(advice)));
    }
    for doubt in doubts(view) {
        page.line(&Sentence::new(Tone::Warning, doubt));
    }
}

fn heading(found: &Found) -> String {
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

fn classes(view: &HoldingsView) -> String {
    let sums = view.classes.iter().map(|sum| format!("{} {}", sum.class.label(), bytes(sum.bytes)));
    sums.collect::<Vec<_>>().join(" · ")
}

fn groups(view: &HoldingsView) -> Grid {
    let what = match view.by {
        By::Name => "NAME",
        By::Class => "EXAMPLE",
        By::Dtype => "DTYPE",
        By::Module => "MODULE",
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
    let mut grid = Grid::new(&columns);
    for group in &view.groups {
        grid.push(vec![
            bytes(group.bytes),
            percent(group.bytes, view.allocated_bytes),
            count(group.count),
            group.class.map_or(UNKNOWN, HoldingClass::label).to_owned(),
            group.shape.as_deref().map_or_else(|| UNKNOWN.to_owned(), shape),
            group.dtype.as_deref().unwrap_or(UNKNOWN).to_owned(),
            name(view.by, group),
        ]);
    }
    grid
}

fn shape(shape: &[u64]) -> String {
    if shape.is_empty() {
        return "scalar".to_owned();
    }
    shape.iter().map(u64::to_string).collect::<Vec<_>>().join("x")
}

fn name(by: By, group: &HoldingGroupView) -> String {
    let own = if by == By::Class { group.example.as_deref() } else { group.name.as_deref() };
    let own = match own {
        // The model itself has the parameters that are in none of its modules.
        Some("") => "(model)",
        Some(name) => name,
        None => UNKNOWN,
    };
    let kept_by = group.kept_by.as_deref().map(|keeper| format!(", kept by {keeper}")).unwrap_or_default();
    let others = match group.other_names {
        0 => String::new(),
        names => format!(" (and {})", plural(names, "other name", "other names")),
    };
    printable(&format!("{own}{others}{kept_by}")).into_owned()
}

fn advised(advice: &Advice) -> String {
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
        doubts.push(
            "names may be missing: the program changed its objects while they were read, or has too many".to_owned(),
        );
    }
    doubts
}
