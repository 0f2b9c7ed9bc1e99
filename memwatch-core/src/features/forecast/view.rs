//! Whether memory runs out: see [`crate::features::forecast::model`].

use serde::{Deserialize, Serialize};

use crate::features::leak::view::LeakView;
use crate::features::oom::view::CacheView;
use crate::words::{GpuUuid, Name, Tgid, json};

/// What is to be expected of every GPU, and of every process on it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ForecastsView {
    /// At which moment: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub time_ns: u64,
    /// By NVML index.
    #[serde(serialize_with = "json::apart")]
    pub gpus: Vec<GpuForecastView>,
    /// The nearest end first.
    #[serde(serialize_with = "json::apart")]
    pub processes: Vec<ProcessForecastView>,
}

/// Something to report: another level, or a threshold that was passed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForecastChangeView {
    /// When: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub time_ns: u64,
    /// The level before, where it has changed; what it is now stands in `gpu`.
    #[serde(serialize_with = "json::level_before")]
    pub before: Option<Name>,
    /// More is needed than this part of the GPU's memory, in percent, where that was passed.
    pub threshold_percent: Option<f64>,
    /// The GPU as it was then.
    #[serde(serialize_with = "json::apart")]
    pub gpu: GpuForecastView,
    /// And the processes on it, the nearest end first.
    #[serde(serialize_with = "json::apart")]
    pub processes: Vec<ProcessForecastView>,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuForecastView {
    /// The GPU.
    pub uuid: GpuUuid,
    /// As people name it: `1`, or `1:0` for a MIG instance.
    pub number: String,
    /// What it has, in bytes; `None` where NVML does not say.
    pub total_bytes: Option<u64>,
    /// What is used of it by NVML's last reading, in bytes.
    pub used_bytes: Option<u64>,
    /// What is to be expected.
    #[serde(serialize_with = "json::apart")]
    pub outlook: OutlookView,
}

/// A process on a GPU, if all others stay as they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessForecastView {
    /// The process.
    #[serde(serialize_with = "json::tgid")]
    pub tgid: Tgid,
    /// Its name.
    pub comm: String,
    /// Its command line.
    pub command: String,
    /// From when on it was watched: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::apart")]
    pub observed_since_ns: u64,
    /// The GPU.
    pub uuid: GpuUuid,
    /// What is to be expected.
    #[serde(serialize_with = "json::apart")]
    pub outlook: OutlookView,
    /// What its PyTorch has of the driver and does not use; `None` where that is not known.
    #[serde(serialize_with = "json::apart")]
    pub cache: Option<CacheView>,
    /// What grows in it, the fastest first.
    #[serde(serialize_with = "json::apart")]
    pub growing: Vec<LeakView>,
}

/// What is to be expected.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OutlookView {
    /// `none`, `low`, `medium`, `high` or `critical`; `unknown` where it was seen for too short a time.
    pub level: Name,
    /// What was needed in the last window, in bytes: without what can be given back or used again.
    pub needed_bytes: u64,
    /// How that goes; `None` where it was seen for too short a time.
    pub growth: Option<GrowthView>,
    /// When the memory runs out; `None` where the need does not grow, or NVML does not say how much there is.
    pub end: Option<EndView>,
}

/// How a need goes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GrowthView {
    /// It grows all the time, and goes on.
    pub grows: bool,
    /// From how many windows.
    pub windows: usize,
    /// In how many seconds.
    pub span_seconds: f64,
    /// The rate to go on with, in bytes a second.
    pub bytes_per_second: f64,
    /// Its interval to 90 %: the lower end.
    pub low_bytes_per_second: f64,
    /// And the upper end.
    pub high_bytes_per_second: f64,
    /// How often noise alone would look so steady.
    pub p: f64,
}

/// When memory runs out, if it goes on so.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndView {
    /// By the straight line: seconds from the forecast's moment.
    pub seconds: f64,
    /// What is left, in multiples of what it has grown so far.
    pub reach: f64,
    /// In which range, and how sure that is; `None` where so far ahead nothing was measured.
    pub range: Option<RangeView>,
}

/// A range in which memory runs out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RangeView {
    /// Its beginning: seconds from the forecast's moment.
    pub earliest_seconds: f64,
    /// Its end.
    pub latest_seconds: f64,
    /// The part of such forecasts that came true: the memory ran out, and within the range.
    pub confidence: f64,
}
