//! The read model: every sink renders it and computes nothing.
//!
//! Field names and shapes are the JSON contract. An unknown value is `None` and serialised as `null`, never 0.

pub mod build;
pub mod groups;
mod history;
mod places;
mod process;
mod rows;
mod sums;
pub(crate) mod viewer;

pub use crate::allocators::bfc::ArenaView;
pub use crate::allocators::ggml::{BufferTensorView, BuffersView, DeviceBuffersView, UsageView};
pub use crate::allocators::pools::{PoolView, PoolsView};
pub use crate::allocators::pytorch::{AllocatorView, StatisticView};
pub use crate::kernel_driver::view::{
    ColumnsView, Explained, ExplainedHost, ExplainedUse, LeftBehindView, LeftOnGpu, PIECES_KEPT, PartView, PieceView,
    RefusedView, RemainderView, Summand, UsedView,
};
pub use history::{DeviceHistory, HistoryBlock, HistoryFrame, HistoryLine, HistoryMark, HistorySegment, MemoryHistory};
pub use places::{
    AttributionView, CallPathView, DeviceAttributionView, DeviceCallPaths, FrameView, LargeView, LibraryLineView,
    MergedFrameView, ModuleView, NativeView, PhaseBytesView, PhaseView, PlaceNameView, RangeView, RefusalView,
    SiteView, StackView, SumView, TensorsView, WhoseView, WindowsView,
};
pub(crate) use rows::add;
pub use rows::{TruncatableRow, largest, largest_at_peak};
pub use sums::{FrameworkSums, KvCacheSums};
pub use viewer::{HiddenGpuView, HiddenView, Viewer};

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::input::kv_cache::KvCacheReading;
use crate::input::{LevelChoice, MigFacts, NvmlState, ProbeCoverage, Sensors};
use crate::owner::{Ancestor, CgroupMemory, Owner, Promise};
use crate::words::{Framework, GpuUuid, Name, Tgid, json};

/// All state at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Time of the snapshot: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// Whether no record of any process was lost.
    pub complete: bool,
    /// Lost records by cause; causes without losses are left out.
    pub losses: BTreeMap<Name, u64>,
    /// Libraries and probes attached.
    pub coverage: ProbeCoverage,
    /// State of NVML.
    #[serde(with = "crate::input::nvml_state")]
    pub nvml: NvmlState,
    /// Attach time: `CLOCK_BOOTTIME`, nanoseconds.
    pub attached_ns: u64,
    /// GPUs in order of NVML index.
    pub gpus: Vec<GpuView>,
    /// Processes in order of pid; ended processes are kept for a while.
    pub processes: Vec<ProcessView>,
    /// Workloads with present or recent processes.
    pub workloads: Vec<WorkloadView>,
    /// Devices that the kubelet has assigned to containers; empty without a kubelet.
    pub promised: Vec<Promise>,
    /// Device memory of control groups, as accounted by the kernel; empty if the kernel has no such accounting.
    pub cgroup_memory: Vec<CgroupMemory>,
    /// Sums of what this viewer may not see; `None` if it sees everything.
    pub hidden: Option<HiddenView>,
    /// Whether an agent recorded the data rather than this program.
    pub from_agent: bool,
}

impl Snapshot {
    /// Removes children of a target that have never used a GPU. They are traced in case they do, but not shown.
    pub fn keep_wanted(&mut self) {
        self.processes.retain(|process| process.target || process.has_touched_gpu());
    }

