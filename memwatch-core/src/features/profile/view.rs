//! Report on memory over time: see [`crate::features::samples`].

use serde::{Deserialize, Serialize};

use crate::words::{GpuUuid, Tgid, json};

/// Memory of all GPUs and processes over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProfileView {
    /// Interval between samples, in nanoseconds.
    #[serde(serialize_with = "json::seconds")]
    pub interval_ns: u64,
    /// Requested interval between samples, in nanoseconds.
    #[serde(serialize_with = "json::seconds")]
    pub asked_interval_ns: u64,
    /// Start: `CLOCK_BOOTTIME`, in nanoseconds.
    #[serde(serialize_with = "json::begin_time")]
    pub begun_ns: u64,
    /// End: `CLOCK_BOOTTIME`, in nanoseconds.
    #[serde(serialize_with = "json::end_time")]
    pub last_ns: u64,
    /// GPUs, in NVML's order.
    #[serde(serialize_with = "json::apart")]
    pub gpus: Vec<GpuProfileView>,
    /// Processes, by start of observation.
    pub processes: Vec<ProcessProfileView>,
}

/// Memory of one GPU over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuProfileView {
    /// GPU.
    pub uuid: GpuUuid,
    /// Memory of the device in bytes.
    pub total_bytes: Option<u64>,
    /// Used bytes in NVML's readings; `None` without readings.
    pub used: Option<CourseView>,
    /// Live bytes of all traced processes.
    pub live: Option<CourseView>,
    /// Used fraction of the GPU's memory; `None` if the used or the total bytes are unknown.
    pub utilization: Option<RatioView>,
}

/// Memory of one process over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessProfileView {
    /// The process.
    #[serde(serialize_with = "json::tgid")]
    pub tgid: Tgid,
    /// Name of the process.
    pub comm: String,
    /// Command line of the process.
    pub command: String,
    /// Start of observation: `CLOCK_BOOTTIME`, in nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub observed_since_ns: u64,
    /// Time of the exit, if the process has exited: `CLOCK_BOOTTIME`, in nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub ended_ns: Option<u64>,
    /// Whether every record of the process arrived, so that its peaks are exact.
    pub exact: bool,
    /// Memory by GPU, the unknown GPU last.
    pub gpus: Vec<DeviceProfileView>,
    /// Pinned host memory; `None` if the process had none.
    pub pinned: Option<CourseView>,
}

/// Memory of a process on one GPU over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceProfileView {
    /// GPU; `None` if it is unknown.
    pub uuid: Option<GpuUuid>,
    /// Memory of the GPU in bytes.
    pub total_bytes: Option<u64>,
    /// Live bytes of the driver's calls.
    pub live: Option<CourseView>,
    /// Bytes that NVML charges to the process.
    pub used: Option<CourseView>,
    /// Bytes allocated from PyTorch's allocator; `None` if it is not traced.
    pub allocated: Option<CourseView>,
    /// Bytes that PyTorch's allocator reserves from the driver.
    pub reserved: Option<CourseView>,
    /// Used fraction of the GPU's memory, or else the live fraction; `None` if the bytes or the
    /// GPU's memory are unknown.
    pub utilization: Option<RatioView>,
    /// Unused fraction of the bytes that PyTorch's allocator reserves.
    pub fragmentation: Option<RatioView>,
}

/// A number of bytes over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CourseView {
    /// Current value; the last value if the series has ended.
    pub current_bytes: u64,
    /// Time average; `None` if no time has passed.
    pub average_bytes: Option<u64>,
    /// Minimum of the samples.
    pub minimum_bytes: u64,
    /// Maximum of the samples.
    pub maximum_bytes: u64,
    /// Peak at any time; `None` if only samples are known.
    pub peak_bytes: Option<u64>,
    /// Time of the first peak: `CLOCK_BOOTTIME`, in nanoseconds.
    #[serde(serialize_with = "json::peak_time")]
    pub peak_ns: Option<u64>,
    /// 50th percentile over time, from the samples.
    pub p50_bytes: u64,
    /// 90th percentile over time, from the samples.
    pub p90_bytes: u64,
    /// 95th percentile over time, from the samples.
    pub p95_bytes: u64,
    /// 99th percentile over time, from the samples.
    pub p99_bytes: u64,
    /// Number of samples.
    pub samples: u64,
    /// Start: `CLOCK_BOOTTIME`, in nanoseconds.
    #[serde(serialize_with = "json::since")]
    pub begun_ns: u64,
    /// End: `CLOCK_BOOTTIME`, in nanoseconds.
    #[serde(serialize_with = "json::until")]
    pub last_ns: u64,
}

impl CourseView {
    /// Returns the series as a fraction of the total; `None` if the total is unknown or 0.
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

/// A fraction over time, 0 to 1, from the samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RatioView {
    /// Current value; the last value if the series has ended.
    pub current: Option<f64>,
    /// Time average.
    pub average: f64,
    /// Maximum.
    pub maximum: f64,
    /// 50th percentile over time.
    pub p50: f64,
    /// 90th percentile over time.
    pub p90: f64,
    /// 95th percentile over time.
    pub p95: f64,
    /// 99th percentile over time.
    pub p99: f64,
    /// Number of samples with a total above 0.
    pub samples: u64,
}
