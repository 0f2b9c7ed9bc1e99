//! The Driver tab: driver allocations of a process by kind.

use memwatch_core::snapshot::{KindView, ProcessView};

use super::TableInput;
use crate::render::Tone;
use crate::render::format::count;
use crate::render::sentences;
use crate::render::tui::grid::{GridCell, GridColumn, GridRow, ScreenGrid};
use crate::render::tui::size::size;
use crate::render::tui::state::RowKey;

/// Builds one row per GPU and kind, and one per kind of host memory.
pub(crate) fn grid(facts: &TableInput, process: &ProcessView) -> ScreenGrid {
    let several = process.gpus.len() > 1;
    let numbers = [
        GridColumn::number("NOW", 10),
        GridColumn::number("PEAK", 10),
        GridColumn::number("ALLOCATIONS", 11),
        GridColumn::number("FREES", 11),
        GridColumn::words("KIND", 0),
    ];
    let mut rows = Vec::new();
    for gpu in &process.gpus {
        let number = sentences::gpu_number(facts.snapshot, gpu.uuid.as_ref());
        for (name, kind) in &gpu.kinds {
            let mut cells: Vec<GridCell> = several.then(|| GridCell::text(number.clone())).into_iter().collect();
            cells.extend(of_kind(name, kind));
            rows.push(row(format!("{number}/{name}"), cells));
        }
    }
    let host = &process.host;
    for (name, now, peak) in [
        ("pinned host memory", host.pinned_live_bytes, Some(host.pinned_peak_bytes)),
        ("registered host memory", host.registered_live_bytes, None),
        ("physical host memory", host.physical_live_bytes, None),
    ] {
        if now > 0 || peak.is_some_and(|peak| peak > 0) {
            let mut cells: Vec<GridCell> = several.then(GridCell::unknown).into_iter().collect();
            let bytes = GridCell::number(now, size(now)).in_tone(Tone::Heading);
            cells.extend([bytes, GridCell::bytes(peak), GridCell::unknown(), GridCell::unknown()]);
            cells.push(GridCell::text(format!("{name}: on no GPU")));
            rows.push(row(name.to_owned(), cells));
        }
    }
    let columns = several.then_some(GridColumn::number("GPU", 4)).into_iter().chain(numbers).collect();
    let empty = "No driver allocation since memwatch attached.".to_owned();
    let mut grid = ScreenGrid { columns, rows, natural: "NOW", empty };
    grid.sort("NOW", false);
    grid
}

fn row(key: String, cells: Vec<GridCell>) -> GridRow {
    GridRow { key: RowKey::Place(key), cells, tone: Tone::Plain, branch: None }
}

fn of_kind(name: &str, kind: &KindView) -> [GridCell; 5] {
    let about = if kind.estimated { "~" } else { "" };
    let backed = kind.backed_bytes.filter(|backed| *backed > kind.live_bytes);
    let held = backed.map(|backed| {
        let about = if kind.backed_estimated { "about " } else { "" };
        format!(": the pool holds {about}{}", size(backed))
    });
    let apart = if name == "managed" { ": its pages may be anywhere, so on no GPU" } else { "" };
    [
        GridCell::number(kind.live_bytes, format!("{about}{}", size(kind.live_bytes))).in_tone(Tone::Heading),
        GridCell::number(kind.peak_bytes, format!("{about}{}", size(kind.peak_bytes))),
        GridCell::number(kind.allocations, count(kind.allocations)),
        GridCell::number(kind.frees, count(kind.frees)),
        GridCell::text(format!("{name}{apart}{}", held.unwrap_or_default())),
    ]
}
