//! All inputs of the pipeline. Nothing else can change a number.

pub mod allocator_state;
pub mod arenas;
mod coverage;
pub mod held_names;
pub mod holdings;
pub mod kv_cache;
mod level;
pub mod rm;
mod visibility;

use std::collections::BTreeSet;

use memwatch_common::loss::Loss;
use memwatch_common::record::RingRecord;
use memwatch_common::tensor::STATISTICS_WORDS;
use serde::{Deserialize, Serialize};

use crate::owner::{Ancestor, CgroupMemory, ContainerNames, Environment, Promise};
use crate::stack::PythonStack;
use crate::stack::native::NativeStack;
use crate::words::{Framework, GpuUuid, Name, Tgid, by_name};

pub use coverage::{KernelCalls, LibraryCoverage, ProbeCoverage};
pub use level::{LevelChoice, MeasuredSlowdown, StackSelection, TensorLevel, Windows};
pub use visibility::GpuVisibility;

/// One event from outside; the order of inputs matters. Records and statistics are rows of numbers without a text form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Input {
    /// The recorder attached: totals are complete from here on.
    Attached {
        /// Time of the attach: `CLOCK_BOOTTIME`, nanoseconds.
        time_ns: u64,
    },
    /// A record of the kernel half, in ring order.
    #[serde(skip)]
    Record(RingRecord),
    /// A Python stack, before the records that refer to it.
    Stack {
        /// Process of the stack.
        tgid: Tgid,
        /// Identifier of the stack in those records.
        id: u64,
        /// Frames of the stack.
        stack: PythonStack,
    },
    /// A native stack, before the records that refer to it, or with the Python stack of the same number.
    NativeStack {
        /// Process of the stack.
        tgid: Tgid,
        /// Identifier of the stack in those records.
        id: u64,
        /// Frames of the stack.
        stack: NativeStack,
    },
    /// The probes on PyTorch's caching allocator were attached in a process.
    TensorsWatched {
        /// Process with the probes.
        tgid: Tgid,
        /// Rows of the tensor probe table that could not be attached.
        missing: Vec<u16>,
        /// Attach time of the last probe: `CLOCK_BOOTTIME`, nanoseconds; 0 in recordings without it.
        #[serde(default)]
        time_ns: u64,
    },
    /// Tracing level of PyTorch for a process from now on, with its predicted overhead.
    TensorLevel(LevelChoice),
    /// A caching allocator's statistics, read right after the last of its records.
    #[serde(skip)]
    Statistics {
        /// Process of the allocator.
        tgid: Tgid,
        /// The allocator of one device: the `this` of its methods.
        allocator: u64,
        /// Time of the reading: `CLOCK_BOOTTIME`, nanoseconds.
        time_ns: u64,
        /// Words from the start of its `DeviceStats`.
        words: Box<[u64; STATISTICS_WORDS]>,
    },
    /// Data of a process from `/proc`.
    Process(ProcessFacts),
    /// A library that a process had already mapped was probed: its calls are seen from now on.
    ObservedFrom {
        /// Process that had mapped the library.
        tgid: Tgid,
        /// Time of the attach: `CLOCK_BOOTTIME`, nanoseconds.
        time_ns: u64,
    },
    /// A process to be traced exited without an exit record (it exited before the probes were attached).
    ProcessEnded {
        /// Exited process.
        tgid: Tgid,
        /// Time of the exit: `CLOCK_BOOTTIME`, nanoseconds.
        time_ns: u64,
    },
    /// A reading of all devices.
    Devices(DeviceReading),
    /// Live addresses of a process with lost records, from the kernel half's complete allocation map. The ledger is
    /// resynced to them.
    Held(HeldAddresses),
    /// Control groups of a process that was moved, or that exited before `/proc` was read (then from the kernel half).
    Cgroups {
        /// Process that was moved.
        tgid: Tgid,
        /// Content of `/proc/PID/cgroup`.
        cgroups: String,
    },
    /// Names that runtimes give to containers with processes here. A later answer replaces an earlier one.
    Names(Vec<ContainerNames>),
    /// All devices that the kubelet has assigned to containers.
    Promised(Vec<Promise>),
    /// Device memory of all control groups, as accounted by the kernel.
    CgroupMemory(Vec<CgroupMemory>),
    /// Records lost since the last input of this kind.
    Lost {
        /// Process of the records; `None` if unknown.
        tgid: Option<Tgid>,
        /// Cause of the loss.
        #[serde(with = "by_name::one_loss")]
        loss: Loss,
        /// Number of lost records.
        count: u64,
    },
    /// Libraries and probes attached.
    Coverage(ProbeCoverage),
    /// Resets the peaks of a process, or of all processes.
    PeaksReset {
        /// Process; `None` for all.
        tgid: Option<Tgid>,
        /// Time of the reset: `CLOCK_BOOTTIME`, nanoseconds.
        time_ns: u64,
    },
    /// Time passed. Rates are measured between two ticks.
    Tick {
        /// Present time: `CLOCK_BOOTTIME`, nanoseconds.
        time_ns: u64,
    },
    /// State of a process's caching allocators. Precedes any record later than the reading.
    AllocatorState(Box<allocator_state::AllocatorState>),
    /// The allocator state cannot be read.
    AllocatorStateRefused {
        /// Process of the allocators.
        tgid: Tgid,
        /// Reason, for display.
        reason: Name,
    },
    /// Blocks of caching allocators read while they worked. Precedes any record later than the reading.
    MovingAllocatorState(Box<allocator_state::MovingAllocatorState>),
    /// Counters of caching allocators without traced events.
    Numbers(Box<allocator_state::AllocatorNumbers>),
    /// A window begins or ends in which all events of a process are traced, while only its memory is read otherwise.
    TraceWindow {
        /// Traced process.
        tgid: Tgid,
        /// Time of the change: `CLOCK_BOOTTIME`, nanoseconds.
        time_ns: u64,
        /// Whether the window begins.
        is_open: bool,
    },
    /// Live objects of a process by name.
    Holdings(Box<holdings::Holdings>),
    /// An ioctl of a process to the kernel driver.
    Rm(Box<rm::RmCall>),
    /// Version of the loaded NVIDIA kernel driver, such as `580.159.04`, from `/sys/module/nvidia/version`.
    KernelDriver {
        /// Version; `None` if the module is not loaded.
        version: Option<String>,
    },
    /// Frameworks with an allocator of their own that a process has mapped so far.
    Frameworks {
        /// Process with the libraries.
        tgid: Tgid,
        /// Frameworks.
        frameworks: BTreeSet<Framework>,
    },
    /// State of the arenas of JAX, TensorFlow and ONNX Runtime. Precedes any record later than the reading.
    Arenas(Box<arenas::ArenaReadings>),
    /// The probes on the allocator of a framework without readable allocator state were attached in a process.
    FrameworkWatched {
        /// Process with the probes.
        tgid: Tgid,
        /// Framework of the allocator.
        framework: Framework,
        /// Attach time of the last probe: `CLOCK_BOOTTIME`, nanoseconds.
        time_ns: u64,
    },
    /// The probes on ggml's pool for temporaries were attached in a process; attach time of the last probe,
    /// `CLOCK_BOOTTIME`, nanoseconds.
    ScratchWatched(Tgid, u64),
    /// Whether context changes of a process's threads are traced from now on.
    ContextChanges(Tgid, bool),
    /// Processes listed by NVML without an observed call, and possibly with driver libraries that are not probed. Their
    /// live bytes are unknown until the next input of this kind.
    Unproven(BTreeSet<Tgid>),
    /// The KV cache of an inference server.
    KvCache(Box<kv_cache::KvCacheReading>),
    /// Live objects of a process, summed by name.
    HeldNames(Box<held_names::HeldNames>),
}

