//! Libraries that have appeared since the last poll, and the processes that had mapped them before
//! they were probed.

use std::time::Instant;

use memwatch_common::loss::Loss;
use memwatch_core::input::{Input, ProbeCoverage};
use memwatch_core::words::Tgid;

use super::Collector;
use crate::sources::library_sweep::Among;
use crate::watch::session::parts::SessionParts;

/// Polls [`SessionParts::libraries`], which other collectors share.
pub(super) struct LibraryDiscovery;

impl Collector for LibraryDiscovery {
    fn due(&self, parts: &SessionParts, now: Instant) -> Option<Instant> {
        parts.libraries.due(now)
    }

    fn collect(&mut self, parts: &mut SessionParts) {
        let SessionParts { kernel, libraries, sink, scope, .. } = parts;
        // In a session with targets the pipeline knows the targets and their children.
        let wanted = |tgid| {
            (scope.everybody && !scope.own.holds(tgid))
                || scope.targets.contains(&tgid)
                || sink.state().knows(Tgid(tgid))
        };
        let among = || {
            if scope.everybody {
                return Among::Everybody;
            }
            Among::Processes(sink.state().watched().map(|tgid| tgid.0).collect())
        };
        let late = libraries.look_at_mapped(wanted);
        libraries.look_at_expected();
        libraries.look_at_swept(kernel, among);
        parts.learn_latecomers(late);
        attach_examined(parts);
    }
}

/// Attaches to the library files examined since the last call.
pub(in crate::watch::session) fn attach_examined(parts: &mut SessionParts) {
    let late = parts.libraries.attach_looked(&mut parts.kernel);
    update_coverage(parts);
    parts.learn_latecomers(late);
}

/// Reports which libraries are probed, if that has changed.
pub(in crate::watch::session) fn update_coverage(parts: &mut SessionParts) {
    let Some((libraries, libraries_over_limit)) = parts.libraries.new_coverage() else { return };
    let mechanism = parts.kernel.mechanism.name().into();
    let discovery = parts.libraries.source_name().into();
    let moves = if parts.kernel.reports_moves { "tracepoint" } else { "polling" }.into();
    parts.sink.step(Input::Coverage(ProbeCoverage { libraries, libraries_over_limit, mechanism, discovery, moves }));
    lose_unwatched(parts);
}

/// Marks processes whose library cannot be opened and so has no probes: their later calls are not
/// seen, and their numbers are inexact.
fn lose_unwatched(parts: &mut SessionParts) {
    for tgid in parts.libraries.take_unwatched() {
        if parts.is_watched(tgid) {
            parts.sink.step(Input::Lost { tgid: Some(Tgid(tgid)), loss: Loss::LibraryUnreadable, count: 1 });
        }
    }
}
