//! State of the live view: page, tab, selection, sort order and filter. It does not depend on a
//! terminal.

use std::collections::{BTreeMap, BTreeSet};

use memwatch_core::snapshot::Snapshot;
use memwatch_core::words::Tgid;

pub(crate) use super::grid::{ProcessKey, RowKey};

use super::grid::ScreenGrid;
use super::history::Histories;

/// Page below the GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScreenPage {
    /// Process list.
    List,
    /// A single process.
    Process(ProcessKey),
}

/// Tab of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tab {
    /// Memory by source line.
    Lines,
    /// Memory by module of the model.
    Modules,
    /// Memory by the name of its owner.
    Names,
    /// Memory by phase of a step.
    Phases,
    /// Memory by kind of driver allocation.
    Driver,
    /// Events of the process.
    Events,
}

impl Tab {
    /// All tabs from left to right.
    pub(crate) const ALL: [Self; 6] =
        [Self::Lines, Self::Modules, Self::Names, Self::Phases, Self::Driver, Self::Events];

    /// Returns the title of the tab.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Lines => "Lines",
            Self::Modules => "Modules",
            Self::Names => "Names",
            Self::Phases => "Phases",
            Self::Driver => "Driver",
            Self::Events => "Events",
        }
    }
}

/// Overlay on top of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overlay {
    /// Help page.
    Help,
    /// Details of the selected row.
    Detail,
}

/// User action within the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ViewAction {
    /// Move the selection down by rows; negative moves up.
    Move(isize),
    /// Move the selection down by pages; negative moves up.
    Page(isize),
    /// Select the first row.
    First,
    /// Select the last row.
    Last,
    /// Open the selected row.
    Open,
    /// Close the current overlay, filter or page.
    Back,
    /// Pause or continue.
    Pause,
    /// Toggle the help page.
    Help,
    /// Sort by the next column.
    Sort,
    /// Reverse the sort order.
    Reverse,
    /// Start typing a filter.
    Filter,
    /// Append a character to the filter.
    Type(char),
    /// Remove the last character of the filter.
    Erase,
    /// Accept the filter.
    Keep,
    /// Clear the filter.
    Clear,
    /// Open the tab with this number, counted from 1.
    Tab(usize),
    /// Move to the right by tabs; negative moves to the left.
    NextTab(isize),
    /// Toggle between the tree of workloads and the flat list.
    Tree,
    /// Mouse click at a column and a row of the screen.
    Click(u16, u16),
}

/// Sort order, filter and selection of one table.
#[derive(Clone, Debug, Default)]
struct Position {
    sort: Option<&'static str>,
    reversed: bool,
    filter: String,
    key: Option<RowKey>,
    selected: usize,
    top: usize,
}

/// Clickable areas of the last frame.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClickTargets {
    /// Screen row of the first table row.
    pub(crate) first_row: u16,
    /// Number of visible table rows.
    pub(crate) rows: u16,
    /// Screen row of the tab bar, and the first and end column of each tab.
    pub(crate) tabs: Option<(u16, Vec<(u16, u16)>)>,
}

/// State of the live view.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch that a key turns on and off")]
pub(crate) struct ViewState {
    page: ScreenPage,
    tab: Tab,
    overlay: Option<Overlay>,
    /// First visible line of the overlay.
    overlay_top: usize,
    paused: bool,
    typing: bool,
    tree: bool,
    folded: BTreeSet<String>,
    notice: Option<String>,
    /// Whether to open the only process as soon as it appears, because the user named one target.
    opens_alone: bool,
    positions: BTreeMap<Option<Tab>, Position>,
    /// Keys of the visible table's rows.
    keys: Vec<RowKey>,
    columns: Vec<&'static str>,
    natural: &'static str,
    height: usize,
    /// Clickable areas of the last frame.
    pub(crate) targets: ClickTargets,
    /// Histories of used bytes and steps.
    pub(crate) histories: Histories,
}

impl ViewState {
    /// Creates the initial state. `opens_alone` opens a single target instead of the list.
    pub(crate) fn new(opens_alone: bool) -> Self {
        Self {
            page: ScreenPage::List,
            tab: Tab::Lines,
            overlay: None,
            overlay_top: 0,
            paused: false,
            typing: false,
            tree: false,
            folded: BTreeSet::new(),
            notice: None,
            opens_alone,
            positions: BTreeMap::new(),
            keys: Vec::new(),
            columns: Vec::new(),
            natural: "",
            height: 0,
            targets: ClickTargets::default(),
            histories: Histories::default(),
        }
    }

    /// Returns the page below any overlay.
    pub(crate) const fn page(&self) -> ScreenPage {
        self.page
    }

    /// Returns the selected tab.
    pub(crate) const fn tab(&self) -> Tab {
        self.tab
    }

    /// Returns the open process.
    pub(crate) fn process(&self) -> Option<Tgid> {
        if let ScreenPage::Process(key) = self.page { Some(key.tgid) } else { None }
    }

    /// Returns the open overlay.
    pub(crate) const fn overlay(&self) -> Option<Overlay> {
        self.overlay
    }

