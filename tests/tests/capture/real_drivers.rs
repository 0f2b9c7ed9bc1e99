//! Driver libraries of a distribution's packages, without a GPU: names, attach offsets and probes
//! of the real functions.
//!
//! The tests do not call cuInit: as root it would create a device node. Every other call returns
//! `CUDA_ERROR_NOT_INITIALIZED`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use memwatch_common::meaning::{Meaning, MemoryCall, PoolCall, VirtualCall};
use memwatch_common::probes::{PROBES, Probe, When};
use memwatch_tests::real_drivers::{RealDriver, RealDrivers};
use memwatch_tests::report::ReportLine;
use memwatch_tests::test;
use memwatch_tests::{CommandOutcome, PrologueShape, RunningWatch, SimulatedGpu, SimulatedWorkload};
use serde_json::Value;

const NOT_INITIALIZED: u64 = 3;
/// Number of a process's failed allocations that are kept with details.
const FAILURES_KEPT: usize = 16;

#[test(alone)]
fn the_functions_of_packaged_drivers_are_found_and_their_calls_recorded() {
    // Requires root, memwatch, and an NVML that is not the machine's.
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let real = RealDrivers::fetch();
    let mut calls = 0;
    for driver in &real.drivers {
        let library = examine(&gpu, driver);
        let found = symbols(&library["functions"]);
        let recorded = record_failures(&gpu, driver, &found);
        println!(
            "{}: {} of {} functions, {recorded} refused calls recorded",
            driver.package,
            found.len(),
            always().count()
        );
        for ((instruction, reason), count) in sites(&library) {
            println!("  {count:>3} at {instruction:<10} {reason}");
        }
        println!("  exports that nobody here knows: {}", library["unknown_exports"]);
        calls += recorded;
    }
    assert!(calls > 0, "not one of the libraries could be loaded");
}

/// Returns the probes that the doctor tries: the ones that are attached in every process.
fn always() -> impl Iterator<Item = &'static Probe> {
    PROBES.iter().filter(|probe| matches!(probe.when, When::Always | When::ContextChanges))
}

/// Returns the command of memwatch on this machine with a real libcuda.
fn memwatch(gpu: &SimulatedGpu, words: &[&str], libcuda: &Path) -> Command {
    let mut command = gpu.searching_memwatch(words);
    command.arg("--libcuda").arg(libcuda);
    command
}

/// Returns the doctor's report on the library, after checking it against the table of probes.
fn examine(gpu: &SimulatedGpu, driver: &RealDriver) -> Value {
    let outcome = CommandOutcome::of(memwatch(gpu, &["doctor", "--json"], &driver.libcuda));
    outcome.assert_ended_with(0, &[]);
    let report = ReportLine::parse(&outcome.stdout);
    let libraries = report.json()["data"]["libraries"].as_array().expect("libraries");
    let path = driver.libcuda.to_str().expect("a plain path");
    let library = libraries.iter().find(|library| library["path"] == path).expect("the library was examined").clone();
    assert_eq!(library["error"], Value::Null, "{library:#}");
    assert_eq!(library["kernel_calls"], serde_json::json!({ "probed": { "stubs": 1 } }), "{}", driver.package);
    let (found, missing) = (symbols(&library["functions"]), symbols(&library["missing"]));
    assert_eq!(found.len() + missing.len(), always().count(), "{}", driver.package);
    assert_eq!(library["probes_attached"], found.len(), "{}", driver.package);
    let since = |symbol: &String| PROBES.iter().find(|probe| probe.symbol == symbol).map(|probe| number(probe.since));
    let newest = found.iter().filter_map(since).max();
    let unattributed: Vec<&String> = missing.iter().filter(|symbol| since(symbol) <= newest).collect();
    assert!(unattributed.is_empty(), "{} lacks what is older than what it has: {unattributed:?}", driver.package);

    let outcome = CommandOutcome::of(memwatch(gpu, &["doctor"], &driver.libcuda));
    outcome.assert_ended_with(0, &[]);
    let sentence = format!("{} of {} functions probed", found.len(), always().count());
    let words: Vec<&str> = outcome.stdout.split_whitespace().collect();
    assert!(words.join(" ").contains(&sentence), "no {sentence:?} in {}", outcome.stdout);
    library
}

fn symbols(list: &Value) -> Vec<String> {
    let list = list.as_array().expect("a list");
    list.iter().map(|one| one["symbol"].as_str().expect("a name").to_owned()).collect()
}

/// Converts a version such as `12.5` to a number that can be compared.
fn number(version: &str) -> u32 {
    let (major, minor) = version.split_once('.').expect("major and minor");
    let part = |text: &str| text.parse::<u32>().expect("a number");
    part(major) * 1000 + part(minor)
}

fn sites(library: &Value) -> BTreeMap<(String, String), usize> {
    let mut sites = BTreeMap::new();
    for function in library["functions"].as_array().expect("functions") {
        let stepped = function["single_stepped"] == true;
        assert!(!stepped || function["offset_bytes"] == 0, "in doubt the entry is kept: {function:#}");
        let text = |field: &str| function[field].as_str().expect("a text").to_owned();
        *sites.entry((text("instruction"), text("reason"))).or_insert(0) += 1;
    }
    sites
}

/// Calls every allocating function whose second argument is a size. Each call must fail and be
/// counted.
fn record_failures(gpu: &SimulatedGpu, driver: &RealDriver, found: &[String]) -> usize {
    let asks = |meaning| {
        matches!(
            meaning,
            Meaning::Memory(MemoryCall::Allocate { .. })
                | Meaning::Pool(PoolCall::AllocateFromPool { .. })
                | Meaning::Virtual(VirtualCall::CreatePhysical)
        )
    };
    let asking = PROBES.iter().filter(|probe| asks(probe.meaning) && probe.symbol != "cuMemAllocPitch_v2");
    let asking: Vec<&str> =
        asking.map(|probe| probe.symbol).filter(|symbol| found.iter().any(|own| own == symbol)).collect();
    assert!(!asking.is_empty() && asking.len() <= FAILURES_KEPT, "{asking:?}");
    let mut job = Command::new("python3");
    job.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads/uninitialised.py")).arg(&driver.libcuda);
    let mut job = SimulatedWorkload::start(job);
    if let Some(error) = job.ask("tgid 0")["error"].as_str() {
        eprintln!("{}: calls not tried: {error}", driver.package);
        return 0;
    }
    let mut watch = RunningWatch::start(memwatch(gpu, &["--pid", &job.tgid_word()], &driver.libcuda));
    let mut expected = Vec::new();
    for (bytes, symbol) in (65_536_u64..).zip(&asking) {
        assert_eq!(job.ask(&format!("{symbol} {bytes}"))["result"], NOT_INITIALIZED, "{}: {symbol}", driver.package);
        expected.push(((*symbol).to_owned(), bytes, NOT_INITIALIZED));
    }
    let report = watch.settled();
    let process = report.process(job.tgid()).expect("the target is reported");
    let failures = process.failures().iter().map(|failure| {
        let number = |field: &str| failure[field].as_u64().expect("a number");
        (failure["symbol"].as_str().expect("a name").to_owned(), number("requested_bytes"), number("status"))
    });
    assert_eq!(failures.collect::<Vec<_>>(), expected, "{}", driver.package);
    assert!(report.is_complete(), "{report:#?}");
    expected.len()
}
