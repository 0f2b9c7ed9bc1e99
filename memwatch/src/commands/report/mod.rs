//! `memwatch report`: shows the content of a recording.

pub(crate) mod args;
pub(crate) mod churn_json;
pub(crate) mod churn_text;
pub(crate) mod json;
pub(crate) mod text;

use crate::exit::{Exit, ExitFailure};
use crate::options::{CommonArgs, Past, Selected};
use crate::render::json::ReportOrigin;
use crate::render::output::{style, unless_closed};
use crate::render::wall_clock::WallClock;
use crate::watch::past::{Needs, RecordedPeriod};
use crate::watch::recorded::LARGE_BYTES;
use crate::watch::recorded::chosen;
use crate::watch::recorded::play_all;
use args::Replayed;
use std::io;

/// Runs `memwatch report`.
///
/// # Errors
/// The file is not a recording, or the report cannot be written.
pub(crate) async fn report(args: &Replayed, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let past = Past { recording: args.recording.as_ref().or(args.in_file.as_ref()).cloned(), window: args.window };
    // The command line requires a recording.
    let Some(recording) = RecordedPeriod::named(&past, Needs::Calls, common).await? else { return Ok(Exit::Error) };
    let path = &recording.path;
    let replay = play_all(&recording, |pipeline| {
        pipeline.state.list_tensors_from(LARGE_BYTES);
        pipeline.watch_churn(args.temporary);
    })?;
    let (snapshot, churn) = (chosen(&replay, path, &Selected::default())?, replay.pipeline.churn());
    let facts = replay.facts(path);
    let clock = WallClock::local(replay.boottime_to_unix_ns);
    let mut out = io::stdout().lock();
    unless_closed(if common.json {
        let origin = ReportOrigin { host: &facts.front.host, clock: &clock };
        json::write(&mut out, (&facts, churn.as_ref()), &snapshot, origin)
    } else {
        let style = style(common, false);
        text::write(&mut out, &facts, (&snapshot, args.top), &clock, &style)
            .and_then(|()| churn_text::write(&mut out, (churn.as_ref(), args.top), &style))
    })?;
    Ok(Exit::Ok)
}
