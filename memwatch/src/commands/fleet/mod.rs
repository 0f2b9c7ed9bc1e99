//! `memwatch fleet`: who holds the GPU memory of many machines, by what their agents have reported to a Prometheus.

pub(crate) mod args;
mod model;
mod queries;
mod text;

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use serde::Serialize;

use self::args::{By, Fleet};
use self::model::{Gpu, Node, Table, Totals, Workload};
use self::queries as ask;
use self::queries::Query;
use crate::exit::{Exit, Failure};
use crate::options::Common;
use crate::printable::write_json;
use crate::render::output::{style, unless_closed};
use crate::sources::prometheus::{Manner, Series, Server};

/// Clears a terminal, and goes to its first line.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// One report.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Who answered.
    prometheus: String,
    totals: Totals,
    #[serde(flatten)]
    rows: Rows,
}

/// What was asked for, largest first.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Rows {
    Workloads(Vec<Workload>),
    Nodes(Vec<Node>),
    Gpus(Vec<Gpu>),
}

#[derive(Serialize)]
struct Envelope<'a> {
    schema: &'static str,
    version: &'static str,
    time: String,
    data: &'a Report,
}

/// Asks and prints, once or again and again.
///
/// # Errors
/// When the Prometheus cannot be asked, knows no agent, or the report cannot be written.
pub(crate) async fn run(args: &Fleet, common: &Common) -> Result<Exit, Failure> {
    loop {
        let report = report(args).await?;
        print(&report, args, common)?;
        let Some(interval) = args.interval else { return Ok(Exit::Ok) };
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            _ = tokio::signal::ctrl_c() => return Ok(Exit::Ok),
        }
    }
}

fn print(report: &Report, args: &Fleet, common: &Common) -> Result<(), Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let mut out = io::stdout().lock();
    let is_live = args.interval.is_some() && io::stdout().is_terminal();
    unless_closed(
        if common.json {
            let (schema, version) = ("memwatch.fleet/1", env!("CARGO_PKG_VERSION"));
            let envelope = Envelope { schema, version, time: Timestamp::now().to_string(), data: report };
            write_json(&mut out, &envelope).and_then(|()| out.write_all(b"\n"))
        } else {
            let cleared = if is_live { out.write_all(CLEAR.as_bytes()) } else { Ok(()) };
            cleared
                .and_then(|()| text::write(&mut out, report, (args.top, now), &style(common, args.interval.is_some())))
        }
        .and_then(|()| out.flush()),
    )
}

/// Who is asked, and how.
struct Asking<'a> {
    server: &'a Server,
    manner: Manner,
    /// The shipped rules are loaded there.
    is_recorded: bool,
}

impl Asking<'_> {
    async fn one(&self, query: Query) -> Result<Vec<Series>, Failure> {
        ask(self.server, query.asked(self.is_recorded), &self.manner).await
    }

    async fn table(&self, labels: &[&str], queries: &[Query]) -> Result<Table, Failure> {
        let mut answers = Vec::with_capacity(queries.len());
        for query in queries {
            answers.push(self.one(*query).await?);
        }
        Ok(Table::of(labels, &answers))
    }
}

async fn ask(server: &Server, expression: &str, manner: &Manner) -> Result<Vec<Series>, Failure> {
    let answer = server.query(expression, manner).await;
    answer.map_err(|why| Failure::new(Exit::Error, format_args!("--prometheus {}: {why}", server.url())))
}

