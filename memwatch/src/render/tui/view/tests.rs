use std::fs;
use std::path::Path;

use memwatch_core::input::{NvmlState, Sensors};
use memwatch_core::snapshot::GpuView;
use memwatch_core::words::GpuUuid;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;

use super::*;
use crate::render::fixture;
use crate::render::tui::fixture::{leaking_node, leaking_outlooks, ranked_node, watched};
use crate::render::tui::state::ViewAction;

const PLAIN: TerminalLook = TerminalLook { color: false, ascii: false };
const SMALL: (u16, u16) = (80, 24);
const USUAL: (u16, u16) = (120, 40);
const LARGE: (u16, u16) = (200, 50);

fn frame_of(state: &mut ViewState, shown: &FrameInput, size: (u16, u16)) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).expect("a test backend never fails");
    terminal.draw(|frame| draw(frame, state, shown)).expect("a test backend never fails");
    terminal.backend().buffer().clone()
}

fn buffer(state: &mut ViewState, snapshot: &Snapshot, look: TerminalLook, size: (u16, u16)) -> Buffer {
    let (clock, outlooks) = (fixture::clock(), Outlooks::default());
    frame_of(state, &FrameInput { snapshot, clock: &clock, look, outlooks: &outlooks }, size)
}

fn text(buffer: &Buffer) -> String {
    let mut text = String::new();
    for row in buffer.content().chunks(usize::from(buffer.area.width).max(1)) {
        let mut line = String::new();
        let mut skip = 0;
        for cell in row {
            if skip == 0 {
                line.push_str(cell.symbol());
                skip = crate::render::format::width(cell.symbol());
            }
            skip = skip.saturating_sub(1);
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn screen(state: &mut ViewState, snapshot: &Snapshot, size: (u16, u16)) -> String {
    text(&buffer(state, snapshot, PLAIN, size))
}

/// Returns the screen of the leaking training with its forecasts.
fn leaking(state: &mut ViewState, size: (u16, u16)) -> String {
    let (snapshot, outlooks, clock) = (leaking_node(), leaking_outlooks(), fixture::clock());
    text(&frame_of(state, &FrameInput { snapshot: &snapshot, clock: &clock, look: PLAIN, outlooks: &outlooks }, size))
}

/// Compares a screen with its file. With `MEMWATCH_BLESS=1` the file is written instead, and must
/// be reviewed.
fn golden(name: &str, (columns, rows): (u16, u16), shown: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/render/tui/view/golden");
    let path = folder.join(format!("{name}_{columns}x{rows}.txt"));
    if std::env::var_os("MEMWATCH_BLESS").is_some() {
        fs::write(&path, shown).expect("the folder is there");
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(shown, kept, "{} shows:\n{shown}", path.display());
}

#[test]
fn a_process_fills_every_size_of_screen() {
    for size in [SMALL, USUAL, LARGE] {
        golden("process", size, &leaking(&mut watched(true, &leaking_node()), size));
    }
}

#[test]
fn the_list_fills_every_size_of_screen() {
    let mut snapshot = fixture::busy_node();
    let power =
        Sensors { utilization_percent: Some(100), temperature_celsius: Some(84), ..leaking_node().gpus[0].sensors };
    snapshot.gpus[0].sensors = power;
    for size in [SMALL, USUAL, LARGE] {
        golden("list", size, &screen(&mut watched(false, &snapshot), &snapshot, size));
    }
}

#[test]
fn tui_tree_puts_ranks_under_their_job() {
    let snapshot = ranked_node();
    let mut state = watched(false, &snapshot);
    state.take(ViewAction::Tree);
    golden("tree", USUAL, &screen(&mut state, &snapshot, USUAL));
}

#[test]
fn a_process_on_several_gpus_has_a_row_for_each() {
    let mut snapshot = fixture::busy_node();
    snapshot.processes.remove(0);
    snapshot.processes.truncate(1);
    golden("several_gpus", SMALL, &screen(&mut watched(true, &snapshot), &snapshot, SMALL));
}

#[test]
fn tui_stacks_of_a_line_open_as_an_overlay() {
    let mut state = watched(true, &leaking_node());
    leaking(&mut state, SMALL);
    state.take(ViewAction::Open);
    golden("stacks", SMALL, &leaking(&mut state, SMALL));
}

#[test]
fn the_help_page_fits_the_smallest_usual_screen() {
    let snapshot = fixture::quiet_node();
    let mut state = watched(false, &snapshot);
    state.take(ViewAction::Help);
    golden("help", SMALL, &screen(&mut state, &snapshot, SMALL));
    assert!(help::lines(PLAIN).len() + 2 <= usize::from(SMALL.1), "all of it, above the last two lines");
}

#[test]
fn beside_others_the_bar_has_this_process_the_others_and_what_is_free() {
    let mut snapshot = leaking_node();
    let shown = screen(&mut watched(true, &snapshot), &snapshot, USUAL);
    assert!(shown.contains("█ this 28.90  ▒ other processes 2.00 (2)  ░ free 48.71"), "{shown}");
    assert!(!shown.contains("unexplained"), "{shown}");
    snapshot.gpus[0].unwatched_bytes = None;
    let shown = screen(&mut watched(true, &snapshot), &snapshot, USUAL);
    assert!(shown.contains("other processes - (2)"), "what NVML does not report is not guessed: {shown}");
}

#[test]
fn tui_used_line_sums_to_its_parts() {
    let mut snapshot = leaking_node();
    let line = |snapshot: &Snapshot| {
        let shown = screen(&mut watched(true, snapshot), snapshot, USUAL);
        shown.lines().find(|line| line.starts_with("used = ")).map(str::to_owned).unwrap_or(shown)
    };
    let sum = "used = PyTorch 28.31 + other libraries 0.06 + unattributed 0.53 (attributed 98.2 %)";
    assert_eq!(line(&snapshot), sum);
    // Late attach: PyTorch's own number includes memory whose driver calls were not observed.
    let row = &mut snapshot.processes[0].gpus[0];
    (row.live_bytes, row.attributed_bytes) = (0, 0);
    (row.preexisting_bytes, row.unattributed_bytes) = (row.used_bytes, row.used_bytes.map(u64::cast_signed));
    assert_eq!(line(&snapshot), "used = PyTorch 28.31 + other libraries, context and code 0.59");
    snapshot.processes[0].tensors = None;
    let row = &mut snapshot.processes[0].gpus[0];
    row.preexisting_includes_context = true;
    let sum = "used = driver 0.00 + pre-existing ≤28.90 + unattributed 0.00 (attributed 0.0 %)";
    assert_eq!(line(&snapshot), sum);
}

#[test]
fn without_nvml_the_reason_is_there_whole_on_a_small_screen() {
    let mut snapshot = fixture::empty_node();
    let reason = "libnvidia-ml.so: a libloading error occurred: cannot open shared object file: \
                  No such file or directory, and this goes on for a second line";
    snapshot.nvml = NvmlState::Unavailable(reason.to_owned());
    let shown = screen(&mut watched(false, &snapshot), &snapshot, SMALL);
    let words: Vec<_> = shown.split_whitespace().collect();
    assert!(words.join(" ").contains(&format!("No NVML: {reason}")), "{shown}");
    assert!(shown.contains("No process has used GPU memory yet."), "{shown}");
    assert_eq!(shown.matches("NVML").count(), 1, "{shown}");
}

#[test]
fn eight_gpus_have_a_line_each() {
    let mut snapshot = fixture::busy_node();
    let more = (2..8).map(|nvml_index| GpuView {
        uuid: GpuUuid::new(&format!("GPU-{nvml_index}")),
        nvml_index,
        ..snapshot.gpus[0].clone()
    });
    snapshot.gpus.extend(more.collect::<Vec<_>>());
    let shown = screen(&mut watched(false, &snapshot), &snapshot, (100, 30));
    assert_eq!((0..8).filter(|gpu| shown.contains(&format!("\nGPU {gpu} H100"))).count(), 8, "{shown}");
    let shown = screen(&mut watched(false, &snapshot), &snapshot, (100, 16));
    assert!(shown.contains("more GPUs\n"), "{shown}");
}

#[test]
fn instances_have_their_gpus_number_and_their_own() {
    let snapshot = fixture::divided_node();
    let list = screen(&mut watched(false, &snapshot), &snapshot, USUAL);
    let numbers: Vec<_> = list.lines().filter_map(|line| line.strip_prefix("GPU ")?.split(' ').next()).collect();
    assert_eq!(numbers[..3], ["0", "1:0", "1:1"], "{list}");
}

#[test]
fn without_nvml_a_gpu_is_named_by_its_uuid() {
    let mut snapshot = fixture::busy_node();
    snapshot.gpus.clear();
    let shown = screen(&mut watched(false, &snapshot), &snapshot, SMALL);
    assert!(shown.contains("   1234 alice    8f3c "), "{shown}");
}

#[test]
fn keys_without_a_function_say_so_and_a_paused_view_does() {
    let snapshot = fixture::quiet_node();
    let mut state = watched(false, &snapshot);
    state.take(ViewAction::Pause);
    state.notify("x has no function here: ? lists the keys");
    let shown = screen(&mut state, &snapshot, SMALL);
    assert!(shown.contains("paused at 14:03:21"), "{shown}");
    assert!(shown.ends_with("x has no function here: ? lists the keys\n"), "{shown}");
}

#[test]
fn tui_row_without_details_shows_a_notice() {
    let mut state = watched(true, &leaking_node());
    state.take(ViewAction::Tab(5));
    leaking(&mut state, SMALL);
    state.take(ViewAction::Open);
    assert!(leaking(&mut state, SMALL).ends_with("there is nothing more about this row\n"));
    assert_eq!(state.overlay(), None);
}

#[test]
fn tui_draws_every_state_at_every_size() {
    let crowded = fixture::crowded_node(300);
    let snapshots = [fixture::busy_node(), leaking_node(), fixture::empty_node(), fixture::training_node(), crowded];
    let steps = [
        ViewAction::Pause,
        ViewAction::Last,
        ViewAction::Open,
        ViewAction::Page(1),
        ViewAction::Open,
        ViewAction::Help,
        ViewAction::Move(-1),
    ];
    for snapshot in &snapshots {
        for size in (1..=10).flat_map(|size| [(size, size), (size, 40), (200, size), (size * 20, size * 6)]) {
            for opens_alone in [true, false] {
                let mut state = watched(opens_alone, snapshot);
                for step in steps {
                    buffer(&mut state, snapshot, PLAIN, size);
                    state.take(step);
                }
                buffer(&mut state, snapshot, PLAIN, size);
            }
        }
    }
}

#[test]
fn ten_thousand_processes_scroll() {
    let snapshot = fixture::crowded_node(10_000);
    let mut state = ViewState::new(false);
    screen(&mut state, &snapshot, SMALL);
    state.take(ViewAction::Last);
    let shown = screen(&mut state, &snapshot, SMALL);
    assert!(shown.contains(" 109999 ") && shown.contains("of 10,000"), "{shown}");
    state.take(ViewAction::First);
    assert!(screen(&mut state, &snapshot, SMALL).contains(" 100000 "));
}

#[test]
fn tui_ascii_without_color_prints_ascii_and_default_colors_only() {
    let mut busy = fixture::busy_node();
    busy.processes[1].command = "vllm".to_owned();
    for (snapshot, opens_alone) in [(&busy, false), (&leaking_node(), true), (&ranked_node(), false)] {
        let mut state = watched(opens_alone, snapshot);
        state.take(ViewAction::Tree);
        state.take(ViewAction::Reverse);
        for step in [ViewAction::Move(0), ViewAction::Open, ViewAction::Help] {
            state.take(step);
            let buffer = buffer(&mut state, snapshot, TerminalLook { color: false, ascii: true }, USUAL);
            assert!(text(&buffer).is_ascii(), "{}", text(&buffer));
            let reset = ratatui::style::Color::Reset;
            assert!(buffer.content().iter().all(|cell| cell.fg == reset && cell.bg == reset));
        }
    }
}

#[test]
fn a_full_gpu_and_a_hot_one_have_their_colours() {
    let mut snapshot = fixture::busy_node();
    snapshot.gpus[0].sensors.temperature_celsius = Some(95);
    let buffer = buffer(&mut watched(false, &snapshot), &snapshot, TerminalLook { color: true, ascii: false }, USUAL);
    let (mut red, mut yellow) = (String::new(), String::new());
    for cell in buffer.content() {
        match cell.fg {
            ratatui::style::Color::Red => red.push_str(cell.symbol()),
            ratatui::style::Color::Yellow => yellow.push_str(cell.symbol()),
            _ => {}
        }
    }
    assert!(red.contains("98.0 %") && red.contains("95 °C"), "{red}");
    assert!(yellow.contains("12 events dropped"), "{yellow}");
}

#[test]
fn a_hostile_command_line_and_filter_are_written_out() {
    let snapshot = fixture::busy_node();
    let mut state = watched(false, &snapshot);
    let shown = screen(&mut state, &snapshot, USUAL);
    assert!(shown.contains("vllm serve \\x1b[2J日本") && !shown.contains('\x1b'), "{shown}");
    for step in [ViewAction::Filter, ViewAction::Type('\u{202e}')] {
        state.take(step);
    }
    assert!(!screen(&mut state, &snapshot, USUAL).contains('\u{202e}'));
}

#[test]
fn an_ended_process_is_marked() {
    let mut snapshot = fixture::busy_node();
    assert!(screen(&mut watched(false, &snapshot), &snapshot, USUAL).contains("ended      render"));
    snapshot.processes = vec![snapshot.processes.remove(2)];
    let shown = screen(&mut watched(true, &snapshot), &snapshot, USUAL);
    assert!(shown.contains("ran 33m05s  ended 14:03:05"), "{shown}");
}
