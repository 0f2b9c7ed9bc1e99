//! Timeline report: memory over time with events. See [`crate::features::samples`].

use serde::{Deserialize, Serialize};

use crate::snapshot::WhoseView;
use crate::words::{GpuUuid, Name, Tgid, json};

/// Memory of all GPUs and processes over time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineView {
    /// Interval between samples, in nanoseconds.
    #[serde(serialize_with = "json::seconds")]
    pub interval_ns: u64,
    /// Start: `CLOCK_BOOTTIME`, in nanoseconds.
    #[serde(serialize_with = "json::begin_time")]
    pub begun_ns: u64,
    /// End: `CLOCK_BOOTTIME`, in nanoseconds.
    #[serde(serialize_with = "json::end_time")]
    pub last_ns: u64,
    /// Series, those of GPUs first.
    #[serde(serialize_with = "json::apart")]
    pub tracks: Vec<TrackView>,
    /// Events by time.
    #[serde(serialize_with = "json::apart")]
    pub events: Vec<EventView>,
    /// Number of earlier events that were dropped.
    pub forgotten_events: u64,
    /// Training steps and phases by time.
    #[serde(serialize_with = "json::apart")]
    pub spans: Vec<SpanView>,
    /// Number of earlier spans that were dropped.
    pub forgotten_spans: u64,
}

/// One series.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrackView {
    /// Process; `None` for a GPU's own series.
    #[serde(serialize_with = "json::tgid")]
    pub tgid: Option<Tgid>,
    /// Name of the process.
    #[serde(serialize_with = "json::apart")]
    pub comm: String,
    /// Command line of the process.
    #[serde(serialize_with = "json::apart")]
    pub command: String,
    /// Start of observation, which distinguishes processes with the same number: `CLOCK_BOOTTIME`,
    /// in nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub observed_since_ns: Option<u64>,
    /// GPU; `None` for host memory, and if it is unknown.
    pub uuid: Option<GpuUuid>,
    /// `used` (from NVML), `live` (allocated from the driver and not freed), `reserved`,
    /// `allocated` (from PyTorch's allocator) or `pinned`.
    pub measure: Name,
    /// Start of the series: `CLOCK_BOOTTIME`, in nanoseconds.
    #[serde(serialize_with = "json::apart")]
    pub begun_ns: u64,
    /// Samples.
    #[serde(serialize_with = "json::apart")]
    pub points: Vec<PointView>,
}

/// A sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PointView {
    /// Time: `CLOCK_BOOTTIME`, in nanoseconds.
    #[serde(serialize_with = "json::apart")]
    pub time_ns: u64,
    /// Value in bytes.
    pub bytes: u64,
    /// Maximum since the previous sample; for a series that is read from time to time, the maximum
    /// of the readings.
    pub most_bytes: u64,
}

/// An event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventView {
    /// Time: `CLOCK_BOOTTIME`, in nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub time_ns: u64,
    /// `start`, `exit`, `failure`, `large` (an allocation), or `peak`.
    pub kind: Name,
    /// Process; `None` for a GPU's peak.
    #[serde(serialize_with = "json::tgid")]
    pub tgid: Option<Tgid>,
    /// GPU, if the event has one and it is known.
    pub uuid: Option<GpuUuid>,
    /// Bytes requested, allocated or held, if the event has a size.
    pub bytes: Option<u64>,
    /// For an allocation, failed or not: `tensor` or `driver`; for a peak, the measure of its
    /// series.
    pub level: Option<Name>,
    /// Driver function, if the event is a driver call.
    pub symbol: Option<Name>,
    /// Attribution of the allocation, if PyTorch's call sites are traced.
    #[serde(rename = "attributed_to")]
    pub whose: Option<WhoseView>,
}

/// A training step of a process, or a phase of one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpanView {
    /// The process.
    #[serde(serialize_with = "json::tgid")]
    pub tgid: Tgid,
    /// `step` or `phase`.
    pub kind: Name,
    /// Number of the step, from 1; or the phase of the last allocation, as in
    /// [`crate::snapshot::PhaseView`].
    pub name: Name,
    /// Start: `CLOCK_BOOTTIME`, in nanoseconds.
    #[serde(serialize_with = "json::apart")]
    pub begun_ns: u64,
    /// End: `CLOCK_BOOTTIME`, in nanoseconds.
    #[serde(serialize_with = "json::apart")]
    pub last_ns: u64,
}
