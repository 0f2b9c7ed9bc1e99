//! Programs of public reports, each asked as its owner would ask, at the default budget: late, and from the start. `docs/field.md` lists them.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use memwatch_tests::{Allocator, Gpu, Outcome, Program, Shape};
use serde_json::Value;

/// How long they run, in seconds, and how long each is watched.
const RUN_SECONDS: &str = "60";
const WATCHED: &str = "25s";
/// Watched late: what they had by then is older than the watch.
const LATE: Duration = Duration::from_secs(6);

/// A program that grows: words of its first cause.
const GROWING: [(&str, [&str; 2]); 14] = [
    ("running_sum", ["meters['sparse'].total", "is a running sum that keeps its autograd graph"]),
    ("cycle", ["no variable leads to them", "<Span>.tensor"]),
    ("joined", ["total.logits", "replaced by ever longer ones"]),
    ("epoch_outputs", ["saved['train'][*]['output']", "grows, and nothing is taken out of it"]),
    ("bound_method", ["no variable leads to them", "<Policy>"]),
    ("stream_per_call", ["free memory lies with streams", "cannot share it"]),
    ("graph_per_shape", ["captured[*]", "grows, and nothing is taken out of it"]),
    ("thread_grad", ["frames: state", "autograd graph"]),
    ("best_copies", ["by_score[*]", "grows, and nothing is taken out of it"]),
    ("carried_state", ["carried.hidden", "autograd graph"]),
    ("linked_list", ["canvas.history", "keeps more and more"]),
    ("checkpointed", ["terms[*]", "keeps autograd graphs"]),
    ("queue", ["waiting[*]", "is filled faster than it is emptied"]),
    ("kept_errors", ["an exception that is kept", "ERRORS[*]"]),
];
/// A program that stands: what names its memory.
const STANDING: [(&str, &str); 3] = [("pages", "pool.pages[*]"), ("flat", "optimizer"), ("busy", "runner.caches[*]")];

/// The programs while they run, by their names, beside a recording of all of them.
fn started(gpu: &Gpu, names: &[&str], file: &str) -> Option<(Program, BTreeMap<String, String>)> {
    let job = gpu.torch_command("2.15", Allocator::Native, &[&["many.py", RUN_SECONDS, "field"], names].concat())?;
    let mut run = gpu.memwatch(&["run", "-o", file, "--"]);
    run.envs(job.get_envs().filter_map(|(name, value)| Some((name, value?))));
    run.arg(job.get_program()).args(job.get_args());
    let mut program = Program::start(run);
    let line = program.until_line_with("running");
    let running: Value = serde_json::from_str(&line).expect("it reports what runs");
    let tgids = running["pids"].as_object().expect("numbers by name");
    Some((program, tgids.iter().map(|(name, tgid)| (name.clone(), tgid.to_string())).collect()))
}

/// The first cause that a report names.
fn first_cause(report: &str) -> &str {
    report.lines().find_map(|line| line.strip_prefix("cause")).unwrap_or_default()
}

/// What is not as it should be in a report on a program that grows.
fn wrong(name: &str, words: [&str; 2], report: &str) -> Option<String> {
    let cause = first_cause(report);
    (!words.iter().all(|word| cause.contains(word))).then(|| format!("{name}: {words:?}\n{report}"))
}

#[test]
fn programs_of_public_reports_have_their_cause_late_and_from_the_start() {
    let Some(gpu) = Gpu::new(Shape::Cmp) else { return };
    let file = gpu.directory().join("field.mwr").display().to_string();
    let names: Vec<&str> = GROWING.iter().map(|(name, _)| *name).chain(STANDING.map(|(name, _)| name)).collect();
    let Some((mut run, tgids)) = started(&gpu, &names, &file) else { return };
    thread::sleep(LATE);
    let ask = |words: &[&str], name: &str| {
        let outcome = Outcome::of(gpu.memwatch(&[words, &["--pid", &tgids[name]]].concat()));
        outcome.assert_ended_with(0, &[]);
        outcome.stdout
    };
    let mut found: Vec<String> = thread::scope(|scope| {
        let late = GROWING.map(|(name, words)| {
            let leak = ["--no-agent", "leak", "--duration", WATCHED];
            scope.spawn(move || wrong(name, words, &ask(&leak, name)).map(|wrong| format!("late: {wrong}")))
        });
        let standing = STANDING.map(|(name, word)| {
            scope.spawn(move || {
                let report = ask(&["--no-agent", "holdings"], name);
                (!report.contains(word)).then(|| format!("{name}: {word}\n{report}"))
            })
        });
        late.into_iter().chain(standing).filter_map(|asked| asked.join().expect("it ends")).collect()
    });
    assert_eq!(run.end(), 0);
    for (name, words) in GROWING {
        let report = ask(&["leak", "--in", &file], name);
        found.extend(wrong(name, words, &report).map(|wrong| format!("from the start: {wrong}")));
    }
    assert!(found.is_empty(), "{} answers:\n{}", found.len(), found.join("\n"));
}
