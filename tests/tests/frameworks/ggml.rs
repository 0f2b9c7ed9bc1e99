//! ggml's buffers as llama.cpp uses them: memwatch's numbers equal ggml's for buffers younger than
//! the attach.

use std::path::Path;
use std::process::Command;

use memwatch_tests::harness::cannot_run;
use memwatch_tests::report::ReportLine;
use memwatch_tests::test;
use memwatch_tests::{CommandOutcome, FrameworkRelease, PrologueShape, SimulatedGpu, TorchJob};
use serde_json::Value;

/// Returns the buffers of the only process that has some.
fn buffers(report: &Value) -> Option<&Value> {
    let mut all = report["data"]["processes"].as_array()?.iter().map(|process| &process["buffers"]);
    all.find(|buffers| !buffers.is_null())
}

/// Returns whether all of ggml's functions are probed, those of its pool for temporaries too.
fn is_traced(report: &ReportLine) -> bool {
    buffers(report.json()).is_some_and(|buffers| buffers["scratch_traced"] == true)
}

/// Returns the bytes of the known buffers of a usage, or `None` if no buffer has it.
fn of_usage(buffers: &Value, usage: &str) -> Option<u64> {
    let mut rows = buffers["devices"][0]["usages"].as_array()?.iter();
    rows.find(|row| row["usage"] == usage)?["bytes"].as_u64()
}

#[test]
fn a_process_of_llama_cpp_is_listed_with_its_framework() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let command = gpu.ggml_command(FrameworkRelease::Newest, &["ggml_job.py"]);
    let mut job = TorchJob::start(command);
    job.next_checkpoint().expect("the first checkpoint");
    let listed = CommandOutcome::of(gpu.memwatch(&["--no-agent", "ps"]));
    assert!(listed.stdout.contains("FRAMEWORK") && listed.stdout.contains(" ggml "), "{}", listed.stdout);
}

#[test]
fn late_attach_to_ggml_knows_younger_buffers_and_no_totals() {
    attached_late(FrameworkRelease::Newest);
}

#[test]
fn late_attach_to_the_oldest_llama_cpp_knows_younger_buffers_only() {
    attached_late(FrameworkRelease::Oldest);
}

fn attached_late(release: FrameworkRelease) {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let command = gpu.ggml_command(release, &["ggml_job.py"]);
    let mut job = TorchJob::start(command);
    job.next_checkpoint().expect("its weights are there");
    job.go_on();
    let cache = job.next_checkpoint().expect("its cache is there");
    assert_eq!(cache["label"], "cache");
    let mut watch = gpu.watch(&["--no-agent", "stats", &job.tgid().to_string()]);
    let report = watch.until(is_traced);
    let found = buffers(report.json()).expect("they are watched");
    assert_eq!(found["devices"].as_array().map(Vec::len), Some(0), "none is younger than the attach: {found:#}");
    job.go_on();
    let mut older = Some(cache["stats"]["kv_cache_bytes"].as_u64().expect("the cache has a size"));
    let mut checkpoints = 0;
    while let Some(checkpoint) = job.next_checkpoint() {
        let stats = &checkpoint["stats"];
        // The first cache is older than the attach, and is freed before the last but one.
        older = older.filter(|_| checkpoint["label"] != "shorter cache" && checkpoint["label"] != "end");
        let caches = stats["kv_cache_bytes"].as_u64().expect("ggml has a number") - older.unwrap_or(0);
        let compute = stats["compute_bytes"].as_u64();
        let scratch = stats["scratch_bytes"].as_u64();
        let rest = [("other", None), ("weights", None)];
        let expected = [("compute", compute), ("kv_cache", Some(caches)), ("scratch", scratch), rest[0], rest[1]];
        let agrees = |found: &Value| {
            expected.iter().all(|(usage, bytes)| of_usage(found, usage) == bytes.filter(|bytes| *bytes > 0))
        };
        let report = watch.until(|report| buffers(report.json()).is_some_and(agrees));
        let found = buffers(report.json()).expect("it agrees");
        assert_eq!((&found["exact"], &found["older_unknown"]), (&false.into(), &true.into()), "{found:#}");
        assert_eq!(found["out_of_step"], 0, "{found:#}");
        for number in ["buffers", "bytes_in_use", "peak_bytes_in_use", "num_buffers"] {
            assert!(found["devices"][0][number].is_null(), "{number} is that of all: {found:#}");
        }
        checkpoints += 1;
        job.go_on();
    }
    assert_eq!(checkpoints, 4);
}

