//! State of the screen: page, selected row, sort order, and the opened row. Independent of the
//! terminal.

use std::collections::BTreeMap;

use crate::commands::fleet::args::{FleetRowKind, FleetSort};
use crate::commands::fleet::ask::{FleetQuestion, FleetRows};
use crate::commands::fleet::facts;
use crate::commands::fleet::select::{Matcher, Matchers, WORKLOAD};
use crate::render::tui::ViewAction;

/// Pages, from left to right.
pub(super) const PAGES: [(FleetRowKind, &str); 3] =
    [(FleetRowKind::Workload, "Workloads"), (FleetRowKind::Node, "Nodes"), (FleetRowKind::Gpu, "GPUs")];

/// The row that the user opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Opened {
    /// Display name.
    pub(super) name: String,
    matchers: Vec<Matcher>,
}

/// Screen areas that react to the mouse.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FleetClickTargets {
    /// Row of the tabs, with the first and last column of each.
    pub(super) pages: Option<(u16, Vec<(u16, u16)>)>,
    /// First row of the table, and number of rows.
    pub(super) rows: (u16, u16),
}

/// State of the screen.
#[derive(Clone, Debug)]
pub(super) struct FleetScreenState {
    page: FleetRowKind,
    sorts: BTreeMap<FleetRowKind, FleetSort>,
    opened: Option<Opened>,
    top_rows: usize,
    matchers: Matchers,
    selected: usize,
    /// Row that was selected on the page before a row was opened.
    below: usize,
    top: usize,
    height: usize,
    rows: usize,
    paused: bool,
    help: bool,
    notice: Option<String>,
    pub(super) targets: FleetClickTargets,
}

impl FleetScreenState {
    /// Makes the initial state.
    pub(super) fn new(question: &FleetQuestion) -> Self {
        Self {
            page: question.by,
            sorts: BTreeMap::from([(question.by, question.sort)]),
            opened: None,
            top_rows: question.top,
            matchers: question.matchers.clone(),
            selected: 0,
            below: 0,
            top: 0,
            height: 0,
            rows: 0,
            paused: false,
            help: false,
            notice: None,
            targets: FleetClickTargets::default(),
        }
    }

    /// Returns the question for the server.
    pub(super) fn question(&self) -> FleetQuestion {
        let by = self.by();
        FleetQuestion {
            by,
            sort: self.sort(),
            top: self.top_rows,
            matchers: self.matchers.clone(),
            opened: self.opened.as_ref().map(|opened| opened.matchers.clone()).unwrap_or_default(),
        }
    }

    /// Returns the kind of rows.
    pub(super) fn by(&self) -> FleetRowKind {
        if self.opened.is_some() { FleetRowKind::Holder } else { self.page }
    }

    pub(super) const fn page(&self) -> FleetRowKind {
        self.page
    }

    pub(super) const fn opened(&self) -> Option<&Opened> {
        self.opened.as_ref()
    }

    pub(super) fn sort(&self) -> FleetSort {
        self.sorts.get(&self.by()).copied().unwrap_or(FleetSort::Used)
    }

    pub(super) const fn is_paused(&self) -> bool {
        self.paused
    }

    pub(super) const fn is_help(&self) -> bool {
        self.help
    }

    pub(super) fn notice(&self) -> Option<&str> {
        self.notice.as_deref()
    }

    /// Returns the indices of the selected row and of the first visible row.
    pub(super) const fn place(&self) -> (usize, usize) {
        (self.selected, self.top)
    }

    /// Shows a message until the next key.
    pub(super) fn notify(&mut self, text: impl Into<String>) {
        self.notice = Some(text.into());
    }

    /// Sets the number of rows and the height available for them.
    pub(super) fn settle(&mut self, rows: usize, height: usize) {
        (self.rows, self.height) = (rows, height);
        self.selected = self.selected.min(rows.saturating_sub(1));
        let lowest = (self.selected + 1).saturating_sub(height.max(1));
        self.top = self.top.clamp(lowest, self.selected).min(rows.saturating_sub(height));
    }