    /// Returns a process by pid and the start of its tracing (`CLOCK_BOOTTIME`, nanoseconds), because a pid may be
    /// reused.
    pub fn process(&self, tgid: Tgid, observed_since_ns: u64) -> Option<&ProcessView> {
        let mut all = self.processes.iter();
        all.find(|process| (process.tgid, process.observed_since_ns) == (tgid, observed_since_ns))
    }
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuView {
    /// UUID of the device.
    pub uuid: GpuUuid,
    /// NVML index of the device; for a MIG instance, that of its GPU.
    pub nvml_index: u32,
    /// Marketing name.
    pub name: String,
    /// PCI address as NVML writes it.
    pub pci_bus_id: Option<String>,
    /// MIG instance; `None` for a whole GPU.
    pub mig: Option<MigFacts>,
    /// Memory of the device, bytes.
    pub total_bytes: Option<u64>,
    /// Memory in use on the device by all processes and the driver, bytes.
    pub used_bytes: Option<u64>,
    /// Live bytes of all traced processes on the device.
    #[serde(serialize_with = "json::driver_allocated_bytes")]
    pub live_bytes: u64,
    /// Live bytes of all traced processes on the device at the time of the NVML reading, comparable with
    /// `used_bytes`.
    pub attributed_bytes: u64,
    /// `used - accounted`.
    pub unattributed_bytes: Option<i64>,
    /// Used memory charged to no process: page tables, channels, managed pages.
    #[serde(default)]
    #[serde(serialize_with = "json::apart")]
    pub remainder: Option<RemainderView>,
    /// Size of a context on this GPU, if a process was traced from its start.
    pub context_bytes: Option<u64>,
    /// Start of the NVML reading, so that its numbers are no older: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::sampled_time")]
    pub sampled_ns: u64,
    /// Number of processes that NVML lists but memwatch does not trace.
    pub unwatched_processes: Option<u64>,
    /// Bytes that NVML charges to those processes; `None` unless known for all of them.
    #[serde(default)]
    pub unwatched_bytes: Option<u64>,
    /// Sensor values.
    #[serde(default)]
    #[serde(serialize_with = "json::apart")]
    pub sensors: Sensors,
    /// Seconds from the snapshot until the memory is full at the present growth; `None` if the use does not grow, was
    /// observed for too short a time, or growth is not tracked (`Pipeline::watch_growth`).
    #[serde(skip)]
    pub seconds_to_full: Option<f64>,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of the JSON contract with a meaning of its own")]
pub struct ProcessView {
    /// Process id.
    #[serde(serialize_with = "json::tgid")]
    pub tgid: Tgid,
    /// Start time: `CLOCK_BOOTTIME`, nanoseconds; `None` if `/proc` could not be read in time.
    #[serde(serialize_with = "json::start_time")]
    pub start_ns: Option<u64>,
    /// Name of the main thread.
    pub comm: String,
    /// Command line.
    pub command: String,
    /// User name, or the user id if there is no name.
    pub user: Option<String>,
    /// User id.
    pub uid: Option<u32>,
    /// Process id inside its container, if different.
    #[serde(serialize_with = "json::inner_tgid")]
    pub inner_tgid: Option<u32>,
    /// Ancestors, parent first.
    #[serde(serialize_with = "json::apart")]
    pub ancestors: Vec<Ancestor>,
    /// Container, pod, job, unit and rank.
    #[serde(serialize_with = "json::apart")]
    pub owner: Owner,
    /// Mapped frameworks with an allocator of their own, in the order of [`Framework`].
    #[serde(default)]
    pub frameworks: Vec<Framework>,
    /// Whether the process was named as a target.
    pub target: bool,
    /// Whether NVML lists it as a client of an MPS server.
    pub mps_client: bool,
    /// Start of tracing: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub observed_since_ns: u64,
    /// Whether the process was traced from its start, so that none of its memory is older than the attach.
    pub from_start: bool,
    /// Time of the last call that changed its driver allocations: `CLOCK_BOOTTIME`, nanoseconds; 0 if there is none.
    #[serde(default, serialize_with = "json::apart")]
    pub driver_changed_ns: u64,
    /// Whether the main thread has exited while others run: `ps` (procps) shows the process as defunct.
    #[serde(default)]
    pub main_thread_ended: bool,
    /// Whether every record of the process arrived.
    pub exact: bool,
    /// Lost records by cause.
    pub losses: BTreeMap<Name, u64>,
    /// Time of the last resync with the kernel half's allocation map after lost records: `CLOCK_BOOTTIME`,
    /// nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub anchored_ns: Option<u64>,
    /// Time of the last reset of its peaks: `CLOCK_BOOTTIME`, nanoseconds; `None` if they cover the time since
    /// `observed_since_ns`.
    #[serde(serialize_with = "json::peaks_since")]
    pub peaks_begun_ns: Option<u64>,
    /// Exit time: `CLOCK_BOOTTIME`, nanoseconds; `None` if alive.
    #[serde(serialize_with = "json::date")]
    pub ended_ns: Option<u64>,
    /// Memory on each GPU.
    #[serde(serialize_with = "json::apart")]
    pub gpus: Vec<ProcessGpuView>,
    /// Page-locked host memory.
    pub host: HostView,
    /// Whether a checkpoint has moved its memory from the GPUs to host memory.
    pub checkpointed: bool,
    /// Memory of other processes that it uses, by owner.
    pub imports: Vec<ImportView>,
    /// Number of addresses and handles of other owners' memory, with known or unknown owner.
    pub aliases: u64,
    /// Bytes of reserved addresses, with or without memory.
    pub reservation_bytes: u64,
    /// Number of loaded modules and libraries: code in device memory, of unknown size.
    pub modules: u64,
    /// Limits that the program has set on its contexts.
    pub context_limits: ContextLimits,
    /// Frees of memory never seen allocated.
    pub unknown_frees: u64,
    /// Allocations freed by the end of a context, an image or the process.
    pub implicit_frees: u64,
    /// Most recent refused allocations, oldest first.
    #[serde(serialize_with = "json::apart")]
    pub failures: Vec<FailureView>,
    /// Device-side allocations per second over the last tick; `None` before the second tick.
    pub allocations_per_second: Option<f64>,
    /// Device-side frees per second over the last tick; `None` before the second tick.
    pub frees_per_second: Option<f64>,
    /// Overhead of tracing the process; `None` if no event of it was seen.
    #[serde(serialize_with = "json::apart")]
    pub overhead: Option<OverheadView>,
    /// Tracing level of its PyTorch, if the overhead was predicted.
    #[serde(default)]
    #[serde(serialize_with = "json::tensor_level")]
    pub level: Option<LevelChoice>,
    /// KV cache of an inference server, at its last reading; `None` if the process serves no
    /// requests.
    #[serde(default)]
    #[serde(serialize_with = "json::apart")]
    pub kv_cache: Option<Box<KvCacheReading>>,
    /// PyTorch memory, if traced.
    #[serde(serialize_with = "json::apart")]
    pub tensors: Option<Box<TensorsView>>,
    /// Kernel-driver memory, trusted or not; `None` if none of its ioctls was seen.
    #[serde(default)]
    #[serde(serialize_with = "json::apart")]
    pub explained: Option<Box<Explained>>,
    /// Bytes that NVML still charges to an exited process; `None` for a live process, and if NVML no longer lists it.
    #[serde(default)]
    #[serde(serialize_with = "json::apart")]
    pub left_behind: Option<Box<LeftBehindView>>,
}

/// Estimated overhead of tracing in a process, from its records and their cost as measured elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverheadView {
    /// Number of events.
    pub events: u64,
    /// Total overhead since the attach, nanoseconds.
    #[serde(serialize_with = "json::all_seconds")]
    pub total_ns: u64,
    /// Recent overhead per second; for an exited process, the average. `None` if no time has passed.
    #[serde(serialize_with = "json::seconds_per_second")]
    pub ns_per_second: Option<u64>,
    /// Number of Python stacks not taken, to limit the overhead.
    pub stacks_left_out: u64,
}

/// Memory of one owner that another process uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportView {
    /// Owner of the memory.
    #[serde(rename = "from_pid")]
    pub from_tgid: Tgid,
    /// Number of addresses and handles.
    pub aliases: u64,
    /// Bytes, counted once per address or handle. They belong to the owner, not to this process.
    pub bytes: u64,
    /// Bytes that the owner has freed or left at its exit. The GPU keeps them for the processes that still use them.
    pub orphaned_bytes: u64,
}

