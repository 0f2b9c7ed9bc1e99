use memwatch_core::features::leak::view::{AgeView, BlocksView, ReadingsView, RetainerView};
use memwatch_core::input::holdings::HoldingClass;
use memwatch_core::snapshot::WindowsView;

use super::*;
use crate::render::fixture;

fn finding(verdict: Verdict, line: u32, per_minute: f64) -> LeakView {
    LeakView {
        verdict,
        level: "tensor".into(),
        device: Some(0),
        uuid: None,
        kind: Some("line".into()),
        file: Some("train.py".to_owned()),
        line: Some(line),
        held: None,
        function: Some("step\u{1b}[2J".to_owned()),
        bytes_per_minute: per_minute,
        late_bytes_per_minute: per_minute / 2.0,
        p: 0.002,
        late_p: 0.01,
        points: 30,
        steps: None,
        first_ns: 0,
        last_ns: 60_000_000_000,
        first_bytes: 0,
        last_bytes: 64 << 20,
        turnover_ns: None,
        ages: Some(vec![
            AgeView { below_ns: Some(1_000_000_000), bytes: 1 << 20 },
            AgeView { below_ns: Some(10_000_000_000), bytes: 0 },
            AgeView { below_ns: None, bytes: 63 << 20 },
        ]),
        retainers: Vec::new(),
        read_bytes: 0,
        grows_in_number: true,
        blocks: None,
    }
}

fn reported(findings: Vec<LeakView>, top: usize) -> String {
    printed(findings, top, None)
}

fn printed(findings: Vec<LeakView>, top: usize, readings: Option<ReadingsView>) -> String {
    printed_of(&fixture::training_node(), findings, top, readings)
}

fn printed_of(snapshot: &Snapshot, findings: Vec<LeakView>, top: usize, readings: Option<ReadingsView>) -> String {
    let process = &snapshot.processes[0];
    let leaks = LeaksView {
        readings,
        tgid: process.tgid,
        observed_since_ns: process.observed_since_ns,
        windows: Some(30),
        too_short: 2,
        findings,
        ..LeaksView::default()
    };
    let mut out = Vec::new();
    write(&mut out, (&[leaks], top), snapshot, &fixture::clock(), &TableOptions::default()).expect("memory takes all");
    String::from_utf8(out).expect("text is UTF-8")
}

#[test]
fn leak_text_lists_growing_lines_with_their_rate_and_counts_the_rest() {
    let all = vec![
        finding(Verdict::Leak, 12, 67_108_864.0),
        finding(Verdict::LevelledOff, 7, 0.0),
        finding(Verdict::Steady, 3, 0.0),
    ];
    let reported = reported(all, 10);
    assert!(reported.contains("1 leaking, 0 slowly, 1 levelled off, 1 steady; 30 samples in "), "{reported}");
    assert!(reported.contains("leak          +64.0 MiB/min  +32.0 MiB/min"), "{reported}");
    assert!(
        reported.contains("train.py:12 step") && reported.contains("levelled off") && !reported.contains("train.py:3 "),
        "{reported}"
    );
    assert!(!reported.contains('\u{1b}'), "{reported}");
}

#[test]
fn lines_that_are_sampled_grow_by_at_least_so_much() {
    let mut snapshot = fixture::training_node();
    let sampled = |snapshot: &Snapshot| printed_of(snapshot, vec![finding(Verdict::Leak, 12, 64e6)], 5, None);
    let sentence = "lines are sampled: growth values are lower bounds";
    assert!(!sampled(&snapshot).contains(sentence));
    let tensors = snapshot.processes[0].tensors.as_mut().expect("it has PyTorch");
    tensors.windows = Some(WindowsView { windows: 3, discarded: 0, open_ns: 600_000_000 });
    assert!(sampled(&snapshot).contains(sentence));
}

#[test]
fn leak_text_explains_growth_with_age_and_turnover() {
    let text = reported(vec![finding(Verdict::Leak, 12, 67_108_864.0), finding(Verdict::LevelledOff, 7, 0.0)], 10);
    let why = "why GPU -: train.py:12 step\\x1b[2J: it grows at +64.0 MiB/min (confidence 99.8 %), and still grows: \
               +32.0 MiB/min recently (confidence 99.0 %); now held: 1.0 MiB below 1 s, 63.0 MiB older";
    assert!(text.contains(why), "{text}");
    assert!(!text.contains("why GPU -: train.py:7"), "{text}");
    let replaced = LeakView { turnover_ns: Some(12_000_000_000), ages: None, ..finding(Verdict::Slow, 12, 9.0) };
    let text = reported(vec![replaced], 10);
    assert!(text.contains("; what it holds is replaced every 12 s\n"), "{text}");
    let at_once = LeakView { turnover_ns: Some(20_000_000), ages: None, ..finding(Verdict::Slow, 12, 9.0) };
    assert!(!reported(vec![at_once], 10).contains("replaced"));
    let leaking = LeakView { turnover_ns: Some(12_000_000_000), ages: None, ..finding(Verdict::Leak, 12, 9.0) };
    assert!(!reported(vec![leaking], 10).contains("replaced"));
}