    /// Returns whether new snapshots are not displayed.
    pub(crate) const fn is_paused(&self) -> bool {
        self.paused
    }

    /// Returns whether typed characters go to the filter.
    pub(crate) const fn is_typing(&self) -> bool {
        self.typing
    }

    /// Returns whether processes are grouped by workload.
    pub(crate) const fn is_tree(&self) -> bool {
        self.tree
    }

    /// Whether the processes of a workload are hidden.
    pub(crate) fn is_folded(&self, workload: &str) -> bool {
        self.folded.contains(workload)
    }

    /// Returns the message of the last key, if the screen does not show its effect otherwise.
    pub(crate) fn notice(&self) -> Option<&str> {
        self.notice.as_deref()
    }

    /// Sets the message of the last key. The next key clears it.
    pub(crate) fn notify(&mut self, text: impl Into<String>) {
        self.notice = Some(text.into());
    }

    /// Returns the filter of the visible table.
    pub(crate) fn filter(&self) -> &str {
        self.position().map_or("", |position| &position.filter)
    }

    /// Returns the sort column of the visible table and whether the order is reversed; `None` for
    /// the natural order.
    pub(crate) fn sort(&self) -> Option<(&'static str, bool)> {
        let position = self.position()?;
        let sort = position.sort.or_else(|| position.reversed.then_some(self.natural))?;
        Some((sort, position.reversed))
    }

    /// Returns the index of the selected row.
    pub(crate) fn selected(&self) -> usize {
        self.position().map_or(0, |position| position.selected)
    }

    /// Returns the key of the selected row.
    pub(crate) fn selected_key(&self) -> Option<&RowKey> {
        self.keys.get(self.selected())
    }

    /// Returns the index of the first visible row.
    pub(crate) fn top(&self) -> usize {
        self.position().map_or(0, |position| position.top)
    }

    /// Returns the first visible line of the overlay.
    pub(crate) const fn overlay_top(&self) -> usize {
        self.overlay_top
    }

    /// Returns the visible table: `None` is the process list, otherwise a tab.
    fn table(&self) -> Option<Tab> {
        matches!(self.page, ScreenPage::Process(_)).then_some(self.tab)
    }

    fn position(&self) -> Option<&Position> {
        self.positions.get(&self.table())
    }

    fn position_mut(&mut self) -> &mut Position {
        self.positions.entry(self.table()).or_default()
    }

    /// Follows a snapshot: leaves the page of a process that is gone, and opens a single target
    /// when it appears.
    pub(crate) fn follow(&mut self, snapshot: &Snapshot) {
        let is_there = |key| snapshot.processes.iter().any(|process| ProcessKey::of(process) == key);
        if let ScreenPage::Process(key) = self.page
            && !is_there(key)
        {
            self.turn_to(ScreenPage::List);
        }
        let mut holders = snapshot.processes.iter().filter(|process| !process.gpus.is_empty());
        if let (true, Some(only), None) = (self.opens_alone, holders.next(), holders.next()) {
            self.opens_alone = false;
            self.turn_to(ScreenPage::Process(ProcessKey::of(only)));
        }
    }

    /// Stores the rows of the table in order and the number of visible rows. The selection stays on
    /// its row when the order changes.
    pub(crate) fn settle(&mut self, grid: &ScreenGrid, height: usize) {
        self.keys = grid.rows.iter().map(|row| row.key.clone()).collect();
        self.columns = grid.columns.iter().map(|column| column.title).collect();
        self.natural = grid.natural;
        self.height = height;
        let mut position = std::mem::take(self.position_mut());
        let again = position.key.as_ref().and_then(|key| self.keys.iter().position(|own| own == key));
        position.selected = again.unwrap_or(position.selected).min(self.keys.len().saturating_sub(1));
        // Without any movement the selection stays on the first row, whichever row that is.
        position.key =
            self.keys.get(position.selected).filter(|_| position.key.is_some() || position.selected > 0).cloned();
        let lowest = (position.selected + 1).saturating_sub(height.max(1));
        position.top = position.top.clamp(lowest, position.selected).min(self.keys.len().saturating_sub(height));
        *self.position_mut() = position;
    }

    /// Clamps the scroll position of the overlay to its lines.
    pub(crate) fn settle_overlay(&mut self, lines: usize, height: usize) {
        self.overlay_top = self.overlay_top.min(lines.saturating_sub(height));
    }

