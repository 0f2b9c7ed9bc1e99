//! Growth of GPUs and workloads: updated on every NVML reading and tick, reported in snapshots.

pub mod model;

use crate::Pipeline;
use crate::snapshot::Snapshot;

impl Pipeline {
    /// Turns growth in snapshots on.
    pub fn watch_growth(&mut self) {
        self.detectors.growth.get_or_insert_default();
    }

    pub(crate) fn observe_growth_reading(&mut self) {
        if let Some(growth) = &mut self.detectors.growth {
            growth.observe_reading(&self.reading);
        }
    }

    /// Called once the workloads' live bytes are known.
    pub(crate) fn observe_growth(&mut self) {
        if let Some(growth) = &mut self.detectors.growth {
            growth.observe(&self.workloads, self.now_ns);
        }
    }

    /// Adds growth to a snapshot with its workloads in the pipeline's order.
    pub(crate) fn report_growth(&self, mut snapshot: Snapshot) -> Snapshot {
        let Some(growth) = &self.detectors.growth else { return snapshot };
        for gpu in &mut snapshot.gpus {
            gpu.seconds_to_full = growth.seconds_to_full(&gpu.uuid, self.now_ns);
        }
        for ((key, _), workload) in self.workloads.iter().zip(&mut snapshot.workloads) {
            for gpu in &mut workload.gpus {
                gpu.growth_bytes_per_second = growth.of_workload(key, gpu.uuid.as_ref());
            }
        }
        snapshot
    }
}
