//! Which libraries and functions are probed.

use serde::{Deserialize, Serialize};

use crate::words::Name;

/// Libraries and probes attached; shown wherever totals are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeCoverage {
    /// One entry per libcuda file.
    pub libraries: Vec<LibraryCoverage>,
    /// Number of library files without probes because a limit was reached, for one user or in total.
    #[serde(default)]
    pub libraries_over_limit: u64,
    /// Probe mechanism of the kernel: `uprobe_multi` or `uprobe`; [`ProbeCoverage::NOTHING`] if processes are only read.
    pub mechanism: Name,
    /// Discovery of new library files: `mapping_records` (from the kernel, within 20 ms) or `polling` (every 2 s).
    pub discovery: Name,
    /// Detection of moves to another control group: `tracepoint` (at once) or `polling` (with each NVML reading).
    pub moves: Name,
}

impl ProbeCoverage {
    /// Mechanism of a report for which nothing was attached.
    pub const NOTHING: &str = "none";
}

/// Probes on one library file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibraryCoverage {
    /// Path at which the file was found.
    pub path: String,
    /// GNU build id in hex, if it has one.
    pub build_id: Option<String>,
    /// Number of functions with probes.
    pub probes_attached: usize,
    /// Probes placed past an instruction that the kernel would have to single-step.
    pub probes_moved: usize,
    /// Functions of the table that this file has but that got no probe: their calls are missing from all numbers.
    #[serde(default)]
    pub probes_refused: Vec<String>,
    /// Functions of the table that this driver does not have, because it is older: no program can call them.
    #[serde(alias = "probes_missing", default)]
    pub newer_functions: Vec<String>,
    /// Whether a traced process has the file mapped, at the last check.
    #[serde(default = "in_use")]
    pub in_use: bool,
    /// Reason if nothing is attached.
    pub error: Option<String>,
    /// Time from the first mapping of the file to its last probe, in which calls were not seen, nanoseconds; `None` if
    /// no process had mapped it, or the time is unknown.
    pub gap_ns: Option<u64>,
    /// Whether ioctls of the library to the kernel driver are traced; `None` if not checked.
    #[serde(default)]
    pub kernel_calls: Option<KernelCalls>,
}

/// Probes on the stubs through which a library calls `ioctl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelCalls {
    /// All stubs are probed.
    Probed {
        /// Number of stubs.
        stubs: usize,
    },
    /// The library does not import `ioctl`.
    None,
    /// No stub is probed.
    Refused {
        /// Reason, for display.
        reason: String,
    },
}

/// Default for recordings of memwatch 0.1, which listed only libraries in use.
const fn in_use() -> bool {
    true
}
