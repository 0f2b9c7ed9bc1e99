//! Forecast report: see [`crate::features::forecast::model`].

use serde::{Deserialize, Serialize};

use crate::features::leak::view::LeakView;
use crate::features::oom::view::CacheView;
use crate::words::{GpuUuid, Name, Tgid, json};

/// Forecasts for all GPUs and for the processes on them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ForecastsView {
    /// Time of the forecasts: `CLOCK_BOOTTIME`, in nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub time_ns: u64,
    /// GPUs by NVML index.
    #[serde(serialize_with = "json::apart")]
    pub gpus: Vec<GpuForecastView>,
    /// Processes, nearest end first.
    #[serde(serialize_with = "json::apart")]
    pub processes: Vec<ProcessForecastView>,
}

/// A change of a forecast's level, or a threshold that was passed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForecastChangeView {
    /// Time of the change: `CLOCK_BOOTTIME`, in nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub time_ns: u64,
    /// Previous level, if the level changed; the new one is in `gpu`.
    #[serde(serialize_with = "json::level_before")]
    pub before: Option<Name>,
    /// Threshold that the need passed, in percent of the GPU's memory, if one was passed.
    pub threshold_percent: Option<f64>,
    /// Forecast for the GPU at that time.
    #[serde(serialize_with = "json::apart")]
    pub gpu: GpuForecastView,
    /// Forecasts for the processes on the GPU at that time, nearest end first.
    #[serde(serialize_with = "json::apart")]
    pub processes: Vec<ProcessForecastView>,
}

/// Forecast for a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuForecastView {
    /// The GPU.
    pub uuid: GpuUuid,
    /// Number of the GPU for display: `1`, or `1:0` for a MIG instance.
    pub number: String,
    /// Memory of the GPU in bytes; `None` if NVML does not report it.
    pub total_bytes: Option<u64>,
    /// Bytes used in NVML's last reading.
    pub used_bytes: Option<u64>,
    /// Forecast.
    #[serde(serialize_with = "json::apart")]
    pub outlook: OutlookView,
}

/// Forecast for a process on a GPU if all other processes stay as they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessForecastView {
    /// The process.
    #[serde(serialize_with = "json::tgid")]
    pub tgid: Tgid,
    /// Name of the process.
    pub comm: String,
    /// Command line of the process.
    pub command: String,
    /// Start of observation: `CLOCK_BOOTTIME`, in nanoseconds.
    #[serde(serialize_with = "json::apart")]
    pub observed_since_ns: u64,
    /// The GPU.
    pub uuid: GpuUuid,
    /// Forecast.
    #[serde(serialize_with = "json::apart")]
    pub outlook: OutlookView,
    /// Memory that the process's PyTorch reserves and does not use; `None` if it is unknown.
    #[serde(serialize_with = "json::apart")]
    pub cache: Option<CacheView>,
    /// Growing memory of the process on the GPU, the fastest growing first.
    #[serde(serialize_with = "json::apart")]
    pub growing: Vec<LeakView>,
}

/// Forecast for a GPU or a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OutlookView {
    /// `none`, `low`, `medium`, `high` or `critical`; `unknown` if the need was observed for too
    /// short a time.
    pub level: Name,
    /// Bytes needed in the last window, without memory that can be released or reused.
    pub needed_bytes: u64,
    /// Trend of the need; `None` if it was observed for too short a time.
    pub growth: Option<GrowthView>,
    /// Time at which memory runs out; `None` if the need does not grow or NVML does not report the
    /// GPU's memory.
    pub end: Option<EndView>,
}

/// Trend of a need.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GrowthView {
    /// The need grows steadily and still grows.
    pub grows: bool,
    /// Number of windows.
    pub windows: usize,
    /// Time from the first window to the last, in seconds.
    pub span_seconds: f64,
    /// Rate to extrapolate with, in bytes per second.
    pub bytes_per_second: f64,
    /// Lower end of the rate's 90 % interval.
    pub low_bytes_per_second: f64,
    /// Upper end of the rate's 90 % interval.
    pub high_bytes_per_second: f64,
    /// Probability that noise alone would look so steady.
    pub p: f64,
}

/// Time at which memory runs out if the growth continues.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndView {
    /// Time by the straight line, in seconds from the time of the forecast.
    pub seconds: f64,
    /// Bytes left, in multiples of the growth so far.
    pub reach: f64,
    /// Range of times with its confidence; `None` if no measured forecast reached so far ahead.
    pub range: Option<TimeRangeView>,
}

/// Range of times in which memory runs out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimeRangeView {
    /// Start of the range, in seconds from the time of the forecast.
    pub earliest_seconds: f64,
    /// End of the range, in seconds from the time of the forecast.
    pub latest_seconds: f64,
    /// Fraction of such forecasts that came true: the memory ran out within the range.
    pub confidence: f64,
}
