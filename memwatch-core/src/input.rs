//! All that may enter the pipeline. Whatever is not here cannot change a number.

pub mod arenas;
pub mod books;
pub mod holdings;
mod level;
pub mod rm;
mod visibility;

use std::collections::BTreeSet;

use memwatch_common::loss::Loss;
use memwatch_common::record::Record;
use memwatch_common::tensor::STATISTICS_WORDS;
use serde::{Deserialize, Serialize};

use crate::owner::{Ancestor, CgroupMemory, ContainerNames, Environment, Promise};
use crate::stack::PythonStack;
use crate::stack::native::NativeStack;
use crate::words::{Framework, GpuUuid, Name, Tgid, by_name};

pub use level::{LevelChoice, Measured, Stacks, TensorLevel, Windows};
pub use visibility::GpuVisibility;

/// One thing that happened outside, in the order that decides everything. Records and statistics are rows of numbers without a text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Input {
    /// memwatch began to watch: totals are complete from here on.
    Attached {
        /// `CLOCK_BOOTTIME`, nanoseconds.
        time_ns: u64,
    },
    /// A record of the kernel half, in ring order.
    #[serde(skip)]
    Record(Record),
    /// What a Python stack is, before the records that name it.
    Stack {
        /// The process.
        tgid: Tgid,
        /// The number that those records give it.
        id: u64,
        /// Its frames.
        stack: PythonStack,
    },
    /// What a native stack is, before the records that name it, or with the Python stack of the same number.
    NativeStack {
        /// The process.
        tgid: Tgid,
        /// The number that those records give it.
        id: u64,
        /// Its frames.
        stack: NativeStack,
    },
    /// The probes around PyTorch's caching allocator are in place in this process.
    TensorsWatched {
        /// The process.
        tgid: Tgid,
        /// The rows of the table of tensor probes that are not.
        missing: Vec<u16>,
        /// When the last of them was put in: `CLOCK_BOOTTIME`, nanoseconds; 0 in recordings that do not say it.
        #[serde(default)]
        time_ns: u64,
    },
    /// How much of PyTorch is traced in this process from now on, where its price was predicted.
    TensorLevel(LevelChoice),
    /// A caching allocator's own numbers, read right after the last of its records.
    #[serde(skip)]
    Statistics {
        /// The process.
        tgid: Tgid,
        /// The allocator of one device: the `this` of its methods.
        allocator: u64,
        /// `CLOCK_BOOTTIME`, nanoseconds.
        time_ns: u64,
        /// The words from the beginning of its `DeviceStats` on.
        words: Box<[u64; STATISTICS_WORDS]>,
    },
    /// What `/proc` says of a process.
    Process(ProcessFacts),
    /// The library a process had mapped already was probed only now: its calls are seen from here on.
    ObservedFrom {
        /// The process.
        tgid: Tgid,
        /// `CLOCK_BOOTTIME`, nanoseconds.
        time_ns: u64,
    },
    /// A process that was to be watched is gone without an exit record (it had ended before the probes were there).
    ProcessEnded {
        /// The process.
        tgid: Tgid,
        /// `CLOCK_BOOTTIME`, nanoseconds.
        time_ns: u64,
    },
    /// A reading of all devices.
    Devices(DeviceReading),
    /// What a process whose records were lost holds by the kernel half's own allocation map, which miss nothing: the ledger goes by them.
    Held(HeldAddresses),
    /// A process's control groups now: it was moved, or was gone before `/proc` could be read and the kernel half knew its group.
    Cgroups {
        /// The process.
        tgid: Tgid,
        /// As `/proc/PID/cgroup` writes them.
        cgroups: String,
    },
    /// What runtimes call containers that have processes here; a later answer replaces an earlier one.
    Names(Vec<ContainerNames>),
    /// All that the kubelet has promised.
    Promised(Vec<Promise>),
    /// Device memory of control groups by the kernel's account: all of it.
    CgroupMemory(Vec<CgroupMemory>),
    /// Records that did not arrive since the last such input.
    Lost {
        /// Whose they were; `None` when that is not known.
        tgid: Option<Tgid>,
        /// Why.
        #[serde(with = "by_name::one_loss")]
        loss: Loss,
        /// How many.
        count: u64,
    },
    /// What is attached where.
    Coverage(Coverage),
    /// Peaks of this process begin again; of all, where none is named.
    PeaksReset {
        /// The process.
        tgid: Option<Tgid>,
        /// `CLOCK_BOOTTIME`, nanoseconds.
        time_ns: u64,
    },
    /// Time passed; rates are per the time between ticks.
    Tick {
        /// `CLOCK_BOOTTIME`, nanoseconds.
        time_ns: u64,
    },
    /// What a process's caching allocators have by their own books: before any record that is later than the reading.
    Books(Box<books::Books>),
    /// They cannot be read.
    BooksRefused {
        /// The process.
        tgid: Tgid,
        /// Why, for people.
        reason: Name,
    },
    /// What blocks they have while they work: before any record that is later than the reading's end.
    MovingBooks(Box<books::MovingBooks>),
    /// What they have counted, where no event is traced.
    Numbers(Box<books::Numbers>),
    /// A window begins or ends in which all events of a process are traced, of which else its memory is read alone.
    TraceWindow {
        /// The process.
        tgid: Tgid,
        /// `CLOCK_BOOTTIME`, nanoseconds.
        time_ns: u64,
        /// Whether it begins.
        is_open: bool,
    },
    /// What a process holds, by name.
    Holdings(Box<holdings::Holdings>),
    /// What a process asked the kernel driver for.
    Rm(Box<rm::RmCall>),
    /// NVIDIA's kernel driver as it is loaded: what `/sys/module/nvidia/version` says, such as `580.159.04`; `None` where it is not there.
    KernelDriver {
        /// The version.
        version: Option<String>,
    },
    /// The frameworks of which a process has libraries with an allocator mapped by now.
    Frameworks {
        /// The process.
        tgid: Tgid,
        /// Which, each once.
        frameworks: BTreeSet<Framework>,
    },
    /// What the arenas of JAX, TensorFlow and ONNX Runtime have by their own books: before any record that is later than the reading.
    Arenas(Box<arenas::ArenaBooks>),
    /// The probes around the allocator of a framework that keeps no books are in place in this process.
    FrameworkWatched {
        /// The process.
        tgid: Tgid,
        /// Which.
        framework: Framework,
        /// When the last of them was put in: `CLOCK_BOOTTIME`, nanoseconds.
        time_ns: u64,
    },
    /// Those around ggml's pool for temporaries are in place in this process; since when, likewise.
    ScratchWatched(Tgid, u64),
    /// Whether it is seen from now on when threads of this process change their context.
    ContextChanges(Tgid, bool),
    /// The processes that NVML lists and of which it is not known that all their driver libraries are probed, none of whose calls has come: until the next such
    /// word nothing is known of what they hold.
    Unproven(BTreeSet<Tgid>),
}

