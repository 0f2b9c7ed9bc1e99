//! GPU memory that stays charged to an exited process: that it began, and that it is over.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::snapshot::{ProcessView, Viewer};
use crate::words::{GpuUuid, Tgid, json};

/// Memory of an exited process on GPUs, when NVML first charges it after the exit, or when NVML no
/// longer does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeftBehindChangeView {
    /// Time of the NVML reading that shows it: `CLOCK_BOOTTIME`, in nanoseconds.
    #[serde(serialize_with = "json::apart")]
    pub time_ns: u64,
    /// Identity of the exited process.
    #[serde(serialize_with = "json::apart")]
    pub process: Box<ProcessView>,
    /// Whether NVML has stopped charging the process.
    pub is_gone: bool,
    /// Exit of the process: `CLOCK_BOOTTIME`, in nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub ended_ns: u64,
    /// Whether the exit was observed. If not, neither were the forks before it.
    pub is_exit_seen: bool,
    /// First NVML reading that showed the memory after the exit: `CLOCK_BOOTTIME`, in nanoseconds.
    #[serde(serialize_with = "json::since")]
    pub since_ns: u64,
    /// Memory by GPU; of memory that is gone, the last known.
    pub gpus: Vec<LeftOnPlace>,
    /// Processes that may keep the memory.
    #[serde(rename = "forked_pids")]
    pub forked: Vec<Tgid>,
    /// Those of `forked` that do not certainly belong to the user of the exited process.
    #[serde(serialize_with = "json::apart")]
    pub foreign: BTreeSet<Tgid>,
}

/// Memory of an exited process on one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOnPlace {
    /// The GPU.
    pub uuid: GpuUuid,
    /// Number of the GPU for display: `1`, or `1:0` for a MIG instance.
    pub number: String,
    /// Bytes that NVML charges.
    pub used_bytes: u64,
}

impl LeftBehindChangeView {
    /// Returns what a viewer may see of it; `None` if the process is not shown to the viewer.
    #[must_use]
    pub fn observed_by(&self, viewer: Viewer) -> Option<Self> {
        let mut own = self.process.is_shown_to(viewer).then(|| self.clone())?;
        if viewer != Viewer::Everything {
            own.forked.retain(|tgid| !self.foreign.contains(tgid));
            own.foreign.clear();
        }
        Some(own)
    }
}
