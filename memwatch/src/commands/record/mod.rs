//! `memwatch record`: records a session to a file.

pub(crate) mod args;

use crate::exit::{Exit, ExitFailure};
use crate::frameworks::watch::TensorRequest;
use crate::options::{CommonArgs, Selected, TargetArgs};
use crate::output_file;
use crate::render::json::ReportOrigin;
use crate::render::output::unless_closed;
use crate::render::summary;
use crate::render::wall_clock::WallClock;
use crate::watch::evidence::streamed::{Streamed, keep};
use crate::watch::one_shot::tgids_of;
use crate::watch::recorded::LARGE_BYTES;
use crate::watch::recorded::follow;
use crate::watch::recorded::play;
use crate::watch::recorded::recorder;
use crate::watch::recorded::reported;
use crate::watch::recording::{Recorded, RecordingFacts};
use crate::watch::session::{Session, holdings};
use crate::watch::signals::TerminationSignals;
use crate::watch::subject::session_options;
use crate::watch::taken_at::TakenAt;
use args::RecordArgs;
use memwatch_core::recording::{EndMark, Ending};
use memwatch_core::words::Tgid;
use std::io;
use tokio::time::Instant;

/// Records until the deadline, a signal, the exit of the last process, or the size limit of the
/// file.
///
/// # Errors
/// The processes cannot be traced, or the file cannot be written.
pub(crate) async fn record(args: &RecordArgs, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    if common.json && output_file::is_stdout(&args.output) {
        let why = "the recording and the JSON report cannot both go to standard output";
        return Err(ExitFailure::new(Exit::Error, why).advise("Leave out --json, or name a file: -o FILE"));
    }
    let tgids = tgids_of(&args.selected, common).await?;
    let options = recorder(&args.output, &args.recorder, tgids.is_empty())?;
    let request = args.tensors.request(!tgids.is_empty());
    let mut session_options = session_options(&TargetArgs::of(&Selected::of(&tgids)), request, common);
    session_options.recorder = Some(options.clone());
    session_options.holdings_every = Some(holdings::IN_RECORDING);
    let mut session = match Session::open(&session_options) {
        Ok(session) => session,
        // The agent sends all of it.
        Err(refused) if args.recorder.max_size.is_some() => return Err(refused),
        Err(refused) => return streamed(args, (&tgids, request), refused, common).await,
    };
    session.list_tensors_from(LARGE_BYTES);
    let mut signals = TerminationSignals::listen()?;
    eprintln!("memwatch: recording into {}; Ctrl-C ends it", output_file::name(&args.output));
    let stopped = follow(&mut session, &mut signals, args.duration.map(|duration| Instant::now() + duration)).await;
    session.read_holdings(&mut signals).await;
    let (snapshot, boottime_to_unix_ns, recorded) = session.end_recording(stopped);
    let Some(recorded) = recorded else { return Ok(Exit::Ok) };
    let ending = Some(match recorded.end {
        Ok(stopped) => Ending::Whole(EndMark { stopped, inputs: recorded.inputs }),
        Err(_) => Ending::Cut,
    });
    let Recorded { bytes, inputs, events_since_ns, .. } = recorded;
    let (path, front) = (&args.output, &options.front);
    let facts = RecordingFacts { path, front, bytes, inputs, ending, events_since_ns, since_ns: None };
    let clock = WallClock::local(boottime_to_unix_ns);
    if common.json {
        let origin = ReportOrigin { host: &options.front.host, clock: &clock };
        unless_closed(crate::commands::report::json::write(
            &mut io::stdout().lock(),
            (Some(&facts), &[]),
            &snapshot,
            origin,
        ))?;
    } else {
        eprint!("{}", summary::render(&snapshot, &clock, Some(&args.output)));
    }
    reported(&recorded)
}

/// Has the agent watch the processes, and writes its recording.
async fn streamed(
    args: &RecordArgs,
    (tgids, tensors): (&[Tgid], TensorRequest),
    refused: ExitFailure,
    common: &CommonArgs,
) -> Result<Exit, ExitFailure> {
    let path = &args.output;
    let watch = Streamed { tgids, tensors, duration: args.duration }.begin(None, refused, common).await?;
    let created = output_file::create(path, args.recorder.force);
    let file = created.map_err(|error| ExitFailure::cannot_make(path, &error))?;
    let recording = watch.follow().await?;
    let replay = play(&recording, |_| {})?;
    let snapshot = replay.snapshot();
    let taken_at = TakenAt::of(&replay);
    if !common.json {
        eprint!("{}", summary::render(&snapshot, &taken_at.clock, Some(path)));
    }
    let bytes = keep(&recording, &file, path)?;
    if common.json {
        let facts = RecordingFacts { path, bytes, ..replay.facts(path) };
        unless_closed(crate::commands::report::json::write(
            &mut io::stdout().lock(),
            (Some(&facts), &[]),
            &snapshot,
            taken_at.origin(),
        ))?;
    }
    Ok(Exit::Ok)
}
