//! Losses of records, which the kernel half counts.

use super::Collector;
use crate::watch::session::parts::SessionParts;

/// Polls [`SessionParts::losses`], which the journal stores.
pub(super) struct KernelLosses;

impl Collector for KernelLosses {
    fn collect_for_report(&mut self, parts: &mut SessionParts, now_ns: u64) {
        let processes = &parts.processes;
        for loss in parts.losses.poll(|tgid| processes.exists(tgid)) {
            parts.presence.distrust(now_ns);
            parts.sink.step(loss);
        }
        parts.note_aside();
    }
}
