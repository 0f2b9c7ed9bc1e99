//! What keeps growing in a process: see [`crate::features::leak::model`].

use serde::{Deserialize, Serialize};

use crate::allocators::names::HeldAs;
use crate::features::leak::model::Verdict;
use crate::features::trend::Trend;
use crate::input::holdings::HoldingClass;
use crate::words::{GpuUuid, Name, Tgid, json};

/// What is known of the growth of one process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LeaksView {
    /// The process.
    #[serde(serialize_with = "json::tgid")]
    pub tgid: Tgid,
    /// Its name.
    pub comm: String,
    /// Its command line.
    pub command: String,
    /// From when on it was watched: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub observed_since_ns: u64,
    /// How many windows were seen, of one step or more each; `None` where PyTorch is not watched in it.
    pub windows: Option<u64>,
    /// What the findings are from where nothing was traced, and what is held was read again and again; `None` for a trace.
    pub readings: Option<ReadingsView>,
    /// How many places were seen for too short a time to decide.
    pub too_short: u64,
    /// The verdicts on the others, leaks first, the ones that grow fastest first.
    #[serde(serialize_with = "json::apart")]
    pub findings: Vec<LeakView>,
    /// Of devices as a whole, level `allocated`: they seem to grow, and what they hold is replaced too slowly for a verdict yet.
    pub undecided: Vec<UndecidedView>,
    /// Where PyTorch's free memory lies, by device; empty where that is not known.
    pub cached: Vec<CachedView>,
}

/// Free memory of PyTorch's allocator on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedView {
    /// The process's own number of the device.
    pub device: i32,
    /// What the allocator has of the driver, in bytes.
    pub reserved_bytes: u64,
    /// What of that is in no tensor, in bytes.
    pub free_bytes: u64,
    /// How many streams other than the default one have free memory, which serves no other.
    pub side_streams: u64,
    /// How much they have, in bytes.
    pub side_bytes: u64,
    /// What lies free in private pools, of CUDA graphs and of `torch.cuda.MemPool`, in bytes.
    pub private_bytes: u64,
    /// What the program has given back and other streams may still use (`record_stream`), in bytes: it is neither free nor in a tensor.
    #[serde(default)]
    pub waiting_bytes: u64,
}

/// Tensors of a device that seem to grow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UndecidedView {
    /// The process's own number of the device.
    pub device: i32,
    /// The GPU, where it is known.
    pub uuid: Option<GpuUuid>,
    /// Growth over all the time, in bytes a minute.
    pub bytes_per_minute: f64,
    /// What they had at first, in bytes.
    pub first_bytes: u64,
    /// And at last.
    pub last_bytes: u64,
}

/// Readings of what a process holds by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadingsView {
    /// How many were compared.
    pub count: u64,
    /// How many more found blocks and no names for them, so that they were compared with nothing.
    pub without_names: u64,
    /// Why the last of those had none.
    pub why_without_names: Option<String>,
    /// How many of the compared have only the blocks that stood still, since the allocators worked.
    pub standing: u64,
    /// How many may lack objects: all, and all were compared, where the process has too many; else the process changed them meanwhile, and they were
    /// compared with nothing.
    pub partial: u64,
    /// Bytes of the process that were read for the names, in all.
    pub read_bytes: u64,
    /// Processor time that all readings took, nanoseconds.
    #[serde(serialize_with = "json::seconds")]
    pub processor_ns: u64,
    /// Bytes of all blocks in the first reading that was compared; `None` where none was.
    pub first_bytes: Option<u64>,
    /// The same in the last.
    pub last_bytes: Option<u64>,
    /// Why there are no more of them: the process has ended, for example; `None` where none of that happened.
    pub ended: Option<String>,
}

