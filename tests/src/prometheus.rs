//! A real Prometheus server.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::cannot_run;
use crate::http;
use crate::{TIMEOUT, until};

const POLL: Duration = Duration::from_millis(100);

/// A running Prometheus that scrapes its targets every second. It is killed and its data deleted
/// when it is dropped.
#[derive(Debug)]
pub struct Prometheus {
    server: Child,
    address: SocketAddr,
    _directory: TempDir,
}

/// Returns the folder of the Prometheus files that memwatch ships.
pub fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/prometheus")
}

/// Returns the command `promtool` with these arguments. Ignores the test if it is not
/// installed.
pub fn promtool(words: &[&str]) -> Command {
    if Command::new("promtool").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        cannot_run("promtool is not installed: apt-get install prometheus");
    }
    let mut command = Command::new("promtool");
    command.args(words).current_dir(shipped());
    command
}

/// Returns the shipped rules with all minutes shortened: five minutes become 2 s, and no time
/// becomes less than 1 s.
///
/// # Panics
/// When the rules cannot be read.
pub fn hurried_rules() -> String {
    let rules = fs::read_to_string(shipped().join("rules.yaml")).expect("the rules are in the tree");
    let mut hurried = String::new();
    let mut rest = rules.as_str();
    while let Some(start) = rest.find(|letter: char| letter.is_ascii_digit()) {
        let (before, number) = rest.split_at(start);
        let end = number.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(number.len());
        let (digits, after) = number.split_at(end);
        let is_time = after.strip_prefix('m').is_some_and(|after| !after.starts_with(char::is_alphanumeric));
        let minutes: Option<u32> = digits.parse().ok().filter(|_| is_time);
        match minutes {
            Some(minutes) => write!(hurried, "{before}{}s", (minutes * 2 / 5).max(1)).expect("a String takes any text"),
            None => hurried.extend([before, digits]),
        }
        rest = if minutes.is_some() { &after[1..] } else { after };
    }
    hurried + rest
}

/// Returns the queries of the shipped dashboard with the titles of their panels. Variables of the
/// dashboard match everything.
///
/// # Panics
/// When the dashboard cannot be read.
pub fn shipped_queries() -> Vec<(String, String)> {
    let text = fs::read_to_string(shipped().join("../grafana/memwatch.json")).expect("the dashboard is in the tree");
    let dashboard: Value = serde_json::from_str(&text).expect("it is JSON");
    let panels = dashboard["panels"].as_array().expect("panels").iter();
    let of_panel = |panel: &Value| {
        let title = panel["title"].as_str().expect("a title").to_owned();
        let queries = panel["targets"].as_array().into_iter().flatten().filter_map(|target| target["expr"].as_str());
        let filled = |query: &str| {
            query
                .replace("$node", ".*")
                .replace("$gpu", ".*")
                .replace("$__rate_interval", "1m")
                .replace("$__range", "1h")
        };
        queries.map(|query| (title.clone(), filled(query))).collect::<Vec<_>>()
    };
    let queries: Vec<_> = panels.flat_map(of_panel).collect();
    assert!(queries.len() > 10, "{queries:?}");
    queries
}

impl Prometheus {
    /// Starts Prometheus with these targets and rules.
    ///
    /// # Panics
    /// When Prometheus does not become ready.
    pub fn start(targets: &[SocketAddr], rules: &str) -> Self {
        let directory = TempDir::with_prefix("memwatch-prometheus-").expect("a temporary directory");
        let path = |name: &str| directory.path().join(name);
        fs::write(path("rules.yaml"), rules).expect("a file");
        let targets: Vec<String> = targets.iter().map(|target| format!("\"{target}\"")).collect();
        let configuration = format!(
            "global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}\nrule_files: [rules.yaml]\nscrape_configs:\n\
             - job_name: memwatch\n  honor_labels: true\n  static_configs: [{{targets: [{}]}}]\n",
            targets.join(", ")
        );
        fs::write(path("prometheus.yaml"), configuration).expect("a file");
        let address = http::free_port();
        let server = Command::new("prometheus")
            .arg(format!("--config.file={}", path("prometheus.yaml").display()))
            .arg(format!("--storage.tsdb.path={}", path("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--log.level=error")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("promtool is there, so prometheus is");
        let prometheus = Self { server, address, _directory: directory };
        until("Prometheus is ready", || http::get(address, "/-/ready", "").filter(|answer| answer.status == 200));
        prometheus
    }

    /// Returns the server's URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Evaluates an expression now and returns labels and values.
    ///
    /// # Panics
    /// When the expression is invalid.
    pub fn query(&self, expression: &str) -> Vec<(Value, f64)> {
        let data = self.ask(&format!("/api/v1/query?query={}", encoded(expression)));
        let samples = data["result"].as_array().unwrap_or_else(|| panic!("{expression}: {data}")).iter();
        let number = |sample: &Value| sample["value"][1].as_str().and_then(|number| number.parse().ok());
        samples.map(|sample| (sample["metric"].clone(), number(sample).expect("a number"))).collect()
    }

    /// Waits until an expression has exactly this value, as one series.
    ///
    /// # Panics
    /// When it does not have that value in time.
    pub fn until_is(&self, expression: &str, expected: u64) {
        let mut last = Vec::new();
        // Prometheus's numbers represent byte counts exactly up to 2^53.
        let expected = expected.to_string();
        let is = |samples: &[(Value, f64)]| matches!(samples, [(_, value)] if value.to_string() == expected);
        let begin = Instant::now();
        while begin.elapsed() < TIMEOUT {
            last = self.query(expression);
            if is(&last) {
                return;
            }
            std::thread::sleep(POLL);
        }
        panic!("{expression} is not {expected} but {last:#?}");
    }

    /// Waits for an alert to fire and returns its labels.
    ///
    /// # Panics
    /// When the alert does not fire in time.
    pub fn until_fires(&self, alert: &str) -> Vec<Value> {
        let expression = format!("ALERTS{{alertname=\"{alert}\",alertstate=\"firing\"}}");
        until(alert, || {
            let firing = self.query(&expression);
            (!firing.is_empty()).then(|| firing.into_iter().map(|(labels, _)| labels).collect())
        })
    }

    /// Returns Prometheus's metadata of a target's metric families: names with type and unit.
    pub fn families(&self, target: SocketAddr) -> Vec<Value> {
        let instance = encoded(&format!("{{instance=\"{target}\"}}"));
        let data = self.ask(&format!("/api/v1/targets/metadata?match_target={instance}"));
        data.as_array().cloned().unwrap_or_default()
    }

    fn ask(&self, path: &str) -> Value {
        let answer = http::get(self.address, path, "").unwrap_or_else(|| panic!("no answer to {path}"));
        let mut json: Value = serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{error}: {answer:?}"));
        assert_eq!(json["status"], "success", "{path}: {json}");
        json["data"].take()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        write!(encoded, "%{byte:02X}").expect("a String takes any text");
        encoded
    })
}