    /// Executes an action.
    pub(crate) fn take(&mut self, step: ViewAction) {
        self.notice = None;
        match step {
            ViewAction::Move(rows) => self.go(|at| at.saturating_add_signed(rows)),
            ViewAction::Page(pages) => {
                let rows = pages.saturating_mul(isize::try_from(self.height.max(1)).unwrap_or(isize::MAX));
                self.go(|at| at.saturating_add_signed(rows));
            }
            ViewAction::First => self.go(|_| 0),
            ViewAction::Last => self.go(|_| usize::MAX),
            ViewAction::Pause => self.paused = !self.paused,
            ViewAction::Help => self.toggle(Overlay::Help),
            ViewAction::Open => self.open(),
            ViewAction::Back => self.back(),
            ViewAction::Sort => self.sort_next(),
            ViewAction::Reverse => {
                let position = self.position_mut();
                position.reversed = !position.reversed;
            }
            ViewAction::Filter | ViewAction::Type(_) | ViewAction::Erase | ViewAction::Keep | ViewAction::Clear => {
                self.type_filter(step);
            }
            ViewAction::Tab(_) | ViewAction::NextTab(_) if self.table().is_none() => {
                self.notify("tabs belong to a process: Enter opens the selected one");
            }
            ViewAction::Tab(number) => self.turn_to_tab(number.wrapping_sub(1)),
            ViewAction::NextTab(by) => {
                let all = isize::try_from(Tab::ALL.len()).unwrap_or(1);
                let now = Tab::ALL.iter().position(|tab| *tab == self.tab).and_then(|now| isize::try_from(now).ok());
                self.turn_to_tab(usize::try_from((now.unwrap_or(0) + by).rem_euclid(all)).unwrap_or(0));
            }
            ViewAction::Tree if self.table().is_some() => {
                self.notify("the tree is of processes: Esc goes back to them");
            }
            ViewAction::Tree => self.tree = !self.tree,
            ViewAction::Click(column, row) => self.click(column, row),
        }
    }

    /// Moves the selection, or scrolls the overlay if one is open.
    fn go(&mut self, to: impl Fn(usize) -> usize) {
        if self.overlay.is_some() {
            self.overlay_top = to(self.overlay_top);
            return;
        }
        let last = self.keys.len().saturating_sub(1);
        let selected = to(self.selected()).min(last);
        let key = self.keys.get(selected).filter(|_| selected > 0).cloned();
        let position = self.position_mut();
        (position.selected, position.key) = (selected, key);
    }

    fn open(&mut self) {
        if self.overlay.is_some() {
            return self.back();
        }
        match self.selected_key().cloned() {
            Some(RowKey::Process(key, _)) => self.turn_to(ScreenPage::Process(key)),
            Some(RowKey::Workload(name)) => {
                if !self.folded.remove(&name) {
                    self.folded.insert(name);
                }
            }
            Some(RowKey::Place(_)) => self.toggle(Overlay::Detail),
            None => self.notify("there is no row to open"),
        }
    }

    fn back(&mut self) {
        if self.overlay.take().is_some() {
            self.overlay_top = 0;
        } else if !self.filter().is_empty() {
            self.position_mut().filter.clear();
        } else if self.page == ScreenPage::List {
            self.notify("this is the first page: q quits");
        } else {
            self.turn_to(ScreenPage::List);
        }
    }

    /// Sorts by the column to the right of the current one, wrapping around at the end.
    fn sort_next(&mut self) {
        let now = self.sort().map_or(self.natural, |(title, _)| title);
        let place = self.columns.iter().position(|title| *title == now);
        let next = place.map_or(0, |place| place + 1) % self.columns.len().max(1);
        let title = self.columns.get(next).copied();
        let position = self.position_mut();
        (position.sort, position.reversed) = (title, false);
    }

    fn type_filter(&mut self, step: ViewAction) {
        self.typing = !matches!(step, ViewAction::Keep | ViewAction::Clear);
        let filter = &mut self.position_mut().filter;
        match step {
            ViewAction::Type(letter) => filter.push(letter),
            ViewAction::Erase => drop(filter.pop()),
            ViewAction::Clear => filter.clear(),
            _ => {}
        }
    }

    fn click(&mut self, column: u16, row: u16) {
        if self.overlay.is_some() {
            return self.back();
        }
        let in_row = |(line, _): &&(u16, Vec<(u16, u16)>)| *line == row;
        let tab = self
            .targets
            .tabs
            .as_ref()
            .filter(in_row)
            .and_then(|(_, tabs)| tabs.iter().position(|(begin, end)| (*begin..*end).contains(&column)));
        if let Some(tab) = tab {
            return self.turn_to_tab(tab);
        }
        let Some(line) = row.checked_sub(self.targets.first_row).filter(|line| *line < self.targets.rows) else {
            return;
        };
        let place = self.top() + usize::from(line);
        if place >= self.keys.len() {
            return;
        }
        if place == self.selected() {
            return self.open();
        }
        self.go(|_| place);
    }

    fn toggle(&mut self, overlay: Overlay) {
        self.overlay = (self.overlay != Some(overlay)).then_some(overlay);
        self.overlay_top = 0;
    }

    fn turn_to_tab(&mut self, place: usize) {
        match Tab::ALL.get(place) {
            Some(tab) => (self.tab, self.overlay) = (*tab, None),
            None => self.notify(format!("there are {} tabs", Tab::ALL.len())),
        }
    }

    fn turn_to(&mut self, page: ScreenPage) {
        if self.page != page {
            self.page = page;
            self.overlay = None;
            self.typing = false;
            // The rows of another process differ, so its tabs start at their first row.
            let list = self.positions.remove(&None);
            self.positions.clear();
            self.positions.extend(list.map(|list| (None, list)));
        }
    }
}

#[cfg(test)]
mod tests;
