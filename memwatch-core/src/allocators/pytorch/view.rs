//! Views of PyTorch's caching allocators: memory and statistics.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Base, Certainty, DeviceAllocator, Doubt, NamedNumber, StatFamily, StatScope};
use crate::allocators::TensorLedger;
use crate::words::{GpuUuid, Name, Ordinal, json};

/// The caching allocator of one device of a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AllocatorView {
    /// The process's own number of the device.
    pub device: i32,
    /// GPU; `None` if it is unknown.
    pub uuid: Option<GpuUuid>,
    /// Bytes allocated by the program, as the allocator rounds them; `None` before the first
    /// report.
    pub allocated_bytes: Option<u64>,
    /// Bytes reserved from the driver.
    pub reserved_bytes: Option<u64>,
    /// Cached bytes: reserved minus allocated.
    pub cached_bytes: Option<u64>,
    /// Peak of the cached bytes in the allocator's reports since the session began, or since
    /// `peaks_begun_ns`.
    #[serde(serialize_with = "json::apart")]
    pub peak_cached_bytes: u64,
    /// Time of the last reset of the peaks by memwatch: `CLOCK_BOOTTIME`, in nanoseconds; `None` if
    /// the peaks in `statistics` are the program's own.
    #[serde(serialize_with = "json::apart")]
    pub peaks_begun_ns: Option<u64>,
    /// Bytes that the program allocated before the session.
    pub preexisting_bytes: Option<u64>,
    /// Bytes of blocks that are known individually; all are known if this equals `allocated_bytes`.
    #[serde(serialize_with = "json::apart")]
    pub known_block_bytes: u64,
    /// Bytes added by rounding to blocks in use.
    pub rounding_bytes: Option<u64>,
    /// Bytes of free blocks that cannot be released, because other blocks of their segment are in
    /// use.
    pub inactive_split_bytes: Option<u64>,
    /// Sum of rounding and inactive splits.
    pub waste_bytes: Option<u64>,
    /// Allocations served from the cache since the session began.
    #[serde(serialize_with = "json::apart")]
    pub cache_hits: u64,
    /// Allocations that needed memory from the driver since the session began.
    #[serde(serialize_with = "json::apart")]
    pub cache_misses: u64,
    /// Hits divided by hits and misses, 0 to 1.
    pub hit_rate: Option<f64>,
    /// Source of the data: `trace` (everything is traced), `blocks` (allocations and frees),
    /// `reports` (only rounded sizes of allocations and frees) or `numbers` (nothing is traced, the
    /// counters are read from memory).
    pub observed_by: Name,
    /// Starting point of the statistics: `start`, `readout` (the allocator's counters were read) or
    /// `unknown`.
    pub counted_from: Name,
    /// Time of the last readout of the allocator's counters: `CLOCK_BOOTTIME`, in nanoseconds.
    #[serde(serialize_with = "json::apart")]
    pub readout_ns: Option<u64>,
    /// Number of contradictions between the tracked state and the allocator's reports.
    pub out_of_step: u64,
    /// Number of readouts that were rejected as implausible.
    #[serde(serialize_with = "json::apart")]
    pub refused_readouts: u64,
    /// Fields of `torch.cuda.memory_stats()`, by PyTorch's keys.
    #[serde(serialize_with = "json::apart")]
    pub statistics: BTreeMap<Name, StatisticView>,
}

impl AllocatorView {
    /// Returns whether the numbers are as new as the driver's allocations, which last changed at
    /// this time: counters that are only read from time to time may be older.
    pub fn is_as_new_as(&self, driver_changed_ns: u64) -> bool {
        self.observed_by != "numbers" || self.readout_ns.is_some_and(|readout_ns| readout_ns >= driver_changed_ns)
    }

    /// Returns a statistic, if it is known.
    pub fn statistic(&self, key: &str) -> Option<i64> {
        self.statistics.get(key)?.value
    }
}

/// A statistic with its certainty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatisticView {
    /// Value; `None` if it is unknown.
    pub value: Option<i64>,
    /// Certainty of the value.
    pub certainty: Certainty,
    /// Reason why the value is not exact.
    pub reason: Option<Name>,
}

/// Returns the allocators of a process; `uuid` returns the GPU of a device.
pub(crate) fn allocators(ledger: &TensorLedger, uuid: impl Fn(Ordinal) -> Option<GpuUuid>) -> Vec<AllocatorView> {
    ledger.allocators().iter().map(|(ordinal, device)| view(device, *ordinal, uuid(*ordinal))).collect()
}

fn view(device: &DeviceAllocator, ordinal: Ordinal, uuid: Option<GpuUuid>) -> AllocatorView {
    let reported = device.reported();
    let current = |family| {
        let known = device.number(family, StatScope::All, "current")?.known()?;
        u64::try_from(known).ok()
    };
    let rounding = current(StatFamily::ActiveBytes).zip(current(StatFamily::RequestedBytes));
    let rounding_bytes = rounding.map(|(active, requested)| active.saturating_sub(requested));
    let inactive_split_bytes = current(StatFamily::InactiveSplitBytes);
    let (counted_from, readout_ns) = match device.base() {
        Base::None => ("unknown", None),
        Base::Start => ("start", None),
        Base::Read(time_ns) => ("readout", Some(time_ns)),
    };
    AllocatorView {
        device: ordinal.0,
        uuid,
        allocated_bytes: reported.map(|now| now.allocated_bytes),
        reserved_bytes: current(StatFamily::ReservedBytes).or(reported.map(|now| now.reserved_bytes)),
        cached_bytes: current(StatFamily::ReservedBytes)
            .or(reported.map(|now| now.reserved_bytes))
            .zip(reported)
            .map(|(reserved, now)| reserved.saturating_sub(now.allocated_bytes)),
        peak_cached_bytes: device.peak_cached_bytes(),
        peaks_begun_ns: device.peaks_begun_ns(),
        preexisting_bytes: device.preexisting_bytes(),
        known_block_bytes: device.memory().allocated_bytes(),
        rounding_bytes,
        inactive_split_bytes,
        waste_bytes: rounding_bytes.zip(inactive_split_bytes).map(|(rounding, splits)| rounding + splits),
        cache_hits: device.hits(),
        cache_misses: device.misses(),
        hit_rate: ratio(device.hits(), device.hits() + device.misses()),
        observed_by: device.observed_by().into(),
        counted_from: counted_from.into(),
        readout_ns,
        out_of_step: device.out_of_step(),
        refused_readouts: device.refused_readouts(),
        statistics: device.numbers().into_iter().map(statistic).collect(),
    }
}

fn statistic((key, trust): NamedNumber) -> (Name, StatisticView) {
    let reason = trust.doubt.map(|doubt: Doubt| doubt.name().into());
    (key, StatisticView { value: trust.known(), certainty: trust.certainty(), reason })
}

/// Returns a ratio, 0 to 1; `None` if `whole` is 0.
#[allow(clippy::cast_precision_loss, reason = "the screen shows three digits")]
fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}
