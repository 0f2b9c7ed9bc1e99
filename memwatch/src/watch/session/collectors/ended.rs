//! Ends of processes that are known from NVML or `/proc` alone and so get no exit record.

use memwatch_core::input::Input;

use super::Collector;
use crate::watch::session::parts::SessionParts;

/// Looks up the processes that [`SessionParts::presence`] selects.
pub(super) struct EndedProcesses;

impl Collector for EndedProcesses {
    fn collect_for_report(&mut self, parts: &mut SessionParts, now_ns: u64) {
        let mut gone = parts.presence.due(parts.sink.state().watched(), now_ns);
        gone.retain(|tgid| !parts.processes.exists(tgid.0));
        if gone.is_empty() {
            return;
        }
        // Any exit records of these processes are in the ring by now and must be processed first.
        parts.pump();
        // A reused process number belongs to a newer process; the exit record of the older one has
        // been read.
        for tgid in gone.into_iter().filter(|tgid| !parts.processes.exists(tgid.0)) {
            parts.sink.step(Input::ProcessEnded { tgid, time_ns: now_ns });
        }
    }
}