/// An address in the kernel half's allocation map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The address.
    pub address: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// The row of the probe table that granted it.
    pub probe: u16,
}

/// All addresses of a process at a moment between two of its calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldAddresses {
    /// The process.
    pub tgid: Tgid,
    /// Its linear, managed, pinned and stream-ordered memory.
    pub held: Vec<Held>,
    /// How many of its calls have freed addresses without naming them.
    pub teardowns: u64,
}

/// What the shell knows of a process from `/proc`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessFacts {
    /// Process id in the initial pid namespace.
    pub tgid: u32,
    /// Start of the process: `CLOCK_BOOTTIME`, nanoseconds, to the resolution of `/proc/PID/stat` (10 ms).
    pub start_ns: u64,
    /// Thread-group leader's name, at most 15 bytes.
    pub comm: String,
    /// The command line, arguments separated by spaces.
    pub command: String,
    /// Owner's name, or its number where it has none.
    pub user: Option<String>,
    /// Owner's number: the real user id.
    pub uid: Option<u32>,
    /// Who answers for that user: the one who logs in with this id, or has it as a subordinate one (subuid(5)).
    #[serde(default)]
    pub login_uid: Option<u32>,
    /// Process id in the innermost pid namespace it is in, where that is another than the machine's.
    pub inner_tgid: Option<u32>,
    /// Who started it: its parent, the parent's parent and so on, without the machine's first process.
    pub ancestors: Vec<Ancestor>,
    /// Its control groups, as `/proc/PID/cgroup` writes them.
    pub cgroups: Option<String>,
    /// What it has of the variables that show whose it is.
    pub environment: Environment,
    /// Named as a target by the user.
    pub target: bool,
    /// Known to have made no call before memwatch saw them all, whatever `start_ns` says: it started later, or had not loaded the driver library.
    pub started_under_watch: bool,
    /// What decides which GPUs it sees; `None` where its environment cannot be read.
    pub visibility: Option<GpuVisibility>,
    /// Its main thread has ended, and others go on: `ps` of procps shows it as defunct.
    #[serde(default)]
    pub main_thread_ended: bool,
}

