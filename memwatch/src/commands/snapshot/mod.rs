//! `memwatch snapshot`: writes PyTorch's memory snapshot from outside the process.

pub(crate) mod args;

use crate::exit::{Exit, ExitFailure};
use crate::export::pickle;
use crate::frameworks::watch::{TensorLevel, TensorRequest};
use crate::options::{CommonArgs, ReportSubject, Selected};
use crate::output_file;
use crate::render::wall_clock::WallClock;
use crate::sources::clock;
use crate::watch::evidence::past::Needs;
use crate::watch::evidence::streamed::Streamed;
use crate::watch::one_shot::finish;
use crate::watch::one_shot::watch_until;
use crate::watch::one_shot::without_torch;
use crate::watch::one_shot::{open, tgids_of};
use crate::watch::recorded;
use crate::watch::recorded_period::RecordedPeriod;
use crate::watch::session::Session;
use crate::watch::signals::TerminationSignals;
use args::Pickle;
use memwatch_core::snapshot::{MemoryHistory, Snapshot, TensorsView};
use memwatch_core::words::Tgid;
use std::io;
use tokio::time::Instant;

/// Maximum number of entries kept of an allocator's trace: the viewer is slow with more.
const LONGEST_HISTORY: usize = 500_000;

/// Traces for a while and writes PyTorch's memory snapshot.
///
/// # Errors
/// The process cannot be traced, does not use PyTorch, or the file cannot be written.
pub(crate) async fn snapshot(args: &Pickle, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    if output_file::is_terminal(&args.output) {
        return Err(ExitFailure::binary_on_terminal());
    }
    let failed = |error: io::Error| ExitFailure::cannot_make(&args.output, &error);
    output_file::check_free(&args.output, args.force).map_err(failed)?;
    let ReportSubject { selected, past } = &args.subject;
    let past = RecordedPeriod::named(past, Needs::Tensors, common).await?;
    let (snapshot, history, boottime_to_unix_ns) = if let Some(recording) = &past {
        recorded_history(recording, selected, args.native)?
    } else {
        let tgid = only(&tgids_of(selected, common).await?)?;
        let tensors = TensorRequest::of(TensorLevel::Modules);
        match open(&[tgid], tensors, common) {
            Ok(session) => watched_history(session, args, tgid).await?,
            Err(refused) => {
                let watch = Streamed { tgids: &[tgid], tensors, duration: Some(args.duration) };
                let recording = watch.instead(refused, common).await?;
                recorded_history(&recording, &Selected::of(&[tgid]), args.native)?
            }
        }
    };
    let Some(history) = history.filter(|history| !history.devices.is_empty()) else {
        return Err(without_torch(selected));
    };
    let clock = WallClock::utc(boottime_to_unix_ns);
    let mut file = output_file::create(&args.output, args.force).map_err(failed)?;
    pickle::write(&mut file, &history, snapshot.time_ns, &clock).map_err(failed)?;
    eprintln!("memwatch: {} is written; drop it onto pytorch.org/memory_viz", output_file::name(&args.output));
    finish(Ok(()), &snapshot, selected)
}

/// A snapshot, the allocator history of one process up to it, and the offset from its times to
/// nanoseconds since 1970.
type SnapshotHistory = (Snapshot, Option<MemoryHistory>, i128);

async fn watched_history(mut session: Session, args: &Pickle, tgid: Tgid) -> Result<SnapshotHistory, ExitFailure> {
    session.keep_history(tgid, LONGEST_HISTORY);
    let mut signals = TerminationSignals::listen()?;
    let (snapshot, _) = watch_until(&mut session, &mut signals, Instant::now() + args.duration, None, &mut false).await;
    Ok((snapshot, session.history(tgid, args.native), clock::boottime_to_unix_ns()))
}

/// Returns the selected process, if it is only one.
fn only(tgids: &[Tgid]) -> Result<Tgid, ExitFailure> {
    if let [tgid] = tgids {
        return Ok(*tgid);
    }
    let all: Vec<String> = tgids.iter().map(|tgid| tgid.0.to_string()).collect();
    let sentence = format!("a snapshot has one process, and there are {}", all.len());
    Err(ExitFailure::new(Exit::NoTarget, sentence)
        .advise(format!("Name one: memwatch snapshot PID; {}.", all.join(", "))))
}

/// # Errors
/// In particular, the selected processes do not include exactly one with PyTorch.
fn recorded_history(
    recording: &RecordedPeriod,
    selected: &Selected,
    with_native: bool,
) -> Result<SnapshotHistory, ExitFailure> {
    let tgid = match (&selected.tgids[..], selected.choice.is_empty()) {
        ([tgid], true) => *tgid,
        _ => only_with_torch(recording, selected)?,
    };
    let replay = recorded::play_all(recording, |pipeline| pipeline.state.keep_history(tgid, LONGEST_HISTORY))?;
    let snapshot = recorded::chosen(&replay, recording, &Selected::of(&[tgid]))?;
    Ok((snapshot, replay.pipeline.state.history(tgid, with_native), replay.boottime_to_unix_ns))
}

/// Returns the only process of a recording that uses PyTorch.
fn only_with_torch(recording: &RecordedPeriod, selected: &Selected) -> Result<Tgid, ExitFailure> {
    let snapshot = recorded::chosen(&recorded::play(recording, |_| {})?, recording, selected)?;
    match &with_torch(&snapshot)[..] {
        [tgid] => Ok(*tgid),
        [] => {
            Err(ExitFailure::new(Exit::NoTarget, format_args!("there is no PyTorch process in {}", recording.name())))
        }
        several => only(several),
    }
}

/// Returns the processes in which PyTorch has allocated GPU memory: launchers and workers that only
/// import it have nothing to show. If none has, returns all processes with PyTorch.
fn with_torch(snapshot: &Snapshot) -> Vec<Tgid> {
    let with = |is_meant: fn(&TensorsView) -> bool| {
        let processes = snapshot.processes.iter();
        let meant = processes.filter(move |process| process.tensors.as_deref().is_some_and(is_meant));
        meant.map(|process| process.tgid).collect::<Vec<_>>()
    };
    let used = with(|tensors| !tensors.allocators.is_empty());
    if used.is_empty() { with(|_| true) } else { used }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::render::fixture;

    #[test]
    fn snapshot_target_excludes_processes_that_only_import_pytorch() {
        let mut snapshot = fixture::training_node();
        let trains = snapshot.processes.iter().position(|process| process.tensors.is_some()).expect("it trains");
        let mut parent = snapshot.processes[trains].clone();
        parent.tgid = Tgid(99);
        parent.tensors.as_mut().expect("it has PyTorch").allocators.clear();
        snapshot.processes.push(parent);
        let tgid = snapshot.processes[trains].tgid;
        assert_eq!(with_torch(&snapshot), [tgid]);
        snapshot.processes.remove(trains);
        assert_eq!(with_torch(&snapshot), [Tgid(99)]);
    }

    #[test]
    fn a_snapshot_of_a_recording_has_all_its_events() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/replays/h100/hf.mwr");
        let found =
            recorded_history(&RecordedPeriod::whole(&file), &Selected::default(), false).expect("it can be read");
        let devices = found.1.expect("PyTorch is in it").devices;
        let lines: Vec<usize> = devices.iter().map(|device| device.lines.len()).collect();
        assert!(lines.len() == 1 && lines[0] > 40_000, "{lines:?}");
    }
}
