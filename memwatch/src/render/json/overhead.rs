//! What watching takes of a process's time, in JSON.

use memwatch_core::snapshot::OverheadView;
use serde::Serialize;

/// An estimate: the records are counted, and each has a price that was measured elsewhere.
#[derive(Serialize)]
pub(crate) struct OverheadJson {
    estimated: bool,
    events: u64,
    seconds: f64,
    seconds_per_second: Option<f64>,
    stacks_left_out: u64,
}

/// The `overhead` field of a process.
pub(crate) fn json(view: &OverheadView) -> OverheadJson {
    OverheadJson {
        estimated: true,
        events: view.events,
        seconds: seconds(view.total_ns),
        seconds_per_second: view.ns_per_second.map(seconds),
        stacks_left_out: view.stacks_left_out,
    }
}

/// Nanoseconds in seconds.
#[allow(clippy::cast_precision_loss, reason = "nanoseconds of a hundred days are exact")]
pub(crate) fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}
