//! Leak report of a process: see [`crate::features::leak::model`].

use serde::{Deserialize, Serialize};

use crate::allocators::names::HeldAs;
use crate::features::leak::model::Verdict;
use crate::features::trend::Trend;
use crate::input::holdings::HoldingClass;
use crate::words::{GpuUuid, Name, Tgid, json};

/// Leak report of one process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LeaksView {
    /// The process.
    #[serde(serialize_with = "json::tgid")]
    pub tgid: Tgid,
    /// Name of the process.
    pub comm: String,
    /// Command line of the process.
    pub command: String,
    /// Start of observation: `CLOCK_BOOTTIME`, in nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub observed_since_ns: u64,
    /// Number of windows observed, each of at least one step; `None` if PyTorch is not traced in
    /// the process.
    pub windows: Option<u64>,
    /// Summary of the readings that the findings are based on, if live objects were read
    /// repeatedly; `None` for a trace.
    pub readings: Option<ReadingsView>,
    /// Number of growth sources observed for too short a time to decide.
    pub too_short: u64,
    /// Findings on the other sources, leaks first, the fastest growing first.
    #[serde(serialize_with = "json::apart")]
    pub findings: Vec<LeakView>,
    /// Devices (level `allocated`) that seem to grow, but replace their memory too slowly for a
    /// verdict yet.
    pub undecided: Vec<UndecidedView>,
    /// Free memory of PyTorch's allocator by device; empty if it is unknown.
    pub cached: Vec<CachedView>,
}

/// Free memory of PyTorch's allocator on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedView {
    /// The process's own number of the device.
    pub device: i32,
    /// Bytes that the allocator reserves from the driver.
    pub reserved_bytes: u64,
    /// Reserved bytes that are in no tensor.
    pub free_bytes: u64,
    /// Number of streams other than the default one that have free memory, which serves no other
    /// stream.
    pub side_streams: u64,
    /// Free bytes of those streams.
    pub side_bytes: u64,
    /// Free bytes in private pools of CUDA graphs and of `torch.cuda.MemPool`.
    pub private_bytes: u64,
    /// Bytes that the program has freed and other streams may still use (`record_stream`): neither
    /// free nor in a tensor.
    #[serde(default)]
    pub waiting_bytes: u64,
}

/// Undecided growth of a device's tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UndecidedView {
    /// The process's own number of the device.
    pub device: i32,
    /// GPU, if it is known.
    pub uuid: Option<GpuUuid>,
    /// Growth over the whole time, in bytes per minute.
    pub bytes_per_minute: f64,
    /// Bytes at the first point.
    pub first_bytes: u64,
    /// Bytes at the last point.
    pub last_bytes: u64,
}

/// Repeated readings of a process's live objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadingsView {
    /// Number of readings that were compared.
    pub count: u64,
    /// Number of readings that found blocks without any names and were not compared.
    pub without_names: u64,
    /// Reason why the last of those readings found no names.
    pub why_without_names: Option<String>,
    /// Number of compared readings that contain only blocks at rest, because the allocators were
    /// busy.
    pub standing: u64,
    /// Number of compared readings that may lack objects, of a process that has more than are looked
    /// at, or whose first reading lacked some.
    pub partial: u64,
    /// Number of readings that were not compared because the process changed its objects meanwhile.
    pub left_out: u64,
    /// Total bytes read from the process to find names.
    pub read_bytes: u64,
    /// Total processor time of the readings, in nanoseconds.
    #[serde(serialize_with = "json::seconds")]
    pub processor_ns: u64,
    /// Bytes of all blocks in the first compared reading; `None` if none was compared.
    pub first_bytes: Option<u64>,
    /// Bytes of all blocks in the last compared reading; `None` if none was compared.
    pub last_bytes: Option<u64>,
    /// Reason why the readings stopped, for example that the process exited; `None` if they did
    /// not.
    pub ended: Option<String>,
}

