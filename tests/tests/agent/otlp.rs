//! The agent pushes its metrics to a receiver of OpenTelemetry's, which parses them with
//! OpenTelemetry's own messages.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use memwatch_tests::certificates::{TestCertificate, self_signed};
use memwatch_tests::http;
use memwatch_tests::readers::python_reader;
use memwatch_tests::test;
use memwatch_tests::{PrologueShape, RunningProgram, SimulatedGpu, until};
use serde_json::Value;

/// A receiver for all transports, each on its own port.
struct OtlpReceiver {
    program: RunningProgram,
    ports: Value,
    signer: TestCertificate,
}

impl OtlpReceiver {
    /// Starts the receiver.
    fn start(gpu: &SimulatedGpu) -> Self {
        let signer = self_signed(gpu.directory(), "receiver");
        let mut command = python_reader("receive_otlp.py");
        command.arg(&signer.certificate).arg(&signer.key);
        let mut program = RunningProgram::start(command);
        let ports = serde_json::from_str(&program.next_line().expect("its ports")).expect("they are JSON");
        Self { program, ports, signer }
    }

    fn port(&self, way: &str) -> u64 {
        self.ports[way].as_u64().unwrap_or_else(|| panic!("{way}: {}", self.ports))
    }

    /// Makes the receiver refuse or accept pushes.
    fn obey(&self, path: &str) {
        let port = u16::try_from(self.port("http")).expect("a port");
        http::get(SocketAddr::from(([127, 0, 0, 1], port)), path, "").expect("it answers");
    }

    /// Waits for a push over this transport that fulfils a condition.
    fn until_pushed(&mut self, way: &str, holds: impl Fn(&Value) -> bool) -> Value {
        until(&format!("a push by {way}"), || {
            let line = self.program.next_line().expect("it goes on");
            let push: Value = serde_json::from_str(&line).expect("a push is JSON");
            (push["by"] == way && holds(&push)).then_some(push)
        })
    }
}

/// An agent that pushes once a second, and its output.
struct PushingAgent {
    program: RunningProgram,
    address: SocketAddr,
}

impl PushingAgent {
    fn start(gpu: &SimulatedGpu, words: &[&str]) -> Self {
        let (address, socket) = (http::free_port(), gpu.directory().join("memwatch.sock"));
        let mut command = gpu.memwatch(&["agent", "--listen", &address.to_string(), "--otlp-interval", "1s"]);
        command.arg("--socket").arg(socket).args(words);
        Self { program: RunningProgram::start_with_errors(command), address }
    }

    fn metrics(&self) -> String {
        until("metrics", || http::get(self.address, "/metrics", "").filter(|answer| answer.status == 200)).body
    }
}

/// Returns the points of a metric.
fn points<'a>(push: &'a Value, name: &str) -> Vec<&'a Value> {
    let metrics = push["metrics"].as_array().into_iter().flatten();
    metrics
        .filter(|metric| metric["name"] == name)
        .flat_map(|metric| metric["points"].as_array().expect("points"))
        .collect()
}

/// Returns the metrics' names as Prometheus would write them.
fn names(push: &Value) -> BTreeSet<String> {
    let metrics = push["metrics"].as_array().expect("metrics").iter();
    let name = |metric: &Value| {
        let total = if metric["kind"] == "sum" { "_total" } else { "" };
        format!("{}{total}", metric["name"].as_str().expect("a name"))
    };
    metrics.map(name).collect()
}

/// Asserts what holds for every push: its resource, its metrics, and that it has the same metrics
/// as `/metrics`.
fn assert_whole(push: &Value, scraped: &str) {
    assert_eq!(push["unknown"], 0, "OpenTelemetry's messages have every field");
    let resource = &push["resource"];
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("it has a name");
    assert_eq!((&resource["service.name"], &resource["host.name"]), (&"memwatch".into(), &host.trim().into()));
    assert_eq!(resource["k8s.node.name"], "gpu-1");
    let of_text: BTreeSet<_> = scraped.lines().filter(|line| !line.starts_with('#')).collect();
    let of_text = of_text.into_iter().filter_map(|line| Some(line.split(['{', ' ']).next()?.to_owned()));
    // The success of a push is known only after the first.
    let expected = of_text.filter(|name| name != "memwatch_agent_otlp_up").collect::<BTreeSet<_>>();
    let pushed: BTreeSet<_> = names(push).into_iter().filter(|name| name != "memwatch_agent_otlp_up").collect();
    assert_eq!(pushed, expected);
    for metric in push["metrics"].as_array().expect("metrics") {
        let is_sum = metric["kind"] == "sum";
        assert!(metric["is_monotonic"] == is_sum && metric["is_cumulative"] == is_sum, "{metric}");
        for point in metric["points"].as_array().expect("points") {
            let [start, time] = ["start", "time"].map(|name| point[name].as_u64().expect("a time"));
            assert!(time > 0 && start <= time && (start > 0) == is_sum, "{metric}");
            assert!(point["attributes"].as_object().expect("a table").values().all(|value| value != ""), "{point}");
        }
    }
}

