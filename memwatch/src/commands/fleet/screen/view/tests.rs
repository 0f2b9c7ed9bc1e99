use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::commands::fleet::args::FleetSort;
use crate::commands::fleet::ask::{FleetQuestion, FleetRows, RuleUse};
use crate::commands::fleet::model::{FleetTotals, FleetWorkload, WorkloadName};
use crate::commands::fleet::select::Matchers;
use crate::render::tui::ViewAction;

const LOOK: TerminalLook = TerminalLook { color: false, ascii: false };

fn report() -> FleetReport {
    let workload = |number: u64| FleetWorkload {
        name: WorkloadName {
            workload_kind: "slurm".to_owned(),
            slurm_job: format!("{number}\u{1b}[2J"),
            ..WorkloadName::default()
        },
        nodes: Some(2),
        gpus: Some(16),
        used_bytes: Some((900 - number) << 30),
        driver_allocated_bytes: Some(500 << 30),
        framework_cached_bytes: Some(300 << 30),
        largest_used_bytes: Some(70 << 30),
        smallest_used_bytes: Some(35 << 30),
        idle_gpus: Some(3),
        growth_bytes_per_second: Some(1e6),
        ooms_1d: Some(2),
        last_oom_unix_seconds: Some(1_000_000.0),
    };
    let totals = FleetTotals {
        nodes: 2_000,
        gpus: 16_000,
        workloads: 25_000,
        limit_bytes: 1_280_000 << 30,
        used_bytes: 900_000 << 30,
        framework_cached_bytes: Some(90_000 << 30),
        idle_gpus: Some(800),
        ooms_1d: Some(3_200),
        agents_down_count: 4,
        agents_down: vec!["gpu-node-00499:9747".to_owned(); 4],
    };
    let rows = FleetRows::Workloads((0..200).map(workload).collect());
    FleetReport { prometheus: "http://p:9090".to_owned(), rules: RuleUse::Used, totals, rows, queries: Vec::new() }
}

fn state() -> FleetScreenState {
    let (matchers, opened) = (Matchers::default(), Vec::new());
    FleetScreenState::new(&FleetQuestion {
        by: FleetRowKind::Workload,
        sort: FleetSort::Used,
        top: 200,
        matchers,
        opened,
    })
}

fn screen(
    state: &mut FleetScreenState,
    (report, trouble): (Option<&FleetReport>, Option<&str>),
    (wide, high): (u16, u16),
) -> String {
    let mut terminal = Terminal::new(TestBackend::new(wide, high)).expect("a test backend never fails");
    let time = ("12:00:03", 1_000_060.0);
    let shown =
        FleetScreenContent { report, is_present: report.is_some(), time, trouble, url: "http://p:9090", look: LOOK };
    terminal.draw(|frame| draw(frame, state, &shown)).expect("a test backend never fails");
    let rows = terminal.backend().buffer().content().chunks(usize::from(wide).max(1));
    rows.map(|row| row.iter().map(ratatui::buffer::Cell::symbol).collect::<String>().trim_end().to_owned() + "\n")
        .collect()
}

#[test]
fn a_small_screen_has_the_columns_that_matter_and_a_large_one_all() {
    let report = report();
    let small = screen(&mut state(), (Some(&report), None), (80, 24));
    let lines: Vec<_> = small.lines().collect();
    assert!(lines[0].starts_with("memwatch fleet  http://p:9090") && lines[0].ends_with("12:00:03"), "{small}");
    assert!(lines[1].starts_with("2,000 nodes, 16,000 GPUs, 25,000 workloads  used"), "{small}");
    let titles = lines.iter().find(|line| line.contains("USED")).expect("titles");
    assert_eq!(
        titles.split_whitespace().collect::<Vec<_>>(),
        ["USED▼", "CACHED", "GPUS", "UNEVEN", "IDLE", "GROWTH", "OOMS", "WORKLOAD"]
    );
    assert!(small.contains("Slurm job 0\\x1b[…") && !small.contains('\u{1b}'), "{small}");
    assert!(lines[22].starts_with("http://p:9090 · by its recording rules"), "{small}");
    assert!(lines[23].starts_with("Enter open  1-3 pages"), "{small}");
    let large = screen(&mut state(), (Some(&report), None), (200, 50));
    assert!(large.contains("DRIVER") && large.contains("LAST OOM") && large.contains("24,800 more"), "{large}");
}

#[test]
fn fleet_screen_draws_every_state_at_every_size() {
    let report = report();
    let mut state = state();
    let steps = [
        ViewAction::Last,
        ViewAction::Help,
        ViewAction::Back,
        ViewAction::Open,
        ViewAction::Sort,
        ViewAction::Back,
        ViewAction::NextTab(1),
        ViewAction::Pause,
    ];
    for step in steps {
        state.take(step, Some(&report.rows));
        for size in [(0, 0), (1, 1), (3, 2), (10, 3), (40, 6), (80, 24), (200, 50)] {
            screen(&mut state, (Some(&report), Some("no connection\u{7}")), size);
            screen(&mut state, (None, None), size);
        }
    }
}

#[test]
fn trouble_and_help_are_on_the_screen() {
    let mut state = state();
    let text = screen(&mut state, (None, Some("no answer within 10 s\u{7}")), (80, 24));
    assert!(text.contains("no answer within 10 s\\x07"), "{text}");
    state.take(ViewAction::Help, None);
    let text = screen(&mut state, (Some(&report()), None), (80, 24));
    for word in ["holders of the row", "what PyTorch's allocators have", "Esc back"] {
        assert!(text.contains(word), "{text}");
    }
}
