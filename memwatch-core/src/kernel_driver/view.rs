//! What the kernel driver's own books explain of what NVML charges.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::input::rm::Inside;
use crate::words::{GpuUuid, Tgid, Tid, json};

use super::decode::Lies;
use super::labels::{Label, Sure};
use super::trust::Trust;

/// All that the kernel driver's books have of a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explained {
    /// By GPU; memory of which the GPU is not known stands last.
    pub gpus: Vec<ExplainedUse>,
    /// In the host's memory: in no GPU's sum.
    pub host: ExplainedHost,
    /// Memory of others that it has as well: no bytes of its own.
    pub imported: u64,
    /// The last allocations that the kernel driver refused for want of memory, oldest first.
    pub refused: Vec<RefusedView>,
    /// How many it refused in all.
    pub refused_count: u64,
    /// How many objects were made under the name of one that lived: their ends were not seen.
    pub reused: u64,
    /// The kernel driver's version; `None` where nobody has read it.
    pub version: Option<String>,
}

/// A process on one GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExplainedUse {
    /// The GPU; `None` where it is not known.
    pub uuid: Option<GpuUuid>,
    /// Whether it may be shown as an explanation.
    #[serde(serialize_with = "json::apart")]
    pub trust: Trust,
    /// What NVML charges, in bytes, at the last settled reading; `None` before the first.
    pub used_bytes: Option<u64>,
    /// What is granted now, in bytes: the sum of the parts.
    pub live_bytes: u64,
    /// What is older than the watch, in bytes; `None` until that is known.
    pub older_bytes: Option<u64>,
    /// What NVML charges beyond both, in bytes, at the last settled reading; `None` before the first.
    #[serde(serialize_with = "json::unexplained_bytes")]
    pub difference_bytes: Option<i64>,
    /// What it is for; largest first.
    pub parts: Vec<PartView>,
    /// How much of it is used.
    pub columns: ColumnsView,
    /// The objects that it is made of; alike ones are one row, those with most bytes first, [`PIECES_KEPT`] rows at most.
    #[serde(default)]
    #[serde(serialize_with = "json::objects")]
    pub pieces: Vec<PieceView>,
}

/// How many rows of objects are kept for a process on a GPU.
pub const PIECES_KEPT: usize = 64;

/// Memory for one purpose of one owner, whatever function asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summand<'a> {
    /// The purpose.
    pub label: Label,
    /// Whose; `None` where that is not known, and of what is the driver's own.
    pub owner: Option<&'a str>,
    /// In bytes, as granted.
    pub bytes: u64,
}

impl ExplainedUse {
    /// The parts by purpose, and by owner where a program or a library asked for the memory: largest first. They add up to what is live.
    pub fn summands(&self) -> Vec<Summand<'_>> {
        let mut sums: BTreeMap<(Label, Option<&str>), u64> = BTreeMap::new();
        for part in &self.parts {
            let owner = part.owner.as_deref().filter(|_| part.label == Label::Requested);
            let sum = sums.entry((part.label, owner)).or_default();
            *sum = sum.saturating_add(part.bytes);
        }
        let mut all: Vec<_> = sums.into_iter().map(|((label, owner), bytes)| Summand { label, owner, bytes }).collect();
        all.sort_by_key(|summand| std::cmp::Reverse(summand.bytes));
        all
    }

    /// What came since the last settled reading less what went, in bytes: what NVML charged then is the parts, what is older and the difference without
    /// it. `None` before the first.
    pub fn since_reading_bytes(&self) -> Option<i64> {
        let at_reading = i128::from(self.used_bytes?)
            - i128::from(self.older_bytes.unwrap_or(0))
            - i128::from(self.difference_bytes?);
        i64::try_from(i128::from(self.live_bytes) - at_reading).ok()
    }
}

/// Memory for one purpose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartView {
    /// The purpose.
    pub label: Label,
    /// Who called the driver: a library by its name, or the file's own name; `None` where that is not known, and of a context.
    pub owner: Option<String>,
    /// The driver's function that was called; `None` where that is not known.
    pub function: Option<String>,
    /// In bytes, as granted.
    pub bytes: u64,
    /// In so many pieces.
    pub objects: u64,
    /// How sure the purpose is.
    pub sure: Sure,
    /// Of local memory, the largest of these pieces: for each GPU thread so many bytes; `None` where the GPU's threads are not known.
    #[serde(default)]
    pub bytes_per_thread: Option<u64>,
    /// Of what is inherited: who had it before, and freed it or ended; `None` of all else.
    #[serde(default, rename = "from_pid")]
    pub left_by: Option<Tgid>,
}

