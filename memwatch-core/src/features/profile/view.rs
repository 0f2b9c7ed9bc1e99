//! What was held over time: see [`crate::features::samples`].

use serde::{Deserialize, Serialize};

use crate::words::{GpuUuid, Tgid, json};

/// What all GPUs and processes have held.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProfileView {
    /// How often it was looked, nanoseconds.
    #[serde(serialize_with = "json::seconds")]
    pub interval_ns: u64,
    /// How often it was to be looked.
    #[serde(serialize_with = "json::seconds")]
    pub asked_interval_ns: u64,
    /// From when on: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::begin_time")]
    pub begun_ns: u64,
    /// Until when.
    #[serde(serialize_with = "json::end_time")]
    pub last_ns: u64,
    /// GPUs, in NVML's order.
    #[serde(serialize_with = "json::apart")]
    pub gpus: Vec<GpuProfileView>,
    /// Processes, in the order in which they were seen.
    pub processes: Vec<ProcessProfileView>,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuProfileView {
    /// Identity.
    pub uuid: GpuUuid,
    /// Memory of the device in bytes.
    pub total_bytes: Option<u64>,
    /// What was used of it by NVML's readings; `None` where there was none.
    pub used: Option<CourseView>,
    /// Live bytes of all watched processes together.
    pub live: Option<CourseView>,
    /// What part of its memory was used; `None` where one of both is not known.
    pub utilization: Option<RatioView>,
}

/// One process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessProfileView {
    /// The process.
    #[serde(serialize_with = "json::tgid")]
    pub tgid: Tgid,
    /// Its name.
    pub comm: String,
    /// Its command line.
    pub command: String,
    /// From when on it was watched: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub observed_since_ns: u64,
    /// When it ended, if it has.
    #[serde(serialize_with = "json::date")]
    pub ended_ns: Option<u64>,
    /// Every record of it arrived: its peaks are exact.
    pub exact: bool,
    /// By GPU, the one that is not known last.
    pub gpus: Vec<DeviceProfileView>,
    /// Its pinned host memory; `None` where it had none.
    pub pinned: Option<CourseView>,
}

/// A process on one GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceProfileView {
    /// The GPU; `None` where it is not known.
    pub uuid: Option<GpuUuid>,
    /// Memory of the GPU in bytes.
    pub total_bytes: Option<u64>,
    /// What the driver had granted to it, by its calls.
    pub live: Option<CourseView>,
    /// What NVML charged to it.
    pub used: Option<CourseView>,
    /// What PyTorch's allocator had granted; `None` where that is not watched.
    pub allocated: Option<CourseView>,
    /// What that allocator had of the driver.
    pub reserved: Option<CourseView>,
    /// What part of the GPU's memory was charged to it, or else live; `None` where that, or the GPU's size, is not known.
    pub utilization: Option<RatioView>,
    /// How much of what the allocator had it did not use.
    pub fragmentation: Option<RatioView>,
}

/// A number of bytes over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CourseView {
    /// Now; of what has ended, just before.
    pub current_bytes: u64,
    /// The average over all the time; `None` where no time has passed.
    pub average_bytes: Option<u64>,
    /// The least at a look.
    pub minimum_bytes: u64,
    /// The most at a look.
    pub maximum_bytes: u64,
    /// The most at any time; `None` where it is known at looks only.
    pub peak_bytes: Option<u64>,
    /// When that was first: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::peak_time")]
    pub peak_ns: Option<u64>,
    /// What it was at most for half of the time, by the looks.
    pub p50_bytes: u64,
    /// For nine tenths.
    pub p90_bytes: u64,
    /// For 95 %.
    pub p95_bytes: u64,
    /// For 99 %.
    pub p99_bytes: u64,
    /// How many looks that is from.
    pub samples: u64,
    /// When it was seen first: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::since")]
    pub begun_ns: u64,
    /// And last.
    #[serde(serialize_with = "json::until")]
    pub last_ns: u64,
}

impl CourseView {
    /// What part of so many bytes it was; `None` of none, and where their number is not known.
    #[expect(clippy::cast_precision_loss, reason = "a part needs no sixteen digits")]
    pub fn part_of(&self, total_bytes: Option<u64>) -> Option<RatioView> {
        let total_bytes = total_bytes.filter(|total| *total > 0)?;
        let of = |bytes: u64| bytes as f64 / total_bytes as f64;
        Some(RatioView {
            current: Some(of(self.current_bytes)),
            average: of(self.average_bytes.unwrap_or(self.current_bytes)),
            maximum: of(self.peak_bytes.unwrap_or(self.maximum_bytes)),
            p50: of(self.p50_bytes),
            p90: of(self.p90_bytes),
            p95: of(self.p95_bytes),
            p99: of(self.p99_bytes),
            samples: self.samples,
        })
    }
}

/// A part of something over time, 0 to 1; at looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RatioView {
    /// Now; of what has ended, just before.
    pub current: Option<f64>,
    /// The average over the time.
    pub average: f64,
    /// The most.
    pub maximum: f64,
    /// What it was at most for half of the time.
    pub p50: f64,
    /// For nine tenths.
    pub p90: f64,
    /// For 95 %.
    pub p95: f64,
    /// For 99 %.
    pub p99: f64,
    /// How many looks that is from: those at which there was something to be a part of.
    pub samples: u64,
}
