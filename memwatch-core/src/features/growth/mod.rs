//! Growth of GPUs and workloads: updated on every NVML reading and tick, reported in snapshots.

pub mod model;

use crate::features::growth::model::MachineGrowth;
use crate::snapshot::Snapshot;
use crate::state::State;
use crate::state::event::{Detector, Event};

impl Detector for MachineGrowth {
    #[inline]
    fn on(&mut self, event: &Event<'_>, state: &State) {
        match event {
            Event::Reading => self.observe_reading(&state.reading),
            Event::Tick => self.observe(&state.workloads, state.now_ns),
            _ => {}
        }
    }
}

impl MachineGrowth {
    /// Adds growth to a snapshot of this state.
    pub fn report(&self, state: &State, mut snapshot: Snapshot) -> Snapshot {
        for gpu in &mut snapshot.gpus {
            gpu.seconds_to_full = self.seconds_to_full(&gpu.uuid, state.now_ns);
        }
        for ((key, _), workload) in state.workloads.iter().zip(&mut snapshot.workloads) {
            for gpu in &mut workload.gpus {
                gpu.growth_bytes_per_second = self.of_workload(key, gpu.uuid.as_ref());
            }
        }
        snapshot
    }
}
