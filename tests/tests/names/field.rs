//! Programs of public bug reports, examined as their owners would, at the default budget: with late
//! attach and from the start. `docs/project/field.md` lists more.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use memwatch_tests::test;
use memwatch_tests::{CommandOutcome, PrologueShape, RunningProgram, SimulatedGpu, TorchAllocator};
use serde_json::Value;

/// Duration of the programs in seconds, and of each watch.
const RUN_SECONDS: &str = "40";
const WATCHED: &str = "20s";
/// Delay of a late attach. Memory held by then is older than the watch.
const LATE: Duration = Duration::from_secs(6);

/// Programs that grow, and words of their first cause.
const GROWING: [(&str, [&str; 2]); 4] = [
    ("cycle", ["no variable leads to them", "<Span>.tensor"]),
    ("linked_list", ["canvas.history", "keeps growing"]),
    ("epoch_outputs", ["loop.saved[*]", "is filled faster than it is emptied"]),
    ("best_copies", ["best.by_score[*]", "is filled faster than it is emptied"]),
];
/// Programs that do not grow, and a name of their memory.
const STANDING: [(&str, &str); 2] = [("pages", "pool.pages[*]"), ("flat", "param_groups[*][*][*]")];

/// Starts the programs together with a recording of all of them. Returns their process ids by name.
fn started(gpu: &SimulatedGpu, names: &[&str], file: &str) -> (RunningProgram, BTreeMap<String, String>) {
    let job = gpu.torch_command("2.15", TorchAllocator::Native, &[&["many.py", RUN_SECONDS, "field"], names].concat());
    let mut run = gpu.memwatch(&["run", "-o", file, "--"]);
    run.envs(job.get_envs().filter_map(|(name, value)| Some((name, value?))));
    run.arg(job.get_program()).args(job.get_args());
    let mut program = RunningProgram::start(run);
    let line = program.until_line_with("running");
    let running: Value = serde_json::from_str(&line).expect("it reports what runs");
    let tgids = running["pids"].as_object().expect("numbers by name");
    (program, tgids.iter().map(|(name, tgid)| (name.clone(), tgid.to_string())).collect())
}

/// Returns the first cause in a report.
fn first_cause(report: &str) -> &str {
    report.lines().find_map(|line| line.strip_prefix("cause")).unwrap_or_default()
}

/// Returns a message if a report on a growing program lacks the expected cause.
fn wrong(name: &str, words: [&str; 2], report: &str) -> Option<String> {
    let cause = first_cause(report);
    (!words.iter().all(|word| cause.contains(word))).then(|| format!("{name}: {words:?}\n{report}"))
}

#[test]
fn programs_of_public_reports_have_their_cause_late_and_from_the_start() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let file = gpu.directory().join("field.mwr").display().to_string();
    let names: Vec<&str> = GROWING.iter().map(|(name, _)| *name).chain(STANDING.map(|(name, _)| name)).collect();
    let (mut run, tgids) = started(&gpu, &names, &file);
    thread::sleep(LATE);
    let ask = |words: &[&str], name: &str| {
        let outcome = CommandOutcome::of(gpu.memwatch(&[words, &["--pid", &tgids[name]]].concat()));
        outcome.assert_ended_with(0, &[]);
        outcome.stdout
    };
    let mut found: Vec<String> = thread::scope(|scope| {
        let ask = &ask;
        let late = GROWING.map(|(name, words)| {
            let leak = ["--no-agent", "leak", "--duration", WATCHED];
            scope.spawn(move || wrong(name, words, &ask(&leak, name)).map(|wrong| format!("late: {wrong}")))
        });
        late.into_iter().filter_map(|asked| asked.join().expect("it ends")).collect()
    });
    for (name, word) in STANDING {
        let report = ask(&["--no-agent", "holdings"], name);
        found.extend((!report.contains(word)).then(|| format!("{name}: {word}\n{report}")));
    }
    assert_eq!(run.end(), 0);
    for (name, words) in GROWING {
        let report = ask(&["leak", "--in", &file], name);
        found.extend(wrong(name, words, &report).map(|wrong| format!("from the start: {wrong}")));
    }
    assert!(found.is_empty(), "{} answers:\n{}", found.len(), found.join("\n"));
}
