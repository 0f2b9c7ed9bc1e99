//! Live objects in a recording: the last reading of each process.

use memwatch_core::features::holdings::known_holdings;
use memwatch_core::snapshot::Snapshot;

use super::HoldingsReading;
use super::args::HoldingsArgs;
use crate::exit::{Exit, ExitFailure};
use crate::watch::recorded;
use crate::watch::recorded_period::RecordedPeriod;
use crate::watch::replay::ReplayedRecording;
use crate::watch::taken_at::TakenAt;

/// Returns the live objects of the selected processes.
///
/// # Errors
/// The recording cannot be read, or has no names for these processes.
pub(super) fn found(
    recording: &RecordedPeriod,
    args: &HoldingsArgs,
) -> Result<(Vec<HoldingsReading>, TakenAt), ExitFailure> {
    let replay = recorded::play(recording, |_| {})?;
    let snapshot = recorded::chosen(&replay, recording, &args.subject.selected)?;
    let found = of_replay(&replay, &snapshot, args);
    if found.is_empty() {
        let why = format_args!("{} has no names of what these processes held", recording.name());
        return Err(ExitFailure::new(Exit::NoTarget, why).advise(
            "memwatch record --pid PID reads them from processes with PyTorch: at the attach, each minute and at the end.",
        ));
    }
    Ok((found, TakenAt::of(&replay)))
}

fn of_replay(replay: &ReplayedRecording, snapshot: &Snapshot, args: &HoldingsArgs) -> Vec<HoldingsReading> {
    let known = known_holdings(&replay.pipeline.state, args.by.into(), args.top).into_iter();
    let chosen = known.filter_map(|known| {
        let process = snapshot.process(known.tgid, known.observed_since_ns)?;
        let blocks = known.rows.into_iter().cloned().collect();
        Some(HoldingsReading {
            command: process.command.clone(),
            view: known.view,
            blocks,
            layout_searches: None,
            allocators: Vec::new(),
            copy_of: None,
        })
    });
    chosen.collect()
}
