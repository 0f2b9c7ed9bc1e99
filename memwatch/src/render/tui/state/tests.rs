use super::*;
use crate::render::Tone;
use crate::render::fixture::busy_node;
use crate::render::tui::grid::{GridCell, GridColumn, GridRow};

/// Returns a table of these rows with two columns.
fn grid(names: &[&str]) -> ScreenGrid {
    let row = |name: &&str| GridRow {
        key: RowKey::Place((*name).to_owned()),
        cells: vec![GridCell::number(7, "7"), GridCell::text(*name)],
        tone: Tone::Plain,
        branch: None,
    };
    ScreenGrid {
        columns: vec![GridColumn::number("NOW", 10), GridColumn::words("WHAT", 0)],
        rows: names.iter().map(row).collect(),
        natural: "NOW",
        empty: String::new(),
    }
}

fn settled(names: &[&str]) -> ViewState {
    let mut state = ViewState::new(false);
    state.settle(&grid(names), 3);
    state
}

fn selected(state: &ViewState) -> Option<&str> {
    match state.selected_key()? {
        RowKey::Place(name) => Some(name),
        _ => None,
    }
}

#[test]
fn the_selection_stays_with_its_row_when_the_order_changes() {
    let mut state = settled(&["a", "b", "c"]);
    state.take(ViewAction::Move(1));
    state.settle(&grid(&["c", "a", "new", "b"]), 3);
    assert_eq!((selected(&state), state.selected()), (Some("b"), 3));
    state.settle(&grid(&["c", "a"]), 3);
    assert_eq!(selected(&state), Some("a"), "a row that is gone gives the selection to the last");
    state.take(ViewAction::First);
    state.settle(&grid(&["new", "c"]), 3);
    assert_eq!(selected(&state), Some("new"), "who is at the first row stays there");
}

#[test]
fn the_selection_stays_inside_the_table_and_in_view() {
    let names = ["a", "b", "c", "d", "e", "f", "g"];
    let mut state = settled(&names);
    for (step, selected, top) in [
        (ViewAction::Move(-1), 0, 0),
        (ViewAction::Page(1), 3, 1),
        (ViewAction::Last, 6, 4),
        (ViewAction::Move(1), 6, 4),
        (ViewAction::Page(-1), 3, 3),
        (ViewAction::First, 0, 0),
        (ViewAction::Page(-1), 0, 0),
    ] {
        state.take(step);
        state.settle(&grid(&names), 3);
        assert_eq!((state.selected(), state.top()), (selected, top), "{step:?}");
    }
    state.settle(&grid(&[]), 3);
    state.take(ViewAction::Move(1));
    state.take(ViewAction::Open);
    assert_eq!((state.selected(), state.notice()), (0, Some("there is no row to open")));
}

#[test]
fn sorting_goes_through_the_columns_and_back_to_the_first() {
    let mut state = settled(&["a"]);
    assert_eq!(state.sort(), None);
    let mut sorts = Vec::new();
    for step in [ViewAction::Sort, ViewAction::Reverse, ViewAction::Sort, ViewAction::Reverse] {
        state.take(step);
        sorts.push(state.sort());
    }
    assert_eq!(sorts, [Some(("WHAT", false)), Some(("WHAT", true)), Some(("NOW", false)), Some(("NOW", true))]);
    let mut state = settled(&["a"]);
    state.take(ViewAction::Reverse);
    assert_eq!(state.sort(), Some(("NOW", true)), "the natural order is reversed, too");
}

#[test]
fn a_filter_is_typed_kept_and_cleared() {
    let mut state = settled(&["a"]);
    for step in [ViewAction::Filter, ViewAction::Type('x'), ViewAction::Type('y'), ViewAction::Erase] {
        state.take(step);
        assert!(state.is_typing());
    }
    state.take(ViewAction::Keep);
    assert_eq!((state.filter(), state.is_typing()), ("x", false));
    state.take(ViewAction::Back);
    assert_eq!(state.filter(), "");
    state.take(ViewAction::Filter);
    state.take(ViewAction::Type('z'));
    state.take(ViewAction::Clear);
    assert_eq!((state.filter(), state.is_typing()), ("", false));
    state.take(ViewAction::Back);
    assert_eq!(state.notice(), Some("this is the first page: q quits"));
}

#[test]
fn enter_opens_a_process_and_escape_goes_back_to_the_same_row() {
    let snapshot = busy_node();
    let mut state = ViewState::new(false);
    state.follow(&snapshot);
    let key = |place: usize| RowKey::Process(ProcessKey::of(&snapshot.processes[place]), Some(0));
    let mut list = grid(&["a", "b"]);
    (list.rows[0].key, list.rows[1].key) = (key(0), key(1));
    state.settle(&list, 3);
    state.take(ViewAction::Move(1));
    state.take(ViewAction::Open);
    assert_eq!(state.process(), Some(snapshot.processes[1].tgid));
    state.settle(&grid(&["x", "y", "z"]), 3);
    state.take(ViewAction::Last);
    state.take(ViewAction::Open);
    assert_eq!(state.overlay(), Some(Overlay::Detail));
    state.take(ViewAction::Back);
    state.take(ViewAction::Back);
    state.settle(&list, 3);
    assert_eq!((state.page(), state.selected()), (ScreenPage::List, 1));
}

