//! Growth of a whole machine's GPUs and workloads, from NVML and the ledgers, without reading any
//! program. Its cost is bounded, whatever the number of processes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::attribution::workload::{WorkloadKey, Workloads};
use crate::features::forecast::model::{NeedSeries, company, end};
use crate::features::trend::as_f64;
use crate::input::DeviceReading;
use crate::words::{GpuUuid, Tgid};

/// Minimum length of a window, in nanoseconds. A request for a snapshot causes a tick, too, so
/// ticks can be closer together.
const WINDOW_NS: u64 = 900_000_000;
/// Maximum number of workloads followed at a time: more than the agent's metrics have series for.
const FOLLOWED: usize = 512;
/// Maximum number of workloads evaluated per tick, in turn: a line that grows takes up to a
/// millisecond.
const LOOKS: usize = 16;
/// Minimum interval between evaluations of a GPU, in nanoseconds.
const GPU_LOOK_NS: u64 = 5_000_000_000;

/// Growth of the GPUs and workloads of a machine.
#[derive(Clone, Debug, Default)]
pub struct MachineGrowth {
    gpus: BTreeMap<GpuUuid, GpuGrowth>,
    workloads: BTreeMap<WorkloadKey, BTreeMap<Option<GpuUuid>, WorkloadGrowth>>,
    pushed_ns: u64,
    /// The workload that was evaluated last.
    looked: Option<WorkloadKey>,
}

/// Memory use of a GPU over time.
#[derive(Clone, Debug, Default)]
struct GpuGrowth {
    track: NeedSeries,
    company: BTreeSet<Tgid>,
    pushed_ns: u64,
    looked_ns: u64,
    /// Time at which the GPU is full by the straight line: `CLOCK_BOOTTIME`, in seconds.
    full_at_seconds: Option<f64>,
}

/// Live bytes of a workload on a GPU over time.
#[derive(Clone, Debug, Default)]
struct WorkloadGrowth {
    track: NeedSeries,
    pushed_ns: u64,
    bytes_per_second: Option<f64>,
}

impl MachineGrowth {
    /// Adds an NVML reading.
    pub(crate) fn observe_reading(&mut self, reading: &DeviceReading) {
        self.gpus.retain(|uuid, _| reading.devices.iter().any(|device| device.uuid == *uuid));
        let time_ns = reading.end_ns;
        for device in &reading.devices {
            let Some(used_bytes) = device.used_bytes else {
                self.gpus.remove(&device.uuid);
                continue;
            };
            let gpu = self.gpus.entry(device.uuid.clone()).or_default();
            // A different set of processes starts a new series.
            let company = company(device);
            if company != gpu.company {
                *gpu = GpuGrowth { company, ..GpuGrowth::default() };
            }
            if time_ns < gpu.pushed_ns + WINDOW_NS {
                continue;
            }
            gpu.pushed_ns = time_ns;
            gpu.track.push(time_ns, used_bytes);
            if time_ns >= gpu.looked_ns + GPU_LOOK_NS {
                gpu.looked_ns = time_ns;
                let line = gpu.track.growth().zip(device.total_bytes);
                let end = line.and_then(|(line, total_bytes)| end(&line, as_f64(total_bytes)));
                gpu.full_at_seconds = end.map(|end| as_f64(time_ns) / 1e9 + end.seconds);
            }
        }
    }

    /// Adds the workloads' live bytes after a tick.
    pub(crate) fn observe(&mut self, workloads: &Workloads, now_ns: u64) {
        if now_ns < self.pushed_ns + WINDOW_NS {
            return;
        }
        self.pushed_ns = now_ns;
        for (key, workload) in workloads.iter().filter(|(_, workload)| workload.ended_ns.is_none()) {
            let has_room = self.workloads.len() < FOLLOWED && !workload.live_bytes.is_empty();
            if has_room && !self.workloads.contains_key(key) {
                self.workloads.insert(key.clone(), BTreeMap::new());
            }
            let Some(own) = self.workloads.get_mut(key) else { continue };
            for (uuid, bytes) in &workload.live_bytes {
                if !own.contains_key(uuid) {
                    own.insert(uuid.clone(), WorkloadGrowth::default());
                }
                if let Some(followed) = own.get_mut(uuid) {
                    followed.pushed_ns = now_ns;
                    followed.track.push(now_ns, *bytes);
                }
            }
        }
        self.workloads.retain(|_, own| {
            own.retain(|_, followed| followed.pushed_ns == now_ns);
            !own.is_empty()
        });
        self.look();
    }

    /// Evaluates the next workloads, in turn.
    fn look(&mut self) {
        let after = self.looked.take().map_or(Bound::Unbounded, Bound::Excluded);
        let mut last = None;
        for (key, own) in self.workloads.range_mut((after, Bound::Unbounded)).take(LOOKS) {
            for followed in own.values_mut() {
                followed.bytes_per_second = followed.track.growth().map(|line| line.bytes_per_second);
            }
            last = Some(key.clone());
        }
        // The first workload follows the last one.
        self.looked = last;
    }

    /// Returns the time until the GPU's memory is full, in seconds from `now_ns`; `None` if its use
    /// does not grow.
    pub(crate) fn seconds_to_full(&self, uuid: &GpuUuid, now_ns: u64) -> Option<f64> {
        let full_at_seconds = self.gpus.get(uuid)?.full_at_seconds?;
        Some((full_at_seconds - as_f64(now_ns) / 1e9).max(0.0))
    }

    /// Returns the growth of a workload on a GPU in bytes per second; `None` if it does not grow.
    pub(crate) fn of_workload(&self, key: &WorkloadKey, uuid: Option<&GpuUuid>) -> Option<f64> {
        let own = self.workloads.get(key)?;
        own.iter().find(|(of, _)| of.as_ref() == uuid)?.1.bytes_per_second
    }
}
