//! `memwatch fleet`: the GPU memory of many machines by workload, from what their agents report to
//! a Prometheus.

pub(crate) mod args;
mod ask;
mod columns;
mod facts;
mod model;
mod screen;
mod select;
mod text;

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use serde::Serialize;

use self::args::{FleetArgs, FleetSort};
use self::ask::{FleetQuestion, FleetReport};
use crate::exit::{Exit, ExitFailure};
use crate::options::CommonArgs;
use crate::printable::write_json;
use crate::render::output::{style, unless_closed, use_color};
use crate::render::tui::view::TerminalLook;
use crate::sources::prometheus::{PrometheusClient, PrometheusServer, Trouble};

/// Default number of rows of a table, and of the screen.
const ROWS: u32 = 20;
const SCREEN_ROWS: u32 = 200;
/// The screen queries as often as agents are usually scraped.
const SCREEN_INTERVAL: Duration = Duration::from_secs(15);

#[derive(Serialize)]
struct FleetEnvelope<'a> {
    schema: &'static str,
    version: &'static str,
    time: String,
    data: &'a FleetReport,
}

/// Queries and prints, once or periodically.
///
/// # Errors
/// The Prometheus cannot be queried, knows no agent, or the report cannot be written.
pub(crate) async fn run(args: &FleetArgs, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let possible = FleetSort::of(args.by);
    if !possible.contains(&args.sort) {
        let words = possible.into_iter().map(FleetSort::word).collect::<Vec<_>>().join(", ");
        let what = format!("--sort {}: these rows have no such column", args.sort.word());
        return Err(ExitFailure::new(Exit::Error, what).advise(format!("They have {words}; --by has other rows.")));
    }
    let manner = args.manner().map_err(|why| ExitFailure::new(Exit::Error, why))?;
    let mut client = PrometheusClient::new(args.prometheus.clone(), manner.clone());
    let is_screen = !common.json && !args.once && io::stdout().is_terminal();
    let rows = args.top.unwrap_or(if is_screen { SCREEN_ROWS } else { ROWS });
    let question = FleetQuestion {
        by: args.by,
        sort: args.sort,
        top: usize::try_from(rows).unwrap_or(usize::MAX),
        matchers: args.matchers(),
        opened: Vec::new(),
    };
    // Errors of the server are printed on the ordinary screen.
    let mut report = first_report(&mut client, &args.prometheus, &question).await?;
    if is_screen {
        let look = TerminalLook { color: use_color(common), ascii: common.ascii };
        let interval = args.interval.unwrap_or(SCREEN_INTERVAL);
        let options = screen::FleetScreenOptions { server: args.prometheus.clone(), manner, interval, look };
        return screen::run(options, client, (question, report)).await;
    }
    loop {
        print(&report, &question, (args, common))?;
        let Some(interval) = args.interval else { return Ok(Exit::Ok) };
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            _ = tokio::signal::ctrl_c() => return Ok(Exit::Ok),
        }
        report = first_report(&mut client, &args.prometheus, &question).await?;
    }
}

/// Queries the first report; fails if the Prometheus has no data of memwatch.
async fn first_report(
    client: &mut PrometheusClient,
    server: &PrometheusServer,
    question: &FleetQuestion,
) -> Result<FleetReport, ExitFailure> {
    let report = ask::report(client, server.url(), question).await.map_err(|trouble| failure(server, trouble))?;
    let ask::FleetReport { totals, .. } = &report;
    if totals.nodes > 0 || totals.workloads > 0 || totals.agents_down_count > 0 {
        return Ok(report);
    }
    let url = server.url();
    Err(if question.matchers.0.is_empty() {
        ExitFailure::new(Exit::NoTarget, format_args!("{url} knows no agent of memwatch")).advise(
            "Start `memwatch agent --listen ADDRESS` on each machine, and scrape it: deploy/prometheus has the configuration.",
        )
    } else {
        ExitFailure::new(Exit::NoTarget, format_args!("{url} knows no agent of memwatch with these labels"))
            .advise("Without --match it lists what there is; docs/reference/metrics.md has the labels.")
    })
}

fn failure(server: &PrometheusServer, trouble: Trouble) -> ExitFailure {
    let failure = ExitFailure::new(Exit::Error, format_args!("--prometheus {}: {}", server.url(), trouble.what));
    match trouble.fix {
        Some(fix) => failure.advise(fix),
        None => failure,
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn print(
    report: &FleetReport,
    question: &FleetQuestion,
    (args, common): (&FleetArgs, &CommonArgs),
) -> Result<(), ExitFailure> {
    let mut out = io::stdout().lock();
    unless_closed(
        if common.json {
            let (schema, version) = ("memwatch.fleet/1", env!("CARGO_PKG_VERSION"));
            let envelope = FleetEnvelope { schema, version, time: Timestamp::now().to_string(), data: report };
            write_json(&mut out, &envelope).and_then(|()| out.write_all(b"\n"))
        } else {
            text::write(&mut out, report, (question.top, now()), &style(common, args.interval.is_some()))
        }
        .and_then(|()| out.flush()),
    )
}
