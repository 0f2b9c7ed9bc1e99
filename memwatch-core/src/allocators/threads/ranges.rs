//! Tracks the open ranges of each thread, and the steps of optimizers.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::allocators::names::RangeKey;
use crate::words::Ordinal;

/// Maximum number of open ranges tracked per thread and kind. Ranges that are never closed must not
/// use memory without bound.
const DEEP: usize = 64;
/// Maximum number of optimizers.
const OPTIMIZERS: usize = 64;
/// Prefix of torch's ranges around optimizer methods (torch/optim/optimizer.py, `profile_hook_step`
/// and `zero_grad`).
const OPTIMIZER: &str = "Optimizer.";
/// Prefix of the range of an optimizer step, followed by the optimizer's name.
pub const STEP: &str = "Optimizer.step#";

/// An open range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum RangeKind {
    /// A `record_function` range of the program or a library.
    Range(RangeKey),
    /// An NVTX range. Ranges of the two kinds end independently.
    Nvtx(RangeKey),
    /// An optimizer method. `steps` is the optimizer's number in [`Steps`] if the method is a step;
    /// `moment` is the thread's event count at the beginning.
    Optimizer { steps: Option<u32>, moment: u64 },
}

impl RangeKind {
    const fn is_nvtx(self) -> bool {
        matches!(self, Self::Nvtx(_))
    }

    const fn range(self) -> Option<RangeKey> {
        match self {
            Self::Range(range) | Self::Nvtx(range) => Some(range),
            Self::Optimizer { .. } => None,
        }
    }
}

/// An open range with its temporary memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct OpenRange {
    range: RangeKind,
    /// Start of the range: `CLOCK_BOOTTIME`, nanoseconds; 0 for optimizer methods.
    began_ns: u64,
    /// Bytes by device of blocks that were allocated and freed in the range.
    temporary: BTreeMap<Ordinal, u64>,
}

/// Open ranges of a thread.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ThreadRanges {
    open: Vec<OpenRange>,
    /// Number of open `record_function` ranges, and of NVTX ranges, beyond the limit.
    beyond: u64,
    nvtx_beyond: u64,
}

impl ThreadRanges {
    /// Returns whether a range of this name is an optimizer method.
    pub(super) fn is_of_optimizer(name: &str) -> bool {
        name.starts_with(OPTIMIZER)
    }

    /// Begins a range of the program.
    pub(super) fn begin_range(&mut self, range: RangeKey, began_ns: u64) {
        self.beyond += u64::from(!self.begin(RangeKind::Range(range), began_ns));
    }

    /// Begins an optimizer method.
    pub(super) fn begin_optimizer(&mut self, name: &str, moment: u64, steps: &mut Steps) {
        let steps = name.strip_prefix(STEP).and_then(|optimizer| steps.of(optimizer));
        self.beyond += u64::from(!self.begin(RangeKind::Optimizer { steps, moment }, 0));
    }

    /// Opens a range and returns whether it is tracked. Each kind has its own limit, so that
    /// unclosed ranges of one do not displace the other.
    fn begin(&mut self, range: RangeKind, began_ns: u64) -> bool {
        let is_known = self.open.iter().filter(|open| open.range.is_nvtx() == range.is_nvtx()).count() < DEEP;
        if is_known {
            self.open.push(OpenRange { range, began_ns, temporary: BTreeMap::new() });
        }
        is_known
    }

    /// Removes the innermost range of a kind.
    fn take(&mut self, is_nvtx: bool) -> Option<RangeKind> {
        let innermost = self.open.iter().rposition(|open| open.range.is_nvtx() == is_nvtx)?;
        Some(self.open.remove(innermost).range)
    }

    /// Ends the innermost `record_function` range.
    pub(super) fn end(&mut self, steps: &mut Steps) {
        if self.beyond > 0 {
            self.beyond -= 1;
        } else if let Some(RangeKind::Optimizer { steps: Some(optimizer), .. }) = self.take(false) {
            // A `step` that calls that of its base class opens two ranges of the same name.
            let is_within =
                |open: &OpenRange| matches!(open.range, RangeKind::Optimizer { steps, .. } if steps == Some(optimizer));
            if !self.open.iter().any(is_within) {
                steps.took_one(optimizer);
            }
        }
    }