/// What NVML says at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceReading {
    /// Just before the first call of this reading: `CLOCK_BOOTTIME`, nanoseconds.
    pub begin_ns: u64,
    /// Just after the last.
    pub end_ns: u64,
    /// How NVML is.
    #[serde(with = "nvml_state")]
    pub state: NvmlState,
    /// One entry per device; empty unless `state` is [`NvmlState::Ok`].
    pub devices: Vec<DeviceFacts>,
}

/// How NVML is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state", content = "reason")]
pub enum NvmlState {
    /// It answers.
    Ok,
    /// Not asked yet.
    Starting,
    /// Not there, or not usable: why, in a sentence.
    Unavailable(String),
}

impl Input {
    /// When it happened: `CLOCK_BOOTTIME`, nanoseconds; `None` where it has no time of its own.
    pub const fn time_ns(&self) -> Option<u64> {
        match self {
            Self::Record(Record::Call(call)) => Some(call.returned_ns),
            Self::Record(Record::Process(record)) => Some(record.time_ns),
            Self::Record(Record::Tensor(record)) => Some(record.time_ns),
            Self::Record(Record::Text(record)) => Some(record.time_ns),
            Self::Devices(reading) => Some(reading.end_ns),
            Self::TensorLevel(choice) => Some(choice.time_ns),
            Self::Rm(call) => Some(call.returned_ns),
            Self::Numbers(numbers) => Some(numbers.time_ns),
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

/// How NVML is, also in formats without names, in which a word and what belongs to it cannot stand side by side.
pub(crate) mod nvml_state {
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    use super::NvmlState;

    /// The reason, where it is not usable; else whether it was asked.
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

/// One device at the moment of a reading.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFacts {
    /// Identity.
    pub uuid: GpuUuid,
    /// NVML's number of the device; of an instance, its GPU's.
    pub nvml_index: u32,
    /// Marketing name.
    pub name: String,
    /// Where the GPU sits, as NVML writes it, such as `00000000:3B:00.0`.
    pub pci_bus_id: Option<String>,
    /// What it is a part of; `None` for a whole GPU.
    pub mig: Option<MigFacts>,
    /// Memory of the device in bytes, if NVML says.
    pub total_bytes: Option<u64>,
    /// Memory in use on the whole device in bytes, if NVML says.
    pub used_bytes: Option<u64>,
    /// Processes with memory on the device; `None` where NVML gives no list (then absence means nothing).
    pub processes: Option<Vec<ProcessUse>>,
    /// How many cores of which kind it has; `None` where NVML does not say.
    #[serde(default)]
    pub cores: Option<Cores>,
    /// What the device does beside holding memory. Recordings do not keep it.
    #[serde(skip)]
    pub sensors: Sensors,
}

/// The cores of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cores {
    /// Their number (`nvmlDeviceGetNumGpuCores`).
    pub count: u32,
    /// Compute capability, major and minor.
    pub capability: (i32, i32),
}

/// What NVML reports of a device beside its memory; each is `None` where NVML does not report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sensors {
    /// How much of the last sample period a kernel ran, in percent.
    pub utilization_percent: Option<u32>,
    /// Of the chip.
    pub temperature_celsius: Option<u32>,
    /// What it draws now.
    pub power_milliwatts: Option<u32>,
    /// What it may draw.
    pub power_limit_milliwatts: Option<u32>,
}

impl DeviceFacts {
    /// Whether its list names the process.
    pub fn lists(&self, tgid: Tgid) -> bool {
        self.processes.iter().flatten().any(|entry| entry.tgid == tgid)
    }
}

/// A MIG instance: a part of a GPU that programs take for a device. A GPU that is divided so is in no reading itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigFacts {
    /// The whole GPU.
    pub parent_uuid: GpuUuid,
    /// NVML's number of the instance on its GPU.
    pub index: u32,
    /// Such as `1g.10gb`; `None` where the name does not say.
    pub profile: Option<String>,
    /// Number of the GPU instance.
    pub gpu_instance_id: Option<u32>,
    /// Number of the compute instance in it.
    pub compute_instance_id: Option<u32>,
}

