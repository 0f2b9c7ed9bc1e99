//! Explains growth and failed allocations: at most three causes, each with its evidence, from the
//! results of the other analyses.
//!
//! A rule without evidence returns nothing. Causes are ranked by the bytes that they explain; their
//! texts are in the shell.

mod by_name;
mod elsewhere;
mod failed;
mod forward;
mod growing;
mod grown;
mod held;
mod limit;
mod moment;
pub mod paths;
mod populations;
mod report;
mod serving;

use self::grown::grown;
pub use self::grown::{GrownName, grown_before};
pub use self::held::{held_names, names_of_blocks};
pub use self::report::report;
use serde::Serialize;

use crate::features::leak::view::{CachedView, LeakView};
use crate::features::oom::view::OomView;
use crate::input::held_names::HeldNames;
use crate::input::kv_cache::{KvCache, KvCacheFill, KvCachePeak};
pub use crate::words::CauseKind;
use crate::words::Tgid;

/// Maximum number of causes.
const MOST: usize = 3;
/// Minimum bytes of a further cause, as a divisor of the first cause's bytes.
const WORTH: u64 = 10;

/// Confidence of a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// Numbers or names prove the cause.
    Shown,
    /// The cause fits the numbers better than any other.
    Likely,
}

/// A cause.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cause {
    /// Kind of the cause.
    pub kind: CauseKind,
    /// The process.
    #[serde(rename = "pid")]
    pub tgid: Tgid,
    /// Bytes that the cause explains.
    pub bytes: u64,
    /// Growth in bytes per minute; `null` if the memory does not grow, or if its growth is unknown.
    pub bytes_per_minute: Option<f64>,
    /// Number of blocks, graphs, instances or streams, by the kind of cause; the PID if another
    /// process has the memory.
    pub count: Option<u64>,
    /// The retainer, or the memory itself, as an expression of the program.
    pub subject: Option<String>,
    /// Call site of the allocation, such as `train.py:12`.
    pub line: Option<String>,
    /// Requested or missing bytes, if an allocation failed.
    pub wanted_bytes: Option<u64>,
    /// How full the pool is, if the cause is the KV cache of an inference server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_cache: Option<KvCacheFill>,
    /// Time in nanoseconds for which the evidence holds, if it is the maximum of a period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period_ns: Option<u64>,
    /// Confidence of the cause.
    pub confidence: Confidence,
}

impl Cause {
    /// Creates a cause of this kind and size without details.
    const fn of(kind: CauseKind, bytes: u64) -> Self {
        Self {
            kind,
            tgid: Tgid(0),
            bytes,
            bytes_per_minute: None,
            count: None,
            subject: None,
            line: None,
            wanted_bytes: None,
            kv_cache: None,
            period_ns: None,
            confidence: Confidence::Shown,
        }
    }
}

/// Evidence about a process. Analyses that did not run leave their part empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct CauseEvidence<'a> {
    /// The process.
    pub tgid: Tgid,
    /// Findings of the leak detector.
    pub growing: &'a [LeakView],
    /// Free memory of the process's allocator.
    pub cached: &'a [CachedView],
    /// Live objects, summed by name.
    pub held: Option<&'a HeldNames>,
    /// Names with growing memory from reading to reading.
    pub grown: &'a [GrownName],
    /// A failed allocation.
    pub failure: Option<&'a OomView>,
    /// Pool of KV cache blocks, if the process serves requests.
    pub kv_cache: Option<&'a KvCache>,
    /// Maxima of this pool, and the time in nanoseconds since their first reading.
    pub kv_cache_peak: Option<(KvCachePeak, u64)>,
}

/// A rule: returns the causes that the evidence shows.
type CauseRule = fn(&CauseEvidence<'_>) -> Vec<Cause>;

/// All rules.
const RULES: [CauseRule; 16] = [
    growing::places,
    growing::cache,
    growing::names,
    held::found,
    failed::optimizer,
    by_name::first_step,
    by_name::activations,
    failed::parts,
    failed::pieces,
    failed::others,
    elsewhere::left_behind,
    elsewhere::opened,
    limit::own_limit,
    forward::without_backward,
    serving::kv_cache_full,
    serving::kv_cache_too_large,
];

/// Returns the causes that the evidence shows, the one that explains most first; three at most.
pub fn causes(evidence: &CauseEvidence<'_>) -> Vec<Cause> {
    let mut all: Vec<Cause> = RULES.iter().flat_map(|rule| rule(evidence)).collect();
    // Growth explains a failure better than constant use: it ends in a failure, whatever its size.
    let grows = |cause: &Cause| cause.bytes_per_minute.is_some();
    all.sort_by(|one, other| {
        let order = grows(other).cmp(&grows(one)).then(other.bytes.cmp(&one.bytes));
        order.then(one.confidence.cmp(&other.confidence)).then(one.kind.cmp(&other.kind))
    });
    put_joined_first(&mut all);
    let mut named: Vec<Cause> = Vec::new();
    for cause in all {
        let is_known = named.iter().any(|known| {
            known.kind == cause.kind && (known.subject == cause.subject || cause.subject.is_none())
                || (known.subject.is_some() && known.subject == cause.subject)
        });
        let is_worth = named.first().is_none_or(|first| cause.bytes >= first.bytes / WORTH);
        if !is_known && is_worth && named.len() < MOST {
            named.push(Cause { tgid: evidence.tgid, ..cause });
        }
    }
    named
}

/// Moves a tensor that is repeatedly replaced by a longer one before the growth of the cache that
/// it causes: each replaced tensor leaves a free block that is too short for the next one, however
/// small the tensor is.
fn put_joined_first(causes: &mut Vec<Cause>) {
    let at = |kind| causes.iter().position(|cause: &Cause| cause.kind == kind);
    if let (Some(joined), Some(cache)) = (at(CauseKind::LongerTensor), at(CauseKind::CacheGrows))
        && cache < joined
    {
        let cause = causes.remove(joined);
        causes.insert(cache, cause);
    }
}

#[cfg(test)]
mod tests;
