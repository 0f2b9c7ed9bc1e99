//! A Prometheus and a VictoriaMetrics with the series of a fleet, one after the other.

use super::series::{FictionalFleet, FleetSampleText, SampleTimeUnit};
use crate::child::OwnedChild;
use crate::run::run_quietly;
use anyhow::{Context as _, Result, bail};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufWriter, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Number of nodes to generate series for at a time: promtool holds them in memory.
const NODES_AT_A_TIME: u32 = 100;
/// Number of nodes that fit if all series are in memory.
const SCRAPED_NODES: u64 = 200;
const READY_LIMIT: Duration = Duration::from_mins(5);
/// Time limit for rules. Rules over a day are evaluated every three minutes.
const RULES_LIMIT: Duration = Duration::from_mins(15);
const POLL: Duration = Duration::from_millis(500);
/// Time for which a sample counts: each series has only one.
const LOOKBACK: &str = "6h";
const RULES: &str = "deploy/prometheus/rules.yaml";

/// A running server with its series.
pub(super) struct FleetServer {
    pub(super) name: &'static str,
    pub(super) fleet: FictionalFleet,
    pub(super) address: SocketAddr,
    pub(super) samples: u64,
    pub(super) series: u64,
    /// Time to load all series, including the generation of files.
    pub(super) filled: Duration,
    /// Whether a query on raw series takes only seconds.
    pub(super) reads_quickly: bool,
    program: OwnedChild,
    /// The program that evaluates the rules, if it is a separate one.
    rules: Option<(OwnedChild, SocketAddr)>,
}

/// Evaluation times of the rules.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Evaluated {
    pub(super) fleet_seconds: f64,
    pub(super) day_seconds: f64,
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn free() -> Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).context("no free port")
}

/// Returns the groups of the shipped rules that `memwatch fleet` uses.
pub(super) fn rules(shipped: &str) -> Result<String> {
    let (_, own) =
        shipped.split_once("  - name: memwatch-fleet-day\n").context("rules.yaml has no rules for the fleet")?;
    Ok(format!("groups:\n  - name: memwatch-fleet-day\n{own}"))
}

/// Starts a Prometheus on blocks that promtool makes.
pub(super) fn prometheus(fleet: FictionalFleet, folder: &Path, root: &Path) -> Result<FleetServer> {
    let begin = Instant::now();
    let data = folder.join("data");
    fs::create_dir_all(&data)?;
    // Series with history end here, and each block after it has its own second: overlapping blocks
    // would be merged.
    let end = now() + fleet.nodes / 5;
    let (mut samples, mut series) = (0, 0);
    let mut block = |file_name: &str,
                     fill: &mut dyn FnMut(&mut FleetSampleText, u64),
                     nodes: (u64, u64)|
     -> Result<()> {
        let file = folder.join(file_name);
        let mut out = BufWriter::new(fs::File::create(&file)?);
        for node in nodes.0..nodes.1 {
            let mut text = FleetSampleText::new(SampleTimeUnit::Seconds);
            fill(&mut text, node);
            samples += text.samples;
            series += text.series;
            out.write_all(text.text.as_bytes())?;
        }
        out.write_all(b"# EOF\n")?;
        drop(out);
        run_quietly(
            Command::new("promtool").args(["tsdb", "create-blocks-from", "openmetrics", "-q"]).arg(&file).arg(&data),
        )?;
        fs::remove_file(&file)?;
        Ok(())
    };
    block("over-time.txt", &mut |text, node| fleet.over_time(text, node, end), (0, fleet.nodes))?;
    for (first, part) in (0..fleet.nodes).step_by(NODES_AT_A_TIME as usize).zip(0..) {
        let last = (first + u64::from(NODES_AT_A_TIME)).min(fleet.nodes);
        let time = end + part;
        block("part.txt", &mut |text, node| fleet.node(text, node, time), (first, last))?;
        eprintln!("prometheus: {last} nodes after {:.0} s", begin.elapsed().as_secs_f64());
    }
    let filled = begin.elapsed();
    std::thread::sleep(Duration::from_secs((end + fleet.nodes / u64::from(NODES_AT_A_TIME) + 1).saturating_sub(now())));
    fs::write(folder.join("rules.yaml"), rules(&fs::read_to_string(root.join(RULES))?)?)?;
    fs::write(folder.join("prometheus.yaml"), "global: {evaluation_interval: 1m}\nrule_files: [rules.yaml]\n")?;
    let lookback = format!("--query.lookback-delta={LOOKBACK}");
    let blocks = ["--storage.tsdb.min-block-duration=2h", "--storage.tsdb.max-block-duration=2h", "--query.timeout=5m"];
    let (address, program) = start_prometheus(folder, &[blocks.as_slice(), &[&lookback]].concat())?;
    Ok(FleetServer {
        name: "Prometheus, blocks",
        fleet,
        address,
        samples,
        series,
        filled,
        reads_quickly: false,
        program,
        rules: None,
    })
}

