//! Live objects of a process, grouped by class, name, type or module.

mod known;
mod summed;
pub mod view;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::input::allocator_state::{AllocatorState, DeviceAllocatorState, StateBlock, StateBlockUse};
use crate::input::held_names::HeldPieces;
use crate::input::holdings::{Holding, HoldingClass, Holdings};
use crate::words::Ordinal;

pub use self::known::{KnownHoldings, known_holdings, last_names};
pub use self::summed::sum_by_name;

use view::{ClassSumView, DeviceHoldingsView, HoldingGroupView, HoldingGrouping, HoldingsView};

/// Totals that the allocator of a device reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatorTotals {
    /// The device.
    pub ordinal: Ordinal,
    /// Bytes reserved from the driver.
    pub reserved_bytes: u64,
    /// Bytes of blocks that changed during the reading and are in no row; `None` if all blocks are
    /// in a row.
    pub changing_bytes: Option<u64>,
    /// Bytes allocated after the reading.
    pub later_bytes: Option<u64>,
    /// Free memory in segments with blocks in use; `None` if not all blocks were read at one moment.
    pub pieces: Option<HeldPieces>,
}

impl AllocatorTotals {
    /// Returns the totals of an allocator state that was read completely.
    pub fn of_allocator_state(allocator_state: &AllocatorState) -> Vec<Self> {
        let totals = |device: &DeviceAllocatorState| Self {
            ordinal: device.ordinal,
            reserved_bytes: device.segments.iter().map(|segment| segment.bytes).fold(0, u64::saturating_add),
            changing_bytes: None,
            later_bytes: None,
            pieces: Some(pieces(device)),
        };
        allocator_state.devices.iter().map(totals).collect()
    }
}

/// Returns the free memory beside blocks in use that requests of more than 1 MiB can use.
fn pieces(device: &DeviceAllocatorState) -> HeldPieces {
    let is_free = |block: &&StateBlock| block.state == StateBlockUse::Inactive;
    let usual = device.segments.iter().filter(|segment| !segment.is_small && segment.private_pool == (0, 0));
    let in_use = usual.filter(|segment| !segment.blocks.iter().all(|block| is_free(&block)));
    let free = in_use.flat_map(|segment| segment.blocks.iter().filter(is_free));
    free.fold(HeldPieces::default(), |sum, block| HeldPieces {
        bytes: sum.bytes.saturating_add(block.bytes),
        largest_bytes: sum.largest_bytes.max(block.bytes),
    })
}

/// Returns the view of a process, with at most `top` groups.
pub fn view(holdings: &Holdings, totals: &[AllocatorTotals], by: HoldingGrouping, top: usize) -> HoldingsView {
    let rows: Vec<_> = holdings.rows.iter().collect();
    view_of(holdings, &rows, totals, (by, top))
}

/// Returns the view of some blocks of a process.
fn view_of(
    holdings: &Holdings,
    rows: &[&Holding],
    totals: &[AllocatorTotals],
    (by, top): (HoldingGrouping, usize),
) -> HoldingsView {
    let allocated_bytes = rows.iter().map(|row| row.block_bytes).sum();
    let named = rows.iter().filter(|row| row.class.is_named());
    let mut groups = groups(rows, by, holdings.time_ns);
    let more_groups = groups.len().saturating_sub(top) as u64;
    groups.truncate(top);
    HoldingsView {
        tgid: holdings.tgid,
        by,
        read_ns: holdings.time_ns,
        devices: devices(rows, totals),
        allocated_bytes,
        named_bytes: named.map(|row| row.block_bytes).sum(),
        without_names: holdings.without_names.clone(),
        dropped_names: holdings.dropped_names,
        is_partial: holdings.is_partial,
        cut_by: holdings.cut_by,
        objects: holdings.objects,
        tensors: holdings.tensors,
        read_bytes: holdings.read_bytes,
        classes: classes(rows),
        groups,
        more_groups,
        advice: holdings.advice.clone(),
    }
}

fn devices(rows: &[&Holding], totals: &[AllocatorTotals]) -> Vec<DeviceHoldingsView> {
    let device = |totals: &AllocatorTotals| {
        let rows = rows.iter().filter(|row| row.ordinal == totals.ordinal);
        DeviceHoldingsView {
            ordinal: totals.ordinal,
            allocated_bytes: rows.map(|row| row.block_bytes).sum(),
            reserved_bytes: totals.reserved_bytes,
            changing_bytes: totals.changing_bytes,
            later_bytes: totals.later_bytes,
        }
    };
    totals.iter().map(device).collect()
}

fn classes(rows: &[&Holding]) -> Vec<ClassSumView> {
    let sum = |class: HoldingClass| {
        let of_class = || rows.iter().filter(move |row| row.class == class);
        ClassSumView { class, bytes: of_class().map(|row| row.block_bytes).sum(), count: of_class().count() as u64 }
    };
    HoldingClass::ALL.into_iter().map(sum).filter(|sum| sum.count > 0).collect()
}

