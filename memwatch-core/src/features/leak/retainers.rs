//! Groups the rows of a reading by class and name (the retainers), with the oldest and the newest
//! name of each group.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::features::leak::view::RetainerView;
use crate::input::holdings::{Holding, HoldingClass};

/// Class and name that the blocks of one retainer share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Retainer {
    pub(super) class: HoldingClass,
    /// Name with `*` for indices.
    pub(super) name: Option<String>,
    pub(super) kept_by: Option<String>,
}

impl Retainer {
    pub(super) fn of(row: &Holding) -> Self {
        let name = row.pattern().map(of_all_instances);
        Self { class: row.class, name, kept_by: row.retainer_pattern().map(of_all_instances) }
    }
}

/// Replaces the instance number of a module: `Policy (312).body.*.weight` → `Policy
/// (*).body.*.weight`.
fn of_all_instances(pattern: String) -> String {
    let Some((class, behind)) = pattern.split_once(" (") else { return pattern };
    let Some((number, rest)) = behind.split_once(')') else { return pattern };
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { format!("{class} (*){rest}") } else { pattern }
}

/// Groups blocks by retainer, most bytes first. Each block comes with the time since which it
/// exists.
pub(super) fn retainers<'r>(blocks: impl IntoIterator<Item = (&'r Holding, u64)>) -> Vec<RetainerView> {
    let mut members = BTreeMap::<Retainer, Vec<(&Holding, u64)>>::new();
    for (row, since_ns) in blocks {
        members.entry(Retainer::of(row)).or_default().push((row, since_ns));
    }
    let mut views: Vec<_> = members.into_iter().map(|(retainer, blocks)| view(retainer, &blocks)).collect();
    views.sort_by_key(|view| Reverse(view.bytes));
    views
}

fn view(retainer: Retainer, blocks: &[(&Holding, u64)]) -> RetainerView {
    let name = |row: &Holding| if row.kept_by.is_some() { row.kept_by.clone() } else { row.name.clone() };
    // Among blocks that appeared at the same time the shorter name is the older: within one pattern
    // it has the lower index.
    let age = |(row, since_ns): &&(&Holding, u64)| {
        let name = name(row).unwrap_or_default();
        (*since_ns, name.len(), name)
    };
    let name_of = |block: Option<&(&Holding, u64)>| block.and_then(|(row, _)| name(row));
    RetainerView {
        class: retainer.class,
        name: retainer.name,
        kept_by: retainer.kept_by,
        bytes: blocks.iter().map(|(row, _)| row.block_bytes).fold(0, u64::saturating_add),
        count: blocks.len() as u64,
        oldest: name_of(blocks.iter().min_by_key(age)),
        newest: name_of(blocks.iter().max_by_key(age)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::Ordinal;

    fn row(class: HoldingClass, name: &str, bytes: u64) -> Holding {
        Holding { class, name: Some(name.to_owned()), ..Holding::unknown(Ordinal(0), 0, bytes) }
    }

    #[test]
    fn retainer_merges_indices_and_keeps_its_oldest_and_newest_block() {
        let rows = [
            (row(HoldingClass::Tensor, "a.py:main: kept[9]", 10), 5),
            (row(HoldingClass::Tensor, "a.py:main: kept[11]", 10), 5),
            (row(HoldingClass::Tensor, "a.py:main: kept[0]", 10), 1),
            (row(HoldingClass::Tensor, "cache", 100), 3),
            (row(HoldingClass::Parameter, "cache", 1), 3),
        ];
        let retainers = retainers(rows.iter().map(|(row, since_ns)| (row, *since_ns)));
        let names: Vec<_> =
            retainers.iter().map(|retainer| (retainer.name.as_deref(), retainer.bytes, retainer.count)).collect();
        assert_eq!(names, [(Some("cache"), 100, 1), (Some("a.py:main: kept[*]"), 30, 3), (Some("cache"), 1, 1)]);
        let kept = &retainers[1];
        let ends = (kept.oldest.as_deref(), kept.newest.as_deref());
        assert_eq!(ends, (Some("a.py:main: kept[0]"), Some("a.py:main: kept[11]")));
    }

    #[test]
    fn retainer_merges_equal_modules_with_different_numbers() {
        let of = |name: &str| (row(HoldingClass::Parameter, name, 8), 1);
        let rows = [of("Policy (3).body.0.weight"), of("Policy (12).body.2.weight"), of("Policy (a).body.0.weight")];
        let retainers = retainers(rows.iter().map(|(row, since_ns)| (row, *since_ns)));
        let names: Vec<_> = retainers.iter().map(|retainer| (retainer.name.as_deref(), retainer.count)).collect();
        assert_eq!(names, [(Some("Policy (*).body.*.weight"), 2), (Some("Policy (a).body.*.weight"), 1)]);
    }

    #[test]
    fn retainer_of_saved_tensors_is_the_tensor_of_their_graph() {
        let saved = |owner: &str| Holding {
            kept_by: Some(owner.to_owned()),
            ..row(HoldingClass::SavedForBackward, "ExpBackward0", 4)
        };
        let rows = [saved("losses[0]"), saved("losses[1]")];
        let retainers = retainers(rows.iter().zip(1..));
        assert_eq!(retainers.len(), 1, "{retainers:?}");
        assert_eq!(retainers[0].kept_by.as_deref(), Some("losses[*]"));
        assert_eq!(retainers[0].newest.as_deref(), Some("losses[1]"));
    }
}
