use super::*;
use crate::render::fixture::{busy_node, crowded_node};

fn list(snapshot: &Snapshot) -> State {
    let mut state = State::new(false);
    state.remember(snapshot);
    state.arrange(snapshot);
    state.fit(state.rows().len(), 10);
    state
}

fn selected(state: &State) -> u32 {
    state.rows()[state.selected()].key.tgid.0
}

#[test]
fn the_list_has_a_row_per_process_and_gpu() {
    let state = list(&busy_node());
    let rows: Vec<_> = state.rows().iter().map(|row| (row.key.tgid.0, row.gpu)).collect();
    assert_eq!(rows, [(1234, Some(0)), (2002, Some(0)), (2002, Some(1)), (4321, Some(0))]);
}

#[test]
fn the_selection_stays_with_its_process_when_the_order_changes() {
    let mut snapshot = busy_node();
    let mut state = list(&snapshot);
    state.take(Step::Down);
    assert_eq!(selected(&state), 2002);
    snapshot.processes[1].gpus[0].used_bytes = Some(u64::MAX);
    state.arrange(&snapshot);
    assert_eq!((selected(&state), state.selected()), (2002, 0));
}

#[test]
fn the_selection_stays_inside_the_list() {
    let mut state = list(&busy_node());
    for step in [Step::Up, Step::PageUp, Step::First] {
        state.take(step);
        assert_eq!(state.selected(), 0);
    }
    for step in [Step::Last, Step::Down, Step::PageDown] {
        state.take(step);
        assert_eq!(state.selected(), 3);
    }
    let mut snapshot = busy_node();
    snapshot.processes.clear();
    state.arrange(&snapshot);
    state.take(Step::Down);
    state.take(Step::Open);
    assert_eq!((state.selected(), state.page()), (0, Page::List));
}

#[test]
fn enter_opens_a_process_and_escape_goes_back() {
    let mut state = list(&busy_node());
    state.take(Step::Open);
    assert!(matches!(state.page(), Page::Process(key) if key.tgid == Tgid(1234)));
    state.take(Step::Help);
    state.take(Step::Back);
    assert!(!state.is_help() && state.page() != Page::List);
    state.take(Step::Back);
    assert_eq!(state.page(), Page::List);
}

#[test]
fn an_open_process_that_is_dropped_leads_back_to_the_list() {
    let mut snapshot = busy_node();
    let mut state = list(&snapshot);
    state.take(Step::Open);
    snapshot.processes.remove(0);
    state.arrange(&snapshot);
    assert_eq!(state.page(), Page::List);
}

#[test]
fn a_long_list_scrolls_with_the_selection() {
    let mut state = list(&crowded_node(10_000));
    state.take(Step::Last);
    state.fit(10_000, 10);
    assert_eq!((state.selected(), state.top()), (9_999, 9_990));
    state.take(Step::PageUp);
    state.fit(10_000, 10);
    assert_eq!((state.selected(), state.top()), (9_989, 9_989));
    state.take(Step::First);
    state.fit(10_000, 10);
    assert_eq!(state.top(), 0);
}

#[test]
fn a_page_of_text_scrolls_no_further_than_its_end() {
    let mut state = State::new(true);
    state.arrange(&busy_node());
    state.take(Step::Last);
    state.fit(30, 10);
    assert_eq!(state.top(), 20);
    state.take(Step::Up);
    state.fit(30, 10);
    assert_eq!(state.top(), 19);
    state.fit(5, 10);
    assert_eq!(state.top(), 0);
}

#[test]
fn no_height_is_too_small() {
    let mut state = list(&busy_node());
    state.take(Step::Last);
    state.fit(4, 0);
    state.fit(0, 0);
    assert_eq!(state.top(), 0);
}

#[test]
fn the_history_is_bounded_and_forgets_who_is_gone() {
    let mut snapshot = busy_node();
    let mut state = list(&snapshot);
    let key = ProcessKey::of(&snapshot.processes[0]);
    let uuid = snapshot.processes[0].gpus[0].uuid.clone();
    for live_bytes in 0..500 {
        snapshot.processes[0].gpus[0].live_bytes = live_bytes;
        state.remember(&snapshot);
    }
    let history = state.history(key, uuid.as_ref()).expect("it was remembered");
    assert_eq!((history.len(), history.back()), (REMEMBERED, Some(&499)));
    snapshot.processes.remove(0);
    state.remember(&snapshot);
    assert!(state.history(key, uuid.as_ref()).is_none());
}

#[test]
fn an_ended_process_writes_no_more_history() {
    let snapshot = busy_node();
    let mut state = list(&snapshot);
    state.remember(&snapshot);
    let ended = &snapshot.processes[2];
    let history = state.history(ProcessKey::of(ended), ended.gpus[0].uuid.as_ref());
    assert_eq!(history.map(VecDeque::len), Some(1));
}