/// An address in the kernel half's allocation map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveAddress {
    /// Address of the allocation.
    pub address: u64,
    /// Size, bytes.
    pub bytes: u64,
    /// Probe table row of the call that granted it.
    pub probe: u16,
}

/// All live addresses of a process at a moment between two of its calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldAddresses {
    /// Process of the addresses.
    pub tgid: Tgid,
    /// Linear, managed, pinned and stream-ordered memory.
    pub held: Vec<LiveAddress>,
    /// Number of the process's calls that freed addresses without naming them.
    pub teardowns: u64,
}

/// Data of a process from `/proc`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessFacts {
    /// Process id in the initial pid namespace.
    pub tgid: u32,
    /// Start of the process: `CLOCK_BOOTTIME`, nanoseconds, with the resolution of `/proc/PID/stat` (10 ms).
    pub start_ns: u64,
    /// Name of the main thread, at most 15 bytes.
    pub comm: String,
    /// Command line, with arguments separated by spaces.
    pub command: String,
    /// Name of the user, or the user id if there is no name.
    pub user: Option<String>,
    /// Real user id.
    pub uid: Option<u32>,
    /// User responsible for `uid`: the user with this id, or the one who has it as a subordinate id (subuid(5)).
    #[serde(default)]
    pub login_uid: Option<u32>,
    /// Process id in the innermost pid namespace, if it differs from the initial one.
    pub inner_tgid: Option<u32>,
    /// Ancestors: the parent, its parent and so on, without process 1.
    pub ancestors: Vec<Ancestor>,
    /// Control groups, as in `/proc/PID/cgroup`.
    pub cgroups: Option<String>,
    /// Environment variables that identify the owner.
    pub environment: Environment,
    /// Whether the user named the process as a target.
    pub target: bool,
    /// Whether all calls of the process are known to be seen, whatever `start_ns` says: it started after the attach, or
    /// had not loaded the driver library.
    pub started_under_watch: bool,
    /// Settings that decide which GPUs the process sees; `None` if its environment cannot be read.
    pub visibility: Option<GpuVisibility>,
    /// Whether the main thread has exited while others run: `ps` (procps) shows the process as defunct.
    #[serde(default)]
    pub main_thread_ended: bool,
}

