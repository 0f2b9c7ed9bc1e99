//! The one read model: every sink renders this and computes nothing.
//!
//! Field names and shapes are the JSON contract. Unknown is `None` and leaves as `null`, never 0.

mod allocators;
mod arenas;
mod buffers;
pub mod build;
pub mod groups;
mod history;
mod places;
mod pools;
mod process;
mod rows;
mod viewer;

pub use crate::kernel_driver::view::{
    ColumnsView, Explained, ExplainedHost, ExplainedUse, LeftBehindView, LeftOnGpu, PIECES_KEPT, PartView, PieceView,
    RefusedView, RemainderView, Summand, UsedView,
};
pub use allocators::{AllocatorView, StatisticView};
pub use arenas::ArenaView;
pub use buffers::{BufferTensorView, BuffersView, DeviceBuffersView, UsageView};
pub use history::{DeviceHistory, HistoryBlock, HistoryFrame, HistoryLine, HistoryMark, HistorySegment, MemoryHistory};
pub use places::{
    CallPathView, DeviceCallPaths, DevicePlacesView, FrameView, LargeView, LayerView, LibraryLineView, MergedFrameView,
    NativeView, PhaseView, PlaceNameView, PlacesView, RefusalView, SiteView, StackView, StageBytesView, StageView,
    SumView, TensorsView, WhoseView, WindowsView,
};
pub use pools::{PoolView, PoolsView};
pub(crate) use rows::add;
pub use rows::{Row, largest, largest_at_peak};
pub use viewer::{HiddenGpuView, HiddenView, Viewer};

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::input::{Coverage, LevelChoice, MigFacts, NvmlState, Sensors};
use crate::owner::{Ancestor, CgroupMemory, Owner, Promise};
use crate::words::{Framework, GpuUuid, Name, Tgid, json};

/// Everything known at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The moment: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// No record of anybody was lost.
    pub complete: bool,
    /// Lost records by cause; causes that never happened are left out.
    pub losses: BTreeMap<Name, u64>,
    /// What is attached where.
    pub coverage: Coverage,
    /// How NVML is.
    #[serde(with = "crate::input::nvml_state")]
    pub nvml: NvmlState,
    /// When memwatch attached: `CLOCK_BOOTTIME`, nanoseconds.
    pub attached_ns: u64,
    /// By NVML index.
    pub gpus: Vec<GpuView>,
    /// By tgid; ended ones are kept for a while.
    pub processes: Vec<ProcessView>,
    /// All workloads with processes in this snapshot, or that had some lately.
    pub workloads: Vec<WorkloadView>,
    /// What the kubelet has promised; empty where there is none.
    pub promised: Vec<Promise>,
    /// Device memory by the kernel's account of control groups; empty where it keeps none.
    pub cgroup_memory: Vec<CgroupMemory>,
    /// What this viewer does not get to see; `None` for who sees everything.
    pub hidden: Option<HiddenView>,
    /// An agent watches, and not this program itself.
    pub from_agent: bool,
}

impl Snapshot {
    /// Leaves out children of a target that never touch a GPU: they are watched, in case they do, but nobody asked to see them.
    pub fn keep_wanted(&mut self) {
        self.processes.retain(|process| process.target || process.has_touched_gpu());
    }

