//! The Names tab: live objects by name, read from the process's memory: parameters, gradients,
//! caches, and the owners of other tensors.

use memwatch_core::features::holdings::view::{HoldingGroupView, HoldingsView};
use memwatch_core::input::holdings::HoldingClass;
use memwatch_core::snapshot::ProcessView;

use super::{Facts, places};
use crate::render::Tone;
use crate::render::format::{UNKNOWN, count, printable, ratio};
use crate::render::holdings::{name_of, shape};
use crate::render::tui::grid::{Cell, Column, Grid, Row};
use crate::render::tui::size::size;
use crate::render::tui::state::RowKey;

/// Builds one row per name. Names that differ only in their indices share a row.
pub(crate) fn grid(facts: &Facts, process: &ProcessView) -> Grid {
    let columns = vec![
        Column::number("NOW", 10),
        Column::number("%", 4),
        Column::number("COUNT", 9),
        Column::words("CLASS", 19),
        Column::words("SHAPE", 14),
        Column::words("DTYPE", 9),
        Column::words("NAME", 0),
    ];
    let held = facts.outlooks.holdings(process);
    let rows = held.map_or_else(Vec::new, |held| held.groups.iter().map(|group| row(held, group)).collect());
    Grid { columns, rows, natural: "NOW", empty: empty(facts, process, held) }
}

fn row(held: &HoldingsView, group: &HoldingGroupView) -> Row {
    let percent = 100.0 * ratio(group.bytes, held.allocated_bytes);
    let class = group.class.map_or(UNKNOWN, HoldingClass::label);
    let name = name_of(held.by, group);
    let cells = vec![
        Cell::number(group.bytes, size(group.bytes)).in_tone(Tone::Heading),
        Cell::real(percent, format!("{percent:.0}")),
        Cell::number(group.count, count(group.count)),
        Cell::text(class),
        group.shape.as_deref().map_or_else(Cell::unknown, |own| Cell::text(shape(own))),
        group.dtype.as_deref().map_or_else(Cell::unknown, |dtype| Cell::text(printable(dtype).into_owned())),
        Cell::text(name.clone()),
    ];
    Row { key: RowKey::Place(format!("{class}/{name}")), cells, tone: Tone::Plain, branch: None }
}

/// Returns why the table is empty. Names are read only for processes that were given as targets
/// when the view was opened.
fn empty(facts: &Facts, process: &ProcessView, held: Option<&HoldingsView>) -> String {
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
