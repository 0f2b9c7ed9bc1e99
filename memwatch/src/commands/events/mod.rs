//! `memwatch events`: lists what has happened on a machine: in a recording, in the history of the
//! agent, or since the agent was started.

pub(crate) mod args;
mod follow;
mod json;
mod text;
mod words;

use std::io;
use std::path::Path;

use memwatch_core::snapshot::{ProcessView, Viewer};

use crate::agent::events::EventForms;
use crate::client::NoAgent;
use crate::client::events::{AgentEventStream, SentEvents};
use crate::client::protocol::events::{EventMessage, EventsRequest};
use crate::commands::oom;
use crate::exit::{Exit, ExitFailure};
use crate::options::{CommonArgs, Selected};
use crate::render::Tone;
use crate::render::format::{count, plural};
use crate::render::output::{style, unless_closed};
use crate::render::sentences::Sentence;
use crate::render::text::TextPage;
use crate::render::wall_clock::WallClock;
use crate::sources::clock;
use crate::watch::events::bounded::{BoundedEvents, EventBounds};
use crate::watch::events::{EventWatch, MachineEvent};
use crate::watch::evidence::agent::agent_to_ask;
use crate::watch::evidence::past::Needs;
use crate::watch::recorded;
use crate::watch::recorded_period::RecordedPeriod;
use crate::watch::replay::{ReplayedPart, ReplayedRecording};
use crate::watch::selection::Selection;
use crate::watch::taken_at::TakenAt;
use args::Events;
use text::EventTable;

/// How the agent writes events.
pub(crate) const EVENTS: EventForms = EventForms { line: oom::text::event, json: json::line };

/// Events of a recording that are listed.
const RECORDED: EventBounds = EventBounds { all: 20_000, per_owner: 5_000, bytes: 256 << 20 };

/// Lists the events of a recording, of the history, or those that the agent keeps.
///
/// # Errors
/// The events cannot be read or written.
pub(crate) async fn run(args: &Events, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    if args.follow {
        return Box::pin(follow::run(args, common)).await;
    }
    match RecordedPeriod::named(&args.subject.past, Needs::Calls, common).await? {
        Some(recording) => of_recording(&recording, args, common),
        None => of_agent(args, common).await,
    }
}

/// An event of a recording, as a line of JSON.
struct RecordedEvent {
    time_ns: u64,
    line: String,
}

fn of_recording(recording: &RecordedPeriod, args: &Events, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let selection = selection(&args.subject.selected);
    let (mut watch, mut listed) = (EventWatch::default(), BoundedEvents::new(RECORDED));
    let mut list = |events: Vec<MachineEvent>, taken_at: &TakenAt| {
        for event in events.iter().filter(|event| is_chosen(&selection, &event.subjects())) {
            let line = line_of(event, taken_at);
            listed.push(event.owner(), line.len(), RecordedEvent { time_ns: event.time_ns(), line });
        }
    };
    let prepare = |pipeline: &mut _| {
        EventWatch::prepare(pipeline);
        EventWatch::prepare_forecasts(pipeline);
    };
    let each = |part: ReplayedPart<'_>| {
        let events = watch.take(part.pipeline);
        if !events.is_empty() {
            list(events, &TakenAt::at(part.host, part.boottime_to_unix_ns.into()));
        }
    };
    let mut replay = recorded::play_parts(recording, prepare, each)?;
    list(watch.take_all(&mut replay.pipeline), &TakenAt::of(&replay));
    let left_out = listed.left_out(Viewer::Everything) + watch.missed(&replay.pipeline);
    let mut events: Vec<RecordedEvent> = listed.into_events().collect();
    events.sort_by_key(|event| event.time_ns);
    if events.is_empty() && !selection.is_everybody() {
        // Says so if there is no such process.
        recorded::chosen(&replay, recording, &args.subject.selected)?;
    }
    let lines: Vec<&str> = events.iter().map(|event| event.line.as_str()).collect();
    if common.json {
        return print_json(&lines);
    }
    let now_unix_ns = unix_ns(TakenAt::of(&replay).clock.unix_ns(replay.now_ns()));
    let mut page = TextPage { text: String::new(), options: style(common, false) };
    if lines.is_empty() {
        page.line(&Sentence::new(Tone::Plain, none_in(&replay, &selection)));
    }
    if left_out > 0 {
        let text = format!("and {} more, of which too many happened to list them", count(left_out));
        page.line(&Sentence::new(Tone::Faint, text));
    }
    page.trust(&replay.snapshot(), &TakenAt::of(&replay).clock);
    print_table(&lines, &page.text, now_unix_ns, common)
}