/// Limits set with `cuCtxSetLimit`: memory that the driver reserves for itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextLimits {
    /// Stack of each GPU thread, bytes.
    pub stack_bytes_per_thread: Option<u64>,
    /// Buffer of `printf` in kernels, bytes.
    pub printf_bytes: Option<u64>,
    /// Heap of `malloc` in kernels, bytes.
    pub heap_bytes: Option<u64>,
}

/// One process on one GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessGpuView {
    /// UUID of the GPU; `None` if unknown.
    pub uuid: Option<GpuUuid>,
    /// Bytes that NVML charges to the process on this GPU.
    pub used_bytes: Option<u64>,
    /// Requested bytes of live device, pool, physical and array memory; 0 while checkpointed.
    #[serde(serialize_with = "json::driver_allocated_bytes")]
    pub live_bytes: u64,
    /// Live bytes that a checkpoint has moved to host memory; `None` if not checkpointed.
    pub checkpointed_bytes: Option<u64>,
    /// Largest `live_bytes` since the attach or the last reset of peaks.
    pub peak_bytes: u64,
    /// Bytes older than the attach; `None` until known.
    pub preexisting_bytes: Option<u64>,
    /// Whether `preexisting_bytes` includes the memory of the context itself.
    pub preexisting_includes_context: bool,
    /// Live bytes at the time of the NVML reading, or at present if they changed during the reading.
    pub attributed_bytes: u64,
    /// Live bytes beyond what NVML charges the process; not part of any GPU's total.
    #[serde(default)]
    #[serde(serialize_with = "json::apart")]
    pub unconfirmed_bytes: u64,
    /// `used - accounted`: older memory, context, code, pool cache, and memory without an allocation call.
    pub unattributed_bytes: Option<i64>,
    /// Successful allocations.
    pub allocations: u64,
    /// Explicit frees.
    pub frees: u64,
    /// Allocations the driver refused.
    pub failed_allocations: u64,
    /// Refused allocations by `CUresult`.
    #[serde(serialize_with = "json::apart")]
    pub refusals: BTreeMap<i32, u64>,
    /// Time of the last out-of-memory failure: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::apart")]
    pub last_oom_ns: Option<u64>,
    /// Number of out-of-memory failures.
    #[serde(default)]
    pub ooms: u64,
    /// Number of retries granted after a refusal.
    #[serde(default)]
    pub retries: u64,
    /// Memory by kind; kinds never seen are left out.
    #[serde(serialize_with = "json::apart")]
    pub kinds: BTreeMap<Name, KindView>,
}