    /// Applies a step; `rows` are the rows on screen.
    pub(super) fn take(&mut self, step: ViewAction, rows: Option<&FleetRows>) {
        self.notice = None;
        match step {
            ViewAction::Move(by) => self.go(self.selected.saturating_add_signed(by)),
            ViewAction::Page(pages) => {
                let by = pages.saturating_mul(isize::try_from(self.height.max(1)).unwrap_or(isize::MAX));
                self.go(self.selected.saturating_add_signed(by));
            }
            ViewAction::First => self.go(0),
            ViewAction::Last => self.go(usize::MAX),
            ViewAction::Pause => self.paused = !self.paused,
            ViewAction::Help => self.help = !self.help,
            ViewAction::Open => self.open(rows),
            ViewAction::Back => self.back(),
            ViewAction::Sort => self.sort_next(),
            ViewAction::Tab(number) => self.turn_to(number.wrapping_sub(1)),
            ViewAction::NextTab(by) => {
                let all = isize::try_from(PAGES.len()).unwrap_or(1);
                let now = PAGES.iter().position(|(page, _)| *page == self.page);
                let now = now.and_then(|now| isize::try_from(now).ok()).unwrap_or(0);
                self.turn_to(usize::try_from((now + by).rem_euclid(all)).unwrap_or(0));
            }
            ViewAction::Click(column, row) => self.click((column, row), rows),
            ViewAction::Reverse => self.notify("largest first: the server sends the first rows only"),
            _ => self.notify("this key has no function here: ? lists the keys"),
        }
    }

    fn go(&mut self, to: usize) {
        if !self.help {
            self.selected = to.min(self.rows.saturating_sub(1));
        }
    }

    fn open(&mut self, rows: Option<&FleetRows>) {
        if self.help {
            self.help = false;
            return;
        }
        let Some(rows) = rows else { return };
        let Some(opened) = opened(rows, self.selected) else {
            let what = if self.opened.is_some() {
                "this is all that is known of it: Esc goes back"
            } else {
                "there is no row to open"
            };
            return self.notify(what);
        };
        self.opened = Some(opened);
        (self.below, self.selected, self.top) = (self.selected, 0, 0);
    }

    fn back(&mut self) {
        if self.help {
            self.help = false;
        } else if self.opened.take().is_some() {
            (self.selected, self.top) = (self.below, 0);
        } else {
            self.notify("this is the first page: q quits");
        }
    }

    fn sort_next(&mut self) {
        let possible = FleetSort::of(self.by());
        let now = possible.iter().position(|sort| *sort == self.sort()).map_or(0, |place| place + 1);
        if let Some(next) = possible.get(now % possible.len().max(1)) {
            self.sorts.insert(self.by(), *next);
            (self.selected, self.top) = (0, 0);
        }
    }

    fn turn_to(&mut self, place: usize) {
        let Some((page, _)) = PAGES.get(place) else {
            return self.notify(format!("there are {} pages", PAGES.len()));
        };
        (self.page, self.opened, self.help) = (*page, None, false);
        (self.selected, self.top) = (0, 0);
    }

    fn click(&mut self, (column, row): (u16, u16), rows: Option<&FleetRows>) {
        if self.help {
            self.help = false;
            return;
        }
        let in_row = self.targets.pages.as_ref().filter(|(line, _)| *line == row);
        let page = in_row.and_then(|(_, ends)| ends.iter().position(|(begin, end)| (*begin..*end).contains(&column)));
        if let Some(page) = page {
            return self.turn_to(page);
        }
        let (first, count) = self.targets.rows;
        let Some(line) = row.checked_sub(first).filter(|line| *line < count) else { return };
        let place = self.top + usize::from(line);
        if place == self.selected {
            return self.open(rows);
        }
        if place < self.rows {
            self.selected = place;
        }
    }
}

