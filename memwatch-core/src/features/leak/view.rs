//! What keeps growing in a process: see [`crate::features::leak::model`].

use serde::{Deserialize, Serialize};

use crate::features::leak::model::Verdict;
use crate::words::{GpuUuid, Name, Tgid};

/// What is known of the growth of one process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LeaksView {
    /// The process.
    pub tgid: Tgid,
    /// Its name.
    pub comm: String,
    /// Its command line.
    pub command: String,
    /// From when on it was watched: `CLOCK_BOOTTIME`, nanoseconds.
    pub observed_since_ns: u64,
    /// How many windows were seen, of one step or more each; `None` where PyTorch is not watched in it.
    pub windows: Option<u64>,
    /// How many places were seen for too short a time to decide.
    pub too_short: u64,
    /// The verdicts on the others, leaks first, the ones that grow fastest first.
    pub findings: Vec<LeakView>,
}

/// One place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeakView {
    /// How it goes.
    pub verdict: Verdict,
    /// `tensor`, `driver` or `pinned_host`: whose memory it is.
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
    pub first_ns: u64,
    /// And of the last.
    pub last_ns: u64,
    /// What was held at the least in the first window, in bytes.
    pub first_bytes: u64,
    /// And in the last.
    pub last_bytes: u64,
    /// Within how long what is held there is replaced on average, nanoseconds; `None` where it is kept, and below that level.
    pub turnover_ns: Option<u64>,
    /// What is held now by how old it is, youngest first; `None` where it has ended, for what is older than the watch, and below that level.
    pub ages: Option<Vec<AgeView>>,
}

/// Live memory of some age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgeView {
    /// It is younger than this, nanoseconds, and not as young as the one before; `None` for the oldest.
    pub below_ns: Option<u64>,
    /// Bytes.
    pub bytes: u64,
}