    /// Returns whether any range is open.
    pub(super) const fn is_open(&self) -> bool {
        !self.open.is_empty() || self.beyond > 0 || self.nvtx_beyond > 0
    }

    /// Removes optimizer ranges when no optimizer method is running, since their ends were lost.
    pub(super) fn close_optimizers(&mut self) {
        self.open.retain(|open| !matches!(open.range, RangeKind::Optimizer { .. }));
    }

    /// Begins an NVTX range.
    pub(super) fn push(&mut self, range: RangeKey, began_ns: u64) {
        self.nvtx_beyond += u64::from(!self.begin(RangeKind::Nvtx(range), began_ns));
    }

    /// Ends the innermost NVTX range.
    pub(super) fn pop(&mut self) {
        if self.nvtx_beyond > 0 {
            self.nvtx_beyond -= 1;
        } else {
            self.take(true);
        }
    }

    /// Returns when the innermost optimizer range began, as an event count; `None` if none is open.
    pub(super) fn optimizer(&self) -> Option<u64> {
        self.open.iter().rev().find_map(|open| match open.range {
            RangeKind::Optimizer { moment, .. } => Some(moment),
            RangeKind::Range(_) | RangeKind::Nvtx(_) => None,
        })
    }

    /// Returns the name of the innermost range of the program.
    pub(super) fn range(&self) -> Option<RangeKey> {
        self.open.iter().rev().find_map(|open| open.range.range())
    }

    /// Frees a block allocated in this range at this time. If the range has been open since before
    /// that, returns the bytes on the device allocated and freed in it so far.
    pub(super) fn give_back(&mut self, range: RangeKey, granted_ns: u64, block: (Ordinal, u64)) -> Option<u64> {
        let is_it = |open: &&mut OpenRange| open.range.range() == Some(range) && open.began_ns <= granted_ns;
        let (ordinal, bytes) = block;
        let temporary = self.open.iter_mut().rev().find(is_it)?.temporary.entry(ordinal).or_default();
        *temporary = temporary.saturating_add(bytes);
        Some(*temporary)
    }
}

/// Steps of the optimizers by range name. Optimizers of one class count together.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Steps {
    ids: HashMap<Box<str>, u32>,
    taken: Vec<u64>,
}

impl Steps {
    fn of(&mut self, optimizer: &str) -> Option<u32> {
        if let Some(id) = self.ids.get(optimizer) {
            return Some(*id);
        }
        let id = u32::try_from(self.taken.len()).ok().filter(|_| self.taken.len() < OPTIMIZERS)?;
        self.ids.insert(optimizer.into(), id);
        self.taken.push(0);
        Some(id)
    }

    fn took_one(&mut self, optimizer: u32) {
        if let Some(taken) = self.taken.get_mut(optimizer as usize) {
            *taken += 1;
        }
    }

    /// Returns the steps of the process: those of the optimizer with the most. Others, such as a
    /// discriminator's, may step less often.
    pub(super) fn process(&self) -> u64 {
        self.taken.iter().copied().max().unwrap_or(0)
    }

