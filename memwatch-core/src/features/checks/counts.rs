//! How often reports of a watch have contradicted themselves: once for each contradiction, for as long as it lasts.

use std::collections::BTreeSet;

use super::{Contradiction, ContradictionKind};
use crate::words::Tgid;

/// Contradictions since the watch began.
#[derive(Clone, Debug, Default)]
pub struct ContradictionCounts {
    totals: [u64; ContradictionKind::ALL.len()],
    last: BTreeSet<(ContradictionKind, Option<Tgid>)>,
}

impl ContradictionCounts {
    /// Counts what was found in one more report of the kinds that it was asked for; what the report before had, too, goes on.
    pub fn note(&mut self, asked: &[ContradictionKind], found: &[Contradiction]) {
        let now: BTreeSet<_> = found.iter().map(|one| (one.kind, one.tgid)).collect();
        for (kind, tgid) in &now {
            if !self.last.contains(&(*kind, *tgid)) {
                self.totals[kind.index()] += 1;
            }
        }
        self.last.retain(|(kind, _)| !asked.contains(kind));
        self.last.extend(now);
    }

    /// How many of each kind there were, in the order of [`ContradictionKind::ALL`].
    pub const fn totals(&self) -> [u64; ContradictionKind::ALL.len()] {
        self.totals
    }
}

#[cfg(test)]
mod tests {
    use super::super::{OF_LEAKS, OF_SNAPSHOT, found};
    use super::*;

    #[test]
    fn a_contradiction_that_lasts_is_one_and_one_that_comes_again_is_another() {
        let of = |tgid| found(ContradictionKind::PartsAndTotal, Some(Tgid(tgid)), [1, 2]);
        let older = found(ContradictionKind::OlderGrows, Some(Tgid(7)), [1, 2]);
        let mut counts = ContradictionCounts::default();
        counts.note(&OF_SNAPSHOT, &[of(7)]);
        counts.note(&OF_LEAKS, &[older]);
        counts.note(&OF_SNAPSHOT, &[of(7), of(8)]);
        assert_eq!(counts.totals()[ContradictionKind::PartsAndTotal.index()], 2);
        counts.note(&OF_SNAPSHOT, &[]);
        counts.note(&OF_LEAKS, &[older]);
        counts.note(&OF_SNAPSHOT, &[of(7)]);
        assert_eq!(counts.totals()[ContradictionKind::PartsAndTotal.index()], 3);
        assert_eq!(counts.totals().iter().sum::<u64>(), 4, "growth of what is older goes on");
    }
}
