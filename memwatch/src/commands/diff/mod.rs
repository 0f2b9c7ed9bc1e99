//! `memwatch diff`: compares a later run with an earlier one: two recordings, a recording and a
//! session, or two times of one recording.

pub(crate) mod args;
pub(crate) mod json;
pub(crate) mod text;

use std::io;
use std::path::Path;

use memwatch_core::features::diff::{Difference, RunSums, SumField, difference};
use memwatch_core::snapshot::Snapshot;
use tokio::time::Instant;

use crate::exit::{Exit, ExitFailure};
use crate::frameworks::watch::{TensorLevel, TensorRequest};
use crate::options::{CommonArgs, RecordingTime, TimeWindow};
use crate::render::output::{style, unless_closed};
use crate::watch::one_shot::open;
use crate::watch::recorded;
use crate::watch::recorded_period::RecordedPeriod;
use crate::watch::signals::TerminationSignals;
use crate::watch::taken_at::TakenAt;
use args::{Diff, Growth};

/// The same level as a recording, so that both sides can be compared.
const REQUEST: TensorRequest = TensorRequest::of(TensorLevel::Modules);

/// A run to compare.
pub(crate) struct DiffRun<'a> {
    /// Path of the recording; `None` for a session.
    pub(crate) file: Option<&'a Path>,
    /// Display name.
    pub(crate) name: String,
    /// Time of the snapshot, in RFC 3339.
    pub(crate) time: String,
    /// State of the run at that time.
    pub(crate) snapshot: Snapshot,
}

/// Reads or traces both runs, and reports the difference.
///
/// # Errors
/// A recording cannot be read, the processes cannot be traced, or the report cannot be written.
pub(crate) async fn run(args: &Diff, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let (earlier, _) = replayed(&args.before, args.from)?;
    let (later, taken_at) = match &args.after {
        _ if !args.tgids.is_empty() => watched(args, common).await?,
        Some(after) => replayed(after, args.until)?,
        None => replayed(&args.before, args.until)?,
    };
    if args.from.is_some() && later.snapshot.time_ns <= earlier.snapshot.time_ns {
        let sentence = format!("{} is not before {}", earlier.time, later.time);
        return Err(
            ExitFailure::new(Exit::Error, sentence).advise("--from names the earlier time, --until the later one.")
        );
    }
    let difference = difference(&earlier.snapshot, &later.snapshot, args.by.side(), args.by_function);
    let runs = [&earlier, &later];
    let mut out = io::stdout().lock();
    unless_closed(if common.json {
        json::write(&mut out, (&difference, runs), taken_at.origin())
    } else {
        text::write(&mut out, (&difference, args.top), runs, &taken_at.clock, &style(common, false))
    })?;
    let has_grown = args.fail_on.is_some_and(|limit| has_grown(&difference, limit));
    Ok(if has_grown { Exit::Found } else { Exit::Ok })
}

/// Reads a recording up to its end, or up to a time.
fn replayed(path: &Path, until: Option<RecordingTime>) -> Result<(DiffRun<'_>, TakenAt), ExitFailure> {
    let window = TimeWindow { until, ..TimeWindow::default() };
    let replay = recorded::play(&RecordedPeriod { window, ..RecordedPeriod::whole(path) }, |_| {})?;
    let (snapshot, taken_at) = (replay.snapshot(), TakenAt::of(&replay));
    let at = until.map_or_else(String::new, |_| format!(" at {}", taken_at.clock.time_of_day(snapshot.time_ns)));
    let (name, time) = (format!("{}{at}", path.display()), taken_at.clock.rfc3339(snapshot.time_ns));
    Ok((DiffRun { file: Some(path), name, time, snapshot }, taken_at))
}

/// Traces processes from now on.
async fn watched(args: &Diff, common: &CommonArgs) -> Result<(DiffRun<'static>, TakenAt), ExitFailure> {
    let mut session = open(&args.tgids, REQUEST, common)?;
    let mut signals = TerminationSignals::listen()?;
    let deadline = args.duration.map(|duration| Instant::now() + duration);
    recorded::follow(&mut session, &mut signals, deadline).await;
    let (snapshot, taken_at) = (session.snapshot(), TakenAt::here());
    let tgids: Vec<String> = args.tgids.iter().map(|tgid| tgid.0.to_string()).collect();
    let (name, time) = (format!("PID {}", tgids.join(", ")), taken_at.clock.rfc3339(snapshot.time_ns));
    Ok((DiffRun { file: None, name, time, snapshot }, taken_at))
}

/// Whether growth exceeds the limit. With a relative limit, any growth from zero does.
fn has_grown(difference: &Difference, limit: Growth) -> bool {
    let is_too_much = |pair: &RunSums| match limit {
        Growth::Bytes(bytes) => pair
            .known_change(SumField::Peak)
            .is_some_and(|change| u64::try_from(change).is_ok_and(|change| change > bytes)),
        Growth::Part(part) => {
            pair.growth(SumField::Peak).map_or(pair.known_change(SumField::Peak) > Some(0), |growth| growth > part)
        }
    };
    is_too_much(&difference.driver) || is_too_much(&difference.tensors)
}
