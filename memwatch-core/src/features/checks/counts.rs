//! Counts the contradictions found in reports; one that lasts over several reports counts once.

use std::collections::BTreeSet;

use super::{ContradictionKind, ReportContradiction};
use crate::words::Tgid;

/// Numbers of contradictions since the session began.
#[derive(Clone, Debug, Default)]
pub struct ContradictionCounts {
    totals: [u64; ContradictionKind::ALL.len()],
    last: BTreeSet<(ContradictionKind, Option<Tgid>)>,
}

impl ContradictionCounts {
    /// Counts the contradictions found in a report that was checked for the kinds `asked`. A
    /// contradiction that the previous report had, too, is not counted again.
    pub fn note(&mut self, asked: &[ContradictionKind], found: &[ReportContradiction]) {
        let now: BTreeSet<_> = found.iter().map(|one| (one.kind, one.tgid)).collect();
        for (kind, tgid) in &now {
            if !self.last.contains(&(*kind, *tgid)) {
                self.totals[kind.index()] += 1;
            }
        }
        self.last.retain(|(kind, _)| !asked.contains(kind));
        self.last.extend(now);
    }

    /// Returns the number of contradictions of each kind, in the order of
    /// [`ContradictionKind::ALL`].
    pub const fn totals(&self) -> [u64; ContradictionKind::ALL.len()] {
        self.totals
    }
}

#[cfg(test)]
mod tests {
    use super::super::{OF_LEAKS, OF_SNAPSHOT, found};
    use super::*;

    #[test]
    fn contradiction_that_lasts_is_counted_once_and_a_recurring_one_again() {
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
