//! Why memory grows, or was not enough: at most three causes, each with what shows it, from what the other analyses have found.
//!
//! A rule takes evidence and answers nothing without it. What it answers is ranked by the bytes that it explains; its words are the shell's.

mod elsewhere;
mod failed;
mod forward;
mod growing;
mod held;
mod limit;
mod moment;
pub mod paths;
mod pipeline;
mod populations;

use serde::Serialize;

use crate::features::leak::view::{CachedView, LeakView};
use crate::features::oom::view::OomView;
use crate::input::holdings::{Advice, Holding};
use crate::words::Tgid;

/// So many causes are named.
const MOST: usize = 3;
/// What explains less than this part of what the first one explains is not worth a line.
const WORTH: u64 = 10;

/// A kind of cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CauseKind {
    /// Many autograd graphs are kept, each by a tensor of its own.
    GraphsKept,
    /// One tensor whose graph grows.
    RunningSum,
    /// A container grows, and nothing leaves it.
    Unbounded,
    /// More goes into a container than leaves it.
    QueueBacksUp,
    /// A cache keeps what was only called with.
    CacheByArgument,
    /// An exception or its traceback keeps the frames that it passed.
    ExceptionKept,
    /// Objects that refer to each other, and no variable to them.
    Cycle,
    /// A notebook's own history.
    Notebook,
    /// Many instances of one class of module.
    Instances,
    /// Copies of the parameters.
    StateCopies,
    /// Parameters of 16 bits beside copies of them of 32.
    TwoPrecisions,
    /// Views keep storages that are much larger.
    ViewKeepsStorage,
    /// One tensor that is replaced by ever longer ones.
    LongerTensor,
    /// A line whose tensors stay, kept by nobody who is known.
    LineKeeps,
    /// Tensors grow, and no line or name explains it yet.
    NoPlaceYet,
    /// Free memory that other streams cannot use.
    StreamCache,
    /// Free memory in private pools.
    PrivatePools,
    /// Free memory grows, and no request fits it.
    CacheGrows,
    /// Pinned host memory grows.
    PinnedGrows,
    /// Memory of the driver grows that no framework's allocator has.
    OutsideGrows,
    /// The optimizer's state did not fit at its first step.
    OptimizerState,
    /// Nothing but what is loaded before the first step did not fit.
    WeightsAlone,
    /// Activations take most of it.
    Activations,
    /// Free memory lay in pieces.
    Fragmentation,
    /// Other processes have it.
    OtherProcesses,
    /// More was asked for than the GPU has.
    LargerThanGpu,
    /// The allocator has a limit of its own, below what the GPU has.
    OwnLimit,
    /// Forward passes make graphs, and no backward pass follows.
    NoBackward,
    /// A process has ended, and ones that it forked keep its memory.
    ForkedKeep,
    /// Memory that its owner has given up, and another process has opened.
    IpcKept,
    /// Freed blocks wait until other streams are done with them.
    RecordStream,
    /// Buckets of `DistributedDataParallel` beside the gradients.
    DdpBuckets,
    /// Workspaces of cuBLAS, one for each stream and thread.
    Workspaces,
    /// States of several optimizers for the same parameters.
    OldOptimizers,
}

/// How sure a cause is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// The numbers or names show it.
    Shown,
    /// They fit it better than anything else.
    Likely,
}

/// A cause.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cause {
    /// What it is.
    pub kind: CauseKind,
    /// The process.
    #[serde(rename = "pid")]
    pub tgid: Tgid,
    /// How much memory it explains, in bytes.
    pub bytes: u64,
    /// How it grows, in bytes a minute; `null` where it does not, or nothing is known of it.
    pub bytes_per_minute: Option<f64>,
    /// How many things there are of it: blocks, graphs, instances or streams, by its kind. Where another process has the memory, its PID.
    pub count: Option<u64>,
    /// What keeps or is it, as a program would write it.
    pub subject: Option<String>,
    /// The line that allocated it, `train.py:12`.
    pub line: Option<String>,
    /// What was wanted or missing, in bytes, where something failed.
    pub wanted_bytes: Option<u64>,
    /// How sure it is.
    pub confidence: Confidence,
}

impl Cause {
    /// One of which no more is known.
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
            confidence: Confidence::Shown,
        }
    }
}

/// What is known of a process. What was not looked at is empty, and shows nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Evidence<'a> {
    /// The process.
    pub tgid: Tgid,
    /// How its places go.
    pub growing: &'a [LeakView],
    /// Where its allocator's free memory lies.
    pub cached: &'a [CachedView],
    /// What it holds by name.
    pub rows: &'a [Holding],
    /// What of that could be less.
    pub advice: &'a [Advice],
    /// An allocation of it that failed.
    pub failure: Option<&'a OomView>,
}

/// A rule: what of the evidence it explains.
type Rule = fn(&Evidence<'_>) -> Vec<Cause>;

/// All rules. Each looks for causes of its own.
const RULES: [Rule; 18] = [
    growing::places,
    growing::cache,
    held::graphs,
    held::copies,
    held::instances,
    held::advised,
    held::notebook,
    held::buckets,
    held::workspaces,
    held::optimizers,
    failed::optimizer,
    failed::parts,
    failed::pieces,
    failed::others,
    elsewhere::left_behind,
    elsewhere::opened,
    limit::own_limit,
    forward::without_backward,
];

/// The causes that the evidence shows, the one that explains most first; three at most.
pub fn causes(evidence: &Evidence<'_>) -> Vec<Cause> {
    let mut all: Vec<Cause> = RULES.iter().flat_map(|rule| rule(evidence)).collect();
    // Growth that goes on explains a failure better than what stood there: it ends in one, however much there is.
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

/// Each tensor that is replaced by a longer one leaves a piece that is too short for the next: that is why the allocator grows, however small the tensor is.
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
