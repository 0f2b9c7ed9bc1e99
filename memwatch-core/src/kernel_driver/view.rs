//! Report of what the kernel-driver ledger explains of NVML's charges.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::input::rm::Inside;
use crate::words::{GpuUuid, Tgid, Tid, json};

use super::decode::Lies;
use super::labels::{MemoryPurpose, Sure};
use super::trust::LedgerTrust;

/// Kernel-driver memory of a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explained {
    /// Memory by GPU; memory on an unknown GPU is last.
    pub gpus: Vec<ExplainedUse>,
    /// Host memory, which is not part of any GPU's total.
    pub host: ExplainedHost,
    /// Number of shared memory objects of other clients; they count no bytes here.
    pub imported: u64,
    /// Most recent allocations that the kernel driver refused for lack of memory, oldest first.
    pub refused: Vec<RefusedView>,
    /// Number of refused allocations.
    pub refused_count: u64,
    /// Number of objects created under the key of a live object, after an unobserved free.
    pub reused: u64,
    /// Kernel driver version; `None` if it has not been read.
    pub version: Option<String>,
}

/// Kernel-driver memory of a process on one GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExplainedUse {
    /// UUID of the GPU; `None` if unknown.
    pub uuid: Option<GpuUuid>,
    /// Whether the ledger may be shown as an explanation.
    #[serde(serialize_with = "json::apart")]
    pub trust: LedgerTrust,
    /// Bytes that NVML charged at the last settled reading; `None` before the first.
    pub used_bytes: Option<u64>,
    /// Granted bytes at present: the sum of the parts.
    pub live_bytes: u64,
    /// Bytes older than the attach; `None` until known.
    pub older_bytes: Option<u64>,
    /// Bytes that NVML charged beyond the ledger and the older memory at the last settled reading;
    /// `None` before the first.
    #[serde(serialize_with = "json::unexplained_bytes")]
    pub difference_bytes: Option<i64>,
    /// Memory by purpose, largest first.
    pub parts: Vec<PartView>,
    /// Memory by use.
    pub columns: ColumnsView,
    /// Objects; equal ones are grouped in one row, rows with most bytes first, [`PIECES_KEPT`] rows
    /// at most.
    #[serde(default)]
    #[serde(serialize_with = "json::objects")]
    pub pieces: Vec<PieceView>,
}

/// Rows of objects kept per process and GPU.
pub const PIECES_KEPT: usize = 64;

/// Memory for one purpose of one owner, regardless of the requesting function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summand<'a> {
    /// Purpose of the memory.
    pub label: MemoryPurpose,
    /// Owner; `None` if unknown, and for memory of the driver itself.
    pub owner: Option<&'a str>,
    /// Granted bytes.
    pub bytes: u64,
}

impl ExplainedUse {
    /// Returns the parts by purpose, and by owner where a program or library requested the memory:
    /// largest first. They add up to the live bytes.
    pub fn summands(&self) -> Vec<Summand<'_>> {
        let mut sums: BTreeMap<(MemoryPurpose, Option<&str>), u64> = BTreeMap::new();
        for part in &self.parts {
            let owner = part.owner.as_deref().filter(|_| part.label == MemoryPurpose::Requested);
            let sum = sums.entry((part.label, owner)).or_default();
            *sum = sum.saturating_add(part.bytes);
        }
        let mut all: Vec<_> = sums.into_iter().map(|((label, owner), bytes)| Summand { label, owner, bytes }).collect();
        all.sort_by_key(|summand| std::cmp::Reverse(summand.bytes));
        all
    }

    /// Returns the net change of live bytes since the last settled reading; `None` before the
    /// first. At that reading, the parts were NVML's charge minus the older memory and the
    /// difference.
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
    /// Purpose of the memory.
    pub label: MemoryPurpose,
    /// Caller of the driver: the name of a library, or else of the file; `None` if unknown, and for
    /// memory of a context.
    pub owner: Option<String>,
    /// Driver function called; `None` if unknown.
    pub function: Option<String>,
    /// Granted bytes.
    pub bytes: u64,
    /// Number of objects.
    pub objects: u64,
    /// Confidence of the purpose.
    pub sure: Sure,
    /// For local memory, the bytes per GPU thread of the largest object; `None` if the GPU's thread
    /// count is unknown.
    #[serde(default)]
    pub bytes_per_thread: Option<u64>,
    /// For inherited memory, the process that owned it before and freed it or exited; `None` for
    /// other memory.
    #[serde(default, rename = "from_pid")]
    pub left_by: Option<Tgid>,
}

