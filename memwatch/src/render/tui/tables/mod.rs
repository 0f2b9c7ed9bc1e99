//! The tables of the live view: the process list and the tabs of a process.

mod driver;
mod events;
mod list;
mod names;
mod places;

pub(crate) use self::list::at_most;

use memwatch_core::snapshot::{ProcessView, Snapshot};

use super::grid::ScreenGrid;
use super::outlook::{GrowthPace, Outlooks};
use super::state::{ProcessKey, RowKey, ScreenPage, Tab, ViewState};
use crate::render::format::printable;
use crate::render::wall_clock::WallClock;

/// Input of the tables.
#[derive(Clone, Copy)]
pub(crate) struct TableInput<'a> {
    /// Displayed snapshot.
    pub(crate) snapshot: &'a Snapshot,
    /// Clock for the snapshot's times.
    pub(crate) clock: &'a WallClock,
    /// Leaks, forecasts and named objects.
    pub(crate) outlooks: &'a Outlooks,
    /// Use ASCII characters only.
    pub(crate) ascii: bool,
    /// Width of the screen in columns.
    pub(crate) width: usize,
}

impl<'a> TableInput<'a> {
    /// Returns the process of the page.
    pub(crate) fn process(&self, page: ScreenPage) -> Option<&'a ProcessView> {
        let ScreenPage::Process(key) = page else { return None };
        self.snapshot.processes.iter().find(|process| ProcessKey::of(process) == key)
    }
}

/// Builds the table of the page, sorted and filtered.
pub(crate) fn grid(state: &ViewState, facts: &TableInput) -> ScreenGrid {
    let mut grid = match facts.process(state.page()) {
        None => list::grid(facts),
        Some(process) => {
            let pace = GrowthPace { steps_per_second: state.histories.steps_per_second(ProcessKey::of(process)) };
            match state.tab() {
                Tab::Lines => places::lines(facts, process, pace),
                Tab::Modules => places::modules(facts, process),
                Tab::Names => names::grid(facts, process),
                Tab::Phases => places::phases(facts, process),
                Tab::Driver => driver::grid(facts, process),
                Tab::Events => events::grid(facts, process),
            }
        }
    };
    if let Some((title, reversed)) = state.sort() {
        grid.sort(title, reversed);
    }
    let filter = state.filter();
    if !filter.is_empty() && !grid.rows.is_empty() {
        grid.keep(filter);
        grid.empty = format!("No row has \"{}\" in it. Esc clears the filter.", printable(filter));
    }
    if state.page() == ScreenPage::List && state.is_tree() {
        list::branch(&mut grid, |workload| state.is_folded(workload), facts.ascii);
    }
    grid
}

/// Returns the details of the selected row, one string per line; empty if there is nothing to add.
pub(crate) fn detail(state: &ViewState, facts: &TableInput) -> Vec<String> {
    let (Some(process), Some(RowKey::Place(place))) = (facts.process(state.page()), state.selected_key()) else {
        return Vec::new();
    };
    match state.tab() {
        Tab::Lines => places::stacks(process, place),
        Tab::Modules => places::module(process, place),
        Tab::Events => events::detail(facts, process, place),
        Tab::Names | Tab::Phases | Tab::Driver => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
