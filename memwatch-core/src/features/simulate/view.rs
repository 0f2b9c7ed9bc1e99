//! What other settings of a caching allocator would have taken: see [`crate::features::simulate::model`].

use serde::{Deserialize, Serialize};

use crate::words::{GpuUuid, Name, Tgid, json};

/// One device's caching allocator of one process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SimulationView {
    /// The process.
    #[serde(serialize_with = "json::tgid")]
    pub tgid: Tgid,
    /// From when on it was watched: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub observed_since_ns: u64,
    /// The process's own number of the device.
    pub device: i32,
    /// The GPU, where it is known.
    pub uuid: Option<GpuUuid>,
    /// Whether its allocator shows what it does; without that nothing is replayed.
    pub traced: bool,
    /// Events of it that were lost: what was replayed is not all.
    pub lost: u64,
    /// How many requests and frees were replayed.
    pub operations: u64,
    /// What tensors from before the watch held, in bytes: they are in no replay. `None` where that is not known yet.
    pub older_allocated_bytes: Option<u64>,
    /// What the allocator had of the driver before the watch, in bytes.
    pub older_reserved_bytes: Option<u64>,
    /// What the allocator had of the driver before the watch and was read from its own books, in bytes, so that all rows begin with it: the program's
    /// own setting as it was, others as if the program had asked for it in the order of its addresses. `None` where it was not read.
    pub begun_with_bytes: Option<u64>,
    /// What the driver could give it at most, in bytes; `None` where that is not known, so that nothing was refused.
    pub available_bytes: Option<u64>,
    /// What the process's context takes of the device before that, in bytes; `None` where no reading of NVML has shown it, so that
    /// `available_bytes` is too much by that.
    pub context_bytes: Option<u64>,
    /// As it ran.
    pub measured: MeasuredView,
    /// As it would have run.
    #[serde(serialize_with = "json::apart")]
    pub policies: Vec<PolicyView>,
}

/// What the program's own allocator took, in bytes and calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredView {
    /// The most it had of the driver.
    pub peak_reserved_bytes: u64,
    /// The most that tensors had of that while it was so.
    pub allocated_at_peak_bytes: u64,
    /// The most that tensors had.
    pub peak_allocated_bytes: u64,
    /// What it had of the driver at the end.
    pub reserved_bytes: u64,
    /// What tensors had at the end.
    pub allocated_bytes: u64,
    /// Requests served without the driver.
    pub hits: u64,
    /// Requests that were not.
    pub misses: u64,
    /// Calls that took memory of the driver.
    pub driver_allocations: u64,
    /// Calls that gave it back.
    pub driver_frees: u64,
    /// The driver refused, and was asked again after the cache was given back.
    pub retries: u64,
    /// Requests that failed.
    pub refused: u64,
    /// Its segments grow.
    pub expandable: bool,
}

/// What a policy would have taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PolicyView {
    /// `pytorch` or `size_classes`.
    pub policy: Name,
    /// Of `pytorch` the value of `PYTORCH_CUDA_ALLOC_CONF`; empty for its default.
    pub setting: Option<String>,
    /// As far as is known, the program ran so: what the model says of it is to be what was measured.
    pub as_it_ran: bool,
    /// What the program had before the watch is not where this policy would have had it: it begins with that in the order of addresses, so that its bytes
    /// are at the least.
    pub begins_otherwise: bool,
    /// The most it would have had of the driver.
    pub peak_reserved_bytes: u64,
    /// The most that tensors would have had of that while it was so, as this policy rounds.
    pub allocated_at_peak_bytes: u64,
    /// The most that tensors would have had.
    pub peak_allocated_bytes: u64,
    /// What it would have had of the driver at the end.
    pub reserved_bytes: u64,
    /// What tensors would have had at the end.
    pub allocated_bytes: u64,
    /// All that would lie free at the end.
    pub free_bytes: u64,
    /// The largest piece of that.
    pub largest_free_bytes: u64,
    /// Requests served without the driver.
    pub hits: u64,
    /// Requests that were not.
    pub misses: u64,
    /// Calls that take memory of the driver.
    pub driver_allocations: u64,
    /// Calls that give it back.
    pub driver_frees: u64,
    /// The driver refused, and was asked again after the cache was given back.
    pub retries: u64,
    /// Requests that failed in the program, and here.
    pub refused: u64,
    /// Requests that failed in the program, and would not have.
    pub granted_refused: u64,
    /// The first request that would have failed, and did not: nothing after it was replayed.
    pub failure: Option<PredictedFailureView>,
}

/// A request that would have failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PredictedFailureView {
    /// When: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// What was wanted, in bytes.
    pub wanted_bytes: u64,
    /// What the allocator would have had of the driver then.
    pub reserved_bytes: u64,
    /// What tensors would have had of that.
    pub allocated_bytes: u64,
}