    /// The process with this number that is watched since then (`CLOCK_BOOTTIME`, nanoseconds): the number alone may be used again.
    pub fn process(&self, tgid: Tgid, observed_since_ns: u64) -> Option<&ProcessView> {
        let mut all = self.processes.iter();
        all.find(|process| (process.tgid, process.observed_since_ns) == (tgid, observed_since_ns))
    }
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuView {
    /// Identity.
    pub uuid: GpuUuid,
    /// NVML's number of the device; of an instance, its GPU's.
    pub nvml_index: u32,
    /// Marketing name.
    pub name: String,
    /// Where the GPU sits, as NVML writes it.
    pub pci_bus_id: Option<String>,
    /// What it is a part of; `None` for a whole GPU.
    pub mig: Option<MigFacts>,
    /// Memory of the device in bytes.
    pub total_bytes: Option<u64>,
    /// Memory in use on the device in bytes, all processes and the driver.
    pub used_bytes: Option<u64>,
    /// Live bytes of all watched processes there.
    #[serde(serialize_with = "json::driver_allocated_bytes")]
    pub live_bytes: u64,
    /// Live bytes of all watched processes there at the time of the NVML reading, which is what its used bytes go with.
    pub attributed_bytes: u64,
    /// `used - accounted`.
    pub unattributed_bytes: Option<i64>,
    /// What is in use and charged to no process: page tables, channels, managed pages.
    #[serde(default)]
    #[serde(serialize_with = "json::apart")]
    pub remainder: Option<RemainderView>,
    /// What a context takes on this GPU, where a process was seen from its start.
    pub context_bytes: Option<u64>,
    /// When the reading of NVML began, so that its numbers are no older: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::sampled_time")]
    pub sampled_ns: u64,
    /// Processes that NVML lists and memwatch does not watch: their number.
    pub unwatched_processes: Option<u64>,
    /// What NVML charges to those; `None` where it does not report that of all of them.
    #[serde(default)]
    pub unwatched_bytes: Option<u64>,
    /// What the device does beside holding memory.
    #[serde(default)]
    #[serde(serialize_with = "json::apart")]
    pub sensors: Sensors,
    /// When its memory is full if its use grows on as it has, in seconds from the snapshot's time; `None` where it does not grow, was seen for
    /// too short a time, or where nobody asked for it (`Pipeline::watch_growth`).
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
    /// Its start: `CLOCK_BOOTTIME`, nanoseconds; `None` where `/proc` could not be read in time.
    #[serde(serialize_with = "json::start_time")]
    pub start_ns: Option<u64>,
    /// Thread-group leader's name.
    pub comm: String,
    /// Command line.
    pub command: String,
    /// Name of the user it runs as, or the number.
    pub user: Option<String>,
    /// The user's number.
    pub uid: Option<u32>,
    /// Process id inside its container, where that is another.
    #[serde(serialize_with = "json::inner_tgid")]
    pub inner_tgid: Option<u32>,
    /// Who started it, parent first.
    #[serde(serialize_with = "json::apart")]
    pub ancestors: Vec<Ancestor>,
    /// Container, pod, job, unit and rank.
    #[serde(serialize_with = "json::apart")]
    pub owner: Owner,
    /// Frameworks with an allocator of their own whose libraries it has, in the order of [`Framework`].
    #[serde(default)]
    pub frameworks: Vec<Framework>,
    /// Named as a target.
    pub target: bool,
    /// NVML lists it as the client of an MPS server.
    pub mps_client: bool,
    /// From when on its calls were seen: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub observed_since_ns: u64,
    /// It was seen from its start: nothing of it is older than the attach.
    pub from_start: bool,
    /// When a call last changed what the driver has allocated for it: `CLOCK_BOOTTIME`, nanoseconds; 0 where none has.
    #[serde(default, serialize_with = "json::apart")]
    pub driver_changed_ns: u64,
    /// Its main thread has ended, and others go on: `ps` of procps shows it as defunct.
    #[serde(default)]
    pub main_thread_ended: bool,
    /// Every record of it arrived.
    pub exact: bool,
    /// Its lost records by cause.
    pub losses: BTreeMap<Name, u64>,
    /// When its totals were last taken from the kernel half's own allocation map, after records were lost: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub anchored_ns: Option<u64>,
    /// When its peaks began again, if they did: `CLOCK_BOOTTIME`, nanoseconds. Else they are since `observed_since_ns`.
    #[serde(serialize_with = "json::peaks_since")]
    pub peaks_begun_ns: Option<u64>,
    /// When it ended, if it has: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub ended_ns: Option<u64>,
    /// What it holds on each GPU.
    #[serde(serialize_with = "json::apart")]
    pub gpus: Vec<ProcessGpuView>,
    /// Its page-locked host memory.
    pub host: HostView,
    /// Its memory was taken off the GPUs by a checkpoint, and is in host memory meanwhile.
    pub checkpointed: bool,
    /// Other processes' memory that it sees, by owner.
    pub imports: Vec<ImportView>,
    /// Addresses or handles it has of other owners' memory, known or not.
    pub aliases: u64,
    /// Bytes of addresses that it has set apart without memory.
    pub reservation_bytes: u64,
    /// Modules and libraries it has loaded: code in device memory, of unknown size.
    pub modules: u64,
    /// Limits that it has set on its contexts.
    pub context_limits: ContextLimits,
    /// Frees of memory never seen allocated.
    pub unknown_frees: u64,
    /// Allocations freed by a context's, an image's or the process's end.
    pub implicit_frees: u64,
    /// The last refused allocations, oldest first.
    #[serde(serialize_with = "json::apart")]
    pub failures: Vec<FailureView>,
    /// Allocations of device-side memory per second over the last tick; `None` before the second.
    pub allocations_per_second: Option<f64>,
    /// Frees of it per second over the last tick; `None` before the second.
    pub frees_per_second: Option<f64>,
    /// What watching it takes of its time; `None` where nothing of it was seen.
    #[serde(serialize_with = "json::apart")]
    pub overhead: Option<OverheadView>,
    /// How much of its PyTorch is traced, where the price of that was predicted.
    #[serde(default)]
    #[serde(serialize_with = "json::tensor_level")]
    pub level: Option<LevelChoice>,
    /// Its PyTorch's memory, where that is watched.
    #[serde(serialize_with = "json::apart")]
    pub tensors: Option<Box<TensorsView>>,
    /// What it has by the kernel driver's own books, believed or not; `None` where no request of it was seen.
    #[serde(default)]
    #[serde(serialize_with = "json::apart")]
    pub explained: Option<Box<Explained>>,
    /// What NVML charges it although it has ended; `None` of what lives, and where it lists it no more.
    #[serde(default)]
    #[serde(serialize_with = "json::apart")]
    pub left_behind: Option<Box<LeftBehindView>>,
}

/// What watching takes of a process's time: an estimate, from its records and what each was measured to cost elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverheadView {
    /// How often it was interrupted for a record.
    pub events: u64,
    /// How long in all since it was watched, nanoseconds.
    #[serde(serialize_with = "json::all_seconds")]
    pub total_ns: u64,
    /// How much of each second lately; of a process that has ended, on average. `None` where no time has passed.
    #[serde(serialize_with = "json::seconds_per_second")]
    pub ns_per_second: Option<u64>,
    /// How many Python stacks were left out to keep it fast.
    pub stacks_left_out: u64,
}

