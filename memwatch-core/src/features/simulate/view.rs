//! Simulation report of a caching allocator with other settings: see
//! [`crate::features::simulate::model`].

use serde::{Deserialize, Serialize};

use crate::words::{GpuUuid, Name, Tgid, json};

/// Simulations for the caching allocator of one process on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SimulationView {
    /// The process.
    #[serde(serialize_with = "json::tgid")]
    pub tgid: Tgid,
    /// Start of observation: `CLOCK_BOOTTIME`, in nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub observed_since_ns: u64,
    /// The process's own number of the device.
    pub device: i32,
    /// GPU, if it is known.
    pub uuid: Option<GpuUuid>,
    /// Whether the allocator is traced; without a trace nothing is replayed.
    pub traced: bool,
    /// Number of lost events; if there are any, the replay is incomplete.
    pub lost: u64,
    /// Number of replayed requests and frees.
    pub operations: u64,
    /// Bytes of tensors that existed before the session and are in no replay; `None` if they are
    /// not known yet.
    pub older_allocated_bytes: Option<u64>,
    /// Bytes that the allocator had reserved before the session.
    pub older_reserved_bytes: Option<u64>,
    /// Bytes that the allocator had reserved before the session, read from its state. All rows begin with
    /// them: the program's own setting with the original layout, other policies as if the program had
    /// requested the blocks in the order of addresses. `None` if the state was not read.
    pub begun_with_bytes: Option<u64>,
    /// Maximum bytes available from the driver; `None` if unknown, in which case no request was
    /// refused.
    pub available_bytes: Option<u64>,
    /// Bytes of the device that the process's context takes; `None` if no NVML reading has shown
    /// them, in which case `available_bytes` is too large by that amount.
    pub context_bytes: Option<u64>,
    /// The measured run.
    pub measured: MeasuredView,
    /// The simulated policies.
    #[serde(serialize_with = "json::apart")]
    pub policies: Vec<PolicyView>,
}

/// Memory and calls of the program's own allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredView {
    /// Peak of the bytes reserved from the driver.
    pub peak_reserved_bytes: u64,
    /// Maximum bytes of tensors while the reserved bytes were at their peak.
    pub allocated_at_peak_bytes: u64,
    /// Peak of the bytes of tensors.
    pub peak_allocated_bytes: u64,
    /// Bytes reserved from the driver at the end.
    pub reserved_bytes: u64,
    /// Bytes of tensors at the end.
    pub allocated_bytes: u64,
    /// Requests served from the cache.
    pub hits: u64,
    /// Requests that needed memory from the driver.
    pub misses: u64,
    /// Calls that allocated driver memory.
    pub driver_allocations: u64,
    /// Calls that freed driver memory.
    pub driver_frees: u64,
    /// Requests that the driver refused and the allocator repeated after emptying its cache.
    pub retries: u64,
    /// Requests that failed.
    pub refused: u64,
    /// Whether the allocator uses expandable segments.
    pub expandable: bool,
}

/// Simulated memory and calls of a policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PolicyView {
    /// `pytorch` or `size_classes`.
    pub policy: Name,
    /// For `pytorch` the value of `PYTORCH_CUDA_ALLOC_CONF`; empty for its defaults.
    pub setting: Option<String>,
    /// Whether the program ran with this policy, as far as is known; the model should reproduce the
    /// measured run.
    pub as_it_ran: bool,
    /// Whether the blocks from before the session are not where this policy would have placed them.
    /// The policy begins with them in the order of addresses, so its bytes are a lower bound.
    pub begins_otherwise: bool,
    /// Peak of the bytes reserved from the driver.
    pub peak_reserved_bytes: u64,
    /// Maximum bytes of tensors while the reserved bytes were at their peak, rounded by this
    /// policy.
    pub allocated_at_peak_bytes: u64,
    /// Peak of the bytes of tensors.
    pub peak_allocated_bytes: u64,
    /// Bytes reserved from the driver at the end.
    pub reserved_bytes: u64,
    /// Bytes of tensors at the end.
    pub allocated_bytes: u64,
    /// Free bytes at the end.
    pub free_bytes: u64,
    /// Size of the largest free block at the end.
    pub largest_free_bytes: u64,
    /// Requests served from the cache.
    pub hits: u64,
    /// Requests that needed memory from the driver.
    pub misses: u64,
    /// Calls that allocated driver memory.
    pub driver_allocations: u64,
    /// Calls that freed driver memory.
    pub driver_frees: u64,
    /// Requests that the driver refused and the policy repeated after emptying its cache.
    pub retries: u64,
    /// Requests that failed in the program and in the simulation.
    pub refused: u64,
    /// Requests that failed in the program, but not in the simulation.
    pub granted_refused: u64,
    /// The first request that failed in the simulation, but not in the program; the replay ends
    /// with it.
    pub failure: Option<PredictedFailureView>,
}

/// A request that failed in the simulation only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PredictedFailureView {
    /// Time: `CLOCK_BOOTTIME`, in nanoseconds.
    pub time_ns: u64,
    /// Requested bytes.
    pub wanted_bytes: u64,
    /// Bytes reserved from the driver at that time.
    pub reserved_bytes: u64,
    /// Bytes of tensors at that time.
    pub allocated_bytes: u64,
}