/// Starts a Prometheus that scrapes a part of the fleet, with all series in memory as in
/// production.
pub(super) fn scraping_prometheus(fleet: FictionalFleet, folder: &Path, root: &Path) -> Result<FleetServer> {
    let fleet = FictionalFleet { nodes: fleet.nodes.min(SCRAPED_NODES), ..fleet };
    let begin = Instant::now();
    fs::create_dir_all(folder)?;
    let listener = TcpListener::bind("127.0.0.1:0").context("no free port")?;
    let agents = listener.local_addr()?;
    // The thread ends with the task.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 4096];
            let read = stream.read(&mut request).unwrap_or(0);
            let request = String::from_utf8_lossy(&request[..read]);
            let node = request.split(['/', ' ']).find_map(|word| word.parse().ok()).unwrap_or(0);
            let FleetSampleText { text, .. } = fleet.scraped(node, now());
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\r\n",
                text.len()
            );
            // The scraper may have given up.
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(text.as_bytes()));
        }
    });
    let mut configuration = "global: {evaluation_interval: 1m, scrape_interval: 1m, scrape_timeout: 1m}\nrule_files: [rules.yaml]\nscrape_configs:\n\
                             - job_name: made-up\n  honor_labels: true\n  static_configs:\n"
        .to_owned();
    for node in 0..fleet.nodes {
        // Writing to a string cannot fail.
        let _ = writeln!(
            configuration,
            "  - {{targets: [\"{agents}\"], labels: {{__metrics_path__: /{node}, instance: made-up-{node}}}}}"
        );
    }
    fs::write(folder.join("rules.yaml"), rules(&fs::read_to_string(root.join(RULES))?)?)?;
    fs::write(folder.join("prometheus.yaml"), configuration)?;
    let (address, program) = start_prometheus(folder, &["--query.timeout=5m"])?;
    // After this, every target has been scraped twice.
    std::thread::sleep(Duration::from_mins(2));
    let one = fleet.scraped(0, now());
    let (samples, series) = (one.samples * fleet.nodes * 2, one.series * fleet.nodes);
    Ok(FleetServer {
        name: "Prometheus, scraping",
        fleet,
        address,
        samples,
        series,
        filled: begin.elapsed(),
        reads_quickly: true,
        program,
        rules: None,
    })
}