/// One owner's memory as another process sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportView {
    /// The owner.
    #[serde(rename = "from_pid")]
    pub from_tgid: Tgid,
    /// Addresses or handles to it.
    pub aliases: u64,
    /// Its size, counted once per address or handle: the owner's bytes, not this process's.
    pub bytes: u64,
    /// The part of it that the owner has given up or left behind: the GPU keeps it for those who still see it.
    pub orphaned_bytes: u64,
}

/// What a program has set with `cuCtxSetLimit`: memory that the driver takes for itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextLimits {
    /// Stack of each GPU thread.
    pub stack_bytes_per_thread: Option<u64>,
    /// Buffer of `printf` in kernels.
    pub printf_bytes: Option<u64>,
    /// Heap of `malloc` in kernels.
    pub heap_bytes: Option<u64>,
}

/// One process on one GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessGpuView {
    /// The GPU; `None` where it is not known.
    pub uuid: Option<GpuUuid>,
    /// NVML's bytes for the process there.
    pub used_bytes: Option<u64>,
    /// Requested bytes of live device, pool, physical and array memory; 0 while it is checkpointed.
    #[serde(serialize_with = "json::driver_allocated_bytes")]
    pub live_bytes: u64,
    /// The same while it is checkpointed, and in host memory.
    pub checkpointed_bytes: Option<u64>,
    /// The largest `live_bytes` since the attach, or since peaks began again.
    pub peak_bytes: u64,
    /// What is older than the attach; `None` until it is known.
    pub preexisting_bytes: Option<u64>,
    /// The context's own memory is part of `preexisting_bytes`.
    pub preexisting_includes_context: bool,
    /// Live bytes at the time of the NVML reading; now, where they changed while it was made.
    pub attributed_bytes: u64,
    /// Live bytes beyond what NVML charges the process: they are in no GPU's sums.
    #[serde(default)]
    #[serde(serialize_with = "json::apart")]
    pub unconfirmed_bytes: u64,
    /// `used - accounted`: before attach, context, code, pool cache, and what has no allocation call.
    pub unattributed_bytes: Option<i64>,
    /// Successful allocations.
    pub allocations: u64,
    /// Frees by a call.
    pub frees: u64,
    /// Allocations the driver refused.
    pub failed_allocations: u64,
    /// The same by `CUresult`.
    #[serde(serialize_with = "json::apart")]
    pub refusals: BTreeMap<i32, u64>,
    /// When memory ran out last: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::apart")]
    pub last_oom_ns: Option<u64>,
    /// How often memory ran out.
    #[serde(default)]
    pub ooms: u64,
    /// How often a retry was granted what had been refused.
    #[serde(default)]
    pub retries: u64,
    /// By kind; kinds never seen are left out.
    #[serde(serialize_with = "json::apart")]
    pub kinds: BTreeMap<Name, KindView>,
}