/// One kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindView {
    /// Requested bytes of live allocations.
    pub live_bytes: u64,
    /// Largest `live_bytes` since the attach or the last reset of peaks.
    pub peak_bytes: u64,
    /// Requested bytes of all allocations since the attach.
    pub total_bytes: u64,
    /// Number of allocations; 0 for a kind that no call allocates.
    pub allocations: u64,
    /// Number of freed allocations, explicitly or implicitly.
    pub frees: u64,
    /// Whether the sizes are estimated, from shapes or from future allocations of graphs.
    pub estimated: bool,
    /// For pools, the bytes reserved on the GPU, used or not; `None` if they cannot be estimated.
    pub backed_bytes: Option<u64>,
    /// Whether `backed_bytes` is an estimate, because the program has not queried it recently.
    pub backed_estimated: bool,
}

/// Page-locked host memory of a process; not part of any GPU's total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostView {
    /// Live bytes allocated through the driver.
    pub pinned_live_bytes: u64,
    /// Largest `pinned_live_bytes`, over the same time as all peaks.
    pub pinned_peak_bytes: u64,
    /// Live bytes of the program's own memory that it has registered.
    pub registered_live_bytes: u64,
    /// Live bytes of physical allocations in host memory.
    pub physical_live_bytes: u64,
}

/// A refused allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureView {
    /// Time of the refusal: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub time_ns: u64,
    /// Driver function called.
    pub symbol: Name,
    /// Requested size, bytes.
    pub requested_bytes: u64,
    /// `CUresult`.
    pub status: i32,
    /// GPU of the request; `None` for host memory, and if unknown.
    pub uuid: Option<GpuUuid>,
    /// Whether the same thread retried and the retry succeeded.
    #[serde(default)]
    pub is_retried: bool,
}