/// How people name a device: `1`, or `1:0` for the first MIG instance of GPU 1.
pub fn place(nvml_index: u32, mig: Option<&MigFacts>) -> String {
    mig.map_or_else(|| nvml_index.to_string(), |mig| format!("{nvml_index}:{}", mig.index))
}

/// A process in a device's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessUse {
    /// Process id in the initial pid namespace.
    pub tgid: Tgid,
    /// Bytes NVML charges to it on this device; `None` where NVML does not say.
    pub used_bytes: Option<u64>,
    /// It stands in the list of clients of an MPS server.
    pub mps_client: bool,
}

/// What is attached where; shown wherever totals are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// One entry per libcuda file.
    pub libraries: Vec<LibraryCoverage>,
    /// Library files that got no probes because too many have been found: those of one user, or all of them. Each is counted once.
    #[serde(default)]
    pub libraries_over_limit: u64,
    /// How the probes hang in the kernel: `uprobe_multi` or `uprobe`.
    pub mechanism: Name,
    /// How library files that appear later are found: `mapping_records` (the kernel's, within 20 ms) or `polling` (every 2 s).
    pub discovery: Name,
    /// How it is noticed that a process is put into another control group: `tracepoint` (at once) or `polling` (with NVML's readings).
    pub moves: Name,
}

/// The probes on one library file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibraryCoverage {
    /// Where it was found.
    pub path: String,
    /// GNU build id in hex, if it has one.
    pub build_id: Option<String>,
    /// Number of functions with probes.
    pub probes_attached: usize,
    /// Probes placed past an instruction that the kernel would have to single-step.
    pub probes_moved: usize,
    /// Functions of the table that this file has and that got no probes: their calls are missing in all numbers.
    #[serde(default)]
    pub probes_refused: Vec<String>,
    /// Functions of the table that this driver does not have, because it is older than they are: nobody can call them.
    #[serde(alias = "probes_missing", default)]
    pub newer_functions: Vec<String>,
    /// Whether a process that is watched has it mapped, or had when that was last looked at.
    #[serde(default = "in_use")]
    pub in_use: bool,
    /// Why nothing is attached, where nothing is.
    pub error: Option<String>,
    /// From the first mapping of the file to its last probe: calls of those who had it mapped went unseen so long, nanoseconds.
    /// `None` where nobody had mapped it, or nobody knows when.
    pub gap_ns: Option<u64>,
    /// Whether what it asks the kernel driver for is seen; `None` where nobody has looked.
    #[serde(default)]
    pub kernel_calls: Option<KernelCalls>,
}

/// The probes on the stubs through which a library calls `ioctl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelCalls {
    /// They are on all of them.
    Probed {
        /// How many there are.
        stubs: usize,
    },
    /// It makes none: it does not import the function.
    None,
    /// There are none, for this reason.
    Refused {
        /// For people.
        reason: String,
    },
}

/// Recordings of memwatch 0.1 do not say it, and no library was kept quiet about.
const fn in_use() -> bool {
    true
}

impl LibraryCoverage {
    /// Whether it is a limit of the numbers: it is in use, and calls of it are not seen.
    pub fn is_limited(&self) -> bool {
        self.in_use && (self.error.is_some() || !self.probes_refused.is_empty())
    }
}
