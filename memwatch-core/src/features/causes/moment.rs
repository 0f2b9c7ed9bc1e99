//! What is read of the moment at which an allocation failed.

use super::{Cause, CauseKind};
use crate::features::oom::view::OomView;
use crate::snapshot::DevicePlacesView;

/// What the process's tensors were on the device on which it failed.
pub(super) fn places(failure: &OomView) -> Option<&DevicePlacesView> {
    let tensors = failure.process()?.tensors.as_ref()?;
    tensors.places.devices.iter().find(|device| Some(device.device) == failure.device)
}

/// Steps that its optimizers had made.
pub(super) fn steps(failure: &OomView) -> u64 {
    failure.process().and_then(|process| process.tensors.as_ref()?.places.steps).unwrap_or(0)
}

/// A cause of a failure that wanted so much.
pub(super) fn of(kind: CauseKind, failure: &OomView, bytes: u64) -> Cause {
    Cause { wanted_bytes: Some(failure.wanted_bytes), ..Cause::of(kind, bytes) }
}

/// Live bytes of a device's tensors that were made in this stage.
pub(super) fn of_stage(places: &DevicePlacesView, stage: &str) -> u64 {
    places.stages.iter().filter(|view| view.stage == stage).map(|view| view.sum.live_bytes).sum()
}
