//! `memwatch fleet` queries a real Prometheus that scrapes invented machines, with and without the
//! shipped rules.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::time::{SystemTime, UNIX_EPOCH};

use memwatch_tests::prometheus::{Prometheus, hurried_rules};
use memwatch_tests::test;
use memwatch_tests::{CommandOutcome, PrologueShape, SimulatedGpu, http, until};
use serde_json::{Value, json};

const GIB: u64 = 1 << 30;

/// Starts a server that answers every request with a text as long as the test runs.
fn target(text: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut request = [0; 4096];
            // The client may have disconnected.
            let _ = stream.read(&mut request);
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: {}\r\n\r\n",
                text.len()
            );
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(text.as_bytes()));
        }
    });
    address
}

/// Returns the series of a machine with two GPUs: a Slurm job on both with uneven use, and a pod on
/// the first that was refused memory.
fn machine(number: u64, refused_at: u64) -> String {
    let mut text = String::new();
    let mut line =
        |name: &str, labels: &str, value: u64| writeln!(text, "{name}{{{labels}}} {value}").expect("a string takes it");
    for gpu in 0..2_u64 {
        let own = format!("gpu=\"{gpu}\",uuid=\"GPU-{number}{gpu}\"");
        line("memwatch_gpu_up", &own, 1);
        line("memwatch_gpu_memory_limit_bytes", &own, 80 * GIB);
        line("memwatch_gpu_memory_used_bytes", &own, (40 + 20 * gpu) * GIB);
        line("memwatch_gpu_memory_unattributed_bytes", &own, GIB);
        let job =
            format!("{own},workload_kind=\"slurm\",namespace=\"\",pod=\"\",container=\"\",slurm_job=\"7\",unit=\"\"");
        line("memwatch_workload_memory_used_bytes", &job, (20 + 20 * gpu) * GIB);
        line("memwatch_workload_memory_driver_allocated_bytes", &format!("{job},kind=\"device\""), 15 * GIB);
        line("memwatch_workload_memory_driver_allocated_bytes", &format!("{job},kind=\"pinned\""), 99 * GIB);
        line("memwatch_workload_framework_reserved_bytes", &job, 14 * GIB);
        line("memwatch_workload_framework_allocated_bytes", &job, 10 * GIB);
        line("memwatch_workload_growth_bytes_per_second", &job, 1 << 20);
        line("memwatch_workload_processes", &job, 4);
    }
    let pod = format!(
        "gpu=\"0\",uuid=\"GPU-{number}0\",workload_kind=\"kubernetes\",namespace=\"ml\",pod=\"a\\\"\\\\-{number}\",container=\"c\",slurm_job=\"\",unit=\"\""
    );
    line("memwatch_workload_memory_used_bytes", &pod, 5 * GIB);
    line("memwatch_workload_last_oom_timestamp_seconds", &pod, refused_at);
    text
}

/// Returns the rows of a report, sorted so that equal rows need no order.
fn rows(report: &Value, kind: &str) -> Vec<Value> {
    let mut rows = report["data"][kind].as_array().unwrap_or_else(|| panic!("{report}")).clone();
    rows.sort_by_key(ToString::to_string);
    rows
}

#[test]
fn a_fleet_is_the_same_by_recorded_series_and_by_raw_ones() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let rules = hurried_rules();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970").as_secs();
    let refused_at = now - 1_000;
    let mut targets = [target(machine(0, refused_at)), target(machine(1, now - 90_000))].to_vec();
    // An agent that does not run.
    targets.push(http::free_port());
    let recorded = Prometheus::start(&targets, &rules);
    let raw = Prometheus::start(&targets, "groups: []\n");
    let ask = |prometheus: &Prometheus, words: &[&str]| -> CommandOutcome {
        gpu.run_memwatch(&[&["fleet", "--prometheus", &prometheus.url()], words].concat())
    };
    let report = |prometheus: &Prometheus, words: &[&str]| -> Option<Value> {
        serde_json::from_str(&ask(prometheus, &[&["--json"], words].concat()).stdout).ok()
    };
    let is_whole = |report: &Value, rules: &str| {
        let totals = &report["data"]["totals"];
        report["data"]["rules"] == rules
            && totals["gpus"] == 4
            && totals["workloads"] == 3
            && totals["agents_down_count"] == 1
            && totals["ooms_1d"] == 1
    };
    for (prometheus, rules) in [(&raw, "absent"), (&recorded, "used")] {
        until("the fleet is whole", || report(prometheus, &[]).filter(|report| is_whole(report, rules)).map(drop));
    }
    let totals = report(&raw, &[]).expect("a report")["data"]["totals"].clone();
    let mut expected = json!({
        "nodes": 2, "gpus": 4, "workloads": 3, "limit_bytes": 320 * GIB, "used_bytes": 200 * GIB,
        "framework_cached_bytes": 16 * GIB, "idle_gpus": null, "ooms_1d": 1, "agents_down_count": 1,
    });
    expected["agents_down"] = json!([targets[2].to_string()]);
    assert_eq!(totals, expected);
    for (by, kind) in [("workload", "workloads"), ("node", "nodes"), ("gpu", "gpus"), ("holder", "holders")] {
        let words = ["--by", by];
        let want = rows(&report(&raw, &words).expect("a report"), kind);
        // A recorded series may lag by one evaluation.
        until(by, || (rows(&report(&recorded, &words)?, kind) == want).then_some(()));
    }
    assert_rows_are_as_generated(&|words| report(&recorded, words).expect("a report"), (&targets[0], refused_at));
    let text = ask(&recorded, &[]).stdout;
    assert!(
        text.contains("Slurm job 7") && text.contains(" by its recording rules ") && text.contains("50.0 %"),
        "{text}"
    );
}

