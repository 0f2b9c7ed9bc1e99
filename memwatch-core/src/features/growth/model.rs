//! How fast a whole machine's GPUs fill and its workloads grow, for as long as it runs: by what NVML and the ledgers say, without a look into
//! programs. It has to stay cheap, however many processes there are.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::attribution::workload::{WorkloadKey, Workloads};
use crate::features::forecast::model::{Track, company, end};
use crate::features::trend::as_f64;
use crate::input::DeviceReading;
use crate::words::{GpuUuid, Tgid};

/// Windows are so long at least, nanoseconds: whoever asks for snapshots makes ticks, too.
const WINDOW_NS: u64 = 900_000_000;
/// So many workloads are followed at a time: more than have series of their own in the agent's metrics.
const FOLLOWED: usize = 512;
/// So many of them are looked at in a tick, the others in the next ones: a line that grows takes up to a millisecond.
const LOOKS: usize = 16;
/// The interval between samples of a GPU, nanoseconds.
const GPU_LOOK_NS: u64 = 5_000_000_000;

/// What fills and grows.
#[derive(Clone, Debug, Default)]
pub struct MachineGrowth {
    gpus: BTreeMap<GpuUuid, Gpu>,
    workloads: BTreeMap<WorkloadKey, BTreeMap<Option<GpuUuid>, Followed>>,
    pushed_ns: u64,
    /// The workload that was looked at last.
    looked: Option<WorkloadKey>,
}

/// A GPU's use.
#[derive(Clone, Debug, Default)]
struct Gpu {
    track: Track,
    company: BTreeSet<Tgid>,
    pushed_ns: u64,
    looked_ns: u64,
    /// When it is full, by the straight line: `CLOCK_BOOTTIME`, seconds.
    full_at_seconds: Option<f64>,
}

/// A workload's live bytes on a GPU.
#[derive(Clone, Debug, Default)]
struct Followed {
    track: Track,
    pushed_ns: u64,
    bytes_per_second: Option<f64>,
}

impl MachineGrowth {
    /// NVML has been read.
    pub(crate) fn observe_reading(&mut self, reading: &DeviceReading) {
        self.gpus.retain(|uuid, _| reading.devices.iter().any(|device| device.uuid == *uuid));
        let time_ns = reading.end_ns;
        for device in &reading.devices {
            let Some(used_bytes) = device.used_bytes else {
                self.gpus.remove(&device.uuid);
                continue;
            };
            let gpu = self.gpus.entry(device.uuid.clone()).or_default();
            // Another company is another course.
            let company = company(device);
            if company != gpu.company {
                *gpu = Gpu { company, ..Gpu::default() };
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

    /// Time has passed, and the workloads' live bytes are known.
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
                    own.insert(uuid.clone(), Followed::default());
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

    /// Looks at the next workloads, in turn.
    fn look(&mut self) {
        let after = self.looked.take().map_or(Bound::Unbounded, Bound::Excluded);
        let mut last = None;
        for (key, own) in self.workloads.range_mut((after, Bound::Unbounded)).take(LOOKS) {
            for followed in own.values_mut() {
                followed.bytes_per_second = followed.track.growth().map(|line| line.bytes_per_second);
            }
            last = Some(key.clone());
        }
        // After the last one the first is next.
        self.looked = last;
    }

    /// When this GPU's memory is full, in seconds from now; `None` where its use does not grow.
    pub(crate) fn seconds_to_full(&self, uuid: &GpuUuid, now_ns: u64) -> Option<f64> {
        let full_at_seconds = self.gpus.get(uuid)?.full_at_seconds?;
        Some((full_at_seconds - as_f64(now_ns) / 1e9).max(0.0))
    }

    /// By how many bytes a second a workload grows on a GPU; `None` where it does not.
    pub(crate) fn of_workload(&self, key: &WorkloadKey, uuid: Option<&GpuUuid>) -> Option<f64> {
        let own = self.workloads.get(key)?;
        own.iter().find(|(of, _)| of.as_ref() == uuid)?.1.bytes_per_second
    }
}
