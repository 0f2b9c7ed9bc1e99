use super::*;
use crate::render::fixture::{self, busy_node, owned_node, quiet_node};
use crate::render::tui::fixture::{leaking_node, leaking_outlooks, ranked_node, watched};
use crate::render::tui::state::ViewAction;

/// Returns the table of a state, one text per row.
fn texts(state: &ViewState, snapshot: &Snapshot, outlooks: &Outlooks) -> Vec<String> {
    let clock = fixture::clock();
    let facts = TableInput { snapshot, clock: &clock, outlooks, ascii: false, width: 200 };
    let grid = grid(state, &facts);
    if grid.rows.is_empty() {
        return vec![grid.empty];
    }
    let text = |cells: Vec<&str>| cells.join("|");
    let head = text(grid.columns.iter().map(|column| column.title).collect());
    let rows = grid.rows.iter().map(|row| text(row.cells.iter().map(|cell| cell.text.as_str()).collect()));
    std::iter::once(head).chain(rows).collect()
}

fn list(snapshot: &Snapshot) -> ViewState {
    watched(false, snapshot)
}

fn commands(state: &ViewState, snapshot: &Snapshot) -> Vec<String> {
    let all = texts(state, snapshot, &Outlooks::default());
    all.iter().skip(1).filter_map(|row| Some(row.rsplit_once('|')?.1.to_owned())).collect()
}

#[test]
fn the_list_has_a_row_per_process_and_gpu_and_no_column_of_nothing() {
    let snapshot = busy_node();
    let rows = texts(&list(&snapshot), &snapshot, &Outlooks::default());
    assert_eq!(
        rows,
        [
            "PID|USER|GPU|USED|DRIVER|PEAK|PRE-EXISTING|UNATTRIBUTED|ALLOC/S|FREE/S|STATUS|COMMAND",
            "1234|alice|0|41.00 GiB|40.50 GiB|44.00 GiB|0 B|512 MiB|1.8k|1.8k|2 OOM|python3 train.py --model llama-8b",
            "2002|bob|0|36.00 GiB|31.50 GiB|31.50 GiB|≤4.00 GiB|512 MiB|4.2|-|dropped|vllm serve \\x1b[2J日本",
            "2002|bob|1|20.00 GiB|20.00 GiB|20.00 GiB|0 B|0 B|4.2|-|dropped|vllm serve \\x1b[2J日本",
            "4321|-|1|-|0 B|12.30 GiB|-|-|0|0|ended|render",
        ]
    );
}

#[test]
fn tui_process_list_has_pytorch_and_forecast_columns() {
    let (snapshot, outlooks) = (leaking_node(), leaking_outlooks());
    let rows = texts(&list(&snapshot), &snapshot, &outlooks);
    let columns: Vec<_> = rows[0].split('|').zip(rows[1].split('|')).collect();
    for pair in [("RESERVED", "28.31 GiB"), ("ALLOCATED", "28.20 GiB"), ("STATUS", "OOM 1m20s")] {
        assert!(columns.contains(&pair), "{columns:?}");
    }
}

#[test]
fn programs_that_never_touched_gpu_memory_are_not_listed() {
    let mut snapshot = quiet_node();
    let mut memwatch = snapshot.processes[0].clone();
    memwatch.tgid.0 = 77;
    memwatch.command = "memwatch".to_owned();
    memwatch.target = false;
    memwatch.gpus.clear();
    memwatch.failures.clear();
    memwatch.host = memwatch_core::snapshot::HostView::default();
    snapshot.processes.push(memwatch);
    assert_eq!(commands(&list(&snapshot), &snapshot), ["python3 train.py --model llama-8b"]);
}