/// One kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindView {
    /// Requested bytes of live allocations.
    pub live_bytes: u64,
    /// The largest `live_bytes` since the attach, or since peaks began again.
    pub peak_bytes: u64,
    /// Requested bytes of all allocations since the attach.
    pub total_bytes: u64,
    /// Their number; 0 for what no call allocates.
    pub allocations: u64,
    /// Of these the freed ones, by a call or not.
    pub frees: u64,
    /// The sizes are estimates, from shapes or from what graphs will allocate.
    pub estimated: bool,
    /// Of pools: what they hold of the GPU, used or not; `None` where that cannot even be estimated.
    pub backed_bytes: Option<u64>,
    /// The program has not asked the driver for it lately, so it is an estimate.
    pub backed_estimated: bool,
}

/// Page-locked host memory of a process: in no GPU's sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostView {
    /// Allocated through the driver.
    pub pinned_live_bytes: u64,
    /// The largest of that, since the same moment as all peaks.
    pub pinned_peak_bytes: u64,
    /// The program's own memory, registered.
    pub registered_live_bytes: u64,
    /// Physical allocations located in host memory.
    pub physical_live_bytes: u64,
}

/// A refused allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureView {
    /// When: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub time_ns: u64,
    /// The function.
    pub symbol: Name,
    /// What it asked for, in bytes.
    pub requested_bytes: u64,
    /// `CUresult`.
    pub status: i32,
    /// The GPU it asked on; `None` for host memory, and where it is not known.
    pub uuid: Option<GpuUuid>,
    /// The same thread retried and was granted it.
    #[serde(default)]
    pub is_retried: bool,
}