async fn of_agent(args: &Events, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let Some(socket) = agent_to_ask(common) else {
        return Err(ExitFailure::new(Exit::Error, "events without --in, --since and --follow are those of the agent")
            .advise("Name a recording with --in FILE, or remove --no-agent."));
    };
    let sent = AgentEventStream::begin(socket, EventsRequest::default()).await;
    let (_, SentEvents { kept_since_unix_ns, left_out, events }) = sent.map_err(|why| without_agent(socket, &why))?;
    let selection = selection(&args.subject.selected);
    let lines = chosen_lines(&events, &selection);
    if common.json {
        return print_json(&lines);
    }
    let now_unix_ns = present_unix_ns();
    let mut page = TextPage { text: String::new(), options: style(common, false) };
    if lines.is_empty() {
        let since = WallClock::local(0).moment(unix_ns(kept_since_unix_ns), now_unix_ns);
        let text = format!("No event{} since the agent's start at {since}.", of_whom(&selection));
        page.line(&Sentence::new(Tone::Plain, text));
    }
    if left_out > 0 {
        let more = plural(left_out, "more event", "more events");
        let text = format!("and {more} that the agent does not keep; those in its history: memwatch events --since 1h");
        page.line(&Sentence::new(Tone::Faint, text));
    }
    print_table(&lines, &page.text, now_unix_ns, common)
}

/// Returns the event as one line of JSON without its end.
fn line_of(event: &MachineEvent, taken_at: &TakenAt) -> String {
    String::from_utf8_lossy(&json::line(event, taken_at)).trim_end().to_owned()
}

fn chosen_lines<'a>(events: &'a [EventMessage], selection: &Selection) -> Vec<&'a str> {
    let is_chosen = |event: &&EventMessage| is_chosen(selection, &event.subjects.iter().collect::<Vec<_>>());
    events.iter().filter(is_chosen).map(|event| event.json.as_str()).collect()
}

fn selection(selected: &Selected) -> Selection {
    Selection::new(&selected.choice, &selected.tgids)
}

/// Whether the selection includes one of the processes that an event is about.
fn is_chosen(selection: &Selection, subjects: &[&ProcessView]) -> bool {
    // In a recording, all processes may have been targets.
    selection.is_everybody() || subjects.iter().any(|process| selection.chooses(&process.identity()))
}

/// Returns the present in nanoseconds since 1970.
fn present_unix_ns() -> u64 {
    unix_ns(WallClock::local(clock::boottime_to_unix_ns()).unix_ns(clock::boottime_ns()))
}

fn unix_ns(signed: i64) -> u64 {
    u64::try_from(signed).unwrap_or(0)
}

/// Formats `No event of user ann from 14:02:11 to 15:02:11.`
fn none_in(replay: &ReplayedRecording, selection: &Selection) -> String {
    let clock = TakenAt::of(replay).clock;
    let begin_ns = replay.begins_late_ns.or(replay.since_ns).unwrap_or_else(|| replay.snapshot().attached_ns);
    let [begin, end] = [begin_ns, replay.now_ns()].map(|time_ns| clock.moment(time_ns, replay.now_ns()));
    format!("No event{} from {begin} to {end}.", of_whom(selection))
}

fn of_whom(selection: &Selection) -> String {
    if selection.is_everybody() { String::new() } else { format!(" of {}", selection.describe()) }
}

fn print_json(lines: &[&str]) -> Result<Exit, ExitFailure> {
    let mut out = io::stdout().lock();
    unless_closed(lines.iter().try_for_each(|line| io::Write::write_fmt(&mut out, format_args!("{line}\n"))))?;
    Ok(Exit::Ok)
}

/// Prints a table of the events, and the sentences below it.
fn print_table(lines: &[&str], below: &str, now_unix_ns: u64, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let mut out = io::stdout().lock();
    let mut table = EventTable::new(style(common, false), now_unix_ns);
    let written = if lines.is_empty() { Ok(()) } else { table.write(&mut out, lines.iter().copied()) };
    unless_closed(written.and_then(|()| io::Write::write_all(&mut out, below.as_bytes())))?;
    Ok(Exit::Ok)
}

fn without_agent(socket: &Path, why: &NoAgent) -> ExitFailure {
    let sentence = match why {
        NoAgent::Absent => format!("no agent listens on {}", socket.display()),
        NoAgent::Unusable(why) => format!("the agent on {} cannot be used: {why}", socket.display()),
    };
    ExitFailure::new(Exit::Error, sentence).advise(
        "An agent keeps the last events: sudo memwatch agent. For the events of a recording, add --in FILE; for those to \
         come, --follow.",
    )
}

#[cfg(test)]
mod tests;