#[test]
fn a_run_of_few_seconds_is_judged_by_its_steps() {
    let by_steps = LeakView { steps: Some(35), ..finding(Verdict::Leak, 12, 9.0) };
    let text = reported(vec![by_steps], 10);
    assert!(text.contains("1 leaking, 0 slowly, 0 levelled off, 0 steady; 35 steps in "), "{text}");
}

#[test]
fn leak_text_says_levelled_off_only_if_nothing_else_may_leak() {
    let cache = || LeakView { first_bytes: 10 << 20, late_p: 0.4, ..finding(Verdict::LevelledOff, 7, 0.0) };
    let of = |findings, too_short| settled(&LeaksView { findings, too_short, ..LeaksView::default() });
    let text = of(vec![cache(), finding(Verdict::Steady, 3, 0.0)], 0).expect("a sentence");
    assert_eq!(text.replace("\\x1b[2J", ""), "no leak: train.py:7 step grew from 10.0 MiB to 64.0 MiB and has stopped");
    assert!(of(vec![cache(), cache(), cache()], 0).is_some_and(|text| text.ends_with(", and so have 2 others")));
    assert_eq!(of(vec![cache(), finding(Verdict::Slow, 3, 9.0)], 0), None);
    assert_eq!((of(vec![cache()], 1), of(Vec::new(), 0)), (None, None));
    let slower = LeakView { late_p: 0.001, late_bytes_per_minute: 55_574_528.0, ..cache() };
    assert_eq!(of(vec![slower.clone()], 0), None, "it grows on");
    let text = reported(vec![LeakView { bytes_per_minute: 308_281_344.0, ..slower }], 10);
    assert!(
        text.contains(
            " still grows, more slowly than before: +53.0 MiB/min recently, +294.0 MiB/min overall. This may be a cache"
        ),
        "{text}"
    );
}

#[test]
fn rows_beyond_the_wanted_are_counted_and_a_short_look_says_so() {
    let many = (0..5).map(|line| finding(Verdict::Slow, line, 9.0)).collect();
    assert!(reported(many, 2).contains("and 3 more\n"));
    let short = reported(Vec::new(), 2);
    assert!(short.contains(": no verdict yet; 30 samples in "), "{short}");
    let sentence =
        "2 lines have no verdict: a verdict takes 10 samples (one per second and step), or 20 steps; watch longer";
    assert!(short.contains(sentence), "{short}");
}

fn kept(class: HoldingClass, name: &str, kept_by: Option<&str>) -> RetainerView {
    let full = |index: u64| Some(kept_by.unwrap_or(name).replace('*', &index.to_string()));
    let (name, kept_by) = (Some(name.to_owned()), kept_by.map(str::to_owned));
    RetainerView { class, name, kept_by, bytes: 6 << 20, count: 12, oldest: full(0), newest: full(11) }
}

#[test]
fn leak_text_names_the_retainers_of_a_growing_line() {
    let retainers = vec![
        kept(HoldingClass::Tensor, "train.py:main: history[*]", None),
        kept(HoldingClass::SavedForBackward, "ExpBackward0", Some("losses[*]")),
        RetainerView {
            count: 1,
            newest: Some("exp_avg of h.0.weight".to_owned()),
            ..kept(HoldingClass::OptimizerState, "exp_avg of h.*.weight", None)
        },
        kept(HoldingClass::Tensor, "cache\u{1b}", None),
    ];
    let text = reported(vec![LeakView { ages: None, retainers, ..finding(Verdict::Leak, 12, 9.0) }], 10);
    let sentence = "; kept by train.py:main: history[*] (12 tensors, 6.0 MiB; newest history[11]), \
                    the graph of losses[*] (saved by ExpBackward0) (12 blocks, 6.0 MiB; newest losses[11]), \
                    optimizer state: exp_avg of h.*.weight (1 block, 6.0 MiB; newest exp_avg of h.0.weight), and 1 more\n";
    assert!(text.contains(sentence), "{text}");
}

#[test]
fn a_name_that_grows_is_reported_with_its_blocks_and_with_what_was_read() {
    let by_name = LeakView {
        level: "name".into(),
        retainers: vec![kept(HoldingClass::Tensor, "train.py:main: history[*]", None)],
        blocks: Some(BlocksView { first: 2, last: 12, came: 11, stayed: 10 }),
        ages: None,
        ..finding(Verdict::Leak, 12, 67_108_864.0)
    };
    let readings = ReadingsView {
        count: 30,
        standing: 1,
        read_bytes: 60 << 20,
        processor_ns: 3_000_000_000,
        first_bytes: Some(1 << 20),
        last_bytes: Some(6 << 20),
        ended: Some("the process has ended".to_owned()),
        ..ReadingsView::default()
    };
    let text = printed(vec![by_name], 10, Some(readings));
    for part in [
        "1 leaking, 0 slowly, 0 levelled off, 0 steady; 30 readings in ",
        "cuda:0: train.py:main: history[*]\n",
        "2 blocks in the first reading, 12 in the last; 11 came meanwhile, and 10 of them stayed; oldest history[0], newest history[11]\n",
        "2 names have no verdict: a verdict takes 10 readings; the program ended before that\n",
        "all blocks: 1.0 MiB in the first reading, 6.0 MiB in the last\n",
        "no more readings: the process has ended\n",
        "1 reading has only the blocks that stood still for 80 ms",
        "only read, nothing attached: 30 readings of 2.0 MiB and 100 ms of processor time each\n",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}
