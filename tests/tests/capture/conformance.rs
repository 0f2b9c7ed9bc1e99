//! Every family of the driver API through real uprobes, alone and concurrently: memwatch's numbers
//! equal the simulator's to the byte.

use std::collections::BTreeSet;
use std::process::Command;

use memwatch_common::probes::{PROBES, When};
use memwatch_tests::oracle::{Agreement, assert_all_agree};
use memwatch_tests::scenarios::{PROLOGUE, PROLOGUE_COVERS, SCENARIOS};
use memwatch_tests::test;
use memwatch_tests::{PrologueShape, RunningWatch, SimulatedGpu, SimulatedWorkload};

/// Number of threads that run a scenario concurrently, and how often each runs it.
const THREADS: usize = 32;
const TURNS: usize = 4;

/// Runs one command as the only thread, number 0. A command after `!` must be refused.
fn run(workload: &mut SimulatedWorkload, line: &str) {
    let (line, must_fail) = line.strip_prefix('!').map_or((line, false), |line| (line, true));
    let answer = workload.ask(&line.replace('$', "0"));
    assert_eq!(answer["result"] != 0, must_fail, "{line}: {answer}");
    assert!(answer["error"].is_null(), "{line}: {answer}");
}

fn start(gpu: &SimulatedGpu) -> SimulatedWorkload {
    let mut workload = gpu.workload();
    for line in PROLOGUE {
        run(&mut workload, line);
    }
    workload
}

/// Runs all scenarios step by step, each in its own process. One report covers one step of all.
fn alone(gpu: &SimulatedGpu, watch: &mut RunningWatch, agreement: Agreement) {
    let mut running: Vec<_> = SCENARIOS.iter().map(|scenario| (scenario, start(gpu))).collect();
    for step in 0.. {
        running.retain_mut(|(scenario, workload)| {
            let is_over = step == scenario.steps.len();
            if is_over {
                workload.end();
            }
            !is_over
        });
        if running.is_empty() {
            return;
        }
        for (scenario, workload) in &mut running {
            eprintln!("step {step}: {}", scenario.name);
            scenario.steps[step].iter().for_each(|line| run(workload, line));
        }
        let workloads: Vec<_> = running.iter().map(|(_, workload)| workload).collect();
        assert_all_agree(gpu, watch, &workloads, agreement);
    }
}

/// Runs each scenario that allows it on many threads of one process concurrently.
fn together(gpu: &SimulatedGpu, watch: &mut RunningWatch, agreement: Agreement) {
    let stormed = SCENARIOS.iter().filter(|scenario| !scenario.alone).map(|scenario| {
        let mut workload = start(gpu);
        let script = gpu.directory().join("storm");
        let lines: Vec<&str> = ["device 0"].into_iter().chain(scenario.steps.concat()).collect();
        std::fs::write(&script, lines.join("\n")).expect("a script in the temporary directory");
        let answer = workload.ask(&format!("storm {THREADS} {TURNS} {}", script.display()));
        assert_eq!((&answer["result"], &answer["failed"]), (&0.into(), &0.into()), "{}: {answer}", scenario.name);
        workload
    });
    let mut stormed: Vec<_> = stormed.collect();
    assert_all_agree(gpu, watch, &stormed.iter().collect::<Vec<_>>(), agreement.except_peaks());
    stormed.iter_mut().for_each(SimulatedWorkload::end);
}

fn agrees(shape: PrologueShape, options: &[&str], agreement: Agreement) {
    let gpu = SimulatedGpu::new(shape);
    let mut watch = gpu.watch(options);
    alone(&gpu, &mut watch, agreement);
    together(&gpu, &mut watch, agreement);
}

#[test(alone)]
fn every_family_agrees_with_the_driver_on_prologues_that_begin_with_cmp() {
    agrees(PrologueShape::Cmp, &[], Agreement::CallsOnly);
}

#[test(alone)]
fn every_family_agrees_with_the_driver_on_prologues_that_begin_with_push() {
    agrees(PrologueShape::Push, &[], Agreement::Exact);
}

#[test(alone)]
fn every_family_agrees_with_the_driver_through_classic_uprobes() {
    agrees(PrologueShape::Push, &["--classic-uprobes"], Agreement::CallsOnly);
}

#[test(alone)]
fn every_probed_function_has_a_scenario_that_really_calls_it() {
    let covered: BTreeSet<&str> =
        SCENARIOS.iter().flat_map(|scenario| scenario.covers).chain(PROLOGUE_COVERS).copied().collect();
    let rows: BTreeSet<&str> = PROBES.iter().map(|probe| probe.symbol).collect();
    assert_eq!(covered, rows, "left: in a scenario, right: in the table");
    let gpu = SimulatedGpu::new(PrologueShape::Push);
    for scenario in SCENARIOS {
        let log = gpu.directory().join("calls");
        let mut command: Command = gpu.workload_command();
        command.env("GPUSIM_CALLS", &log);
        let mut workload = SimulatedWorkload::start(command);
        for line in PROLOGUE.iter().chain(scenario.steps.iter().copied().flatten()) {
            run(&mut workload, line);
        }
        workload.end();
        let called = std::fs::read_to_string(&log).expect("the simulator's list of called functions");
        for symbol in scenario.covers.iter().chain(PROLOGUE_COVERS) {
            assert!(called.lines().any(|line| line == *symbol), "{} does not call {symbol}", scenario.name);
        }
        std::fs::remove_file(&log).expect("it is ours");
    }
    assert!(PROBES.iter().any(|probe| probe.when != When::Always), "rows on demand are rows");
}
