//! Checks, for listed processes without a call so far, whether a call would be seen. Unless all
//! driver libraries of a process are known to be probed, its live memory is unknown and not 0.

use std::collections::BTreeSet;

use memwatch_core::input::{DeviceReading, Input};
use memwatch_core::words::Tgid;

use crate::watch::session::parts::SessionParts;

/// Processes whose calls may go unseen, as of the last device reading.
#[derive(Debug, Default)]
pub(super) struct UnprovenProcesses(BTreeSet<Tgid>);

impl UnprovenProcesses {
    /// Reports the processes if they have changed with this reading.
    pub(super) fn update(&mut self, reading: &DeviceReading, parts: &mut SessionParts) {
        // Without any probes no call is ever seen.
        if !parts.kernel.places_probes {
            return;
        }
        let uses = reading.devices.iter().flat_map(|device| device.processes.iter().flatten());
        let listed: BTreeSet<Tgid> = uses.map(|use_| use_.tgid).collect();
        let unproven = listed.into_iter().filter(|tgid| {
            let start_ns = parts.sink.state().facts(*tgid).map(|facts| facts.start_ns);
            start_ns.is_some_and(|start_ns| !parts.kernel.knows(tgid.0) && !parts.libraries.proves(tgid.0, start_ns))
        });
        let unproven: BTreeSet<Tgid> = unproven.collect();
        if unproven != self.0 {
            self.0.clone_from(&unproven);
            parts.sink.step(Input::Unproven(unproven));
        }
    }
}
