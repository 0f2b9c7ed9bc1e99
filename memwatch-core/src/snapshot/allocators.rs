//! The caching allocators of a PyTorch program: what each has, and every number it keeps of itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::allocators::pytorch::Certainty;
use crate::words::{GpuUuid, Name, json};

/// The caching allocator of one device of a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AllocatorView {
    /// The process's own number of the device.
    pub device: i32,
    /// The GPU; `None` where it is not known.
    pub uuid: Option<GpuUuid>,
    /// What the program has, rounded as the allocator does; `None` before the first report.
    pub allocated_bytes: Option<u64>,
    /// What the allocator has of the driver.
    pub reserved_bytes: Option<u64>,
    /// What it keeps of that for later: reserved less allocated.
    pub cached_bytes: Option<u64>,
    /// The most it kept so at a report since the watch began, or since `peaks_begun_ns`.
    #[serde(serialize_with = "json::apart")]
    pub peak_cached_bytes: u64,
    /// When peaks began again in memwatch's counters: `CLOCK_BOOTTIME`, nanoseconds; `None` where those of `statistics` are the program's own.
    #[serde(serialize_with = "json::apart")]
    pub peaks_begun_ns: Option<u64>,
    /// What the program has from before the watch.
    pub preexisting_bytes: Option<u64>,
    /// Bytes of the program's blocks that are known one by one: all, where this equals `allocated_bytes`.
    #[serde(serialize_with = "json::apart")]
    pub known_block_bytes: u64,
    /// What was rounded up of blocks in use.
    pub rounding_bytes: Option<u64>,
    /// Free blocks that cannot be given back, since others of their segment are in use.
    pub inactive_split_bytes: Option<u64>,
    /// Rounding and inactive splits.
    pub waste_bytes: Option<u64>,
    /// Allocations since the watch began that came out of the cache.
    #[serde(serialize_with = "json::apart")]
    pub cache_hits: u64,
    /// Those for which the allocator went to the driver.
    #[serde(serialize_with = "json::apart")]
    pub cache_misses: u64,
    /// Hits of both, 0 to 1.
    pub hit_rate: Option<f64>,
    /// What is seen of it: `trace` (everything), `blocks` (what is granted and freed), `reports` (of that rounded sizes alone) or `numbers` (nothing: what
    /// it has counted is read from memory).
    pub observed_by: Name,
    /// Where its numbers count from: `start`, `readout` (its own numbers were read) or `unknown`.
    pub counted_from: Name,
    /// When its own numbers were last read: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::apart")]
    pub readout_ns: Option<u64>,
    /// How often what was followed was not what it reported itself.
    pub out_of_step: u64,
    /// How often its own numbers were read and were not what they should be.
    #[serde(serialize_with = "json::apart")]
    pub refused_readouts: u64,
    /// The fields of `torch.cuda.memory_stats()`, by PyTorch's keys.
    #[serde(serialize_with = "json::apart")]
    pub statistics: BTreeMap<Name, StatisticView>,
}

impl AllocatorView {
    /// Whether its numbers are of the same moment as what the driver has allocated, which changed last at this time: numbers that are read now and then
    /// are older where it has changed since.
    pub fn is_as_new_as(&self, driver_changed_ns: u64) -> bool {
        self.observed_by != "numbers" || self.readout_ns.is_some_and(|readout_ns| readout_ns >= driver_changed_ns)
    }

    /// A number, where it is known.
    pub fn statistic(&self, key: &str) -> Option<i64> {
        self.statistics.get(key)?.value
    }
}

/// A number and how sure it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatisticView {
    /// The number; `None` where it is not known.
    pub value: Option<i64>,
    /// How sure it is.
    pub certainty: Certainty,
    /// Why it is not exact.
    pub reason: Option<Name>,
}
