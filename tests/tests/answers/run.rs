//! `memwatch run` watches a command from its first allocation. Everything except the summary is the
//! command's own.

use std::process::Command;

use memwatch_tests::contract;
use memwatch_tests::report::ReportLine;
use memwatch_tests::test;
use memwatch_tests::{CommandOutcome, PrologueShape, RunningProgram, SimulatedGpu};
use serde_json::Value;

/// Script of a program with two allocations, a refused one and an exit code of its own.
pub(crate) const SCRIPT: &str = "uuid 0\ndevice 0\nalloc a 4M\nalloc b 60M\nalloc huge 200G\nfree a\nexit 3\n";
/// What the summary of its run says.
pub(crate) const SUMMARY: [&str; 5] = [
    "peak        64.0 MiB on GPU 0; by kind device 64.0 MiB",
    "calls       2 allocations, 1 freed, 1 failed",
    "failed      out of memory: cuMemAlloc_v2 requested 200.00 GiB on GPU 0",
    "at its end  1 allocation not freed by the program",
    "complete",
];

/// Runs `memwatch run` on the workload program with this script on standard input.
fn run_script(gpu: &SimulatedGpu, options: &[&str], script: &str) -> CommandOutcome {
    let file = gpu.directory().join("script");
    std::fs::write(&file, script).expect("a script in the temporary directory");
    let mut shell = Command::new("sh");
    gpu.apply(&mut shell);
    shell.args(["-c", "exec \"$0\" < \"$1\""]).arg(gpu.workload_program()).arg(file);
    CommandOutcome::of(gpu.memwatch_run(options, &shell))
}

#[test(alone)]
fn run_sees_the_first_allocation_and_reports_the_peak_and_the_refusal() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let outcome = run_script(&gpu, &[], SCRIPT);
    outcome.assert_ended_with(3, &SUMMARY);
    // Standard output is only the command's.
    let lines: Vec<Value> = outcome.stdout.lines().map(|line| serde_json::from_str(line).expect("an answer")).collect();
    assert_eq!(lines.len(), 6, "{}", outcome.stdout);
    let outcome = run_script(&gpu, &["--json"], SCRIPT);
    outcome.assert_ended_with(3, &[]);
    let report = ReportLine::parse(outcome.stderr.lines().last().expect("a report"));
    assert_eq!(report.json()["schema"], "memwatch.run/3");
    contract::assert_kept(&report);
    let process = report.json()["data"]["processes"][0].clone();
    assert_eq!((&process["from_start"], &process["exact"]), (&true.into(), &true.into()));
    assert_eq!(process["failures"][0]["requested_bytes"], 200_u64 << 30);
    assert_eq!(report.json()["data"]["causes"][0]["kind"], "larger_than_gpu");
}

#[test(alone)]
fn run_passes_the_commands_end_on_where_nothing_can_be_reported() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut command = gpu.memwatch(&["run", "--", "sh", "-c", "exit 77"]);
    command.stderr(std::fs::File::create("/dev/full").expect("a device that takes nothing"));
    assert_eq!(command.status().expect("memwatch starts").code(), Some(77));
}

#[test(alone)]
fn run_passes_the_commands_end_on() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let no_program = gpu.directory().join("no-program");
    std::fs::write(&no_program, "data\n").expect("a file in the temporary directory");
    let no_program = no_program.to_str().expect("a plain path").to_owned();
    for (words, code) in [
        (&["true"][..], 0),
        (&["sh", "-c", "exit 77"], 77),
        (&["sh", "-c", "kill -KILL $$"], 128 + libc::SIGKILL),
        (&["sh", "-c", "kill -SEGV $$"], 128 + libc::SIGSEGV),
        (&["/nonexistent/program"], 127),
        (&["no-program-of-this-name"], 127),
        (&[&no_program], 126),
    ] {
        let outcome = gpu.run_memwatch(&[&["run", "--"], words].concat());
        outcome.assert_ended_with(code, &[words[0]]);
        assert!(!outcome.stderr.contains("--nvml-lib"), "memwatch speaks of itself: {outcome:#?}");
        assert_eq!(outcome.stdout, "", "{words:?}");
    }
}

#[test(alone)]
fn run_passes_sigterm_on_and_reports_all_the_same() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    // The command sends SIGTERM at once: memwatch must handle signals before it starts the command.
    let script = "trap 'exit 9' TERM; kill -TERM $PPID; while :; do sleep 0.1; done";
    let mut program = RunningProgram::start(gpu.memwatch(&["run", "--", "sh", "-c", script]));
    assert_eq!(program.end(), 9);
}
