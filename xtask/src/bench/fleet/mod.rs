//! `cargo xtask bench fleet`: measures the cost of the screen of a large fleet for a real
//! Prometheus and a real VictoriaMetrics.

mod series;
mod servers;

use self::series::{FictionalFleet, JOB, instance};
use self::servers::{Evaluated, FleetServer};
use crate::args::TaskArgs;
use crate::binary;
use crate::document::{self, DocumentPart};
use crate::repo::{BuildProfile, Repo};
use crate::setup::{self, Package};
use crate::table::MarkdownTable;
use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

const DOCUMENT: &str = "docs/project/fleet.md";
const FLEET: DocumentPart = DocumentPart {
    begin: "<!-- fleet: begin (cargo xtask bench fleet writes what follows) -->\n",
    end: "<!-- fleet: end -->\n",
};
/// Number of times that a report is requested; the shortest time of each query counts.
const ROUNDS: usize = 3;
/// Number of GPUs to extrapolate to.
const LARGE_GPUS: u64 = 50_000;

/// Reports: name, and command line options.
const PAGES: [(&str, &[&str]); 8] = [
    ("workloads", &["--by", "workload"]),
    ("workloads by imbalance", &["--by", "workload", "--sort", "imbalance"]),
    ("workloads by growth", &["--by", "workload", "--sort", "growth"]),
    ("nodes", &["--by", "node"]),
    ("GPUs", &["--by", "gpu"]),
    ("GPUs that are idle", &["--by", "gpu", "--sort", "idle"]),
    ("one node opened", &["--by", "holder", "--match", "instance=NODE"]),
    ("one Slurm job opened", &["--by", "holder", "--match", "slurm_job=JOB"]),
];
/// A condition on a label of all raw series, which no recorded series has.
const RAW: [&str; 2] = ["--match", "job=memwatch"];

/// A query of a page; pages list them in the order of execution.
#[derive(Clone, Debug, PartialEq)]
struct Query {
    expression: String,
    seconds: f64,
}

/// Queries of a page with the recording rules, and the seconds of each from raw series, if
/// measured.
#[derive(Clone, Debug, PartialEq)]
struct PageQueries {
    name: &'static str,
    recorded: Vec<Query>,
    raw: Vec<f64>,
}

/// Measurements on one server.
struct ServerMeasurement {
    name: &'static str,
    fleet: FictionalFleet,
    samples: u64,
    filled_seconds: f64,
    rules: Evaluated,
    /// Resident memory, and the anonymous part of it: with the rules, and after the raw queries.
    memory: [[u64; 2]; 2],
    series: u64,
    pages: Vec<PageQueries>,
}

/// Fills a server with a fleet. The first path is the data directory, the second is the repository.
type StartServer = fn(FictionalFleet, &Path, &Path) -> Result<FleetServer>;

/// Fills each server, measures, prints the tables and writes them into the document.
pub(super) fn task(repo: &Repo, mut args: TaskArgs) -> Result<()> {
    let mut count = |name: &str, default| args.count(name).map(|count| count.unwrap_or(default));
    let fleet = FictionalFleet {
        nodes: count("--nodes", 2_000)?,
        gpus: count("--gpus", 8)?,
        workloads: count("--workloads", 20)?,
    };
    let profile = if args.flag("--debug") { BuildProfile::Debug } else { BuildProfile::Release };
    args.finish()?;
    if fleet.pairs() == 0 {
        bail!("a fleet has nodes, GPUs and workloads");
    }
    setup::packages(&[Package::Prometheus, Package::VictoriaMetrics])?;
    let memwatch = binary::build(repo, profile)?;
    let folder = repo.made("bench-fleet");
    let mut all = Vec::new();
    for start in [servers::scraping_prometheus as StartServer, servers::prometheus, servers::victoria_metrics] {
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        let server = start(fleet, &folder, repo.root())?;
        all.push(measure(&server, &memwatch)?);
        drop(server);
    }
    fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    let load = fs::read_to_string("/proc/loadavg").context("cannot read /proc/loadavg")?;
    let load = load.split(' ').nth(2).unwrap_or_default();
    let machine = document::machine()?;
    let text =
        format!("{machine}; {load} programs wanted to run in the last quarter of an hour.\n\n{}", text(fleet, &all)?);
    println!("{text}");
    document::update(&repo.path(DOCUMENT), &FLEET, &text)
}