/// A reading of NVML.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceReading {
    /// Time just before the first call of the reading: `CLOCK_BOOTTIME`, nanoseconds.
    pub begin_ns: u64,
    /// Time just after the last call: `CLOCK_BOOTTIME`, nanoseconds.
    pub end_ns: u64,
    /// State of NVML.
    #[serde(with = "nvml_state")]
    pub state: NvmlState,
    /// One entry per device; empty unless `state` is [`NvmlState::Ok`].
    pub devices: Vec<DeviceFacts>,
}

/// State of NVML.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state", content = "reason")]
pub enum NvmlState {
    /// NVML works.
    Ok,
    /// NVML has not been queried yet.
    Starting,
    /// NVML is missing or unusable, with the reason as a sentence.
    Unavailable(String),
}

impl Input {
    /// Time of the event: `CLOCK_BOOTTIME`, nanoseconds; `None` if the input has no time of its own.
    pub const fn time_ns(&self) -> Option<u64> {
        match self {
            Self::Record(RingRecord::Call(call)) => Some(call.returned_ns),
            Self::Record(RingRecord::Process(record)) => Some(record.time_ns),
            Self::Record(RingRecord::Tensor(record)) => Some(record.time_ns),
            Self::Record(RingRecord::Text(record)) => Some(record.time_ns),
            Self::Devices(reading) => Some(reading.end_ns),
            Self::TensorLevel(choice) => Some(choice.time_ns),
            Self::Rm(call) => Some(call.returned_ns),
            Self::Numbers(numbers) => Some(numbers.time_ns),
            Self::KvCache(reading) => Some(reading.time_ns),
            Self::HeldNames(reading) => Some(reading.time_ns),
            Self::Attached { time_ns }
            | Self::Statistics { time_ns, .. }
            | Self::ObservedFrom { time_ns, .. }
            | Self::ProcessEnded { time_ns, .. }
            | Self::PeaksReset { time_ns, .. }
            | Self::TraceWindow { time_ns, .. }
            | Self::Tick { time_ns } => Some(*time_ns),
            _ => None,
        }
    }
}

/// Serialises [`NvmlState`], also for formats without field names, which lack adjacently tagged enums.
pub(crate) mod nvml_state {
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    use super::NvmlState;

    /// `Err` with the reason if NVML is unusable; otherwise whether it has been queried.
    type Bare = Result<bool, String>;

