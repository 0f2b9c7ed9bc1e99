//! Late attach: older memory has the names found in the process's memory, in every list.

use std::collections::BTreeMap;

use memwatch_tests::test;
use memwatch_tests::{CommandOutcome, PrologueShape, RunningProgram, SimulatedGpu, TorchAllocator, TorchJob, until};
use serde_json::Value;

use super::late_state::{at_state, run_until};

/// Bytes by name.
type NamedBytes = BTreeMap<String, u64>;

/// Starts `holdings.py` and waits for its first checkpoint.
fn held(gpu: &SimulatedGpu) -> TorchJob {
    let mut job = gpu.torch("2.8", TorchAllocator::Native, &["holdings.py"]);
    job.next_checkpoint().expect("it holds something");
    job
}

fn parsed(ended: &CommandOutcome) -> Value {
    serde_json::from_str(ended.stdout.lines().last().expect("it has reported")).expect("it prints JSON")
}

/// Returns the first device of the only process.
fn device(report: &Value) -> &Value {
    &report["data"]["processes"][0]["devices"][0]
}

fn bytes(row: &Value, field: &str) -> u64 {
    row[field].as_u64().unwrap_or_else(|| panic!("{field} of {row:#}"))
}

fn rows<'v>(of: &'v Value, list: &str) -> impl Iterator<Item = &'v Value> {
    of[list].as_array().into_iter().flatten()
}

fn text(row: &Value, field: &str) -> String {
    row[field].as_str().unwrap_or_default().to_owned()
}

/// Returns the live bytes that `holdings` reports, by class and pattern or by module.
fn by_holdings(gpu: &SimulatedGpu, job: &TorchJob, by: &str) -> NamedBytes {
    let tgid = job.tgid().to_string();
    let ended = gpu.run_memwatch(&["--json", "holdings", &tgid, "--by", by, "--top", "1000"]);
    let mut sums = NamedBytes::new();
    for group in rows(&parsed(&ended)["data"]["processes"][0], "groups") {
        let what = if by == "module" {
            text(group, "name")
        } else {
            format!("{} {}", text(group, "class"), text(group, "name"))
        };
        *sums.entry(what).or_default() += bytes(group, "bytes");
    }
    sums
}

/// Runs `where` until it has read the names.
fn places(gpu: &SimulatedGpu, job: &TorchJob, by: &str) -> Value {
    let tgid = job.tgid().to_string();
    let words = ["--no-agent", "--json", "where", "--pid", &tgid, "--by", by, "--top", "1000"];
    let is_named =
        |ended: &CommandOutcome| ended.code == 0 && ended.stdout.contains("parameter") | ended.stdout.contains("query");
    parsed(&run_until(gpu, &words, is_named))
}

#[test]
fn lines_and_modules_of_preexisting_memory_match_the_holdings() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let job = held(&gpu);
    let report = places(&gpu, &job, "line");
    let mut sums = NamedBytes::new();
    for site in rows(device(&report), "lines") {
        assert_eq!(site["kind"], "preexisting", "the process rests: {site:#}");
        let held = &site["held"];
        sums.insert(format!("{} {}", text(held, "class"), text(held, "name")), bytes(site, "allocated_bytes"));
    }
    assert_eq!(sums, by_holdings(&gpu, &job, "name"));
    let report = places(&gpu, &job, "module");
    let modules: NamedBytes = rows(device(&report), "modules")
        .filter(|module| module["kind"] == "module")
        .inspect(|module| assert_eq!(module["model"], "Net"))
        .map(|module| (text(module, "name"), bytes(module, "allocated_bytes")))
        .collect();
    let mut expected = by_holdings(&gpu, &job, "module");
    expected.remove("");
    assert_eq!(modules, expected);
    assert!(modules.contains_key("h.1.query"), "{modules:#?}");
}

/// A recording that begins in the middle has the older memory: by name, as call sites, in PyTorch's
/// own viewer, and in a replay.
#[test]
fn a_recording_that_began_late_has_what_was_there_before() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = gpu.torch("2.8", TorchAllocator::Native, &["late_books.py"]);
    at_state(&mut job, "pool");
    let tgid = job.tgid().to_string();
    let [file, pickle] = ["late.mwr", "late.pickle"].map(|name| gpu.directory().join(name).display().to_string());
    let mut recorder =
        RunningProgram::start(gpu.memwatch(&["record", "--tensors=modules", "--pid", &tgid, "-o", &file]));
    let holdings = ["--json", "holdings", "--in", &file];
    until("the recording has names", || (gpu.run_memwatch(&holdings).code == 0).then_some(()));
    job.go_on();
    let stopped = at_state(&mut job, "holes");
    recorder.signal(libc::SIGINT);
    assert_eq!(recorder.end(), 0);
    let held = parsed(&gpu.run_memwatch(&holdings));
    let process = &held["data"]["processes"][0];
    assert_eq!(bytes(&process["devices"][0], "allocated_bytes"), bytes(&stopped["devices"][0], "memory_allocated"));
    assert_eq!(process["named_bytes"], process["allocated_bytes"], "{process:#}");
    let lines = gpu.run_memwatch(&["where", "--in", &file]);
    assert!(lines.stdout.contains("(pre-existing) tensors late_books.py:states: plain[*]"), "{}", lines.stdout);
    let folded = gpu.run_memwatch(&["export", "-f", "folded", "-o", "-", "--in", &file]);
    assert!(folded.stdout.contains("(pre-existing) tensors late_books.py:states: pooled[*]"), "{}", folded.stdout);
    let replayed = parsed(&gpu.run_memwatch(&["--json", "simulate", "--in", &file]));
    let replayed = &replayed["data"]["devices"][0];
    assert_eq!((&replayed["older_reserved_bytes"], &replayed["lost"]), (&0.into(), &0.into()));
    assert!(bytes(replayed, "begun_with_bytes") > 0, "{replayed:#}");
    let own = rows(replayed, "policies").find(|policy| policy["as_it_ran"] == true).expect("its own setting is tried");
    for field in ["peak_reserved_bytes", "reserved_bytes", "allocated_bytes"] {
        assert_eq!(own[field], replayed["measured"][field], "{field}: {replayed:#}");
    }
    gpu.run_memwatch(&["snapshot", "--in", &file, "--force", "-o", &pickle]).assert_ended_with(0, &[]);
    let pickled = std::fs::read(&pickle).expect("it was written");
    let name = b"memwatch: before attach, tensors late_books.py:states: plain[0]";
    assert!(pickled.windows(name.len()).any(|part| part == name), "PyTorch's viewer shows the name as a frame");
}
