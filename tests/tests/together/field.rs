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

/// A program that grows: what its first cause is about, and the words of it.
const GROWING: [(&str, [&str; 2]); 14] = [
    ("running_sum", ["meters['sparse'].total", "is a running sum that keeps its autograd graph"]),
    ("cycle", ["no variable leads to them", "<Span>.tensor"]),
    ("joined", ["total.logits", "replaced by ever longer ones"]),
    ("epoch_outputs", ["saved['train'][*]['output']", "grows, and nothing is taken out of it"]),
    ("bound_method", ["no variable leads to them", "<Policy>"]),
    ("stream_per_call", ["free memory lies with streams", "cannot share it"]),
    ("graph_per_shape", ["captured[*]", "grows, and nothing is taken out of it"]),
    ("thread_grad", ["frames: state", "autograd graph"]),
    ("best_copies", ["by_score[*]", "copies of the parameters"]),
    ("carried_state", ["carried.hidden", "autograd graph"]),
    ("linked_list", ["canvas.history", "grows, and nothing is taken out of it"]),
    ("checkpointed", ["terms[*]", "keeps autograd graphs"]),
    ("queue", ["waiting[*]", "is filled faster than it is emptied"]),
    ("kept_errors", ["an exception that is kept", "ERRORS[*]"]),
];
/// A program that stands: what names its memory.
const STANDING: [(&str, &str); 3] = [("pages", "pool.pages[*]"), ("flat", "optimizer"), ("busy", "runner.caches[*]")];

/// The programs while they run, beside a recording of all of them.
fn started(gpu: &Gpu, names: &[&str], file: &str) -> Option<(Program, BTreeMap<String, String>)> {
    let job = gpu.torch_command("2.15", Allocator::Native, &[&["many.py", RUN_SECONDS, "field"], names].concat())?;
    let mut run = gpu.memwatch(&["run", "-o", file, "--"]);
    run.envs(job.get_envs().filter_map(|(name, value)| Some((name, value?))));
    run.arg(job.get_program()).args(job.get_args());
    let mut program = Program::start(run);
    let running: Value = serde_json::from_str(&program.line()).expect("it says what runs");
    let pids = running["pids"].as_object().expect("PIDs by name");
    Some((program, pids.iter().map(|(name, pid)| (name.clone(), pid.to_string())).collect()))
}

/// The first cause that a report names.
fn first_cause(report: &str) -> &str {
    report.lines().find_map(|line| line.strip_prefix("cause")).unwrap_or_default()
}
