//! Memory over time, and what happened meanwhile: see [`crate::features::samples`].

use serde::{Deserialize, Serialize};

use crate::snapshot::WhoseView;
use crate::words::{GpuUuid, Name, Tgid, json};

/// What all GPUs and processes held over time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineView {
    /// How often it was looked, nanoseconds.
    #[serde(serialize_with = "json::seconds")]
    pub interval_ns: u64,
    /// From when on: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::begin_time")]
    pub begun_ns: u64,
    /// Until when.
    #[serde(serialize_with = "json::end_time")]
    pub last_ns: u64,
    /// One number each: those of GPUs first.
    #[serde(serialize_with = "json::apart")]
    pub tracks: Vec<TrackView>,
    /// What happened, in the order of its times.
    #[serde(serialize_with = "json::apart")]
    pub events: Vec<EventView>,
    /// So many events before these are forgotten.
    pub forgotten_events: u64,
    /// What training was at, in the order of its times.
    #[serde(serialize_with = "json::apart")]
    pub spans: Vec<SpanView>,
    /// So many spans before these are forgotten.
    pub forgotten_spans: u64,
}

/// One number over time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrackView {
    /// The process; `None` for a GPU's own number.
    #[serde(serialize_with = "json::tgid")]
    pub tgid: Option<Tgid>,
    /// Its name, and its command line.
    #[serde(serialize_with = "json::apart")]
    pub comm: String,
    /// Its command line.
    #[serde(serialize_with = "json::apart")]
    pub command: String,
    /// From when on the process was watched, which distinguishes it from others with its number: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub observed_since_ns: Option<u64>,
    /// The GPU; `None` for host memory, and where it is not known.
    pub uuid: Option<GpuUuid>,
    /// `used` (by NVML), `live` (granted by the driver and not freed), `reserved`, `allocated` (by PyTorch's allocator) or `pinned`.
    pub measure: Name,
    /// When it was seen first: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::apart")]
    pub begun_ns: u64,
    /// What it was at each look.
    #[serde(serialize_with = "json::apart")]
    pub points: Vec<PointView>,
}

/// A look at it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PointView {
    /// When: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::apart")]
    pub time_ns: u64,
    /// What it was, in bytes.
    pub bytes: u64,
    /// The most it was since the look before; of what is only read now and then, the most at a reading.
    pub most_bytes: u64,
}

/// Something that happened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventView {
    /// When: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub time_ns: u64,
    /// `start`, `exit`, `failure`, `large` (an allocation), or `peak`.
    pub kind: Name,
    /// The process; `None` for a GPU's peak.
    #[serde(serialize_with = "json::tgid")]
    pub tgid: Option<Tgid>,
    /// The GPU, where there is one and it is known.
    pub uuid: Option<GpuUuid>,
    /// How much, where it is about bytes: what was wanted, granted, or held.
    pub bytes: Option<u64>,
    /// Of an allocation, failed or not: `tensor` or `driver`; of a peak, the measure of its track.
    pub level: Option<Name>,
    /// The driver's function, where it was one.
    pub symbol: Option<Name>,
    /// Whose it is, or would have been, where PyTorch's lines are watched.
    pub whose: Option<WhoseView>,
}

/// A training step, or a stage of one, of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpanView {
    /// The process.
    #[serde(serialize_with = "json::tgid")]
    pub tgid: Tgid,
    /// `step` or `stage`.
    pub kind: Name,
    /// The number of the step, from 1 on; or the stage: of the last allocation, as in [`crate::snapshot::StageView`].
    pub name: Name,
    /// From when: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::apart")]
    pub begun_ns: u64,
    /// Until when.
    #[serde(serialize_with = "json::apart")]
    pub last_ns: u64,
}
