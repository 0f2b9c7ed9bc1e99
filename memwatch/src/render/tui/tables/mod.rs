//! The tables of the live view, from a snapshot: the list of processes, and the tabs of one.

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

/// What tables are made from.
#[derive(Clone, Copy)]
pub(crate) struct Facts<'a> {
    /// The numbers.
    pub(crate) snapshot: &'a Snapshot,
    /// Their times.
    pub(crate) clock: &'a WallClock,
    /// What is expected.
    pub(crate) outlooks: &'a Outlooks,
    /// With ASCII characters only.
    pub(crate) ascii: bool,
    /// The columns of the screen.
    pub(crate) width: usize,
}

impl<'a> Facts<'a> {
    /// The process of the page.
    pub(crate) fn process(&self, page: Page) -> Option<&'a ProcessView> {
        let Page::Process(key) = page else { return None };
        self.snapshot.processes.iter().find(|process| ProcessKey::of(process) == key)
    }
}

/// The table of the page, sorted and filtered.
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

/// All about a row of a tab, line by line; empty where there is nothing more than the row.
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