/// Objects of the kernel driver with the same purpose, size and use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PieceView {
    /// Purpose, as in [`PartView`].
    pub label: MemoryPurpose,
    /// Caller, as in [`PartView`].
    pub owner: Option<String>,
    /// Driver function, as in [`PartView`].
    pub function: Option<String>,
    /// Number of objects.
    pub objects: u64,
    /// Requested bytes of each object; `None` if they could not be read.
    pub asked_bytes: Option<u64>,
    /// Granted bytes of each object.
    pub granted_bytes: u64,
    /// Use of each object; `None` for memory of the driver itself, and if the address is unknown.
    pub used: Option<UsedView>,
    /// First mapped address, for a single object; `None` for several objects and if not mapped.
    pub address: Option<u64>,
}

/// Use of one object: the three fields add up to its granted bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct UsedView {
    /// Live requests, bytes.
    pub requested_bytes: u64,
    /// Granted and free, bytes.
    pub slack_bytes: u64,
    /// Granted beyond the requested size, bytes.
    pub rounding_bytes: u64,
}

/// Use of all memory: the five fields add up to the live bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnsView {
    /// Live requests of the program, bytes.
    pub requested_bytes: u64,
    /// Granted for requests and free, bytes.
    pub slack_bytes: u64,
    /// Granted beyond the requested size, bytes.
    pub rounding_bytes: u64,
    /// Granted for requests at unknown addresses, bytes.
    pub unplaced_bytes: u64,
    /// Memory of the driver itself, bytes.
    pub driver_bytes: u64,
}

/// Host memory known to the kernel driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedHost {
    /// Pages of the driver, bytes; not part of the process's resident set.
    pub driver_bytes: u64,
    /// Pinned pages of the process, bytes; part of its resident set.
    pub pinned_bytes: u64,
    /// Resident set of the process when displayed, bytes; `None` for an exited process and in
    /// recordings. It includes the pinned pages but not the driver's pages, so it is added to
    /// neither.
    #[serde(default)]
    pub resident_bytes: Option<u64>,
}

/// An allocation that the kernel driver refused for lack of memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedView {
    /// Time of the refusal: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub time_ns: u64,
    /// Requesting thread.
    pub tid: Tid,
    /// GPU of the request; `None` if unknown.
    #[serde(default)]
    pub uuid: Option<GpuUuid>,
    /// Requested location.
    #[serde(serialize_with = "json::apart")]
    pub lies: Lies,
    /// Requested size, bytes; `None` if it could not be read.
    pub asked_bytes: Option<u64>,
    /// Driver function called; `None` if unknown.
    pub function: Option<String>,
    /// Caller of the function.
    pub owner: Option<String>,
    /// Purpose of the memory.
    pub label: MemoryPurpose,
    /// Call in flight. Together with the thread it identifies the record of that call; `None` if no
    /// call was in flight.
    #[serde(serialize_with = "json::apart")]
    pub inside: Option<Inside>,
}

/// Memory that NVML still charges to an exited process. A forked child shares its open files of the
/// kernel driver, which frees nothing while one of them is open (measured on an H100 with driver
/// 580.159.04).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftBehindView {
    /// Charged memory by GPU.
    pub gpus: Vec<LeftOnGpu>,
    /// Most recent forked children that were not seen to exit or exec, oldest first. One of them
    /// keeps the memory.
    #[serde(rename = "forked_pids")]
    pub forked: Vec<Tgid>,
}

/// Memory that NVML still charges to an exited process on one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOnGpu {
    /// UUID of the GPU.
    pub uuid: GpuUuid,
    /// Charged bytes.
    pub used_bytes: u64,
}

/// Used memory of a GPU that is charged to no process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemainderView {
    /// Used bytes minus all charged bytes.
    pub bytes: i64,
    /// Whether processes have managed memory. Its pages on a GPU are charged to no process.
    pub has_managed: bool,
}
