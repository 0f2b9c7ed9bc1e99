//! Passes NVML readings to the pipeline, and checks which of the listed processes might make unseen
//! calls.

use std::collections::BTreeSet;
use std::time::Duration;

use memwatch_core::input::{DeviceReading, Input, NvmlState};
use memwatch_core::words::Tgid;

use super::Session;

/// NVML numbers older than this are not shown, so that a GPU with a hung driver does not look idle.
const NVML_STALE: Duration = Duration::from_secs(10);

impl Session {
    /// Handles a device reading, after every record made before the reading.
    pub(super) fn take_devices(&mut self, mut reading: DeviceReading) {
        self.pump();
        // NVML may list a process that has exited, for as long as a child keeps the process's
        // memory allocated. Some drivers list process numbers of other pid namespaces.
        let left_behind = self.left_behind(&reading);
        for list in reading.devices.iter_mut().filter_map(|device| device.processes.as_mut()) {
            list.retain(|entry| !self.own.holds(entry.tgid.0) || entry.used_bytes > Some(0));
            let is_somebody = |tgid| self.sink.state().knows(tgid) || self.sink.state().remembers(tgid);
            let stays = |tgid: Tgid| is_somebody(tgid) || left_behind.contains_key(&tgid.0);
            list.retain(|entry| stays(entry.tgid) || self.processes.exists(entry.tgid.0));
        }
        self.last_reading_ns = reading.end_ns;
        self.nvml_works = reading.state == NvmlState::Ok;
        self.calm.note_reading(&reading);
        if self.everybody {
            let listed: Vec<u32> = if self.nvml_works {
                let uses = reading.devices.iter().flat_map(|device| device.processes.iter().flatten());
                uses.map(|use_| use_.tgid.0).collect()
            } else {
                self.libraries.users()
            };
            for tgid in listed {
                let is_new = !self.sink.state().knows(Tgid(tgid)) && !left_behind.contains_key(&tgid);
                let is_new = is_new && (self.nvml_works || !self.own.holds(tgid));
                if is_new && (self.nvml_works || self.libraries.is_user(tgid)) {
                    self.learn(tgid, false);
                }
            }
        }
        let (begin_ns, end_ns) = (reading.begin_ns, reading.end_ns);
        self.look_at_users(end_ns);
        self.look_for_proof(&reading);
        self.sink.step(Input::Devices(reading));
        self.note_left_behind(left_behind, begin_ns);
        self.take_groups();
    }

    pub(super) fn drop_stale_devices(&mut self, now_ns: u64) {
        let age = Duration::from_nanos(now_ns.saturating_sub(self.last_reading_ns));
        if age > NVML_STALE && self.nvml_works {
            self.nvml_works = false;
            let state = NvmlState::Unavailable(format!("NVML has not answered for {} s", age.as_secs()));
            let reading = DeviceReading { begin_ns: now_ns, end_ns: now_ns, state, devices: Vec::new() };
            self.sink.step(Input::Devices(reading));
        }
    }

    /// Checks, for listed processes without a call so far, whether a call would be seen. Unless all
    /// driver libraries of a process are known to be probed, its live memory is unknown and not 0.
    fn look_for_proof(&mut self, reading: &DeviceReading) {
        // Without any probes no call is ever seen.
        if !self.kernel.places_probes {
            return;
        }
        let uses = reading.devices.iter().flat_map(|device| device.processes.iter().flatten());
        let listed: BTreeSet<Tgid> = uses.map(|use_| use_.tgid).collect();
        let unproven = listed.into_iter().filter(|tgid| {
            let start_ns = self.sink.state().facts(*tgid).map(|facts| facts.start_ns);
            start_ns.is_some_and(|start_ns| !self.kernel.knows(tgid.0) && !self.libraries.proves(tgid.0, start_ns))
        });
        let unproven: BTreeSet<Tgid> = unproven.collect();
        if unproven != self.unproven {
            self.unproven.clone_from(&unproven);
            self.sink.step(Input::Unproven(unproven));
        }
    }
}