fn start_prometheus(folder: &Path, words: &[&str]) -> Result<(SocketAddr, OwnedChild)> {
    let address = free()?;
    let program = OwnedChild::start(
        Command::new("prometheus")
            .arg(format!("--config.file={}", folder.join("prometheus.yaml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--log.level=warn")
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null()),
    )?;
    until("Prometheus is ready", READY_LIMIT, || get(address, "/-/ready").is_ok_and(|body| body.contains("is Ready")))?;
    Ok((address, program))
}

/// Starts a VictoriaMetrics, and sends it all series; vmalert evaluates its rules.
pub(super) fn victoria_metrics(fleet: FictionalFleet, folder: &Path, root: &Path) -> Result<FleetServer> {
    let address = free()?;
    fs::create_dir_all(folder)?;
    let program = OwnedChild::start(
        Command::new("victoria-metrics")
            .arg(format!("-storageDataPath={}", folder.join("data").display()))
            .arg(format!("-httpListenAddr={address}"))
            .arg(format!("-search.maxLookback={LOOKBACK}"))
            .args(["-search.maxUniqueTimeseries=2000000", "-search.maxQueryDuration=5m"])
            .args(["-memory.allowedBytes=5GB", "-loggerLevel=WARN"])
            .stdin(Stdio::null())
            .stdout(Stdio::null()),
    )?;
    until("VictoriaMetrics is ready", READY_LIMIT, || get(address, "/health").is_ok_and(|body| body == "OK"))?;
    let begin = Instant::now();
    // A series with a single sample counts for five minutes there, whatever the limit is. So the
    // sample has the expected time of the end of the import.
    let end = now() + fleet.nodes / 3;
    let (mut samples, mut series) = (0, 0);
    for node in 0..fleet.nodes {
        let mut text = FleetSampleText::new(SampleTimeUnit::Milliseconds);
        fleet.over_time(&mut text, node, end);
        fleet.node(&mut text, node, end);
        samples += text.samples;
        series += text.series;
        post(address, "/api/v1/import/prometheus", &text.text)?;
        if (node + 1).is_multiple_of(u64::from(NODES_AT_A_TIME)) {
            eprintln!("victoria-metrics: {} nodes after {:.0} s", node + 1, begin.elapsed().as_secs_f64());
        }
    }
    let filled = begin.elapsed();
    get(address, "/internal/force_flush")?;
    std::thread::sleep(Duration::from_secs((end + 1).saturating_sub(now())));
    let file = folder.join("rules.yaml");
    fs::write(&file, rules(&fs::read_to_string(root.join(RULES))?)?)?;
    let listens = free()?;
    let alert = OwnedChild::start(
        Command::new("vmalert")
            .arg(format!("-rule={}", file.display()))
            .arg(format!("-datasource.url=http://{address}"))
            .arg(format!("-remoteWrite.url=http://{address}"))
            .arg(format!("-httpListenAddr={listens}"))
            .args(["-evaluationInterval=1m", "-loggerLevel=WARN", "-notifier.url=http://127.0.0.1:9"])
            .stdin(Stdio::null())
            .stdout(Stdio::null()),
    )?;
    Ok(FleetServer {
        name: "VictoriaMetrics",
        fleet,
        address,
        samples,
        series,
        filled,
        reads_quickly: true,
        program,
        rules: Some((alert, listens)),
    })
}

impl FleetServer {
    /// Waits until the rules are evaluated, and returns how long that takes.
    pub(super) fn evaluated(&self) -> Result<Evaluated> {
        let asks = |query: &str| {
            let path = format!("/api/v1/query?query={query}");
            get(self.address, &path).is_ok_and(|body| body.contains("\"value\":"))
        };
        until("the rules are evaluated", RULES_LIMIT, || {
            asks("memwatch:fleet_rules")
                && (self.is_without_failures() || asks("memwatch:fleet_node_last_oom_timestamp_seconds"))
        })?;
        match &self.rules {
            None => {
                let rules: serde_json::Value = serde_json::from_str(&get(self.address, "/api/v1/rules")?)?;
                let groups = rules["data"]["groups"].as_array().context("no groups")?;
                let of = |name: &str| {
                    let group = groups.iter().find(|group| group["name"] == name);
                    group.and_then(|group| group["evaluationTime"].as_f64()).context("a group without its time")
                };
                Ok(Evaluated { fleet_seconds: of("memwatch-fleet")?, day_seconds: of("memwatch-fleet-day")? })
            }
            Some((_, address)) => {
                let metrics = get(*address, "/metrics")?;
                let of = |name: &str| {
                    let sum = |what: &str| {
                        let start = format!("vmalert_iteration_duration_seconds_{what}{{group=\"{name}\"");
                        metrics.lines().find(|line| line.starts_with(&start))?.rsplit(' ').next()?.parse::<f64>().ok()
                    };
                    sum("sum")
                        .zip(sum("count"))
                        .map(|(sum, count)| sum / count)
                        .context("vmalert has no time of a group")
                };
                Ok(Evaluated { fleet_seconds: of("memwatch-fleet")?, day_seconds: of("memwatch-fleet-day")? })
            }
        }
    }

    /// Whether the series have no failures: a server that was scraped for minutes only has none
    /// within a day.
    fn is_without_failures(&self) -> bool {
        self.name.ends_with("scraping")
    }

    /// Returns the resident memory, and the anonymous part of it.
    pub(super) fn memory(&self) -> Result<[u64; 2]> {
        let status =
            fs::read_to_string(format!("/proc/{}/status", self.program.tgid())).context("the server has ended")?;
        let value = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
        };
        value("VmRSS:").zip(value("RssAnon:")).map(Into::into).context("status is not as expected")
    }
}

fn until(what: &str, limit: Duration, is_so: impl Fn() -> bool) -> Result<()> {
    let begin = Instant::now();
    while !is_so() {
        if begin.elapsed() > limit {
            bail!("not within {} s: {what}", limit.as_secs());
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

fn get(address: SocketAddr, path: &str) -> Result<String> {
    ask(address, &format!("GET {path} HTTP/1.0\r\n\r\n"), "")
}

fn post(address: SocketAddr, path: &str, body: &str) -> Result<String> {
    ask(address, &format!("POST {path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n", body.len()), body)
}

/// Sends a request, and returns the body of the response; HTTP 1.0 sends it in one piece.
fn ask(address: SocketAddr, head: &str, body: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    if !head.lines().next().is_some_and(|line| line.contains(" 200 ") || line.contains(" 204 ")) {
        bail!("{head}\n{body}");
    }
    Ok(body.to_owned())
}
