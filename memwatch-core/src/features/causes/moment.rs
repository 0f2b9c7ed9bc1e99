//! Helpers that read the state at the time of a failed allocation.

use super::{Cause, CauseKind};
use crate::features::oom::view::OomView;
use crate::snapshot::DeviceAttributionView;

/// Returns the attribution of the process's tensors on the device of the failure.
pub(super) fn places(failure: &OomView) -> Option<&DeviceAttributionView> {
    let tensors = failure.process()?.tensors.as_ref()?;
    tensors.attribution.devices.iter().find(|device| Some(device.device) == failure.device)
}

/// Returns the number of steps that the process's optimizers had finished.
pub(super) fn steps(failure: &OomView) -> u64 {
    failure.process().and_then(|process| process.tensors.as_ref()?.attribution.steps).unwrap_or(0)
}

/// Creates a cause of a failure.
pub(super) fn of(kind: CauseKind, failure: &OomView, bytes: u64) -> Cause {
    Cause { wanted_bytes: Some(failure.wanted_bytes), ..Cause::of(kind, bytes) }
}

/// Returns the live bytes of a device's tensors that were allocated in a phase.
pub(super) fn of_phase(places: &DeviceAttributionView, phase: &str) -> u64 {
    places.phases.iter().filter(|view| view.phase == phase).map(|view| view.sum.live_bytes).sum()
}