#[test]
fn tui_tree_lists_workloads_with_ordered_ranks_and_known_sums() {
    let snapshot = ranked_node();
    let mut state = list(&snapshot);
    state.take(ViewAction::Tree);
    let all = texts(&state, &snapshot, &Outlooks::default());
    let place = |title: &str| all[0].split('|').position(|own| own == title).expect("a column");
    let column = |title| {
        let place = place(title);
        all[1..].iter().map(|row| row.split('|').nth(place).unwrap_or_default()).collect::<Vec<_>>()
    };
    let training = |stem: &str| format!("{stem} python3 train.py --model llama-8b");
    let expected = [
        "▾ (no workload) (1)".to_owned(),
        "└ python3 alone.py".to_owned(),
        "▾ job 4242 (4)".to_owned(),
        training("├"),
        training("├"),
        training("├"),
        training("└"),
    ];
    assert_eq!(column("COMMAND"), expected);
    assert_eq!(column("RANK"), ["", "-", "", "0", "1", "2", "3"]);
    assert_eq!(column("USED")[2], "38.00 GiB");
}

#[test]
fn a_folded_workload_hides_its_processes() {
    let snapshot = ranked_node();
    let mut state = list(&snapshot);
    state.take(ViewAction::Tree);
    let clock = fixture::clock();
    let outlooks = Outlooks::default();
    let facts = TableInput { snapshot: &snapshot, clock: &clock, outlooks: &outlooks, ascii: true, width: 80 };
    state.settle(&grid(&state, &facts), 20);
    state.take(ViewAction::Open);
    assert_eq!(commands(&state, &snapshot)[0], "▸ (no workload) (1)");
    assert_eq!(commands(&state, &snapshot).len(), 6);
}

#[test]
fn a_filter_finds_workloads_users_and_commands() {
    let snapshot = owned_node();
    for (filter, found) in [("ml/serve", 2), ("alice", 1), ("render", 1), ("nobody there", 0)] {
        let mut state = list(&snapshot);
        state.take(ViewAction::Filter);
        filter.chars().for_each(|letter| state.take(ViewAction::Type(letter)));
        let rows = texts(&state, &snapshot, &Outlooks::default());
        assert_eq!(rows.len() - 1, found, "{filter}: {rows:?}");
        if found == 0 {
            assert_eq!(rows, ["No row has \"nobody there\" in it. Esc clears the filter."]);
        }
    }
}

/// Returns a state in which the first process is open at this tab.
fn open(snapshot: &Snapshot, tab: usize) -> ViewState {
    let mut state = watched(true, snapshot);
    state.take(ViewAction::Tab(tab));
    state
}

#[test]
fn names_that_differ_only_in_their_indices_are_one_row() {
    let (snapshot, outlooks) = (leaking_node(), leaking_outlooks());
    let rows = [
        "NOW|%|COUNT|CLASS|SHAPE|DTYPE|NAME",
        "26.46 GiB|99|215|tensors|4096x8064|float32|train_leak.py:main: history[*]",
        "64 MiB|0|1|parameters|4096x4096|float32|fc1.weight",
        "64 MiB|0|1|parameters|4096x4096|float32|fc2.weight",
        "64 MiB|0|1|optimizer state|4096x4096|float32|exp_avg of fc1.weight",
    ];
    assert_eq!(texts(&open(&snapshot, 3), &snapshot, &outlooks), rows);
    let unread = texts(&open(&snapshot, 3), &snapshot, &Outlooks::default());
    assert_eq!(unread, ["Not read yet. It is read each 10 s, from the process's memory."]);
}

#[test]
fn tui_lines_have_share_count_and_growth_per_step() {
    let (snapshot, outlooks) = (leaking_node(), leaking_outlooks());
    assert_eq!(
        texts(&open(&snapshot, 1), &snapshot, &outlooks),
        [
            "NOW|%|PEAK|COUNT|Δ/STEP|LINE",
            "26.46 GiB|95|26.46 GiB|215|+126 MiB|train_leak.py:10 forward",
            "1.30 GiB|5|1.70 GiB|38|0|train_leak.py:34 train_step",
            "126 MiB|0|252 MiB|1|-|backward of train_leak.py:9 forward",
        ]
    );
    let rows = texts(&open(&snapshot, 1), &snapshot, &Outlooks::default());
    assert_eq!(rows[0], "NOW|%|PEAK|COUNT|LINE", "nobody looks for growth");
}