/// Returns the view to open for a row: its holders. `None` if the row cannot be opened.
fn opened(rows: &FleetRows, place: usize) -> Option<Opened> {
    let is = |labels: &[&str], values: &[&str]| -> Vec<Matcher> {
        labels.iter().zip(values).map(|(label, value)| Matcher::is(label, value)).collect()
    };
    Some(match rows {
        FleetRows::Workloads(rows) => {
            let name = &rows.get(place)?.name;
            Opened { name: name.text(), matchers: is(&WORKLOAD, &name.labels()) }
        }
        FleetRows::Nodes(rows) => {
            let node = rows.get(place)?;
            Opened { name: node.instance.clone(), matchers: is(&facts::NODE, &[&node.instance]) }
        }
        FleetRows::Gpus(rows) => {
            let gpu = rows.get(place)?;
            let matchers = is(&facts::GPU, &[&gpu.instance, &gpu.gpu, &gpu.uuid]);
            Opened { name: format!("GPU {} of {}", gpu.gpu, gpu.instance), matchers }
        }
        FleetRows::Holders(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::fleet::model::{FleetGpu, FleetNode};

    fn state() -> FleetScreenState {
        let (matchers, opened) = (Matchers::default(), Vec::new());
        let mut state = FleetScreenState::new(&FleetQuestion {
            by: FleetRowKind::Workload,
            sort: FleetSort::Growth,
            top: 9,
            matchers,
            opened,
        });
        state.settle(30, 10);
        state
    }

    #[test]
    fn the_selection_stays_within_the_rows_and_in_view() {
        let mut state = state();
        state.take(ViewAction::Move(-1), None);
        assert_eq!(state.place(), (0, 0));
        state.take(ViewAction::Page(1), None);
        state.take(ViewAction::Page(1), None);
        state.settle(30, 10);
        assert_eq!(state.place(), (20, 11));
        state.take(ViewAction::Last, None);
        state.settle(5, 10);
        assert_eq!(state.place(), (4, 0), "there are fewer rows now");
        state.settle(0, 0);
        assert_eq!(state.place(), (0, 0));
    }

    #[test]
    fn a_page_keeps_its_order_and_asks_again_where_another_is_wanted() {
        let mut state = state();
        assert_eq!((state.question().by, state.question().sort), (FleetRowKind::Workload, FleetSort::Growth));
        state.take(ViewAction::NextTab(1), None);
        assert_eq!((state.question().by, state.question().sort), (FleetRowKind::Node, FleetSort::Used));
        state.take(ViewAction::Sort, None);
        assert_eq!(state.question().sort, FleetSort::Cached);
        state.take(ViewAction::Tab(1), None);
        assert_eq!(state.question().sort, FleetSort::Growth);
        state.take(ViewAction::Tab(9), None);
        assert_eq!(state.notice(), Some("there are 3 pages"));
        state.take(ViewAction::NextTab(-1), None);
        assert_eq!(state.question().by, FleetRowKind::Gpu);
    }

    #[test]
    fn fleet_row_opens_the_workloads_on_it() {
        let mut state = state();
        let rows = FleetRows::Nodes(
            (0..30).map(|node| FleetNode { instance: format!("n{node}"), ..FleetNode::default() }).collect(),
        );
        state.take(ViewAction::Move(7), None);
        state.take(ViewAction::Open, Some(&rows));
        assert_eq!((state.by(), state.opened().map(|opened| opened.name.as_str())), (FleetRowKind::Holder, Some("n7")));
        assert_eq!(state.question().opened, [Matcher::is("instance", "n7")]);
        state.take(ViewAction::Open, Some(&FleetRows::Holders(Vec::new())));
        assert!(state.notice().is_some_and(|notice| notice.contains("Esc")), "{state:?}");
        state.take(ViewAction::Back, Some(&rows));
        assert_eq!((state.by(), state.place().0), (FleetRowKind::Workload, 7));
        state.take(ViewAction::Open, Some(&FleetRows::Gpus(vec![FleetGpu::default()])));
        assert_eq!(state.by(), FleetRowKind::Workload, "there is no such row");
    }

    #[test]
    fn a_click_selects_then_opens_and_turns_pages() {
        let mut state = state();
        state.targets = FleetClickTargets { pages: Some((3, vec![(0, 5), (5, 9), (9, 12)])), rows: (5, 10) };
        state.take(ViewAction::Click(2, 8), None);
        assert_eq!(state.place().0, 3);
        state.take(ViewAction::Click(2, 99), None);
        assert_eq!(state.place().0, 3);
        state.take(ViewAction::Click(6, 3), None);
        assert_eq!(state.by(), FleetRowKind::Node);
    }
}
