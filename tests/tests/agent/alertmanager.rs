//! A real Alertmanager accepts the shipped routes and sends each alert to its receiver.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use memwatch_tests::harness::cannot_run;
use memwatch_tests::prometheus::{hurried_rules, shipped};
use memwatch_tests::test;
use memwatch_tests::{TIMEOUT, http, until};
use serde_json::{Value, json};
use tempfile::TempDir;

/// URL of the shipped receivers.
const RECEIVERS: &str = "http://localhost:5001/";
/// Alerts with their labels, and the receiver of each.
const ALERTS: [(&str, &[&str]); 9] = [
    (
        "team-research",
        &[
            "alertname=MemwatchWorkloadOutOfMemory",
            "severity=warning",
            "workload_kind=kubernetes",
            "namespace=research",
        ],
    ),
    (
        "team-research",
        &["alertname=MemwatchWorkloadGrowth", "severity=warning", "workload_kind=kubernetes", "namespace=research-nlp"],
    ),
    (
        "platform",
        &[
            "alertname=MemwatchWorkloadOutOfMemory",
            "severity=warning",
            "workload_kind=kubernetes",
            "namespace=researchers",
        ],
    ),
    ("batch", &["alertname=MemwatchWorkloadOutOfMemory", "severity=warning", "workload_kind=slurm", "slurm_job=4242"]),
    (
        "operations",
        &["alertname=MemwatchWorkloadOutOfMemory", "severity=warning", "workload_kind=systemd", "unit=a.service"],
    ),
    ("operations", &["alertname=MemwatchGpuDown", "severity=warning", "gpu=0"]),
    ("operations", &["alertname=MemwatchAgentDown", "severity=warning"]),
    ("notes", &["alertname=MemwatchGpuUnattributed", "severity=info", "gpu=1"]),
    ("operations", &["alertname=SomethingElse", "severity=info"]),
];

fn routes() -> PathBuf {
    shipped().join("alertmanager.yaml")
}

/// Returns the command `amtool` with these arguments. Ignores the test if it is not installed.
fn amtool(words: &[&str]) -> Command {
    if Command::new("amtool").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        cannot_run("amtool is not installed: apt-get install prometheus-alertmanager");
    }
    let mut command = Command::new("amtool");
    command.args(words);
    command
}

fn assert_succeeds(command: &mut Command) {
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{command:?}: {output:#?}");
}

/// A running Alertmanager. It is killed when it is dropped.
struct Alertmanager {
    server: Child,
    address: SocketAddr,
    _directory: TempDir,
}

impl Alertmanager {
    /// Starts Alertmanager with the shipped routes, changed to send to this address without delay.
    fn start(receivers: SocketAddr) -> Self {
        let directory = TempDir::with_prefix("memwatch-alertmanager-").expect("a temporary directory");
        let text = fs::read_to_string(routes()).expect("it is in the tree");
        assert!(text.contains(RECEIVERS) && text.contains("group_wait: 30s"), "{text}");
        let text =
            text.replace(RECEIVERS, &format!("http://{receivers}/")).replace("group_wait: 30s", "group_wait: 1s");
        let file = directory.path().join("alertmanager.yaml");
        fs::write(&file, text).expect("a file");
        let address = http::free_port();
        let server = Command::new("prometheus-alertmanager")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.path={}", directory.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .args(["--cluster.listen-address=", "--log.level=error"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("amtool is there, so it is");
        let alertmanager = Self { server, address, _directory: directory };
        until("Alertmanager is ready", || http::get(address, "/-/ready", "").filter(|answer| answer.status == 200));
        alertmanager
    }
}

impl Drop for Alertmanager {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Starts a webhook for all receivers. Returns its address, and the requests that arrive with their
/// paths.
fn webhooks() -> (SocketAddr, Receiver<(String, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let (sender, arrived) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let mut stream = BufReader::new(stream);
                let mut line = String::new();
                while stream.read_line(&mut line).is_ok_and(|read| read > 0) {
                    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
                    let mut length = 0;
                    loop {
                        line.clear();
                        stream.read_line(&mut line).expect("a header");
                        let header = line.trim().to_ascii_lowercase();
                        match header.strip_prefix("content-length:") {
                            Some(bytes) => length = bytes.trim().parse().expect("a number"),
                            None if header.is_empty() => break,
                            None => {}
                        }
                    }
                    let mut body = vec![0; length];
                    stream.read_exact(&mut body).expect("a body");
                    stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").expect("it reads");
                    let message = serde_json::from_slice(&body).expect("a message is JSON");
                    if sender.send((path, message)).is_err() {
                        return;
                    }
                    line.clear();
                }
            });
        }
    });
    (address, arrived)
}

#[test(alone)]
fn alertmanager_shipped_routes_send_each_alert_to_its_receiver() {
    let file = routes();
    let file = file.to_string_lossy();
    let mut check = amtool(&["check-config", &file]);
    assert_succeeds(&mut check);
    for (receiver, labels) in ALERTS {
        let verified = format!("--verify.receivers={receiver}");
        let mut test = amtool(&["config", "routes", "test", "--config.file", &file, &verified]);
        assert_succeeds(test.args(labels));
    }
    let text = fs::read_to_string(routes()).expect("it is in the tree");
    let raised = hurried_rules()
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: ").map(str::to_owned))
        .collect::<Vec<_>>();
    assert!(!raised.is_empty() && raised.iter().all(|alert| alert.starts_with("Memwatch")), "{raised:?}");
    for named in text.split("alertname=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
        assert!(raised.iter().any(|alert| alert == named), "no rule raises {named}");
    }
}

#[test(alone)]
fn alertmanager_delivers_by_shipped_routes_and_inhibits_explained_alerts() {
    let _ = amtool(&[]);
    let (receivers, arrived) = webhooks();
    let alertmanager = Alertmanager::start(receivers);
    let firing = |alerts: &[&[&str]]| {
        let labels = |pairs: &&[&str]| {
            let pairs = pairs.iter().chain([&"instance=node-1:9747"]).filter_map(|pair| pair.split_once('='));
            let labels = pairs.map(|(name, value)| (name.to_owned(), value.into())).collect::<serde_json::Map<_, _>>();
            json!({"labels": labels, "annotations": {"summary": "It happened"}})
        };
        http::post(alertmanager.address, "/api/v2/alerts", &json!(alerts.iter().map(labels).collect::<Vec<_>>()))
    };
    let next = |path: &str| {
        let (found, message) = arrived.recv_timeout(TIMEOUT).expect("a message arrives");
        assert_eq!(found, path, "{message}");
        message
    };
    let answer = firing(&[&[
        "alertname=MemwatchWorkloadOutOfMemory",
        "severity=warning",
        "workload_kind=kubernetes",
        "namespace=research",
        "pod=train-0",
        "gpu=0",
    ]]);
    assert_eq!(answer.map(|answer| answer.status), Some(200));
    let pod = next("/team-research");
    assert_eq!((&pod["status"], &pod["groupLabels"]["pod"]), (&"firing".into(), &"train-0".into()), "{pod}");
    assert_eq!(pod["alerts"][0]["annotations"]["summary"], "It happened", "{pod}");
    let full = |gpu| ["alertname=MemwatchGpuNearlyFull", "severity=info", gpu];
    assert!(firing(&[&full("gpu=0"), &full("gpu=1")]).is_some());
    let notes = next("/notes");
    let gpus: Vec<_> =
        notes["alerts"].as_array().expect("alerts").iter().map(|alert| &alert["labels"]["gpu"]).collect();
    assert_eq!(gpus, ["1"], "that GPU 0 is nearly full is explained: {notes}");
}