/// Returns all groups, the largest first.
fn groups(rows: &[&Holding], by: HoldingGrouping, read_ns: u64) -> Vec<HoldingGroupView> {
    let mut members = BTreeMap::<(Option<HoldingClass>, Option<String>), Vec<&Holding>>::new();
    for &row in rows {
        members.entry(key(row, by)).or_default().push(row);
    }
    let mut groups: Vec<_> =
        members.into_iter().map(|((_, name), rows)| group(name.as_ref(), &rows, read_ns)).collect();
    groups.sort_by_key(|group| Reverse(group.bytes));
    groups
}

fn key(row: &Holding, by: HoldingGrouping) -> (Option<HoldingClass>, Option<String>) {
    match by {
        HoldingGrouping::Name => (Some(row.class), row.pattern()),
        HoldingGrouping::Class => (Some(row.class), Some(row.class.label().to_owned())),
        HoldingGrouping::Dtype => (None, row.dtype.clone()),
        HoldingGrouping::Retainer => retainer(row),
        // Blocks that belong to no module are grouped by class.
        HoldingGrouping::Module => match row.module() {
            Some(module) => (None, Some(module.to_owned())),
            None => (Some(row.class), None),
        },
    }
}

/// Returns the key of the retainer that has to release the block.
fn retainer(row: &Holding) -> (Option<HoldingClass>, Option<String>) {
    match row.class {
        HoldingClass::Tensor => (None, row.pattern()),
        HoldingClass::SavedForBackward if row.kept_by.is_some() => (None, row.retainer_pattern()),
        HoldingClass::Parameter | HoldingClass::Buffer | HoldingClass::Gradient | HoldingClass::OptimizerState => {
            let model = row.owner.as_ref().map(|owner| format!("model {}", owner.root_class));
            (None, model.or_else(|| Some(row.class.label().to_owned())))
        }
        HoldingClass::Unreachable => (Some(row.class), row.pattern()),
        _ => (Some(row.class), None),
    }
}

fn group(name: Option<&String>, rows: &[&Holding], read_ns: u64) -> HoldingGroupView {
    let largest = rows.iter().max_by_key(|row| row.block_bytes);
    let kept_by = same(rows, |row| row.kept_by.clone()).or_else(|| same(rows, Holding::retainer_pattern));
    let text = |text: Option<&String>| text.map(|text| Arc::from(text.as_str()));
    HoldingGroupView {
        name: text(name),
        class: same(rows, |row| Some(row.class)),
        bytes: rows.iter().map(|row| row.block_bytes).sum(),
        storage_bytes: rows.iter().filter_map(|row| row.storage_bytes).sum(),
        count: rows.len() as u64,
        shape: same(rows, |row| row.shape.as_ref()).cloned(),
        dtype: text(same(rows, |row| row.dtype.as_ref())),
        tensor_type: text(same(rows, |row| row.tensor_type.as_ref())),
        kept_by: kept_by.map(Into::into),
        example: text(largest.and_then(|row| row.name.as_ref())),
        lost_models: rows.iter().filter_map(|row| Some(row.lost_module()?.root_address)).collect::<BTreeSet<_>>().len()
            as u64,
        name_age_ns: rows.iter().filter_map(|row| Some(read_ns.saturating_sub(row.named_ns?))).max(),
        other_names: rows.iter().map(|row| row.other_names.len() as u64).sum(),
    }
}

