use memwatch_core::snapshot::GpuView;
use memwatch_core::words::GpuUuid;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;

use super::*;
use crate::render::fixture;
use crate::render::tui::state::Step;

const PLAIN: Look = Look { color: false, ascii: false };

fn frame(state: &mut State, snapshot: &Snapshot, look: Look, size: (u16, u16)) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).expect("a test backend never fails");
    let clock = fixture::clock();
    terminal
        .draw(|frame| draw(frame, state, &Shown { snapshot, clock: &clock, look }))
        .expect("a test backend never fails");
    terminal.backend().buffer().clone()
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

fn state(blocks: bool, snapshot: &Snapshot) -> State {
    let mut state = State::new(blocks);
    state.arrange(snapshot);
    state
}

/// A state that has seen the first process's memory grow and shrink.
fn with_history(blocks: bool, snapshot: &Snapshot) -> State {
    let mut state = state(blocks, snapshot);
    let mut past = snapshot.clone();
    for step in 0..40 {
        past.processes[0].gpus[0].live_bytes = ((step * 7) % 45) << 30;
        state.remember(&past);
    }
    state.remember(snapshot);
    state
}

#[test]
fn instances_have_their_gpus_number_and_their_own() {
    let snapshot = fixture::divided_node();
    let blocks = text(&frame(&mut state(true, &snapshot), &snapshot, PLAIN, (100, 30)));
    assert!(blocks.contains("GPU 1:1  NVIDIA H100 80GB HBM3 MIG 1g.10gb  MIG-57cbf02d"), "{blocks}");
    let list = text(&frame(&mut state(false, &snapshot), &snapshot, PLAIN, (80, 24)));
    let numbers: Vec<_> = list.lines().filter_map(|line| line.strip_prefix("GPU ")?.split(' ').next()).collect();
    assert_eq!(numbers, ["0", "1:0", "1:1"], "{list}");
    assert!(list.lines().any(|line| line.starts_with("GPU 1:0") && line.ends_with("unattributed 0 B")), "{list}");
}

#[test]
fn one_process_fills_a_screen_of_80_by_24() {
    let snapshot = fixture::quiet_node();
    let mut state = with_history(true, &snapshot);
    assert_eq!(text(&frame(&mut state, &snapshot, PLAIN, (80, 24))), include_str!("process_80x24.txt"));
}

#[test]
fn the_list_fills_a_screen_of_120_by_40() {
    let snapshot = fixture::busy_node();
    let mut state = with_history(false, &snapshot);
    assert_eq!(text(&frame(&mut state, &snapshot, PLAIN, (120, 40))), include_str!("list_120x40.txt"));
}

#[test]
fn the_list_fits_80_by_24() {
    let snapshot = fixture::busy_node();
    let mut state = with_history(false, &snapshot);
    assert_eq!(text(&frame(&mut state, &snapshot, PLAIN, (80, 24))), include_str!("list_80x24.txt"));
}

#[test]
fn several_watched_processes_stand_one_below_the_other() {
    let snapshot = fixture::busy_node();
    let mut state = with_history(true, &snapshot);
    assert_eq!(text(&frame(&mut state, &snapshot, PLAIN, (120, 40))), include_str!("blocks_120x40.txt"));
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
    let reported = text(&frame(&mut state(false, &snapshot), &snapshot, PLAIN, (100, 30)));
    let line = "GPU 7  ███████████████████████████▒▒░   78.0 GiB of 79.6 GiB  live 72.0 GiB   unattributed 6.0 GiB";
    assert_eq!(reported.lines().nth(8), Some(line), "{reported}");
    let reported = text(&frame(&mut state(false, &snapshot), &snapshot, PLAIN, (100, 16)));
    assert!(reported.contains("\n4 more GPUs\n"), "{reported}");
}

#[test]
fn without_nvml_a_gpu_is_named_by_its_uuid() {
    let mut snapshot = fixture::busy_node();
    snapshot.gpus.clear();
    let reported = text(&frame(&mut state(false, &snapshot), &snapshot, PLAIN, (80, 24)));
    assert!(reported.contains("   1234 alice    8f3c "), "{reported}");
}

