//! A worker of the agent: records processes to standard output, with bounded memory.

use std::ffi::OsString;
use std::fmt::Display;
use std::fs;
use std::io::{self, BufWriter, Read as _};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::agent::flight_recorder::{NamesAnswer, NamesOrder};
use crate::client::protocol::HistoryFiles;
use crate::client::protocol::watch::{PastRequest, WatchedTensors};
use crate::exit::{Exit, ExitFailure};
use crate::frameworks::pytorch::{HoldingsReader, NAMES_TIME};
use crate::frameworks::watch::TensorRequest;
use crate::options::{Checked, CommonArgs, RecordingTime, Selected, TargetArgs, TimeWindow};
use crate::sources::clock;
use crate::sources::procfs::ProcReader;
use crate::watch::excerpt::write_excerpt;
use crate::watch::history::HistoryPart;
use crate::watch::recorded;
use crate::watch::recording::{AtLimit, RecorderOptions};
use crate::watch::replay::ReplayRequest;
use crate::watch::session::{Session, holdings};
use crate::watch::signals::TerminationSignals;
use crate::watch::subject::session_options;
use memwatch_core::attribution::price::Budget;
use memwatch_core::features::causes::held_names;
use memwatch_core::input::StackSelection;
use memwatch_core::words::Tgid;

/// Memory of a worker in bytes, at most: for a moment, while it reads the symbols of a framework or
/// the objects of a program.
pub(super) const BYTES: u64 = 160 << 20;
/// Limit of its private memory in bytes, beyond which it ends. Stacks and arenas of its threads are
/// 160 MiB of that, of which hardly any is used.
const LIMIT_BYTES: u64 = BYTES + (240 << 20);
/// What a worker writes to standard error once its probes are attached.
pub(super) const ATTACHED: &str = "memwatch: attached";
/// Size of a worker's ring, in bytes.
const RING_BYTES: u32 = 4 << 20;
/// Maximum bytes of an order.
const ORDER_BYTES: u64 = 64 << 10;
/// Less priority than the agent and the watched programs.
const NICE: i32 = 5;

/// Arguments of a worker: none, since its order comes on standard input.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct WorkerArgs;

impl Checked for WorkerArgs {}

/// What a worker is to do.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::agent) enum WorkerOrder {
    /// To watch processes.
    Watch(WatchOrder),
    /// To read a history.
    Past(PastOrder),
    /// To read the live objects of a process by name, and answer with [`NamesAnswer`] as JSON.
    Names(NamesOrder),
}

/// The part of a history that a user may see.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::agent) struct PastOrder {
    /// The history.
    pub(in crate::agent) kept: HistoryFiles,
    /// The user.
    pub(in crate::agent) uid: u32,
    /// The period.
    pub(in crate::agent) period: PastRequest,
}

/// A watch of processes.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::agent) struct WatchOrder {
    /// The processes, each with its start: `CLOCK_BOOTTIME`, nanoseconds.
    pub(super) processes: Vec<(u32, u64)>,
    pub(super) tensors: WatchedTensors,
    pub(super) duration_ms: u64,
    /// Program and arguments that the one process is about to start.
    pub(super) program: Option<Vec<String>>,
    /// Maximum bytes of the recording.
    pub(super) most_bytes: u64,
}

/// Writes what the order on standard input names to standard output, as a recording.
///
/// # Errors
/// The processes cannot be traced, the history cannot be read, or the recording cannot be written.
pub(crate) async fn run(_: &WorkerArgs, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    bound();
    let mut text = Vec::new();
    io::stdin().lock().take(ORDER_BYTES).read_to_end(&mut text).map_err(anyhow::Error::from)?;
    let order: WorkerOrder = serde_json::from_slice(&text).map_err(|error| {
        let failure = ExitFailure::new(Exit::Error, format_args!("no order on standard input: {error}"));
        failure.advise("The agent starts this command for its clients.")
    })?;
    match order {
        WorkerOrder::Watch(order) => watch(order, common).await,
        WorkerOrder::Past(order) => past(&order),
        WorkerOrder::Names(order) => names(order),
    }
}

fn names(order: NamesOrder) -> Result<Exit, ExitFailure> {
    let NamesOrder { tgid, start_ns } = order;
    let failed = |why: &dyn Display| ExitFailure::new(Exit::NoTarget, format_args!("process {tgid}: {why}"));
    if ProcReader::new("/proc").identity(tgid).is_none_or(|found| found.start_ns != start_ns) {
        return Err(failed(&"it has ended"));
    }
    let reader = HoldingsReader::open(tgid, NAMES_TIME).map_err(|error| failed(&error))?;
    let read = reader.map(|mut reader| reader.read_patiently()).transpose().map_err(|error| failed(&error))?;
    let names = read.map(|(holdings, totals)| Box::new(held_names(&holdings, &totals)));
    let answer = NamesAnswer { names, processor_ns: clock::process_ns() };
    serde_json::to_writer(io::stdout().lock(), &answer).map_err(anyhow::Error::from)?;
    Ok(Exit::Ok)
}