#[test]
fn modules_phases_and_kinds_are_tabs() {
    let (snapshot, outlooks) = (leaking_node(), leaking_outlooks());
    let second = |tab| texts(&open(&snapshot, tab), &snapshot, &outlooks)[1].clone();
    assert_eq!(second(2), "26.46 GiB|95|26.46 GiB|215|fc2  Linear");
    assert_eq!(second(4), "26.46 GiB|95|26.46 GiB|215|forward");
    assert_eq!(second(5), "28.37 GiB|28.43 GiB|241|12|device");
}

#[test]
fn a_program_that_has_ended_is_ranked_as_it_was_at_its_peak() {
    let mut snapshot = leaking_node();
    snapshot.processes[0].ended_ns = Some(snapshot.time_ns);
    let device = &mut snapshot.processes[0].tensors.as_mut().expect("PyTorch").attribution.devices[0];
    for sum in device.sites.iter_mut().map(|site| &mut site.sum).chain([&mut device.total]) {
        sum.live_bytes = 0;
    }
    let rows = texts(&open(&snapshot, 1), &snapshot, &Outlooks::default());
    assert_eq!(rows[0], "AT PEAK|%|PEAK|COUNT|LINE");
    assert!(rows[1].starts_with("26.46 GiB|93|"), "{rows:?}");
}

#[test]
fn events_are_the_newest_first() {
    let snapshot = busy_node();
    let mut only = snapshot.clone();
    only.processes.truncate(1);
    assert_eq!(
        texts(&open(&only, 6), &only, &Outlooks::default()),
        [
            "TIME|EVENT|WHAT",
            "14:03:20|OOM|cuMemAlloc_v2 requested 40.00 GiB on GPU 0",
            "14:03:12|OOM|cuMemAlloc_v2 requested 38.00 GiB on GPU 0",
            "14:02:30|attached|traced from its start",
        ]
    );
}

#[test]
fn tui_tab_without_data_shows_a_sentence() {
    let mut snapshot = busy_node();
    snapshot.processes.truncate(1);
    for tab in [1, 2, 4] {
        let sentence = "PyTorch is not traced in this process. To trace it: sudo memwatch --pid 1234";
        assert_eq!(texts(&open(&snapshot, tab), &snapshot, &Outlooks::default()), [sentence]);
    }
    let sentence = "Names are not read of this process here. To read them: sudo memwatch holdings 1234";
    assert_eq!(texts(&open(&snapshot, 3), &snapshot, &Outlooks::default()), [sentence]);
    snapshot.processes[0].tensors = Some(Box::default());
    let sentence = "PyTorch has nothing allocated on a GPU.";
    assert_eq!(texts(&open(&snapshot, 1), &snapshot, &Outlooks::default()), [sentence]);
    snapshot.processes[0].gpus[0].kinds.clear();
    snapshot.processes[0].host = memwatch_core::snapshot::HostView::default();
    let sentence = "No driver allocation since memwatch attached.";
    assert_eq!(texts(&open(&snapshot, 5), &snapshot, &Outlooks::default()), [sentence]);
}

#[test]
fn a_line_has_its_stacks_and_a_driver_row_has_nothing_more() {
    let (snapshot, outlooks) = (leaking_node(), leaking_outlooks());
    let clock = fixture::clock();
    let facts = TableInput { snapshot: &snapshot, clock: &clock, outlooks: &outlooks, ascii: false, width: 80 };
    let mut state = open(&snapshot, 1);
    state.settle(&grid(&state, &facts), 20);
    assert_eq!(
        detail(&state, &facts),
        [
            "26.46 GiB now, 26.46 GiB at most",
            "  train_leak.py:10 forward  (Net)",
            "  train_leak.py:31 train_step",
            "  train_leak.py:40 main",
            "",
        ]
    );
    state.take(ViewAction::Move(1));
    assert_eq!(detail(&state, &facts), ["No stack is kept for this line: only those with most memory are."]);
    let mut state = open(&snapshot, 5);
    state.settle(&grid(&state, &facts), 20);
    assert_eq!(detail(&state, &facts), Vec::<String>::new());
}