#[test]
fn the_help_page_explains_keys_and_words() {
    let snapshot = fixture::quiet_node();
    let mut state = state(false, &snapshot);
    state.take(Step::Help);
    let reported = text(&frame(&mut state, &snapshot, PLAIN, (100, 30)));
    for word in ["Space", "pause and go on", "unattributed", "used - live"] {
        assert!(reported.contains(word), "{reported}");
    }
}

#[test]
fn a_machine_without_a_gpu_says_what_is_missing() {
    let snapshot = fixture::empty_node();
    let reported = text(&frame(&mut state(false, &snapshot), &snapshot, PLAIN, (80, 24)));
    assert!(reported.contains("No process with GPU memory has been seen yet."), "{reported}");
    assert!(reported.contains("no NVIDIA driver is loaded"), "{reported}");
    let reported = text(&frame(&mut state(true, &snapshot), &snapshot, PLAIN, (80, 24)));
    assert!(reported.contains("waiting for the first CUDA call"), "{reported}");
}

#[test]
fn a_paused_view_says_so() {
    let snapshot = fixture::quiet_node();
    let mut state = state(false, &snapshot);
    state.take(Step::Pause);
    assert!(text(&frame(&mut state, &snapshot, PLAIN, (80, 24))).contains("paused at 14:03:21"));
}

#[test]
fn no_size_is_too_small_or_too_large() {
    let snapshots = [fixture::busy_node(), fixture::quiet_node(), fixture::empty_node(), fixture::crowded_node(300)];
    for snapshot in &snapshots {
        for (width, height) in (1..=10).flat_map(|size| [(size, size), (size, 40), (200, size), (size * 20, size * 6)])
        {
            for blocks in [true, false] {
                let mut state = state(blocks, snapshot);
                for step in [Step::Pause, Step::Last, Step::Open, Step::PageDown, Step::Help, Step::Up] {
                    frame(&mut state, snapshot, PLAIN, (width, height));
                    state.take(step);
                }
                frame(&mut state, snapshot, PLAIN, (width, height));
            }
        }
    }
}

#[test]
fn ten_thousand_processes_scroll() {
    let snapshot = fixture::crowded_node(10_000);
    let mut state = state(false, &snapshot);
    state.take(Step::Last);
    assert!(text(&frame(&mut state, &snapshot, PLAIN, (80, 24))).contains(" 109999 "));
    state.take(Step::First);
    assert!(text(&frame(&mut state, &snapshot, PLAIN, (80, 24))).contains(" 100000 "));
}

#[test]
fn ascii_is_ascii_and_no_colour_is_no_colour() {
    let mut snapshot = fixture::busy_node();
    snapshot.processes[1].command = "vllm".to_owned();
    for blocks in [true, false] {
        let mut state = with_history(blocks, &snapshot);
        let buffer = frame(&mut state, &snapshot, Look { color: false, ascii: true }, (120, 60));
        assert!(text(&buffer).is_ascii(), "{}", text(&buffer));
        let reset = ratatui::style::Color::Reset;
        assert!(buffer.content().iter().all(|cell| cell.fg == reset && cell.bg == reset));
    }
}

#[test]
fn a_hostile_command_line_is_written_out() {
    let snapshot = fixture::busy_node();
    let reported = text(&frame(&mut state(true, &snapshot), &snapshot, PLAIN, (120, 60)));
    assert!(reported.contains("vllm serve \\x1b[2J日本") && !reported.contains('\x1b'), "{reported}");
}

#[test]
fn an_ended_process_is_marked() {
    let snapshot = fixture::busy_node();
    let reported = text(&frame(&mut state(true, &snapshot), &snapshot, PLAIN, (120, 60)));
    assert!(reported.contains("ended 14:03:05, peak 12.3 GiB on GPU 1"), "{reported}");
    let reported = text(&frame(&mut state(false, &snapshot), &snapshot, PLAIN, (120, 40)));
    assert!(reported.contains("ended 14:03:05: render"), "{reported}");
}
