//! The KV cache of an inference server in a recording, while it is written and afterwards.

use memwatch_tests::report::ReportLine;
use memwatch_tests::test;
use memwatch_tests::{CommandOutcome, PrologueShape, RunningProgram, SimulatedGpu, TorchAllocator, TorchJob, until};
use serde_json::{Value, json};

/// Classes with the released layouts of the engines.
const ENGINES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../memwatch/src/sources/python/tests");

fn server(gpu: &SimulatedGpu) -> (TorchJob, Value) {
    let mut job = gpu.torch("2.15", TorchAllocator::Native, &["serving.py", ENGINES]);
    let serving = job.next_checkpoint().expect("it serves");
    (job, serving)
}

fn kv_cache(report: &ReportLine, job: &TorchJob) -> Value {
    report.process(job.tgid()).map_or(Value::Null, |process| process.0["kv_cache"].clone())
}

/// Returns whether a reading of the pool has the program's own numbers.
fn equals(pool: &Value, checkpoint: &Value) -> bool {
    let truth = &checkpoint["pool"];
    let fill = json!({
        "blocks": truth["blocks"],
        "used_blocks": truth["used_blocks"],
        "free_blocks": truth["free_blocks"],
        "running_requests": truth["running"],
        "waiting_requests": truth["waiting"],
    });
    let content = json!({
        "shared_blocks": truth["shared_blocks"],
        "reusable_blocks": truth["reusable_blocks"],
        "empty_blocks": truth["empty_blocks"],
    });
    pool["fill"] == fill && pool["content"] == content
}

#[test]
fn kv_cache_of_a_server_is_followed_and_recorded() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let (mut job, serving) = server(&gpu);
    let tgid = job.tgid().to_string();
    let path = gpu.directory().join("server.mwr").display().to_string();
    let words = ["record", "--json", "--pid", &tgid, "-o", &path];
    let mut recorder = RunningProgram::start(gpu.memwatch(&words));
    let report = || {
        let outcome = gpu.run_memwatch(&["report", "--json", &path]);
        (outcome.code == 0).then(|| ReportLine::parse(&outcome.stdout))
    };
    let as_said = |job: &TorchJob, checkpoint: &Value| {
        until("the recording has the pool", || {
            report().map(|report| kv_cache(&report, job)).filter(|read| equals(&read["pool"], checkpoint))
        })
    };
    let first = &as_said(&job, &serving)["pool"];
    assert_eq!((&first["engine"], &first["scheduler_pid"]), (&"vllm".into(), &job.tgid().into()), "{first}");
    assert_eq!(first["block_bytes"], 4 << 20, "four layers: {first}");
    job.go_on();
    let busier = job.next_checkpoint().expect("it has more requests");
    as_said(&job, &busier);
    job.go_on();
    let quieter = job.next_checkpoint().expect("it has fewer requests");
    let peak = &as_said(&job, &quieter)["peak"];
    let most = [&peak["used_blocks"], &peak["running_requests"]];
    assert_eq!(most, [&busier["pool"]["used_blocks"], &busier["pool"]["running"]], "{peak}");
    recorder.signal(libc::SIGINT);
    assert_eq!(recorder.end(), 0);
    let text = CommandOutcome::of(gpu.memwatch(&["explain", "--in", &path])).stdout;
    let line = "399 blocks of 4.0 MiB: 25.1 % used by 2 requests (2 waiting)";
    assert!(text.contains("KV cache") && text.contains(line), "{text}");
}
