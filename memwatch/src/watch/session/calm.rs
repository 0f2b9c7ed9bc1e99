//! Whether so little happens that devices are read rarely.

use std::time::{Duration, Instant};

use memwatch_core::input::DeviceReading;

/// Who has asked may ask again: for so long devices are read as often as ever.
const ASKED: Duration = Duration::from_secs(3);

/// What is known of that.
#[derive(Debug)]
pub(super) struct Calm {
    /// It is wanted at all.
    is_wanted: bool,
    asked: Option<Instant>,
    /// The last reading has a process on a GPU. Before the first one, there may be some.
    lists_any: bool,
}

impl Calm {
    /// Not yet.
    pub(super) const fn new(is_wanted: bool) -> Self {
        Self { is_wanted, asked: None, lists_any: true }
    }

    /// Somebody has asked what is known.
    pub(super) const fn note_question(&mut self, now: Instant) {
        self.asked = Some(now);
    }

    /// Devices were read.
    pub(super) fn note_reading(&mut self, reading: &DeviceReading) {
        self.lists_any = reading.devices.iter().any(|device| device.processes.iter().flatten().next().is_some());
    }

    /// Whether it is calm, where so many processes are watched.
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
    fn it_is_calm_where_nobody_is_watched_nobody_is_listed_and_nobody_has_asked_for_a_while() {
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
