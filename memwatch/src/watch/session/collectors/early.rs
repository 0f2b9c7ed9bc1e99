//! Processes that have loaded a library which usually precedes CUDA, since they may load a framework
//! next.
//!
//! Where PyTorch is traced machine-wide, its probes must be in place before the first allocation, so
//! such a process is added at once and not with its first call.

use memwatch_core::words::Tgid;

use super::Collector;
use crate::sources::library::LibraryScan;
use crate::sources::mappings::HERALDS;
use crate::watch::session::parts::SessionParts;

/// Processes with an early library.
pub(super) struct EarlyProcesses;

impl Collector for EarlyProcesses {
    fn collect(&mut self, parts: &mut SessionParts) {
        for tgid in parts.libraries.take_heralded() {
            parts.frameworks.hurry(tgid);
            if parts.scope.everybody && parts.tensors.is_wanted() {
                learn_new(parts, tgid);
            }
        }
    }
}

/// Adds the processes that had loaded such a library before the session began.
pub(in crate::watch::session) fn learn_earlier(parts: &mut SessionParts) {
    if !parts.scope.everybody || !parts.tensors.is_wanted() {
        return;
    }
    for tgid in LibraryScan::new("/proc").with_stems(&HERALDS).mapped_by_name() {
        learn_new(parts, tgid);
    }
}

fn learn_new(parts: &mut SessionParts, tgid: u32) {
    if !parts.scope.own.holds(tgid) && !parts.sink.state().knows(Tgid(tgid)) {
        parts.learn(tgid, false);
    }
}
