//! What of a process's tensors is to be seen, and by which rows of the table.

use memwatch_common::tensor::{FrameworkLibrary, Purpose, TensorProbe};
use memwatch_core::attribution::price::Budget;
use memwatch_core::input::{Stacks, TensorLevel};

use super::symbols::TensorPoint;

/// What is watched of it, and how much of its allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TensorRequest {
    /// What.
    pub(crate) level: TensorLevel,
    /// Only what the allocator reports of each tensor, where one probe for each that comes or goes shows no more. What was requested, streams, and
    /// segments are not seen then.
    pub(crate) reports_only: bool,
    /// Of which blocks the stack is taken, where lines are wanted and no modules.
    pub(crate) stacks: Stacks,
    /// What it may cost a process, where less may be traced instead; `None` where it is traced whatever it costs.
    pub(crate) budget: Option<Budget>,
}

/// How the blocks of a process's allocators are seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sight {
    /// The allocators' library was not found yet.
    #[default]
    Unknown,
    /// Where they call what reports a block: by one probe for each that comes or goes.
    Calls,
    /// By the functions that are called, of which several are passed.
    Functions,
}

impl Sight {
    /// As these points of the allocators' library allow.
    pub(super) fn of<'a>(points: impl IntoIterator<Item = &'a TensorPoint>) -> Self {
        let has_calls = points.into_iter().any(|point| point.row.purpose == Purpose::AllocatorCalls);
        if has_calls { Self::Calls } else { Self::Functions }
    }
}

impl TensorRequest {
    /// All that a level shows.
    pub(crate) const fn of(level: TensorLevel) -> Self {
        Self { level, reports_only: false, stacks: Stacks::All, budget: None }
    }

    /// The same with [`Self::reports_only`].
    pub(crate) const fn of_reports(level: TensorLevel) -> Self {
        Self { level, reports_only: true, stacks: Stacks::All, budget: None }
    }

    /// Whether no probe may be placed at all.
    pub(crate) fn places_none(self) -> bool {
        self.budget.is_some_and(Budget::is_nothing)
    }

    /// What of it needs none, where none may be placed.
    pub(crate) fn affordable(self) -> Self {
        let level = if self.places_none() { self.level.min(TensorLevel::Read) } else { self.level };
        Self { level, ..self }
    }

    /// Whether several of these points show each tensor, where functions are probed: the allocator's trace beside what it reports.
    pub(super) fn needs_several<'a>(self, points: impl IntoIterator<Item = &'a TensorPoint>) -> bool {
        !self.reports_only && points.into_iter().any(|point| point.row.purpose == Purpose::AllocatorTrace)
    }

    /// Whether a row is to be in place.
    pub(super) fn wants(self, row: &TensorProbe, sight: Sight) -> bool {
        let is_seen_so = match row.purpose {
            Purpose::AllocatorCalls => sight == Sight::Calls,
            Purpose::AllocatorReports | Purpose::AllocatorTrace | Purpose::AllocatorUntilTrace => {
                sight == Sight::Functions
            }
            _ => true,
        };
        // One probe shows all: there is nothing to be left out.
        let reports_only = self.reports_only && sight != Sight::Calls;
        let is_rare = row.is_rare() && self.level >= TensorLevel::Read && !self.places_none();
        is_seen_so
            && (is_rare || wants(self.level, row.purpose))
            && !(reports_only && matches!(row, TensorProbe { library: FrameworkLibrary::C10Cuda, .. }))
    }
}

/// Whether a level needs the rows that are for this.
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
        Purpose::Python | Purpose::Operators => level >= TensorLevel::Sites,
        Purpose::Stages | Purpose::Layers => level >= TensorLevel::Layers,
        // Put in where the others show that it is needed.
        Purpose::AllocatorWithoutTrace => false,
    }
}