/// Returns the value that all rows share, if there is one.
fn same<'r, T: PartialEq>(rows: &[&'r Holding], of: impl Fn(&'r Holding) -> Option<T>) -> Option<T> {
    let first = of(rows.first()?)?;
    rows.iter().all(|row| of(row).as_ref() == Some(&first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::holdings::OwnerModule;

    fn row(class: HoldingClass, name: Option<&str>, bytes: u64, shape: &[u64]) -> Holding {
        Holding {
            class,
            name: name.map(str::to_owned),
            shape: Some(shape.to_vec()),
            dtype: Some("float32".to_owned()),
            ..Holding::unknown(Ordinal(0), bytes, bytes)
        }
    }

    fn holdings() -> Holdings {
        let rows = vec![
            row(HoldingClass::Parameter, Some("h.0.attn.weight"), 100, &[2, 3]),
            row(HoldingClass::Parameter, Some("h.1.attn.weight"), 100, &[2, 3]),
            row(HoldingClass::Gradient, Some("h.1.attn.weight"), 100, &[2, 3]),
            row(HoldingClass::OptimizerState, Some("exp_avg of h.1.attn.weight"), 100, &[2, 3]),
            row(HoldingClass::Tensor, Some("main.py:main: kept[1]"), 300, &[4]),
            row(HoldingClass::Tensor, Some("main.py:main: kept[22]"), 400, &[5]),
            Holding::unknown(Ordinal(0), 1, 50),
        ];
        Holdings { rows, ..Holdings::default() }
    }

    fn names(by: HoldingGrouping) -> Vec<(Option<String>, u64, u64)> {
        let view = view(&holdings(), &[], by, 10);
        view.groups.iter().map(|group| (group.name.as_deref().map(str::to_owned), group.bytes, group.count)).collect()
    }

    fn named(name: &str, bytes: u64, count: u64) -> (Option<String>, u64, u64) {
        (Some(name.to_owned()), bytes, count)
    }

    #[test]
    fn names_that_differ_in_indices_are_one_group_of_their_class() {
        let expected = vec![
            named("main.py:main: kept[*]", 700, 2),
            named("h.*.attn.weight", 200, 2),
            named("h.*.attn.weight", 100, 1),
            named("exp_avg of h.*.attn.weight", 100, 1),
            (None, 50, 1),
        ];
        assert_eq!(names(HoldingGrouping::Name), expected);
    }

    #[test]
    fn a_module_has_its_parameters_with_their_gradients_and_state() {
        let expected = [(None, 700, 2), named("h.1.attn", 300, 3), named("h.0.attn", 100, 1), (None, 50, 1)];
        assert_eq!(names(HoldingGrouping::Module), expected);
    }

    #[test]
    fn a_retainer_has_its_tensors_and_what_their_graph_saved() {
        let saved = Holding {
            kept_by: Some("main.py:main: kept[3]".to_owned()),
            ..row(HoldingClass::SavedForBackward, Some("ExpBackward0"), 1000, &[1])
        };
        let rows = [holdings().rows, vec![saved]].concat();
        let view = view(&Holdings { rows, ..Holdings::default() }, &[], HoldingGrouping::Retainer, 10);
        let first = &view.groups[0];
        assert_eq!((first.name.as_deref(), first.bytes, first.count), (Some("main.py:main: kept[*]"), 1700, 3));
        assert_eq!((first.class, view.groups.len()), (None, 5));
    }

    #[test]
    fn a_group_has_a_retainer_where_theirs_differ_only_in_indices() {
        let saved = |kept_by: &str| Holding {
            kept_by: Some(kept_by.to_owned()),
            ..row(HoldingClass::SavedForBackward, Some("ExpBackward0"), 10, &[1])
        };
        let retainer = |rows: Vec<Holding>| {
            let view = view(&Holdings { rows, ..Holdings::default() }, &[], HoldingGrouping::Name, 10);
            view.groups[0].kept_by.as_deref().map(str::to_owned)
        };
        assert_eq!(retainer(vec![saved("losses[1]"), saved("losses[1]")]).as_deref(), Some("losses[1]"));
        assert_eq!(retainer(vec![saved("losses[1]"), saved("losses[2]")]).as_deref(), Some("losses[*]"));
        assert_eq!(retainer(vec![saved("losses[1]"), saved("total")]), None);
    }

    #[test]
    fn models_that_no_variable_leads_to_are_one_row_of_their_class() {
        let lost = |root_address: u64, part: &str| Holding {
            owner: Some(OwnerModule {
                address: root_address,
                class: "Linear".into(),
                name: "body".into(),
                root_address,
                root_class: "Policy".into(),
            }),
            ..row(HoldingClass::Unreachable, Some(&format!("<Policy>.body.{part}")), 10, &[2])
        };
        let rows = vec![lost(1, "weight"), lost(1, "bias"), lost(2, "weight"), lost(2, "bias")];
        let view = view(&Holdings { rows, ..Holdings::default() }, &[], HoldingGrouping::Name, 10);
        let [group] = &view.groups[..] else { panic!("{:?}", view.groups) };
        assert_eq!((group.name.as_deref(), group.count, group.lost_models), (Some("<Policy>"), 4, 2));
    }

    #[test]
    fn a_group_has_the_age_of_its_oldest_name() {
        let named = |named_ns| Holding { named_ns, ..row(HoldingClass::Tensor, Some("kept[1]"), 10, &[2]) };
        let rows = vec![named(Some(3)), named(None), named(Some(7))];
        let view = view(&Holdings { time_ns: 10, rows, ..Holdings::default() }, &[], HoldingGrouping::Name, 10);
        assert_eq!(view.groups[0].name_age_ns, Some(7));
    }

    #[test]
    fn a_group_has_a_shape_only_where_all_of_it_has_it() {
        let view = view(&holdings(), &[], HoldingGrouping::Name, 2);
        assert_eq!((view.groups[0].shape.as_deref(), view.groups[1].shape.as_deref()), (None, Some(&[2, 3][..])));
        assert_eq!((view.more_groups, view.allocated_bytes, view.named_bytes), (3, 1150, 1100));
    }

    #[test]
    fn holdings_sum_to_all_bytes_under_every_grouping() {
        for by in [
            HoldingGrouping::Name,
            HoldingGrouping::Class,
            HoldingGrouping::Dtype,
            HoldingGrouping::Module,
            HoldingGrouping::Retainer,
        ] {
            assert_eq!(names(by).iter().map(|(_, bytes, _)| bytes).sum::<u64>(), 1150, "{by:?}");
        }
    }
}
