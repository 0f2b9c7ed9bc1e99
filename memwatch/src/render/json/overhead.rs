//! Tracing overhead of a process in JSON.

use memwatch_core::snapshot::{OverheadView, ProcessView};
use serde::Serialize;

/// Estimated overhead: the number of records of each type times a cost per record that was measured
/// beforehand.
#[derive(Serialize)]
pub(crate) struct OverheadJson<'a> {
    estimated: bool,
    #[serde(flatten)]
    view: &'a OverheadView,
}

/// Returns the `overhead` field of a process.
pub(crate) fn of(process: &ProcessView) -> Option<OverheadJson<'_>> {
    process.overhead.as_ref().map(|view| OverheadJson { estimated: true, view })
}

/// Converts nanoseconds to seconds.
#[allow(clippy::cast_precision_loss, reason = "nanoseconds of a hundred days are exact")]
pub(crate) fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}