/// Asserts that the rows are those generated, and no more.
fn assert_rows_are_as_generated(report: &dyn Fn(&[&str]) -> Value, (first, refused_at): (&SocketAddr, u64)) {
    let workloads = report(&[])["data"]["workloads"].clone();
    let job = &workloads[0];
    let of_job = |name: &str, value: u64| assert_eq!(job[name], value, "{name} of {job}");
    assert_eq!(job["slurm_job"], "7", "{workloads}");
    of_job("used_bytes", 120 * GIB);
    of_job("driver_allocated_bytes", 60 * GIB);
    of_job("framework_cached_bytes", 16 * GIB);
    of_job("gpus", 4);
    of_job("nodes", 2);
    of_job("largest_used_bytes", 40 * GIB);
    of_job("smallest_used_bytes", 20 * GIB);
    let refused = report(&["--sort", "ooms"])["data"]["workloads"].clone();
    assert_eq!(refused.as_array().map(Vec::len), Some(1), "{refused}");
    assert_eq!((&refused[0]["pod"], &refused[0]["ooms_1d"]), (&json!("a\"\\-0"), &json!(1)), "{refused}");
    assert_eq!(refused[0]["last_oom_unix_seconds"].as_f64().map(|time| time.to_string()), Some(refused_at.to_string()));
    let gpus = report(&["--by", "gpu", "-n", "1"])["data"]["gpus"].clone();
    assert_eq!((&gpus[0]["holders"], &gpus[0]["largest_holder"]["slurm_job"]), (&json!(1), &json!("7")), "{gpus}");
    assert_eq!(gpus.as_array().map(Vec::len), Some(1), "{gpus}");
    // Only rows that match the condition.
    let matched = report(&["--match", "namespace=ml"]);
    assert_eq!(rows(&matched, "workloads").len(), 2, "{matched}");
    let of_node = format!("instance={first}");
    let matched = report(&["--match", &of_node]);
    assert_eq!((&matched["data"]["totals"]["nodes"], &matched["data"]["rules"]), (&json!(1), &json!("partly_used")));
    let opened = report(&["--by", "holder", "--match", "slurm_job=7"]);
    assert_eq!(rows(&opened, "holders").len(), 4, "the job's part of each GPU: {opened}");
}

#[test]
fn fleet_without_a_usable_prometheus_is_reported_with_a_fix() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let ask = |url: &str, words: &[&str]| gpu.run_memwatch(&[&["fleet", "--prometheus", url], words].concat());
    let nobody = format!("http://{}", http::free_port());
    ask(&nobody, &[]).assert_ended_with(1, &[&nobody, "no connection", "Check the address"]);
    let other = format!("http://{}", target("memwatch_gpu_up 1\n".to_owned()));
    ask(&other, &[]).assert_ended_with(1, &[&other, "not as Prometheus's API does", "Is the path right?"]);
    ask(&other.replace("http:", "https:"), &["--ca-file", "/nowhere"]).assert_ended_with(1, &["/nowhere"]);
    let empty = Prometheus::start(&[], "groups: []\n");
    ask(&empty.url(), &[]).assert_ended_with(6, &["knows no agent of memwatch", "deploy/prometheus"]);
    ask(&empty.url(), &["--match", "cluster=a"]).assert_ended_with(6, &["with these labels", "--match"]);
    ask(&format!("{}/wrong", empty.url()), &[]).assert_ended_with(1, &["404 Not Found", "Is the path right?"]);
    ask(&empty.url(), &["--sort", "full"]).assert_ended_with(1, &["--sort full", "used, driver, cached"]);
    ask("ftp://a", &[]).assert_ended_with(2, &["http://HOST:PORT or https://HOST"]);
}
