//! What to trace of a process's tensors, and which probes that needs.

use memwatch_common::tensor::{Purpose, TensorProbe};
use memwatch_core::attribution::price::Budget;
use memwatch_core::input::{StackSelection, TensorLevel};

use crate::frameworks::FRAMEWORKS;
use crate::frameworks::descriptor::{BlockPart, Keeps};
use crate::frameworks::points::TensorPoint;

/// What to trace of a process's tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TensorRequest {
    /// Trace level.
    pub(crate) level: TensorLevel,
    /// Trace only the allocator's report of each tensor, which takes one probe per allocation or
    /// free. Requested sizes, streams and segments are not seen then. Without effect if one probe
    /// shows everything anyway.
    pub(crate) reports_only: bool,
    /// Which blocks get a stack if lines but no modules are wanted.
    pub(crate) stacks: StackSelection,
    /// Maximum overhead for a process, beyond which less is traced; `None` for no limit.
    pub(crate) budget: Option<Budget>,
}

/// How the blocks of a process's allocators are traced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum BlockProbing {
    /// The allocators' library has not been found yet.
    #[default]
    Unknown,
    /// At the calls that report a block: one probe per allocation or free.
    Calls,
    /// At the called functions: several probes per block.
    Functions,
}

impl BlockProbing {
    /// Chooses the best way that these points of the allocators' library allow.
    pub(super) fn of<'a>(points: impl IntoIterator<Item = &'a TensorPoint>) -> Self {
        let has_calls = points.into_iter().any(|point| point.row.purpose == Purpose::AllocatorCalls);
        if has_calls { Self::Calls } else { Self::Functions }
    }
}

impl TensorRequest {
    /// Requests everything that a level shows.
    pub(crate) const fn of(level: TensorLevel) -> Self {
        Self { level, reports_only: false, stacks: StackSelection::All, budget: None }
    }

    /// Requests a level with [`Self::reports_only`].
    pub(crate) const fn of_reports(level: TensorLevel) -> Self {
        Self { level, reports_only: true, stacks: StackSelection::All, budget: None }
    }

    /// Whether the budget allows no probe at all.
    pub(crate) fn places_none(self) -> bool {
        self.budget.is_some_and(Budget::is_nothing)
    }

    /// Lowers the level to what needs no probes if the budget allows none.
    pub(crate) fn affordable(self) -> Self {
        let level = if self.places_none() { self.level.min(TensorLevel::Read) } else { self.level };
        Self { level, ..self }
    }

    /// Whether tracing a tensor takes several of these points if functions are probed: the
    /// allocator's trace besides its report.
    pub(super) fn needs_several<'a>(self, points: impl IntoIterator<Item = &'a TensorPoint>) -> bool {
        !self.reports_only && points.into_iter().any(|point| point.row.purpose == Purpose::AllocatorTrace)
    }

    /// Whether the request needs a probe.
    pub(super) fn wants(self, row: &TensorProbe, sight: BlockProbing) -> bool {
        let is_seen_so = match row.purpose {
            Purpose::AllocatorCalls => sight == BlockProbing::Calls,
            Purpose::AllocatorReports | Purpose::AllocatorTrace | Purpose::AllocatorUntilTrace => {
                sight == BlockProbing::Functions
            }
            _ => true,
        };
        // One probe shows everything, so nothing can be left out.
        let reports_only = self.reports_only && sight != BlockProbing::Calls;
        let is_rare = row.is_rare() && self.level >= TensorLevel::Read && !self.places_none();
        let TensorProbe { library, .. } = *row;
        is_seen_so
            && (is_rare || wants(self.level, row.purpose))
            && !(reports_only && FRAMEWORKS.keeps(library) == Some(Keeps::Blocks(BlockPart::Allocator)))
    }
}

/// Whether a level needs probes of a purpose.
fn wants(level: TensorLevel, purpose: Purpose) -> bool {
    match purpose {
        Purpose::Allocator
        | Purpose::AllocatorCalls
        | Purpose::AllocatorReports
        | Purpose::AllocatorTrace
        | Purpose::AllocatorUntilTrace
        | Purpose::Arena
        | Purpose::Buffers
        | Purpose::Pools => level >= TensorLevel::Blocks,
        Purpose::Python | Purpose::Operators => level >= TensorLevel::Lines,
        Purpose::Phases | Purpose::Modules => level >= TensorLevel::Modules,
        // Attached on demand, when other probes show the need.
        Purpose::AllocatorWithoutTrace => false,
    }
}