async fn report(args: &Fleet) -> Result<Report, Failure> {
    let (server, manner) = (&args.prometheus, args.manner());
    let is_recorded = !ask(server, ask::NODE_GPUS.record, &manner).await?.is_empty();
    let asking = Asking { server, manner, is_recorded };
    let nodes = nodes(&asking).await?;
    let down = asking.one(ask::DOWN).await?;
    if nodes.is_empty() && down.is_empty() {
        return Err(Failure::new(Exit::NoTarget, format_args!("{} knows no agent of memwatch", server.url()))
            .advise("Start `memwatch agent --listen ADDRESS` on each machine, and scrape it: deploy/prometheus has the configuration."));
    }
    let knows = asking.one(Query { record: "", expression: "count(memwatch_gpu_utilization_ratio)" }).await?;
    let agents_down = down.into_iter().filter_map(|mut series| series.labels.remove("instance")).collect();
    let totals = model::totals(&nodes, agents_down, !knows.is_empty());
    let rows = match args.by {
        By::Node => Rows::Nodes(nodes),
        By::Gpu => Rows::Gpus(gpus(&asking).await?),
        By::Workload => Rows::Workloads(workloads(&asking).await?),
    };
    Ok(Report { prometheus: server.url(), totals, rows })
}

async fn nodes(asking: &Asking<'_>) -> Result<Vec<Node>, Failure> {
    let queries = [
        ask::NODE_GPUS,
        ask::NODE_LIMIT,
        ask::NODE_USED,
        ask::NODE_UNATTRIBUTED,
        ask::NODE_IDLE,
        ask::NODE_FULL,
        ask::NODE_OOM,
    ];
    let mut nodes = asking.table(&["instance"], &queries).await?.each(|key, values| Node {
        instance: key.concat(),
        gpus: values.whole(0),
        limit_bytes: values.whole(1),
        used_bytes: values.whole(2),
        unattributed_bytes: values.signed(3),
        idle_gpus: values.whole(4),
        seconds_to_full: values.real(5),
        last_oom_unix_seconds: values.real(6),
    });
    nodes.sort_by_key(|node| std::cmp::Reverse(node.used_bytes));
    Ok(nodes)
}

async fn gpus(asking: &Asking<'_>) -> Result<Vec<Gpu>, Failure> {
    let queries = [ask::GPU_LIMIT, ask::GPU_USED, ask::GPU_UNATTRIBUTED, ask::GPU_UTILIZATION, ask::GPU_FULL];
    let mut gpus = asking.table(&ask::GPU, &queries).await?.each(|key, values| {
        let [instance, gpu, uuid] = named(key);
        Gpu {
            instance,
            gpu,
            uuid,
            limit_bytes: values.whole(0),
            used_bytes: values.whole(1),
            unattributed_bytes: values.signed(2),
            utilization: values.real(3),
            seconds_to_full: values.real(4),
        }
    });
    gpus.sort_by_key(|gpu| std::cmp::Reverse(gpu.used_bytes));
    Ok(gpus)
}

async fn workloads(asking: &Asking<'_>) -> Result<Vec<Workload>, Failure> {
    let queries = [
        ask::WORKLOAD_USED,
        ask::WORKLOAD_ALLOCATED,
        ask::WORKLOAD_GPUS,
        ask::WORKLOAD_NODES,
        ask::WORKLOAD_MOST,
        ask::WORKLOAD_LEAST,
        ask::WORKLOAD_IDLE,
        ask::WORKLOAD_GROWTH,
        ask::WORKLOAD_OOM,
    ];
    let mut workloads = asking.table(&ask::WORKLOAD, &queries).await?.each(|key, values| {
        let [workload_kind, namespace, pod, container, slurm_job, unit] = named(key);
        Workload {
            workload_kind,
            namespace,
            pod,
            container,
            slurm_job,
            unit,
            used_bytes: values.whole(0),
            driver_allocated_bytes: values.whole(1),
            gpus: values.whole(2),
            nodes: values.whole(3),
            largest_used_bytes: values.whole(4),
            smallest_used_bytes: values.whole(5),
            idle_gpus: values.whole(6),
            growth_bytes_per_second: values.real(7),
            last_oom_unix_seconds: values.real(8),
        }
    });
    workloads.sort_by_key(|workload| std::cmp::Reverse(workload.used_bytes.max(workload.driver_allocated_bytes)));
    Ok(workloads)
}

/// A key's values by name: it has as many as there are labels.
fn named<const N: usize>(key: model::Key) -> [String; N] {
    key.try_into().unwrap_or_else(|_| std::array::from_fn(|_| String::new()))
}
