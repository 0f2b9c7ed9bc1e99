//! Readings of the devices (NVML), and what is read at the same pace: users and control groups of
//! processes.

mod calm;
mod identities;
mod left_behind;
mod unproven;

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use memwatch_core::input::{DeviceReading, Input, NvmlState};
use memwatch_core::words::Tgid;

use self::calm::Calm;
use self::identities::update_identities;
use self::left_behind::{ExitedCharges, left_behind, note_left_behind};
use self::unproven::UnprovenProcesses;
use super::Collector;
use crate::backends;
use crate::backends::readings::Readings;
use crate::sources::clock;
use crate::watch::session::SessionOptions;
use crate::watch::session::parts::SessionParts;

/// NVML numbers older than this are not shown, so that a GPU with a hung driver does not look idle.
const NVML_STALE: Duration = Duration::from_secs(10);

/// Handles the readings of the devices.
pub(super) struct DevicePoller {
    readings: Readings,
    received: Option<DeviceReading>,
    calm: Calm,
    last_reading_ns: u64,
    nvml_works: bool,
    unproven: UnprovenProcesses,
}

impl DevicePoller {
    /// Starts to read the devices.
    pub(super) fn new(options: &SessionOptions) -> Self {
        Self {
            readings: backends::backend().readings(options.device_library.clone()),
            received: None,
            calm: Calm::new(options.rests_without_processes),
            last_reading_ns: clock::boottime_ns(),
            nvml_works: false,
            unproven: UnprovenProcesses::default(),
        }
    }

    /// Handles a device reading, after every record made before the reading.
    fn take(&mut self, mut reading: DeviceReading, parts: &mut SessionParts) {
        parts.pump();
        // NVML may list a process that has exited, for as long as a child keeps the process's
        // memory allocated. Some drivers list process numbers of other pid namespaces.
        let left_behind = left_behind(&reading, parts);
        remove_unknown(&mut reading, &left_behind, parts);
        self.last_reading_ns = reading.end_ns;
        self.nvml_works = reading.state == NvmlState::Ok;
        self.calm.note_reading(&reading);
        if parts.scope.everybody {
            self.learn_listed(&reading, &left_behind, parts);
        }
        let (begin_ns, end_ns) = (reading.begin_ns, reading.end_ns);
        update_identities(end_ns, parts);
        self.unproven.update(&reading, parts);
        parts.sink.step(Input::Devices(reading));
        note_left_behind(left_behind, begin_ns, parts);
        read_groups(parts);
    }

    /// Adds the listed processes that are new. Without NVML these are the users of the driver's
    /// libraries.
    fn learn_listed(&self, reading: &DeviceReading, left_behind: &ExitedCharges, parts: &mut SessionParts) {
        let listed: Vec<u32> = if self.nvml_works {
            let uses = reading.devices.iter().flat_map(|device| device.processes.iter().flatten());
            uses.map(|use_| use_.tgid.0).collect()
        } else {
            parts.libraries.users()
        };
        for tgid in listed {
            let is_new = !parts.sink.state().knows(Tgid(tgid)) && !left_behind.contains_key(&tgid);
            let is_new = is_new && (self.nvml_works || !parts.scope.own.holds(tgid));
            if is_new && (self.nvml_works || parts.libraries.is_user(tgid)) {
                parts.learn(tgid, false);
            }
        }
    }
}

impl Collector for DevicePoller {
    /// Sets the pace of the readings.
    fn collect(&mut self, parts: &mut SessionParts) {
        let watched = parts.sink.state().watched().count();
        self.readings.rest(self.calm.is_calm(watched, Instant::now()));
    }

    /// Drops the last reading if it is too old.
    fn collect_for_report(&mut self, parts: &mut SessionParts, now_ns: u64) {
        let age = Duration::from_nanos(now_ns.saturating_sub(self.last_reading_ns));
        if age > NVML_STALE && self.nvml_works {
            self.nvml_works = false;
            let state = NvmlState::Unavailable(format!("NVML has not answered for {} s", age.as_secs()));
            let reading = DeviceReading { begin_ns: now_ns, end_ns: now_ns, state, devices: Vec::new() };
            parts.sink.step(Input::Devices(reading));
        }
    }

    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self.readings.poll_recv(context) {
            Poll::Ready(Some(received)) => {
                self.received = Some(received);
                Poll::Ready(())
            }
            // The thread has ended.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    fn take_answer(&mut self, parts: &mut SessionParts) {
        if let Some(reading) = self.received.take() {
            self.take(reading, parts);
        }
    }

    fn note_request(&mut self, now: Instant) {
        self.calm.note_question(now);
        self.readings.rest(false);
    }
}

/// Removes listed processes that do not exist, and memwatch's own ones without memory.
fn remove_unknown(reading: &mut DeviceReading, left_behind: &ExitedCharges, parts: &SessionParts) {
    for list in reading.devices.iter_mut().filter_map(|device| device.processes.as_mut()) {
        list.retain(|entry| !parts.scope.own.holds(entry.tgid.0) || entry.used_bytes > Some(0));
        let is_met = |tgid| parts.sink.state().knows(tgid) || parts.sink.state().remembers(tgid);
        let stays = |tgid: Tgid| is_met(tgid) || left_behind.contains_key(&tgid.0);
        list.retain(|entry| stays(entry.tgid) || parts.processes.exists(entry.tgid.0));
    }
}

/// Reads the memory of control groups. Where the kernel does not report moves, also reads the
/// control groups of processes.
fn read_groups(parts: &mut SessionParts) {
    if let Some(memory) = parts.groups.device_memory(parts.sink.state().cgroups().into_iter()) {
        parts.sink.step(Input::CgroupMemory(memory));
    }
    if !parts.kernel.reports_moves {
        parts.sink.state().watched().for_each(|tgid| parts.groups.note_move(tgid.0));
    }
}