    /// Returns each optimizer with its steps, sorted by name.
    pub(super) fn by_optimizer(&self) -> Vec<(&str, u64)> {
        let mut all: Vec<_> =
            self.ids.iter().map(|(name, id)| (&**name, self.taken.get(*id as usize).copied().unwrap_or(0))).collect();
        all.sort_unstable();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_counts_when_its_range_ends() {
        let (mut ranges, mut steps) = (ThreadRanges::default(), Steps::default());
        ranges.begin_optimizer("Optimizer.zero_grad#AdamW.zero_grad", 0, &mut steps);
        ranges.end(&mut steps);
        ranges.begin_optimizer("Optimizer.step#AdamW.step", 7, &mut steps);
        assert_eq!((ranges.optimizer(), steps.process()), (Some(7), 0));
        ranges.end(&mut steps);
        assert_eq!((ranges.optimizer(), steps.process()), (None, 1));
        ranges.end(&mut steps);
        assert_eq!(steps.by_optimizer(), [("AdamW.step", 1)]);
    }

    #[test]
    fn a_step_that_calls_its_base_class_is_one() {
        let (mut ranges, mut steps) = (ThreadRanges::default(), Steps::default());
        ranges.begin_optimizer("Optimizer.step#Own.step", 0, &mut steps);
        ranges.begin_optimizer("Optimizer.step#Own.step", 0, &mut steps);
        ranges.end(&mut steps);
        ranges.end(&mut steps);
        assert_eq!(steps.process(), 1);
    }

    #[test]
    fn step_count_of_a_process_is_that_of_its_busiest_optimizer() {
        let (mut ranges, mut steps) = (ThreadRanges::default(), Steps::default());
        for name in ["Optimizer.step#Adam.step", "Optimizer.step#SGD.step", "Optimizer.step#Adam.step"] {
            ranges.begin_optimizer(name, 0, &mut steps);
            ranges.end(&mut steps);
        }
        assert_eq!(steps.process(), 2);
    }

    #[test]
    fn innermost_range_wins_over_outer_marked_and_pushed_ranges() {
        let (mut ranges, mut steps) = (ThreadRanges::default(), Steps::default());
        ranges.begin_range(RangeKey(1), 0);
        ranges.push(RangeKey(2), 0);
        assert_eq!(ranges.range(), Some(RangeKey(2)));
        ranges.begin_range(RangeKey(3), 0);
        assert_eq!(ranges.range(), Some(RangeKey(3)));
        // Not in the order of their beginnings: each kind keeps its own.
        ranges.pop();
        assert_eq!(ranges.range(), Some(RangeKey(3)));
        ranges.end(&mut steps);
        assert_eq!(ranges.range(), Some(RangeKey(1)));
    }

    #[test]
    fn ranges_never_closed_cost_no_memory_and_keep_the_others_in_order() {
        let (mut ranges, mut steps) = (ThreadRanges::default(), Steps::default());
        (0..10_000).for_each(|_| ranges.begin_range(RangeKey(1), 0));
        assert_eq!((ranges.open.len(), ranges.range()), (DEEP, Some(RangeKey(1))));
        ranges.push(RangeKey(3), 0);
        (0..10_000).for_each(|_| ranges.end(&mut steps));
        assert_eq!(ranges.range(), Some(RangeKey(3)));
        ranges.pop();
        ranges.pop();
        assert_eq!(ranges.range(), None);
        for optimizer in 0..1000 {
            ranges.begin_optimizer(&format!("Optimizer.step#{optimizer}"), 0, &mut steps);
            ranges.end(&mut steps);
        }
        assert_eq!(steps.by_optimizer().len(), OPTIMIZERS);
    }

    #[test]
    fn bytes_freed_within_their_open_range_are_temporary() {
        let (mut ranges, mut steps, gpu) = (ThreadRanges::default(), Steps::default(), Ordinal(0));
        ranges.begin_range(RangeKey(1), 100);
        assert_eq!(ranges.give_back(RangeKey(1), 101, (gpu, 10)), Some(10));
        ranges.begin_range(RangeKey(2), 110);
        assert_eq!(ranges.give_back(RangeKey(1), 105, (gpu, 20)), Some(30), "a range within is open too");
        assert_eq!(ranges.give_back(RangeKey(2), 111, (gpu, 5)), Some(5));
        assert_eq!(ranges.give_back(RangeKey(1), 102, (Ordinal(1), 7)), Some(7), "each device has its own sum");
        ranges.end(&mut steps);
        assert_eq!(ranges.give_back(RangeKey(2), 112, (gpu, 5)), None, "it has outlived its range");
        ranges.end(&mut steps);
        ranges.begin_range(RangeKey(1), 200);
        assert_eq!(ranges.give_back(RangeKey(1), 106, (gpu, 1)), None, "it is of the opening before");
        assert_eq!(ranges.give_back(RangeKey(1), 200, (gpu, 2)), Some(2));
    }
}
