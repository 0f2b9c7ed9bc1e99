//! State of the frameworks' allocators, read from process memory, and the level at which each
//! process is traced. Records of tensor events come with the record loop.

use std::time::Instant;

use super::Collector;
use crate::watch::session::parts::SessionParts;

/// Polls [`SessionParts::tensors`], which the record loop shares.
pub(super) struct TensorPoller;

impl Collector for TensorPoller {
    fn due(&self, parts: &SessionParts, now: Instant) -> Option<Instant> {
        parts.tensors.due(&parts.sink, now)
    }

    fn collect(&mut self, parts: &mut SessionParts) {
        parts.tensors.update(&mut parts.kernel, &mut parts.sink);
    }
}
