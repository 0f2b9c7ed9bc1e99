//! Backs off NVML polling when the machine is idle.

use std::time::{Duration, Instant};

use memwatch_core::input::DeviceReading;

/// After a request, NVML is polled at the normal interval for this long, since further requests may
/// follow.
const ASKED: Duration = Duration::from_secs(3);

/// Idle detection.
#[derive(Debug)]
pub(super) struct Calm {
    /// Whether backing off is enabled.
    is_wanted: bool,
    asked: Option<Instant>,
    /// Whether the last reading lists a process on a GPU; true before the first reading.
    lists_any: bool,
}

impl Calm {
    /// Starts in the busy state.
    pub(super) const fn new(is_wanted: bool) -> Self {
        Self { is_wanted, asked: None, lists_any: true }
    }

    /// Notes a client's request.
    pub(super) const fn note_question(&mut self, now: Instant) {
        self.asked = Some(now);
    }

    /// Notes a device reading.
    pub(super) fn note_reading(&mut self, reading: &DeviceReading) {
        self.lists_any = reading.devices.iter().any(|device| device.processes.iter().flatten().next().is_some());
    }

    /// Whether the machine is idle, given the number of watched processes.
    pub(super) fn is_calm(&self, watched: usize, now: Instant) -> bool {
        let is_asked = self.asked.is_some_and(|asked| now.duration_since(asked) < ASKED);
        self.is_wanted && watched == 0 && !self.lists_any && !is_asked
    }
}

#[cfg(test)]
mod tests {
    use memwatch_core::input::{DeviceFacts, NvmlState, ProcessUse, Sensors};
    use memwatch_core::words::{GpuUuid, Tgid};

    use super::*;

    fn reading(listed: &[u32]) -> DeviceReading {
        let uses = listed.iter().map(|tgid| ProcessUse { tgid: Tgid(*tgid), used_bytes: None, mps_client: false });
        let device = DeviceFacts {
            uuid: GpuUuid::new("GPU-1"),
            nvml_index: 0,
            name: String::new(),
            pci_bus_id: None,
            mig: None,
            cores: None,
            total_bytes: None,
            used_bytes: None,
            processes: Some(uses.collect()),
            sensors: Sensors::default(),
        };
        DeviceReading { begin_ns: 1, end_ns: 2, state: NvmlState::Ok, devices: vec![device] }
    }

    #[test]
    fn idle_backoff_needs_no_targets_no_nvml_processes_and_no_recent_query() {
        let now = Instant::now();
        let mut calm = Calm::new(true);
        assert!(!calm.is_calm(0, now), "nothing was read yet");
        calm.note_reading(&reading(&[]));
        assert!(calm.is_calm(0, now));
        assert!(!calm.is_calm(1, now));
        calm.note_reading(&reading(&[7]));
        assert!(!calm.is_calm(0, now));
        calm.note_reading(&reading(&[]));
        calm.note_question(now);
        assert!(!calm.is_calm(0, now + ASKED / 2));
        assert!(calm.is_calm(0, now + ASKED));
        let mut screen = Calm::new(false);
        screen.note_reading(&reading(&[]));
        assert!(!screen.is_calm(0, now));
    }
}