    pub(crate) fn serialize<S: Serializer>(state: &NvmlState, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            return state.serialize(serializer);
        }
        let bare: Bare = match state {
            NvmlState::Ok => Ok(true),
            NvmlState::Starting => Ok(false),
            NvmlState::Unavailable(why) => Err(why.clone()),
        };
        bare.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<NvmlState, D::Error> {
        if deserializer.is_human_readable() {
            return NvmlState::deserialize(deserializer);
        }
        Ok(match Bare::deserialize(deserializer)? {
            Ok(true) => NvmlState::Ok,
            Ok(false) => NvmlState::Starting,
            Err(why) => NvmlState::Unavailable(why),
        })
    }
}

/// One device at the time of a reading.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFacts {
    /// UUID of the device.
    pub uuid: GpuUuid,
    /// NVML index of the device; for a MIG instance, that of its GPU.
    pub nvml_index: u32,
    /// Marketing name.
    pub name: String,
    /// PCI address as NVML writes it, such as `00000000:3B:00.0`.
    pub pci_bus_id: Option<String>,
    /// MIG instance; `None` for a whole GPU.
    pub mig: Option<MigFacts>,
    /// Memory of the device, bytes, if known to NVML.
    pub total_bytes: Option<u64>,
    /// Memory in use on the whole device, bytes, if known to NVML.
    pub used_bytes: Option<u64>,
    /// Processes with memory on the device; `None` if NVML gives no list, so that absence means nothing.
    pub processes: Option<Vec<ProcessUse>>,
    /// Cores of the GPU; `None` if unknown to NVML.
    #[serde(default)]
    pub cores: Option<Cores>,
    /// Sensor values. Not part of recordings.
    #[serde(skip)]
    pub sensors: Sensors,
}

/// The cores of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cores {
    /// Number of cores (`nvmlDeviceGetNumGpuCores`).
    pub count: u32,
    /// Compute capability, major and minor.
    pub capability: (i32, i32),
}

/// Sensor values from NVML; `None` where NVML reports none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sensors {
    /// Part of the last sample period in which a kernel ran, percent.
    pub utilization_percent: Option<u32>,
    /// Chip temperature, °C.
    pub temperature_celsius: Option<u32>,
    /// Present power, milliwatts.
    pub power_milliwatts: Option<u32>,
    /// Power limit, milliwatts.
    pub power_limit_milliwatts: Option<u32>,
}

impl DeviceFacts {
    /// Returns whether NVML lists the process on this device.
    pub fn lists(&self, tgid: Tgid) -> bool {
        self.processes.iter().flatten().any(|entry| entry.tgid == tgid)
    }
}

/// A MIG instance: a part of a GPU that programs use as a device. The divided GPU itself is not part of a reading.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigFacts {
    /// UUID of the whole GPU.
    pub parent_uuid: GpuUuid,
    /// NVML index of the instance on its GPU.
    pub index: u32,
    /// Profile such as `1g.10gb`; `None` if the device name does not contain it.
    pub profile: Option<String>,
    /// GPU instance id.
    pub gpu_instance_id: Option<u32>,
    /// Compute instance id in the GPU instance.
    pub compute_instance_id: Option<u32>,
}

/// Returns the usual short name of a device: `1`, or `1:0` for the first MIG instance of GPU 1.
pub fn place(nvml_index: u32, mig: Option<&MigFacts>) -> String {
    mig.map_or_else(|| nvml_index.to_string(), |mig| format!("{nvml_index}:{}", mig.index))
}

/// A process in NVML's list of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessUse {
    /// Process id in the initial pid namespace.
    pub tgid: Tgid,
    /// Bytes that NVML charges to the process on this device; `None` if NVML gives no number.
    pub used_bytes: Option<u64>,
    /// Whether NVML lists the process as a client of an MPS server.
    pub mps_client: bool,
}

impl LibraryCoverage {
    /// Returns whether the library limits the numbers: it is in use, and some of its calls are not seen.
    pub fn is_limited(&self) -> bool {
        self.in_use && (self.error.is_some() || !self.probes_refused.is_empty())
    }
}