fn measure(server: &FleetServer, memwatch: &Path) -> Result<ServerMeasurement> {
    let rules = server.evaluated()?;
    eprintln!("{}: {rules:?}", server.name);
    let memory = server.memory()?;
    let mut pages = Vec::new();
    for (name, words) in PAGES {
        let rounds = (0..ROUNDS).map(|_| asked(server, memwatch, words, true)).collect::<Result<Vec<_>>>()?;
        let mut recorded = rounds[0].clone();
        for (place, query) in recorded.iter_mut().enumerate() {
            let each = rounds.iter().filter_map(|round| Some(round.get(place)?.seconds));
            query.seconds = each.fold(f64::INFINITY, f64::min);
        }
        // From raw series a page takes minutes, so one page is measured once.
        let is_measured = name == PAGES[0].0 && server.reads_quickly;
        let raw = if is_measured { asked(server, memwatch, &[words, &RAW].concat(), false)? } else { Vec::new() };
        let raw = raw.iter().map(|query| query.seconds).collect();
        let page = PageQueries { name, recorded, raw };
        eprintln!("{}: {page:?}", server.name);
        pages.push(page);
    }
    let again = server.evaluated()?;
    let rules = Evaluated {
        fleet_seconds: rules.fleet_seconds.min(again.fleet_seconds),
        day_seconds: rules.day_seconds.min(again.day_seconds),
    };
    Ok(ServerMeasurement {
        name: server.name,
        fleet: server.fleet,
        samples: server.samples,
        filled_seconds: server.filled.as_secs_f64(),
        rules,
        memory: [memory, server.memory()?],
        series: server.series,
        pages,
    })
}

/// Returns the queries of a report, with their times.
fn asked(server: &FleetServer, memwatch: &Path, words: &[&str], is_recorded: bool) -> Result<Vec<Query>> {
    let words_of_idle = words.contains(&"idle");
    let words = words.iter().map(|word| word.replace("NODE", &instance(0)).replace("JOB", &JOB.to_string()));
    let mut command = Command::new(memwatch);
    command
        .args(["fleet", "--json", "--timeout", "5m", "--prometheus"])
        .arg(format!("http://{}", server.address))
        .args(words);
    let output = command.output().context("memwatch does not start")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr));
    }
    let report: Value = serde_json::from_slice(&output.stdout).context("no report")?;
    let data = &report["data"];
    if is_recorded && data["rules"] != "used" && data["rules"] != "partly_used" {
        bail!("{} has no recorded series: {}", server.name, data["rules"]);
    }
    let has_rows = ["workloads", "nodes", "gpus", "holders"]
        .iter()
        .any(|name| data[name].as_array().is_some_and(|rows| !rows.is_empty()));
    // On a server that was scraped for minutes only, no GPU was idle for half an hour.
    if !has_rows && !words_of_idle {
        bail!("no rows: {command:?}");
    }
    let queries = data["queries"].as_array().context("no queries")?.iter();
    let one = |query: &Value| {
        let expression = query["expression"].as_str()?.to_owned();
        Some(Query { expression, seconds: query["seconds"].as_f64()? })
    };
    queries.map(|query| one(query).context("a query without its time")).collect()
}

fn text(fleet: FictionalFleet, all: &[ServerMeasurement]) -> Result<String> {
    let mut text = String::new();
    let FictionalFleet { nodes, gpus, workloads } = fleet;
    writeln!(
        text,
        "{nodes} nodes with {gpus} GPUs each and {workloads} workloads on each GPU: {} pairs of workload and GPU.\n",
        fleet.pairs()
    )?;
    let mut table = MarkdownTable::new(&[
        "",
        "nodes",
        "million series",
        "million samples",
        "filled in s",
        "MB with rules",
        "of that heap",
        "MB in the end",
        "rules, s a minute",
        "of a day, s every 3 min",
    ]);
    let mb = |bytes: u64| (bytes / 1_000_000).to_string();
    for one in all {
        let [[with, heap], [end, _]] = one.memory;
        table.row(vec![
            one.name.to_owned(),
            one.fleet.nodes.to_string(),
            format!("{:.2}", real(one.series) / 1e6),
            format!("{:.1}", real(one.samples) / 1e6),
            format!("{:.0}", one.filled_seconds),
            mb(with),
            mb(heap),
            mb(end),
            format!("{:.1}", one.rules.fleet_seconds),
            format!("{:.1}", one.rules.day_seconds),
        ]);
    }
    writeln!(text, "{}", table.text())?;
    if let Some(scraping) = all.first() {
        text.push_str(&worked_out(scraping));
    }
    writeln!(text, "{}", pages(all))?;
    text.push_str(&queries(all));
    Ok(text)
}

#[expect(clippy::cast_precision_loss, reason = "numbers in a table have few digits")]
const fn real(number: u64) -> f64 {
    number as f64
}