#[test]
fn a_process_that_is_gone_is_closed() {
    let mut snapshot = busy_node();
    let mut state = ViewState::new(false);
    state.page = ScreenPage::Process(ProcessKey::of(&snapshot.processes[0]));
    state.follow(&snapshot);
    assert_ne!(state.page(), ScreenPage::List);
    snapshot.processes.remove(0);
    state.follow(&snapshot);
    assert_eq!(state.page(), ScreenPage::List);
}

#[test]
fn the_process_that_was_asked_for_is_opened_once_it_is_there() {
    let mut snapshot = busy_node();
    let only = snapshot.processes.remove(0);
    snapshot.processes.clear();
    let mut state = ViewState::new(true);
    state.follow(&snapshot);
    assert_eq!(state.page(), ScreenPage::List);
    snapshot.processes.push(only);
    state.follow(&snapshot);
    assert_eq!(state.process(), Some(snapshot.processes[0].tgid));
    state.take(ViewAction::Back);
    state.follow(&snapshot);
    assert_eq!(state.page(), ScreenPage::List, "who goes back is not brought there again");
}

#[test]
fn tabs_turn_in_a_circle_and_belong_to_a_process() {
    let mut state = ViewState::new(false);
    state.take(ViewAction::Tab(2));
    assert!(state.notice().is_some_and(|notice| notice.starts_with("tabs belong to a process")));
    state.page = ScreenPage::Process(ProcessKey::of(&busy_node().processes[0]));
    for (step, tab) in [
        (ViewAction::Tab(2), Tab::Modules),
        (ViewAction::NextTab(-1), Tab::Lines),
        (ViewAction::NextTab(-1), Tab::Events),
        (ViewAction::NextTab(1), Tab::Lines),
        (ViewAction::Tab(9), Tab::Lines),
    ] {
        state.take(step);
        assert_eq!(state.tab(), tab, "{step:?}");
    }
    assert_eq!(state.notice(), Some("there are 6 tabs"));
}

#[test]
fn a_workload_is_folded_and_unfolded() {
    let mut state = ViewState::new(false);
    let mut tree = grid(&["job"]);
    tree.rows[0].key = RowKey::Workload("job 7".to_owned());
    state.settle(&tree, 3);
    for folded in [true, false] {
        state.take(ViewAction::Open);
        assert_eq!(state.is_folded("job 7"), folded);
    }
}

#[test]
fn tui_click_selects_a_row_a_second_click_opens_it_outside_closes() {
    let mut state = settled(&["a", "b", "c"]);
    state.targets = ClickTargets { first_row: 5, rows: 3, tabs: None };
    for (row, place) in [(6, 1), (4, 1), (8, 1), (7, 2)] {
        state.take(ViewAction::Click(0, row));
        assert_eq!(state.selected(), place, "row {row}");
    }
    state.take(ViewAction::Click(0, 7));
    assert_eq!(state.overlay(), Some(Overlay::Detail));
    state.take(ViewAction::Click(0, 7));
    assert_eq!(state.overlay(), None, "a click beside what is open closes it");
}

#[test]
fn a_click_on_a_tab_opens_it() {
    let mut state = ViewState::new(false);
    state.page = ScreenPage::Process(ProcessKey::of(&busy_node().processes[0]));
    state.targets.tabs = Some((4, vec![(0, 9), (9, 20), (20, 29), (29, 38), (38, 47), (47, 56)]));
    state.take(ViewAction::Click(40, 4));
    assert_eq!(state.tab(), Tab::Driver);
    state.take(ViewAction::Click(3, 3));
    assert_eq!(state.tab(), Tab::Driver);
}

#[test]
fn tui_overlay_scrolls_within_its_lines() {
    let mut state = settled(&["a"]);
    state.take(ViewAction::Help);
    state.take(ViewAction::Move(5));
    state.settle_overlay(20, 18);
    assert_eq!(state.overlay_top(), 2);
    state.take(ViewAction::Help);
    assert_eq!((state.overlay(), state.overlay_top()), (None, 0));
}

#[test]
fn a_notice_is_there_until_the_next_key() {
    let mut state = settled(&["a"]);
    state.notify("peaks are reset");
    assert_eq!(state.notice(), Some("peaks are reset"));
    state.take(ViewAction::Move(1));
    assert_eq!(state.notice(), None);
}
