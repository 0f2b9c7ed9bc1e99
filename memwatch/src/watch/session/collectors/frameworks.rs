//! Frameworks of the watched processes.

use memwatch_core::input::Input;
use memwatch_core::words::Tgid;

use super::Collector;
use crate::watch::session::parts::SessionParts;

/// Polls [`SessionParts::frameworks`], which other collectors share.
pub(super) struct FrameworkLookup;

impl Collector for FrameworkLookup {
    fn collect_for_report(&mut self, parts: &mut SessionParts, _now_ns: u64) {
        let tgids = parts.sink.state().watched().map(|tgid| tgid.0).collect();
        for (tgid, frameworks) in parts.frameworks.look(&tgids) {
            parts.sink.step(Input::Frameworks { tgid: Tgid(tgid), frameworks });
        }
    }
}