fn past(order: &PastOrder) -> Result<Exit, ExitFailure> {
    let at = |unix_ns: Option<i64>| {
        unix_ns.and_then(|unix_ns| Timestamp::from_nanosecond(unix_ns.into()).ok()).map(RecordingTime::At)
    };
    let PastRequest { since_unix_ns, until_unix_ns } = order.period;
    let window = TimeWindow { since: at(since_unix_ns), until: at(until_unix_ns) };
    let now_unix_ns = Some(clock::boottime_to_unix_ns() + i128::from(clock::boottime_ns()));
    let request = ReplayRequest { window, all_events: true, now_unix_ns };
    let part = HistoryPart::of(&order.kept, request)?;
    eprintln!("{ATTACHED}");
    write_excerpt(part.files, request, order.uid, &mut BufWriter::new(io::stdout().lock()))?;
    Ok(Exit::Ok)
}

async fn watch(order: WatchOrder, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let tgids: Vec<Tgid> = order.processes.iter().map(|(tgid, _)| Tgid(*tgid)).collect();
    let mut options = session_options(&TargetArgs::of(&Selected::of(&tgids)), request(order.tensors), common);
    if order.program.is_some() {
        (options.targets, options.expects_command) = (Vec::new(), true);
    }
    options.ring_bytes = RING_BYTES;
    options.holdings_every = Some(holdings::IN_RECORDING);
    options.recorder = Some(RecorderOptions {
        path: "-".into(),
        force: false,
        limit_bytes: Some(order.most_bytes),
        at_limit: AtLimit::End,
        mode: None,
        waits: true,
        front: recorded::front(false, false),
    });
    let mut signals = TerminationSignals::listen()?;
    let mut session = Session::open(&options)?;
    if let (Some(program), [(tgid, _)]) = (&order.program, &order.processes[..]) {
        let words: Vec<OsString> = program.iter().map(OsString::from).collect();
        session.adopt(*tgid, &words).map_err(ExitFailure::from_load)?;
    }
    let mut processes = ProcReader::new("/proc");
    for (tgid, start_ns) in order.processes {
        if processes.identity(tgid).is_some_and(|found| found.start_ns != start_ns) {
            return Err(ExitFailure::new(Exit::NoTarget, format_args!("process {tgid} has ended")));
        }
    }
    eprintln!("{ATTACHED}");
    let deadline = Instant::now() + Duration::from_millis(order.duration_ms);
    let stopped = recorded::follow(&mut session, &mut signals, Some(deadline)).await;
    session.read_holdings(&mut signals).await;
    let (_, _, recorded) = session.end_recording(stopped);
    match recorded.map(|recorded| recorded.end) {
        Some(Err(why)) => Err(ExitFailure::new(Exit::Error, why)),
        _ => Ok(Exit::Ok),
    }
}

/// Returns what a client's request asks a session for.
fn request(watched: WatchedTensors) -> TensorRequest {
    let WatchedTensors { level, reports_only, all_stacks, budget_ns } = watched;
    let stacks = if all_stacks { StackSelection::All } else { StackSelection::ByBytes };
    TensorRequest { level, reports_only, stacks, budget: budget_ns.map(Budget::Part) }
}

/// Bounds memory and priority of this process, and has it end with the agent.
fn bound() {
    // If memory is short, the kernel ends this process and not the agent, whichever is larger. Where
    // /proc is read-only, the size decides.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    let limit = libc::rlimit { rlim_cur: LIMIT_BYTES, rlim_max: LIMIT_BYTES };
    // SAFETY: the pointer is to an initialized `rlimit`; the other calls take none.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::setrlimit(libc::RLIMIT_DATA, &raw const limit);
        libc::setpriority(libc::PRIO_PROCESS, 0, NICE);
    }
}

#[cfg(test)]
mod tests {
    use memwatch_core::input::TensorLevel;

    use super::*;
    use crate::watch::evidence::streamed::watched;

    #[test]
    fn worker_traces_what_the_client_asked_for() {
        for budget in [None, Some(Budget::Part(0)), Some(Budget::default())] {
            for stacks in [StackSelection::All, StackSelection::ByBytes] {
                let asked = TensorRequest { level: TensorLevel::Lines, reports_only: true, stacks, budget };
                assert_eq!(request(watched(asked)), asked);
            }
        }
    }
}