/// Processes that belong together for whoever runs them: a pod's container, a job, a container, a unit, a session, or the rest of the machine.
///
/// Counters only grow while a workload is listed, also when its processes end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkloadView {
    /// `kubernetes`, `slurm`, `container`, `systemd`, `session` or `host`.
    pub kind: Name,
    /// The pod's namespace.
    pub namespace: Option<String>,
    /// The pod's name; its uid where that is all that is known.
    pub pod: Option<String>,
    /// The container's name in its pod, or by its runtime; the beginning of its id where that is all that is known.
    pub container: Option<String>,
    /// The job's number; its SLUID where that is all that is known.
    pub slurm_job: Option<String>,
    /// The unit or the session's scope.
    pub unit: Option<String>,
    /// Living processes.
    pub processes: u64,
    /// When its last process ended; `None` while it has one. `CLOCK_BOOTTIME`, nanoseconds.
    pub ended_ns: Option<u64>,
    /// Every record of it arrived.
    pub exact: bool,
    /// The users of its processes, also of the ones that are gone; `None` for who is not known.
    pub uids: BTreeSet<Option<u32>>,
    /// By GPU.
    pub gpus: Vec<WorkloadGpuView>,
}

/// A workload on one GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkloadGpuView {
    /// The GPU; `None` where it is not known.
    pub uuid: Option<GpuUuid>,
    /// NVML's bytes of its living processes; `None` where NVML says of none of them.
    pub used_bytes: Option<u64>,
    /// Live bytes of its living processes.
    pub live_bytes: u64,
    /// The most that was live together at the moments memwatch looked, and at least every single process's peak.
    pub peak_bytes: u64,
    /// What its living processes had before the attach; `None` where that is known of none of them.
    pub preexisting_bytes: Option<u64>,
    /// Allocations the driver refused, by `CUresult`.
    pub refusals: BTreeMap<i32, u64>,
    /// When memory ran out last: `CLOCK_BOOTTIME`, nanoseconds.
    pub last_oom_ns: Option<u64>,
    /// How often memory ran out.
    #[serde(default)]
    pub ooms: u64,
    /// How often a retry was granted what had been refused.
    #[serde(default)]
    pub retries: u64,
    /// By kind; kinds never seen are left out.
    pub kinds: BTreeMap<Name, WorkloadKindView>,
    /// What its processes' used bytes are for, by [`crate::kernel_driver::labels::Label::name`] or [`PREEXISTING`]; of those alone whose books of the kernel driver are believed.
    #[serde(default)]
    pub parts: BTreeMap<Name, u64>,
    /// What PyTorch's caching allocators have in its living processes; `None` where that is known of none of them.
    #[serde(default)]
    pub framework: Option<FrameworkSums>,
    /// By how much its live bytes keep growing; `None` where they do not, were seen for too short a time, or where nobody asked for it
    /// (`Pipeline::watch_growth`).
    /// For whoever has the pipeline: not reported over a socket.
    #[serde(skip)]
    pub growth_bytes_per_second: Option<f64>,
}

/// Sums of the caching allocators of several processes, each of the ones of which it is known; `None` where it is of none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameworkSums {
    /// Bytes of tensors, rounded as the allocators do.
    pub allocated_bytes: Option<u64>,
    /// What the allocators have of the driver.
    pub reserved_bytes: Option<u64>,
    /// Blocks in use, or waiting for another stream.
    pub active_bytes: Option<u64>,
    /// Free blocks that cannot be given back, since others of their segment are in use.
    pub inactive_split_bytes: Option<u64>,
    /// How often the cache was emptied to try an allocation again.
    pub retries: Option<u64>,
    /// Out-of-memory errors that programs were given.
    pub ooms: Option<u64>,
}

/// The part of used memory that is older than the watch.
pub const PREEXISTING: &str = "preexisting";

/// One kind of memory of a workload on one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadKindView {
    /// Requested bytes of live allocations.
    pub live_bytes: u64,
    /// Allocations since the workload was first seen.
    pub allocations: u64,
    /// Frees of them, implicit ones included.
    pub frees: u64,
    /// Requested bytes of `allocations`.
    pub allocated_bytes: u64,
    /// Requested bytes of `frees`.
    pub freed_bytes: u64,
}
