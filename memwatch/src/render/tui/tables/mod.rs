//! The tables of the live view: the process list and the tabs of a process.

mod driver;
mod events;
mod list;
mod names;
mod places;

pub(crate) use self::list::at_most;

use memwatch_core::snapshot::{ProcessView, Snapshot};

use super::grid::Grid;
use super::outlook::{Outlooks, Pace};
use super::state::{Page, ProcessKey, RowKey, State, Tab};
use crate::render::format::printable;
use crate::render::wall_clock::WallClock;

/// Input of the tables.
#[derive(Clone, Copy)]
pub(crate) struct Facts<'a> {
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

impl<'a> Facts<'a> {
    /// Returns the process of the page.
    pub(crate) fn process(&self, page: Page) -> Option<&'a ProcessView> {
        let Page::Process(key) = page else { return None };
        self.snapshot.processes.iter().find(|process| ProcessKey::of(process) == key)
    }
}

/// Builds the table of the page, sorted and filtered.
pub(crate) fn grid(state: &State, facts: &Facts) -> Grid {
    let mut grid = match facts.process(state.page()) {
        None => list::grid(facts),
        Some(process) => {
            let pace = Pace { steps_per_second: state.histories.steps_per_second(ProcessKey::of(process)) };
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
    if state.page() == Page::List && state.is_tree() {
        list::branch(&mut grid, |workload| state.is_folded(workload), facts.ascii);
    }
    grid
}

/// Returns the details of the selected row, one string per line; empty if there is nothing to add.
pub(crate) fn detail(state: &State, facts: &Facts) -> Vec<String> {
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