/// Objects of the kernel driver for one purpose, of one size, and used alike.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PieceView {
    /// As in [`PartView`].
    pub label: Label,
    /// As in [`PartView`].
    pub owner: Option<String>,
    /// As in [`PartView`].
    pub function: Option<String>,
    /// So many.
    pub objects: u64,
    /// What was asked for, each, in bytes; `None` where that could not be read.
    pub asked_bytes: Option<u64>,
    /// What was given, each, in bytes.
    pub granted_bytes: u64,
    /// How each is used; `None` of the driver's own, and where it is not known at which addresses it lies.
    pub used: Option<UsedView>,
    /// Where the only one is mapped first; `None` of several, and of what is not mapped.
    pub address: Option<u64>,
}

/// One object beside the live requests in it: the three add up to what was granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct UsedView {
    /// Live requests, in bytes.
    pub requested_bytes: u64,
    /// Granted and free, in bytes.
    pub slack_bytes: u64,
    /// Granted beyond what was asked for, in bytes.
    pub rounding_bytes: u64,
}

/// What all memory is used for: the five add up to what is live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnsView {
    /// Live requests of the program, in bytes.
    pub requested_bytes: u64,
    /// Granted for requests and free, in bytes.
    pub slack_bytes: u64,
    /// Granted beyond what was asked for, in bytes.
    pub rounding_bytes: u64,
    /// Granted for requests whose addresses are not known, in bytes.
    pub unplaced_bytes: u64,
    /// The driver's own, in bytes.
    pub driver_bytes: u64,
}

/// Host memory that the kernel driver knows of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedHost {
    /// The driver's pages, in bytes: not in the process's resident set.
    pub driver_bytes: u64,
    /// Pages of the process that are pinned, in bytes: they are in its resident set.
    pub pinned_bytes: u64,
    /// The process's resident set, in bytes, when that is shown; `None` of a process that is gone, and in recordings. Pinned pages are in it, the
    /// driver's are not: it is added to neither.
    #[serde(default)]
    pub resident_bytes: Option<u64>,
}

/// An allocation that the kernel driver refused for want of memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedView {
    /// When: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub time_ns: u64,
    /// The thread that asked.
    pub tid: Tid,
    /// The GPU that it was asked of; `None` where that is not known.
    #[serde(default)]
    pub uuid: Option<GpuUuid>,
    /// Where the memory was to be.
    #[serde(serialize_with = "json::apart")]
    pub lies: Lies,
    /// What was asked for, in bytes; `None` where that could not be read.
    pub asked_bytes: Option<u64>,
    /// The driver's function that was called; `None` where that is not known.
    pub function: Option<String>,
    /// Who called it.
    pub owner: Option<String>,
    /// What it was for.
    pub label: Label,
    /// With the thread it names the record of that function's call; `None` where none was in flight.
    #[serde(serialize_with = "json::apart")]
    pub inside: Option<Inside>,
}

/// What NVML still charges a process that has ended: a child that it forked has its open files of the kernel driver, which frees nothing as long as one is
/// open (measured on an H100 with driver 580.159.04).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftBehindView {
    /// On each GPU.
    pub gpus: Vec<LeftOnGpu>,
    /// Children that it forked and that were not seen to end or to become another program: one of them keeps it. The last ones, oldest first.
    #[serde(rename = "forked_pids")]
    pub forked: Vec<Tgid>,
}

/// The same on one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOnGpu {
    /// The GPU.
    pub uuid: GpuUuid,
    /// What NVML charges, in bytes.
    pub used_bytes: u64,
}

/// What of a GPU is in use and charged to no process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemainderView {
    /// Used less all that is charged, in bytes.
    pub bytes: i64,
    /// Processes have managed memory: its pages on a GPU are charged to nobody.
    pub has_managed: bool,
}
