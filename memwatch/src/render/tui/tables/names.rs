//! The Names tab: live objects by name, read from the process's memory: parameters, gradients,
//! caches, and the owners of other tensors.

use memwatch_core::features::holdings::view::{HoldingGroupView, HoldingsView};
use memwatch_core::input::holdings::HoldingClass;
use memwatch_core::snapshot::ProcessView;

use super::{TableInput, places};
use crate::render::Tone;
use crate::render::format::{UNKNOWN, count, printable, ratio};
use crate::render::holdings::{name_of, shape};
use crate::render::tui::grid::{GridCell, GridColumn, GridRow, ScreenGrid};
use crate::render::tui::size::size;
use crate::render::tui::state::RowKey;

/// Builds one row per name. Names that differ only in their indices share a row.
pub(crate) fn grid(facts: &TableInput, process: &ProcessView) -> ScreenGrid {
    let columns = vec![
        GridColumn::number("NOW", 10),
        GridColumn::number("%", 4),
        GridColumn::number("COUNT", 9),
        GridColumn::words("CLASS", 19),
        GridColumn::words("SHAPE", 14),
        GridColumn::words("DTYPE", 9),
        GridColumn::words("NAME", 0),
    ];
    let held = facts.outlooks.holdings(process);
    let rows = held.map_or_else(Vec::new, |held| held.groups.iter().map(|group| row(held, group)).collect());
    ScreenGrid { columns, rows, natural: "NOW", empty: empty(facts, process, held) }
}

fn row(held: &HoldingsView, group: &HoldingGroupView) -> GridRow {
    let percent = 100.0 * ratio(group.bytes, held.allocated_bytes);
    let class = group.class.map_or(UNKNOWN, HoldingClass::label);
    let name = name_of(held.by, group);
    let cells = vec![
        GridCell::number(group.bytes, size(group.bytes)).in_tone(Tone::Heading),
        GridCell::real(percent, format!("{percent:.0}")),
        GridCell::number(group.count, count(group.count)),
        GridCell::text(class),
        group.shape.as_deref().map_or_else(GridCell::unknown, |own| GridCell::text(shape(own))),
        group.dtype.as_deref().map_or_else(GridCell::unknown, |dtype| GridCell::text(printable(dtype).into_owned())),
        GridCell::text(name.clone()),
    ];
    GridRow { key: RowKey::Place(format!("{class}/{name}")), cells, tone: Tone::Plain, branch: None }
}

/// Returns why the table is empty. Names are read only for processes that were given as targets
/// when the view was opened.
fn empty(facts: &TableInput, process: &ProcessView, held: Option<&HoldingsView>) -> String {
    match held {
        Some(HoldingsView { without_names: Some(why), .. }) => format!("No names: {}", printable(why)),
        Some(_) => "PyTorch has nothing allocated on a GPU.".to_owned(),
        None if process.tensors.is_some() => {
            "Not read yet. It is read each 10 s, from the process's memory.".to_owned()
        }
        None if process.target => places::nothing(facts, process),
        // Reading names does not require tracing.
        None => {
            format!("Names are not read of this process here. To read them: sudo memwatch holdings {}", process.tgid.0)
        }
    }
}
