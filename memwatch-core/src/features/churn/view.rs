//! How memory comes and goes: see [`crate::features::churn::model`].

use serde::{Deserialize, Serialize};

use crate::snapshot::SiteView;
use crate::words::{Name, Tgid, json};

/// Of all that was watched.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChurnView {
    /// For how long there was something to see, nanoseconds: from the first allocation on.
    #[serde(serialize_with = "json::all_seconds")]
    pub watched_ns: u64,
    /// What is freed before so many more of its kind are allocated in its process is temporary.
    pub temporary_within: u64,
    /// By kind.
    pub kinds: Vec<FlowView>,
    /// Lines with temporary allocations, those with most of them first.
    #[serde(serialize_with = "json::apart")]
    pub temporaries: Vec<TemporaryView>,
}

/// One kind of memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowView {
    /// `tensor` for blocks of PyTorch's allocators; of the driver's calls `device`, `pool`, `physical`, `managed`, `array` or `pinned`.
    pub kind: Name,
    /// Allocations that were seen.
    pub allocations: u64,
    /// Their bytes.
    pub total_bytes: u64,
    /// Frees of them by a call or an event.
    pub frees: u64,
    /// Frees of what is older than the watch.
    pub older_frees: u64,
    /// Allocations in a second; `None` where no time has passed.
    pub allocations_per_second: Option<f64>,
    /// And their bytes.
    pub bytes_per_second: Option<f64>,
    /// How long the freed ones had lived on average, nanoseconds; `None` where none was freed.
    #[serde(serialize_with = "json::seconds")]
    pub mean_lifetime_ns: Option<u64>,
    /// And the longest.
    #[serde(serialize_with = "json::seconds")]
    pub longest_lifetime_ns: Option<u64>,
    /// How many were temporary.
    pub temporary: u64,
    /// And their bytes.
    pub temporary_bytes: u64,
    /// By size; sizes that never came are left out.
    pub sizes: Vec<SizeView>,
    /// By lifetime, of the ones that were freed; all classes.
    pub lifetimes: Vec<LifetimeView>,
}

/// Allocations of one size up to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeView {
    /// From this size on.
    pub from_bytes: u64,
    /// And below this; `None` for all above.
    pub below_bytes: Option<u64>,
    /// How many.
    pub allocations: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Frees of what had lived from one time up to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LifetimeView {
    /// From this on, nanoseconds.
    #[serde(serialize_with = "json::seconds")]
    pub from_ns: u64,
    /// And below this; `None` for all above.
    #[serde(serialize_with = "json::seconds")]
    pub below_ns: Option<u64>,
    /// How many.
    pub frees: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A line with temporary allocations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemporaryView {
    /// The process.
    #[serde(serialize_with = "json::tgid")]
    pub tgid: Tgid,
    /// The line.
    #[serde(serialize_with = "json::apart")]
    pub site: SiteView,
    /// All its allocations.
    pub allocations: u64,
    /// How many of them were temporary.
    pub temporary: u64,
    /// And their bytes.
    pub temporary_bytes: u64,
    /// How long those lived on average, nanoseconds.
    #[serde(serialize_with = "json::seconds")]
    pub mean_lifetime_ns: u64,
}