/// One place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeakView {
    /// How it goes.
    pub verdict: Verdict,
    /// `tensor`, `driver` or `pinned_host`: whose memory it is; `name` for tensors by what keeps them, which then is in `keepers`. Of a device as a
    /// whole `allocated`, where tensors grow and no line or name of them explains it, and `reserved`, where their allocator grows and they do not.
    pub level: Name,
    /// The process's own number of the device; `None` for host memory, and where it is not known.
    pub device: Option<i32>,
    /// The GPU, where it is known.
    pub uuid: Option<GpuUuid>,
    /// As in [`crate::snapshot::SiteView`]; `None` below that level.
    pub kind: Option<Name>,
    /// The file.
    pub file: Option<String>,
    /// The line in it.
    pub line: Option<u32>,
    /// The function.
    pub function: Option<String>,
    /// Of what is pre-existing: what it is, as in [`crate::snapshot::SiteView`].
    pub held: Option<HeldAs>,
    /// Growth over all the time, in bytes a minute.
    pub bytes_per_minute: f64,
    /// The same of the later half.
    pub late_bytes_per_minute: f64,
    /// How often noise alone would look so steady.
    pub p: f64,
    /// And its later half.
    pub late_p: f64,
    /// How many points that is from.
    pub points: usize,
    /// The same where each point is a step of training, since the time was too short for points of time; `None` for those.
    pub steps: Option<usize>,
    /// The time of the first: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::since")]
    pub first_ns: u64,
    /// And of the last.
    #[serde(serialize_with = "json::until")]
    pub last_ns: u64,
    /// What was held at the least in the first window, in bytes.
    pub first_bytes: u64,
    /// And in the last.
    pub last_bytes: u64,
    /// Within how long what is held there is replaced on average, nanoseconds; `None` where it is kept, and below that level.
    #[serde(serialize_with = "json::replaced_seconds")]
    pub turnover_ns: Option<u64>,
    /// What is held now by how old it is, youngest first; `None` where it has ended, for what is older than the watch, and below that level.
    pub ages: Option<Vec<AgeView>>,
    /// Who keeps what is held there, the most bytes first, as far as that was read.
    pub keepers: Vec<KeeperView>,
    /// Of what is still held there, so much was there when that was read, named or not, in bytes.
    #[serde(skip)]
    pub read_bytes: u64,
    /// How the blocks came and went from one reading to the next; `None` where none were compared.
    pub blocks: Option<BlocksView>,
}

impl UndecidedView {
    /// How a device's tensors go.
    pub(super) const fn of(device: i32, uuid: Option<GpuUuid>, trend: &Trend) -> Self {
        let bytes_per_minute = trend.whole.bytes_per_second * 60.0;
        Self { device, uuid, bytes_per_minute, first_bytes: trend.first_bytes, last_bytes: trend.last_bytes }
    }
}

/// Growth of the later half is seen where noise looks so steady less often than this.
const SURE_LATE: f64 = 0.05;
/// And where it is so much a minute, in bytes.
const SEEN_LATE: f64 = 1_048_576.0;

impl LeakView {
    /// It has grown faster before, and grows on: a cache that fills does so, and a leak in a program that has become slower.
    pub fn grows_slower(&self) -> bool {
        self.verdict == Verdict::LevelledOff && self.late_p < SURE_LATE && self.late_bytes_per_minute >= SEEN_LATE
    }

    /// A place of this level, of which no more is known than how it goes.
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
            keepers: Vec::new(),
            read_bytes: 0,
            blocks: None,
        }
    }
}

/// Who keeps blocks: names that differ only in their indices are one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperView {
    /// What the blocks are.
    pub class: HoldingClass,
    /// Their name, with `*` for indices: a path for tensors, for what is saved for backward the node that saved it; `None` where they have none.
    pub name: Option<String>,
    /// Of what is saved for backward: the tensor whose graph it belongs to, with `*` for indices.
    pub kept_by: Option<String>,
    /// Bytes of the blocks.
    pub bytes: u64,
    /// How many blocks.
    pub count: u64,
    /// The name of the oldest; of what is saved for backward, the tensor that keeps it.
    pub oldest: Option<String>,
    /// The same of the newest.
    pub newest: Option<String>,
}

/// Blocks from one reading to the next. A block that is given back and granted again in between, at the same place and under the same name, counts
/// as the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlocksView {
    /// How many there were in the first reading.
    pub first: u64,
    /// How many there are in the last.
    pub last: u64,
    /// How many came after the first.
    pub came: u64,
    /// How many of those were in every reading since they came.
    pub stayed: u64,
}

/// Live memory of some age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgeView {
    /// It is younger than this, nanoseconds, and not as young as the one before; `None` for the oldest.
    #[serde(serialize_with = "json::seconds")]
    pub below_ns: Option<u64>,
    /// Bytes.
    pub bytes: u64,
}
