//! What watching takes of a process's time, in JSON.

use memwatch_core::snapshot::{OverheadView, ProcessView};
use serde::Serialize;

/// An estimate: the records are counted, and each has a price that was measured elsewhere.
#[derive(Serialize)]
pub(crate) struct Overhead<'a> {
    estimated: bool,
    #[serde(flatten)]
    view: &'a OverheadView,
}

/// The `overhead` field of a process.
pub(crate) fn of(process: &ProcessView) -> Option<Overhead<'_>> {
    process.overhead.as_ref().map(|view| Overhead { estimated: true, view })
}

/// Nanoseconds in seconds.
#[allow(clippy::cast_precision_loss, reason = "nanoseconds of a hundred days are exact")]
pub(crate) fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}
