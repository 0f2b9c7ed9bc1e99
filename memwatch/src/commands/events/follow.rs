//! `memwatch events --follow`: prints events as they come, from the agent or a session of its own.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::args::Events;
use super::text::EventTable;
use super::{chosen_lines, is_chosen, line_of, present_unix_ns, selection, without_agent};
use crate::client::NoAgent;
use crate::client::events::{AgentEventStream, SentEvents};
use crate::client::protocol::events::EventsRequest;
use crate::exit::{Exit, ExitFailure};
use crate::frameworks::watch::{TensorLevel, TensorRequest};
use crate::options::CommonArgs;
use crate::render::output::style;
use crate::watch::events::{EventWatch, MachineEvent};
use crate::watch::evidence::agent::agent_to_ask;
use crate::watch::one_shot::open_named;
use crate::watch::recorded;
use crate::watch::session::{Session, SessionOptions};
use crate::watch::signals::TerminationSignals;
use crate::watch::subject::everybody;
use crate::watch::taken_at::TakenAt;

/// Interval for reading PyTorch's counters on a whole machine.
const COUNTERS: Duration = Duration::from_secs(5);

/// Prints events until a signal arrives, no process is left, or the reader has closed the pipe.
///
/// # Errors
/// Neither the agent nor a session can show events, or they cannot be written.
pub(super) async fn run(args: &Events, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let since = args.subject.past.window.since;
    let since_unix_ns = since.and_then(|since| i64::try_from(since.unix_ns(present_unix_ns().into())).ok());
    // Without a time only the later events are printed.
    let since_unix_ns = since_unix_ns.or_else(|| i64::try_from(present_unix_ns()).ok());
    if let Some(socket) = agent_to_ask(common) {
        match AgentEventStream::begin(socket, EventsRequest { since_unix_ns, follow: true }).await {
            Ok((stream, kept)) => return follow_agent((stream, kept), socket, args, common).await,
            Err(NoAgent::Absent) if common.agent.is_none() => {}
            Err(why @ NoAgent::Absent) => return Err(without_agent(socket, &why)),
            Err(why) => eprintln!("memwatch: the agent on {} cannot be used: {why}", socket.display()),
        }
    }
    if since.is_some() {
        eprintln!("memwatch: earlier events are known to an agent only; printing those from now on");
    }
    follow_session(args, common).await
}

async fn follow_agent(
    (mut stream, kept): (AgentEventStream, SentEvents),
    socket: &Path,
    args: &Events,
    common: &CommonArgs,
) -> Result<Exit, ExitFailure> {
    let mut signals = TerminationSignals::listen()?;
    let (selection, mut printer) = (selection(&args.subject.selected), EventPrinter::new(common));
    let mut sent = kept;
    while printer.print(&chosen_lines(&sent.events, &selection))? {
        tokio::select! {
            next = stream.next() => sent = next.map_err(|why| {
                ExitFailure::new(Exit::Error, format_args!("the agent on {}: {why}", socket.display()))
            })?,
            _ = signals.any() => break,
        }
    }
    Ok(Exit::Ok)
}

async fn follow_session(args: &Events, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let mut session = if args.subject.selected.is_everybody() {
        Session::open(&SessionOptions { counters_every: Some(COUNTERS), ..everybody(common) })?
    } else {
        open_named(&args.subject.selected, TensorRequest::of(TensorLevel::Modules), common).await?
    };
    EventWatch::prepare(session.pipeline_mut());
    EventWatch::prepare_forecasts(session.pipeline_mut());
    let mut signals = TerminationSignals::listen()?;
    let (selection, mut printer) = (selection(&args.subject.selected), EventPrinter::new(common));
    let (mut watch, mut is_reported) = (EventWatch::default(), false);
    printer.print(&[])?;
    let mut print = |events: Vec<MachineEvent>| {
        let taken_at = TakenAt::here();
        let chosen = events.iter().filter(|event| is_chosen(&selection, &event.subjects()));
        let lines: Vec<String> = chosen.map(|event| line_of(event, &taken_at)).collect();
        let is_open = printer.print(&lines.iter().map(String::as_str).collect::<Vec<_>>())?;
        if is_open { Ok(()) } else { Err(StopFollowing::Closed) }
    };
    let each = |session: &mut Session| {
        recorded::report_of_tensors(session, &mut is_reported);
        print(watch.take(session.pipeline_mut()))
    };
    let ended = recorded::follow_each(&mut session, &mut signals, None, each).await;
    session.tick();
    let ended = ended.and_then(|_| print(watch.take_all(session.pipeline_mut())));
    match ended {
        Ok(()) | Err(StopFollowing::Closed) => Ok(Exit::Ok),
        Err(StopFollowing::Failed(failure)) => Err(failure),
    }
}

/// Why nothing more is printed.
enum StopFollowing {
    /// The reader has closed the pipe.
    Closed,
    /// Writing failed.
    Failed(ExitFailure),
}

impl From<ExitFailure> for StopFollowing {
    fn from(failure: ExitFailure) -> Self {
        Self::Failed(failure)
    }
}

/// Prints events one after the other.
struct EventPrinter {
    is_json: bool,
    table: EventTable,
}

impl EventPrinter {
    fn new(common: &CommonArgs) -> Self {
        Self { is_json: common.json, table: EventTable::new(style(common, true), present_unix_ns()) }
    }

    /// Prints lines of JSON, or their rows. Returns false if the reader has closed the pipe.
    fn print(&mut self, lines: &[&str]) -> Result<bool, ExitFailure> {
        let mut out = io::stdout().lock();
        let written = if self.is_json {
            let each = lines.iter().try_for_each(|line| io::Write::write_fmt(&mut out, format_args!("{line}\n")));
            each.and_then(|()| io::Write::flush(&mut out))
        } else {
            self.table.write(&mut out, lines.iter().copied())
        };
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            written => {
                written.map_err(|error| anyhow::Error::from(error).context("an event cannot be written"))?;
                Ok(true)
            }
        }
    }
}
