use memwatch_core::snapshot::{MergedFrameView, NativeView, StackView};

use super::*;
use crate::render::fixture;

fn reported(snapshot: &Snapshot, which: AttributionList, top: usize) -> String {
    reported_of(snapshot, AttributionQuery { which, top, frames: FrameDetail::Lines })
}

fn reported_of(snapshot: &Snapshot, wanted: AttributionQuery) -> String {
    let mut out = Vec::new();
    let options = TableOptions::default();
    write(&mut out, snapshot, wanted, &fixture::clock(), &options).expect("memory takes all");
    String::from_utf8(out).expect("text is UTF-8")
}

#[test]
fn a_training_is_reported_by_phase() {
    assert_eq!(reported(&fixture::training_node(), AttributionList::Phases, 20), include_str!("stages.txt"));
}

#[test]
fn a_training_is_reported_by_module() {
    assert_eq!(reported(&fixture::training_node(), AttributionList::Modules, 20), include_str!("layers.txt"));
}

#[test]
fn a_training_is_reported_by_line() {
    assert_eq!(reported(&fixture::training_node(), AttributionList::Sites, 20), include_str!("sites.txt"));
}

#[test]
fn attribution_text_sums_hidden_rows_in_the_last_row() {
    let reported = reported(&fixture::training_node(), AttributionList::Sites, 1);
    assert!(reported.contains("(pre-existing)\n") && reported.contains("(all others)\n"), "{reported}");
    assert!(!reported.contains("net.py:17 Attention.forward\n  "), "{reported}");
}

#[test]
fn a_large_block_that_is_older_than_the_watch_has_no_time() {
    let mut snapshot = fixture::training_node();
    let tensors = snapshot.processes[0].tensors.as_mut().expect("it trains");
    tensors.attribution.devices[0].large[0].granted_ns = None;
    let reported = reported(&snapshot, AttributionList::Sites, 1);
    assert!(reported.contains("large block: 2.00 GiB from before attach: "), "{reported}");
}

#[test]
fn a_program_that_has_ended_is_ranked_by_its_peak() {
    let mut snapshot = fixture::training_node();
    let process = &mut snapshot.processes[0];
    process.ended_ns = Some(snapshot.time_ns);
    let device = &mut process.tensors.as_mut().expect("it trains").attribution.devices[0];
    for (at, site) in device.sites.iter_mut().enumerate() {
        // The largest call site at the peak has freed everything, and little is left at the exit.
        (site.sum.live_bytes, site.sum.at_peak_bytes) = if at == 1 { (0, 70 << 30) } else { (1 << 20, 1 << 20) };
    }
    let reported = reported(&snapshot, AttributionList::Sites, 1);
    assert!(reported.lines().next().is_some_and(|line| line.ends_with("  ended: ranked AT PEAK")), "{reported}");
    assert!(reported.lines().nth(2).is_some_and(|row| row.contains("0 B  70.00 GiB")), "{reported}");
}

#[test]
fn a_machine_without_pytorch_has_no_list() {
    let reported = reported(&fixture::quiet_node(), AttributionList::Phases, 20);
    assert_eq!(reported.lines().count(), 1, "the command's error says why: {reported}");
}

fn frame(kind: &'static str, function: Option<&str>, file: &str) -> MergedFrameView {
    MergedFrameView {
        kind: kind.into(),
        file: Some(file.to_owned()),
        line: (kind == "python").then_some(12),
        function: function.map(|name| format!("{name}(int)")),
        name: function.map(str::to_owned),
        address: (kind != "python").then_some(0x1F0),
        module: None,
    }
}

#[test]
fn native_frames_surround_python_frames_and_mark_missing_ones() {
    let frames = vec![
        frame("native", Some("at::empty\u{1b}"), "/w/libtorch_cpu.so"),
        frame("interpreter", Some("PyObject_Call"), "/usr/bin/python3"),
        frame("python", Some("main"), "train.py"),
        frame("native", None, "/lib/libc.so.6"),
    ];
    let native = NativeView { frames, end: "copy_ends".into(), cut: Some(3), mismatched: false };
    let mut snapshot = fixture::training_node();
    let tensors = snapshot.processes[0].tensors.as_mut().expect("it has tensors");
    tensors.native_stacks = [("complete".into(), 3), ("copy_ends".into(), 2)].into();
    tensors.stacks_left_out = 12;
    let stack = StackView { frames: Vec::new(), truncated: false, native: Some(native), sum: SumView::default() };
    tensors.attribution.devices[0].stacks = vec![stack];
    let reported =
        reported_of(&snapshot, AttributionQuery { which: AttributionList::Sites, top: 1, frames: FrameDetail::Native });
    let expected = "\
0 B live, 0 B in 0 allocations:
  at::empty\\x1b  libtorch_cpu.so
  train.py:12 main
  (native frames are missing from here on: more of the stack was not copied)
  0x1f0  libc.so.6
";
    assert!(reported.contains(expected), "{reported}");
    assert!(reported.contains("native stacks that are not whole: 2 (more of the stack was not copied)"), "{reported}");
    assert!(reported.contains("12 stacks are not shown: the program has too many different ones"), "{reported}");
    assert!(
        !reported_of(&snapshot, AttributionQuery { which: AttributionList::Sites, top: 1, frames: FrameDetail::Lines })
            .contains("native")
    );
}

#[test]
fn attribution_text_states_why_no_stack_is_shown() {
    let mut snapshot = fixture::training_node();
    let wanted = AttributionQuery { which: AttributionList::Sites, top: 1, frames: FrameDetail::Native };
    snapshot.processes[0].tensors.as_mut().expect("it has tensors").attribution.devices[0].stacks.clear();
    let living = reported_of(&snapshot, wanted);
    assert!(living.contains("no stacks: no block that is live has one"), "{living}");
    snapshot.processes[0].ended_ns = Some(snapshot.time_ns);
    let ended = reported_of(&snapshot, wanted);
    assert!(ended.contains("no stacks: the program has ended") && ended.contains("--until 10s"), "{ended}");
    assert!(!reported_of(&snapshot, AttributionQuery { frames: FrameDetail::Lines, ..wanted }).contains("no stacks"));
}
