//! Churn report: see [`crate::features::churn::model`].

use serde::{Deserialize, Serialize};

use crate::snapshot::SiteView;
use crate::words::{Name, Tgid, json};

/// Churn of all processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChurnView {
    /// Time since the first allocation, in nanoseconds.
    #[serde(serialize_with = "json::all_seconds")]
    pub watched_ns: u64,
    /// A block is temporary if it is freed before its process makes this number of further
    /// allocations of its kind.
    pub temporary_within: u64,
    /// Churn by kind of memory.
    pub kinds: Vec<FlowView>,
    /// Lines of Python with temporary allocations, most bytes first.
    #[serde(serialize_with = "json::apart")]
    pub temporaries: Vec<TemporaryView>,
}

/// Churn of one kind of memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowView {
    /// `tensor` for blocks of PyTorch's allocators; for driver calls `device`, `pool`, `physical`,
    /// `managed`, `array` or `pinned`.
    pub kind: Name,
    /// Observed allocations.
    pub allocations: u64,
    /// Bytes of the allocations.
    pub total_bytes: u64,
    /// Frees of these allocations, by a call or an event.
    pub frees: u64,
    /// Frees of memory that existed before the session.
    pub older_frees: u64,
    /// Allocations per second; `None` if no time has passed.
    pub allocations_per_second: Option<f64>,
    /// Allocated bytes per second; `None` if no time has passed.
    pub bytes_per_second: Option<f64>,
    /// Mean lifetime of freed allocations, in nanoseconds; `None` if none was freed.
    #[serde(serialize_with = "json::seconds")]
    pub mean_lifetime_ns: Option<u64>,
    /// Longest lifetime of freed allocations, in nanoseconds; `None` if none was freed.
    #[serde(serialize_with = "json::seconds")]
    pub longest_lifetime_ns: Option<u64>,
    /// Number of temporary allocations.
    pub temporary: u64,
    /// Bytes of the temporary allocations.
    pub temporary_bytes: u64,
    /// Allocations by size; empty classes are left out.
    pub sizes: Vec<SizeView>,
    /// Freed allocations by lifetime; all classes.
    pub lifetimes: Vec<LifetimeView>,
}

/// Allocations of one size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeView {
    /// Lower edge of the class, inclusive.
    pub from_bytes: u64,
    /// Upper edge of the class, exclusive; `None` for the last class.
    pub below_bytes: Option<u64>,
    /// Number of allocations.
    pub allocations: u64,
    /// Bytes of the allocations.
    pub bytes: u64,
}

/// Frees of one lifetime class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LifetimeView {
    /// Lower edge of the class, inclusive, in nanoseconds.
    #[serde(serialize_with = "json::seconds")]
    pub from_ns: u64,
    /// Upper edge of the class, exclusive, in nanoseconds; `None` for the last class.
    #[serde(serialize_with = "json::seconds")]
    pub below_ns: Option<u64>,
    /// Number of frees.
    pub frees: u64,
    /// Bytes of the freed allocations.
    pub bytes: u64,
}

/// A call site with temporary allocations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemporaryView {
    /// The process.
    #[serde(serialize_with = "json::tgid")]
    pub tgid: Tgid,
    /// Call site.
    #[serde(serialize_with = "json::apart")]
    pub site: SiteView,
    /// Number of allocations.
    pub allocations: u64,
    /// Number of temporary allocations.
    pub temporary: u64,
    /// Bytes of the temporary allocations.
    pub temporary_bytes: u64,
    /// Mean lifetime of the temporary allocations, in nanoseconds.
    #[serde(serialize_with = "json::seconds")]
    pub mean_lifetime_ns: u64,
}