#[test]
fn late_attach_to_ggml_prints_that_older_buffers_are_unknown() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let command = gpu.ggml_command(FrameworkRelease::Newest, &["ggml_job.py"]);
    let mut job = TorchJob::start(command);
    job.next_checkpoint().expect("its weights are there");
    for words in ["stats", "where"] {
        let shown = CommandOutcome::of(gpu.memwatch(&["--no-agent", words, &job.tgid().to_string()]));
        assert!(shown.stdout.contains("buffers from before the attach are not known"), "{words}: {shown:#?}");
    }
}

#[test]
fn a_cache_is_known_by_its_tensors_and_each_of_them_by_its_name() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let command = gpu.ggml_command(FrameworkRelease::Newest, &["ggml_job.py", "--early"]);
    let mut job = TorchJob::start(command);
    assert_eq!(job.next_checkpoint().expect("its library is there")["label"], "library");
    let mut watch = gpu.watch(&["--no-agent", "stats", &job.tgid().to_string()]);
    watch.until(is_traced);
    job.go_on();
    job.next_checkpoint().expect("its weights are there");
    job.go_on();
    assert_eq!(job.next_checkpoint().expect("its cache is there")["label"], "cache");
    let report =
        watch.until(|report| buffers(report.json()).is_some_and(|found| of_usage(found, "kv_cache") == Some(8 << 20)));
    let device = &buffers(report.json()).expect("they are watched")["devices"][0];
    assert_eq!(device["num_tensors"], 5, "{device:#}");
    let named = |name: &str| device["tensors"].as_array().and_then(|all| all.iter().find(|row| row["name"] == name));
    let cached = named("cache_v_l0").unwrap_or_else(|| panic!("{device:#}"));
    assert_eq!((&cached["usage"], &cached["bytes"]), (&"kv_cache".into(), &(4 << 20).into()));
    assert_eq!(named("token_embd.weight").expect("it has a name")["usage"], "weights");
}

/// Compiles a C++ program and its library. Ignores the test if there is no compiler.
fn compiled(gpu: &SimulatedGpu) -> Command {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads/ggml_throws.cpp");
    let (library, program) = (gpu.directory().join("libggml-base.so"), gpu.directory().join("throws"));
    let compile = |words: &[&str], out: &Path, libraries: &[&Path]| {
        let mut compiler = Command::new("c++");
        compiler.args(["-std=c++17", "-O1"]).args(words).arg("-o").arg(out).arg(&source).args(libraries);
        match compiler.status() {
            Ok(status) => assert!(status.success(), "{compiler:?}"),
            Err(error) => cannot_run(format!("no C++ compiler ({error}): run through `cargo xtask test`")),
        }
    };
    compile(&["-shared", "-fPIC", "-DLIBRARY"], &library, &[]);
    compile(&["-Wl,--unresolved-symbols=ignore-in-shared-libs"], &program, &[&library, &gpu.libcuda()]);
    let mut command = Command::new(program);
    gpu.apply(&mut command);
    command
}

#[test]
fn ggml_exception_through_probed_functions_does_not_end_the_program() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let command = compiled(&gpu);
    let mut job = TorchJob::start(command);
    assert_eq!(job.next_checkpoint().expect("it catches what is thrown")["caught"], 3);
    let mut watch = gpu.watch(&["--no-agent", "stats", &job.tgid().to_string()]);
    watch.until(|report| buffers(report.json()).is_some());
    job.go_on();
    assert_eq!(job.next_checkpoint().expect("it catches that with probes, too")["caught"], 3);
    job.go_on();
    assert_eq!(job.next_checkpoint(), None, "it ends by itself");
}