/// Processes that belong together for their user: a pod's container, a job, a container, a unit, a session, or the
/// rest of the machine.
///
/// Counters only grow while a workload is listed, also when its processes exit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkloadView {
    /// `kubernetes`, `slurm`, `container`, `systemd`, `session` or `host`.
    pub kind: Name,
    /// Namespace of the pod.
    pub namespace: Option<String>,
    /// Name of the pod, or its uid if the name is unknown.
    pub pod: Option<String>,
    /// Name of the container in its pod or runtime, or the start of its id if the name is unknown.
    pub container: Option<String>,
    /// Number of the job, or its SLUID if the number is unknown.
    pub slurm_job: Option<String>,
    /// Unit, or scope of the session.
    pub unit: Option<String>,
    /// Number of live processes.
    pub processes: u64,
    /// Exit time of its last process, `CLOCK_BOOTTIME`, nanoseconds; `None` while a process is alive.
    pub ended_ns: Option<u64>,
    /// Whether every record of its processes arrived.
    pub exact: bool,
    /// Users of its present and past processes; contains `None` for an unknown user.
    pub uids: BTreeSet<Option<u32>>,
    /// Memory by GPU.
    pub gpus: Vec<WorkloadGpuView>,
}

/// A workload on one GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkloadGpuView {
    /// UUID of the GPU; `None` if unknown.
    pub uuid: Option<GpuUuid>,
    /// Bytes that NVML charges to its live processes; `None` if unknown for all of them.
    pub used_bytes: Option<u64>,
    /// Live bytes of its live processes.
    pub live_bytes: u64,
    /// Largest sum of live bytes at any poll, and at least the peak of every single process.
    pub peak_bytes: u64,
    /// Bytes of its live processes that are older than the attach; `None` if unknown for all of them.
    pub preexisting_bytes: Option<u64>,
    /// Allocations the driver refused, by `CUresult`.
    pub refusals: BTreeMap<i32, u64>,
    /// Time of the last out-of-memory failure: `CLOCK_BOOTTIME`, nanoseconds.
    pub last_oom_ns: Option<u64>,
    /// Number of out-of-memory failures.
    #[serde(default)]
    pub ooms: u64,
    /// Number of retries granted after a refusal.
    #[serde(default)]
    pub retries: u64,
    /// Memory by kind; kinds never seen are left out.
    pub kinds: BTreeMap<Name, WorkloadKindView>,
    /// Used bytes by purpose: [`crate::kernel_driver::labels::MemoryPurpose::name`] or [`PREEXISTING`]. Only includes
    /// processes with a trusted kernel-driver ledger.
    #[serde(default)]
    pub parts: BTreeMap<Name, u64>,
    /// Sums over PyTorch's caching allocators in its live processes; `None` if unknown for all of them.
    #[serde(default)]
    pub framework: Option<FrameworkSums>,
    /// KV caches of inference servers in its live processes; `None` without any that is known.
    #[serde(default)]
    pub kv_cache: Option<KvCacheSums>,
    /// Growth of its live bytes; `None` if they do not grow, were observed for too short a time, or growth is not
    /// tracked (`Pipeline::watch_growth`). Only for users of the pipeline: not sent over a socket.
    #[serde(skip)]
    pub growth_bytes_per_second: Option<f64>,
}

/// Part name of used memory that is older than the attach.
pub const PREEXISTING: &str = "preexisting";

/// One kind of memory of a workload on one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadKindView {
    /// Requested bytes of live allocations.
    pub live_bytes: u64,
    /// Allocations since the workload was first seen.
    pub allocations: u64,
    /// Number of frees, including implicit ones.
    pub frees: u64,
    /// Requested bytes of all allocations.
    pub allocated_bytes: u64,
    /// Requested bytes of all frees.
    pub freed_bytes: u64,
}