/// Extrapolates to a large fleet, assuming that all costs are proportional to the number of series.
fn worked_out(one: &ServerMeasurement) -> String {
    let scale = real(LARGE_GPUS) / real(one.fleet.nodes * one.fleet.gpus);
    let [[with, _], _] = one.memory;
    let of_pages = one.pages.iter().filter(|page| !page.name.contains("opened"));
    let slowest = of_pages.flat_map(|page| &page.recorded).map(|query| query.seconds).fold(0.0, f64::max);
    format!(
        "{LARGE_GPUS} GPUs with {} workloads each, worked out from what {} of them take a Prometheus that scrapes: {:.1} million series, {:.0} GB, \
         {:.0} s of rules a minute, {:.1} s for the slowest query.\n\n",
        one.fleet.workloads,
        one.fleet.nodes * one.fleet.gpus,
        real(one.series) * scale / 1e6,
        real(with) * scale / 1e9,
        one.rules.fleet_seconds * scale,
        slowest * scale,
    )
}

/// Returns a table with a row per page.
fn pages(all: &[ServerMeasurement]) -> String {
    let mut titles = vec!["page".to_owned(), "queries".to_owned()];
    for one in all {
        titles.push(format!("{}: slowest query, s", one.name));
        titles.push("all, s".to_owned());
        titles.push("raw: slowest, s".to_owned());
        titles.push("all, s".to_owned());
    }
    let mut table = MarkdownTable::new(&titles.iter().map(String::as_str).collect::<Vec<_>>());
    for (place, (name, _)) in PAGES.iter().enumerate() {
        let mut row = vec![(*name).to_owned()];
        for (number, one) in all.iter().enumerate() {
            let PageQueries { recorded, raw, .. } = &one.pages[place];
            if number == 0 {
                row.push(recorded.len().to_string());
            }
            let seconds: Vec<f64> = recorded.iter().map(|query| query.seconds).collect();
            let most = |of: &[f64]| of.iter().copied().fold(0.0, f64::max);
            let sum = |of: &[f64]| of.iter().sum::<f64>();
            row.extend([most(&seconds), sum(&seconds)].map(|number| format!("{number:.2}")));
            let raw = (!raw.is_empty()).then(|| [most(raw), sum(raw)]);
            row.extend(
                raw.map_or_else(|| ["-", "-"].map(str::to_owned), |raw| raw.map(|number| format!("{number:.2}"))),
            );
        }
        table.row(row);
    }
    table.text()
}

/// Returns a table with a row per distinct query, since pages share the queries of totals.
fn queries(all: &[ServerMeasurement]) -> String {
    let mut titles = vec!["query".to_owned()];
    for one in all {
        titles.extend([format!("{}, s", one.name), "raw, s".to_owned()]);
    }
    let mut table = MarkdownTable::new(&titles.iter().map(String::as_str).collect::<Vec<_>>());
    let mut seen = Vec::new();
    // Queries of opened rows have few series and long expressions.
    let pages = all[0].pages.iter().enumerate().filter(|(_, page)| !page.name.contains("opened"));
    for (place, page) in pages {
        for (number, query) in page.recorded.iter().enumerate() {
            let name = short(&query.expression);
            if seen.contains(&name) {
                continue;
            }
            let mut row = vec![format!("`{}`", name.replace('|', "\\|"))];
            for one in all {
                let PageQueries { recorded, raw, .. } = &one.pages[place];
                let seconds = |of: Option<f64>| of.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.3}"));
                row.push(seconds(recorded.get(number).map(|query| query.seconds)));
                row.push(seconds(raw.get(number).copied()));
            }
            seen.push(name);
            table.row(row);
        }
    }
    table.text()
}

/// Shortens an expression, without the selection of its rows.
fn short(expression: &str) -> String {
    let own = expression.split_once(" and on (").filter(|(own, _)| own.starts_with('(') && own.ends_with(')'));
    let own = own.map_or(expression, |(own, _)| &own[1..own.len() - 1]);
    let name = own.split_once(['{', ' ']).map_or(own, |(name, _)| name);
    if own.starts_with("memwatch") { name.to_owned() } else { own.chars().take(90).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_called_by_what_it_asks_for() {
        assert_eq!(short("(memwatch:fleet_node_gpus) and on (instance) topk(20, (x))"), "memwatch:fleet_node_gpus");
        assert_eq!(short("sum(memwatch:fleet_node_gpus)"), "sum(memwatch:fleet_node_gpus)");
        assert_eq!(short("memwatch:fleet_rules"), "memwatch:fleet_rules");
    }

    #[test]
    fn the_fleets_rules_are_cut_out_of_the_shipped_ones() {
        let rules = servers::rules(include_str!("../../../../deploy/prometheus/rules.yaml")).unwrap();
        assert!(rules.starts_with("groups:\n  - name: memwatch-fleet-day\n    interval: 3m\n"));
        assert_eq!(rules.matches("- alert:").count(), 0);
        assert_eq!(rules.matches("- name:").count(), 2);
    }
}