/// Finding on one growth source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeakView {
    /// Verdict on the source.
    pub verdict: Verdict,
    /// Kind of memory: `tensor`, `driver` or `pinned_host`; `name` for tensors grouped by retainer,
    /// which is in `retainers`. For a whole device: `allocated` if its tensors grow and no call site
    /// or name explains it, `reserved` if its allocator grows and its tensors do not.
    pub level: Name,
    /// The process's own number of the device; `None` for host memory, and if it is unknown.
    pub device: Option<i32>,
    /// GPU, if it is known.
    pub uuid: Option<GpuUuid>,
    /// Kind of call site as in [`crate::snapshot::SiteView`]; `None` at other levels than `tensor`.
    pub kind: Option<Name>,
    /// Source file.
    pub file: Option<String>,
    /// Line in the file.
    pub line: Option<u32>,
    /// Function.
    pub function: Option<String>,
    /// Content of pre-existing memory, as in [`crate::snapshot::SiteView`].
    pub held: Option<HeldAs>,
    /// Growth over the whole time, in bytes per minute.
    pub bytes_per_minute: f64,
    /// Growth over the later half, in bytes per minute.
    pub late_bytes_per_minute: f64,
    /// Probability that noise alone would look so steady over the whole time.
    pub p: f64,
    /// Probability that noise alone would look so steady over the later half.
    pub late_p: f64,
    /// Number of points of the series.
    pub points: usize,
    /// Number of points if each is a training step, because the time was too short for time
    /// windows; otherwise `None`.
    pub steps: Option<usize>,
    /// Time of the first point: `CLOCK_BOOTTIME`, in nanoseconds.
    #[serde(serialize_with = "json::since")]
    pub first_ns: u64,
    /// Time of the last point: `CLOCK_BOOTTIME`, in nanoseconds.
    #[serde(serialize_with = "json::until")]
    pub last_ns: u64,
    /// Minimum live bytes within the first window.
    pub first_bytes: u64,
    /// Minimum live bytes within the last window.
    pub last_bytes: u64,
    /// Average time within which the memory is replaced, in nanoseconds; `None` if it is retained,
    /// and at other levels than `tensor` and `name`.
    #[serde(serialize_with = "json::replaced_seconds")]
    pub turnover_ns: Option<u64>,
    /// Live bytes by age, youngest first; `None` if the process has ended, for pre-existing memory,
    /// and at other levels than `tensor`.
    pub ages: Option<Vec<AgeView>>,
    /// Retainers of the memory, most bytes first, as far as they were read.
    pub retainers: Vec<RetainerView>,
    /// Bytes of the live blocks that the last reading covers, named or not.
    #[serde(skip)]
    pub read_bytes: u64,
    /// The number of blocks grows, if it is known, and not only their size.
    #[serde(skip)]
    pub grows_in_number: bool,
    /// Blocks that appeared and disappeared between readings; `None` if no readings were compared.
    pub blocks: Option<BlocksView>,
}

impl UndecidedView {
    /// Returns the trend of a device's tensors as undecided growth.
    pub(super) const fn of(device: i32, uuid: Option<GpuUuid>, trend: &Trend) -> Self {
        let bytes_per_minute = trend.whole.bytes_per_second * 60.0;
        Self { device, uuid, bytes_per_minute, first_bytes: trend.first_bytes, last_bytes: trend.last_bytes }
    }
}

/// Significance level for growth of the later half.
const SURE_LATE: f64 = 0.05;
/// Minimum growth of the later half that is worth reporting, in bytes per minute.
const SEEN_LATE: f64 = 1_048_576.0;

impl LeakView {
    /// Returns whether the memory still grows, slower than before: a cache that fills up, or a leak
    /// in a program that has slowed down.
    pub fn grows_slower(&self) -> bool {
        self.verdict == Verdict::LevelledOff && self.late_p < SURE_LATE && self.late_bytes_per_minute >= SEEN_LATE
    }

    /// Returns a finding that has only a level, a verdict and a trend.
    pub(in crate::features) fn of(level: &str, verdict: Verdict, trend: &Trend) -> Self {
        Self {
            verdict,
            level: level.to_owned().into(),
            device: None,
            uuid: None,
            kind: None,
            file: None,
            line: None,
            function: None,
            held: None,
            bytes_per_minute: trend.whole.bytes_per_second * 60.0,
            late_bytes_per_minute: trend.late.bytes_per_second * 60.0,
            p: trend.whole.p,
            late_p: trend.late.p,
            points: trend.points,
            steps: None,
            first_ns: trend.first_ns,
            last_ns: trend.last_ns,
            first_bytes: trend.first_bytes,
            last_bytes: trend.last_bytes,
            turnover_ns: None,
            ages: None,
            retainers: Vec::new(),
            read_bytes: 0,
            grows_in_number: true,
            blocks: None,
        }
    }
}

/// Retainer of blocks. Names that differ only in their indices are grouped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetainerView {
    /// Class of the blocks.
    pub class: HoldingClass,
    /// Name with `*` for indices: a path for tensors, the autograd node for memory saved for
    /// backward; `None` if the blocks have no name.
    pub name: Option<String>,
    /// For memory saved for backward: the tensor whose graph keeps it, with `*` for indices.
    pub kept_by: Option<String>,
    /// Bytes of the blocks.
    pub bytes: u64,
    /// Number of blocks.
    pub count: u64,
    /// Name of the oldest block; for memory saved for backward, of the tensor that retains it.
    pub oldest: Option<String>,
    /// Name of the newest block; for memory saved for backward, of the tensor that retains it.
    pub newest: Option<String>,
}

/// Blocks of one group over the readings. A block that is freed and allocated again between two
/// readings, at the same address and with the same name, counts as the same block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlocksView {
    /// Number of blocks in the first reading.
    pub first: u64,
    /// Number of blocks in the last reading.
    pub last: u64,
    /// Number of blocks that appeared after the first reading.
    pub came: u64,
    /// Number of those blocks that are in every later reading.
    pub stayed: u64,
}

/// Live memory of one age class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgeView {
    /// Upper edge of the class, in nanoseconds; the previous class is its lower edge. `None` for
    /// the oldest class.
    #[serde(serialize_with = "json::seconds")]
    pub below_ns: Option<u64>,
    /// Live bytes.
    pub bytes: u64,
}
