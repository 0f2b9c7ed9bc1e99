//! Remembers names of earlier readings: an unchanged block keeps its name if a later reading, taken
//! during a change, does not find it.

use std::collections::HashMap;

use memwatch_core::input::holdings::{Holding, HoldingClass, Holdings};
use memwatch_core::words::Ordinal;

/// Age at which a name is forgotten unless found again.
const LONGEST_NS: u64 = 600_000_000_000;

/// Last name of each block and when it was read. Keys are device, address and size.
#[derive(Debug, Default)]
pub(super) struct RememberedNames(HashMap<(Ordinal, u64, u64), (Holding, u64)>);

impl RememberedNames {
    /// Fills in remembered names for blocks without a name in this reading, and remembers the names
    /// it has found.
    pub(super) fn complete(&mut self, holdings: &mut Holdings) {
        let now_ns = holdings.time_ns;
        let mut next = HashMap::new();
        for row in &mut holdings.rows {
            let key = (row.ordinal, row.address, row.block_bytes);
            let is_doubtful = matches!(row.class, HoldingClass::Changed | HoldingClass::NotRead);
            let earlier = self.0.remove(&key).filter(|(_, read_ns)| now_ns.saturating_sub(*read_ns) <= LONGEST_NS);
            if row.is_found() {
                next.insert(key, (row.clone(), now_ns));
            } else if let Some((known, read_ns)) = earlier.filter(|_| is_doubtful) {
                *row = Holding { named_ns: Some(read_ns), ..known.clone() };
                next.insert(key, (known, read_ns));
            }
        }
        self.0 = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(address: u64, class: HoldingClass) -> Holding {
        let name = class.is_named().then(|| format!("kept[{address}]"));
        Holding { class, name, ..Holding::unknown(Ordinal(0), address, 512) }
    }

    fn reading(second: u64, rows: &[(u64, HoldingClass)]) -> Holdings {
        let rows = rows.iter().map(|(address, class)| row(*address, *class)).collect();
        Holdings { time_ns: second * 1_000_000_000, rows, ..Holdings::default() }
    }

    #[test]
    fn remembered_name_keeps_its_age_while_the_block_is_live() {
        let mut names = RememberedNames::default();
        let (found, changed) = (HoldingClass::Tensor, HoldingClass::Changed);
        names.complete(&mut reading(1, &[(1, found), (2, found), (3, found)]));
        let mut second = reading(2, &[(1, changed), (2, found), (3, HoldingClass::NoPythonObject)]);
        names.complete(&mut second);
        let texts: Vec<_> = second.rows.iter().map(|row| row.name.as_deref()).collect();
        assert_eq!(texts, [Some("kept[1]"), Some("kept[2]"), None], "what is shown to be nothing has no name");
        let read: Vec<_> = second.rows.iter().map(|row| row.named_ns).collect();
        assert_eq!(read, [Some(1_000_000_000), None, None]);
        let mut third = reading(3, &[(1, changed)]);
        names.complete(&mut third);
        assert_eq!(third.rows[0].named_ns, Some(1_000_000_000), "its age is that of the reading that found it");
        names.complete(&mut reading(4, &[]));
        let mut other = reading(5, &[(1, changed)]);
        names.complete(&mut other);
        assert_eq!((other.rows[0].class, other.rows[0].named_ns), (changed, None), "another block came to its address");
    }
}