#[test(alone)]
fn otlp_push_equals_the_scrape_over_http_grpc_and_tls() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut receiver = OtlpReceiver::start(&gpu);
    let headers = gpu.directory().join("headers");
    std::fs::write(&headers, "X-Scope-OrgID: 7\n").expect("a file");
    let gpu = gpu.with("OTEL_RESOURCE_ATTRIBUTES", &"k8s.node.name=gpu-1");
    for (way, scheme, protocol) in
        [("http", "http", "http"), ("grpc", "http", "grpc"), ("https", "https", "http"), ("grpcs", "https", "grpc")]
    {
        let url = format!("{scheme}://127.0.0.1:{}", receiver.port(way));
        let (headers, signer) = (headers.to_string_lossy(), receiver.signer.certificate.clone());
        let mut words = vec!["--otlp", &url, "--otlp-protocol", protocol, "--otlp-header-file", &headers];
        let signer = signer.to_string_lossy();
        if scheme == "https" {
            words.extend(["--otlp-ca-file", &signer]);
        }
        let mut agent = PushingAgent::start(&gpu, &words);
        let line = agent.program.until_line_with("metrics to ");
        assert!(line.contains(&format!("pushing metrics to {url}")) && line.ends_with(" every 1 s"), "{line}");
        let mut job = gpu.workload();
        job.run(&["device 0", "alloc a 1073741824", "alloc b 1048576", "free b"]);
        let device = gpu.ledger().process(job.tgid()).expect("it is known").devices[0].clone();
        let push = receiver.until_pushed(way, |push| {
            let of = |name: &str, expected: u64| points(push, name).iter().any(|point| point["value"] == expected);
            of("memwatch_workload_memory_used_bytes", device.used_bytes)
                && of("memwatch_workload_allocations", device.device.allocations)
                && of("memwatch_workload_frees", device.device.frees)
                && of("memwatch_agent_otlp_failures", 0)
                && of("memwatch_agent_otlp_up", 1)
        });
        assert_eq!(push["headers"]["x-scope-orgid"], "7", "{}", push["headers"]);
        assert_whole(&push, &agent.metrics());
    }
}

#[test(alone)]
fn otlp_failing_receiver_is_reported_once_and_counted() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut receiver = OtlpReceiver::start(&gpu);
    for way in ["http", "grpc"] {
        receiver.obey("/fail");
        let url = format!("http://127.0.0.1:{}", receiver.port(way));
        let mut agent = PushingAgent::start(&gpu, &["--otlp", &url, "--otlp-protocol", way]);
        let line = agent.program.until_line_with("metrics cannot be pushed to ");
        assert!(line.contains(": not now") && line.contains("The next attempt follows in 1 s."), "{line}");
        until("three failures", || agent.metrics().contains("memwatch_agent_otlp_failures_total 3\n").then_some(()));
        assert!(agent.metrics().contains("memwatch_agent_otlp_up 0\n"));
        assert_eq!(http::get(agent.address, "/healthz", "").map(|answer| answer.status), Some(200));
        receiver.obey("/accept");
        // The next report is about a success: failures after the first are only counted.
        let line = agent.program.next_line().expect("it goes on");
        assert!(line.contains("pushing metrics to "), "{line}");
        receiver.until_pushed(way, |push| points(push, "memwatch_agent_otlp_failures")[0]["value"].as_u64() >= Some(3));
        until("it works", || agent.metrics().contains("memwatch_agent_otlp_up 1\n").then_some(()));
    }
}

#[test(alone)]
fn otlp_absent_or_untrusted_receiver_is_reported_with_a_fix() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let receiver = OtlpReceiver::start(&gpu);
    let other = self_signed(gpu.directory(), "other");
    let other = other.certificate.to_string_lossy();
    let nowhere = format!("http://{}", http::free_port());
    let [http, https, grpcs] = [("http", "http"), ("http", "https"), ("https", "grpcs")]
        .map(|(scheme, way)| format!("{scheme}://127.0.0.1:{}", receiver.port(way)));
    for (words, what) in [
        (vec!["--otlp", &nowhere], vec!["no connection: Connection refused", "Check the address"]),
        (vec!["--otlp", &https], vec!["does not speak HTTP", "the address starts with https://"]),
        (vec!["--otlp", &http, "--otlp-protocol", "grpc"], vec!["does not speak gRPC", "--otlp-protocol http"]),
        (
            vec!["--otlp", &grpcs, "--otlp-protocol", "grpc", "--otlp-ca-file", &other],
            vec!["no connection by TLS", "--otlp-ca-file FILE"],
        ),
    ] {
        let mut agent = PushingAgent::start(&gpu, &words);
        let line = agent.program.until_line_with("metrics cannot be pushed to ");
        assert!(what.iter().all(|what| line.contains(what)), "{what:?}: {line}");
    }
    for (words, why) in [
        (["--otlp", "localhost:4318"], "an address is http://HOST:4318"),
        (["--otlp", "http://h:4317/below"], "gRPC has no paths"),
        (["--otlp-ca-file", "/nowhere"], "--otlp <URL>"),
    ] {
        let outcome = gpu.run_memwatch(&[&["agent"], &words[..]].concat());
        outcome.assert_ended_with(2, &[why]);
    }
}
