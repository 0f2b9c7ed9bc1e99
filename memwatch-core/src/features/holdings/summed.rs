//! Sums blocks by name.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::input::held_names::HeldGroup;
use crate::input::holdings::{Holding, HoldingClass};
use crate::words::Ordinal;

/// Names of attributes in which engines and models keep keys and values.
const KV_NAMES: [&str; 9] =
    ["kv_cache", "kv_caches", "kv_buffer", "k_buffer", "v_buffer", "key_cache", "value_cache", "k_cache", "v_cache"];
/// Name of the argument in which a model gets keys and values of earlier tokens.
const PAST_KEY_VALUES: &str = "past_key_values";
/// Maximum length of a name in characters; of a longer one, both ends are kept.
const NAME_CHARS: usize = 200;

/// What the groups of one list have in common: device, class, and whether they are a KV cache.
type ListKey = (Ordinal, HoldingClass, bool);
/// Name and retainer, with `*` for indices.
type NameKey = (Option<String>, Option<String>);

/// Sums blocks by name, the largest group of each class first. Of each device and class, at most
/// `most` groups are kept; the others are one group without a name.
pub fn sum_by_name(blocks: &[&Holding], most: usize) -> Vec<HeldGroup> {
    let mut lists = BTreeMap::<ListKey, BTreeMap<NameKey, HeldGroup>>::new();
    for block in blocks {
        let name = block.pattern();
        let key = (block.ordinal, block.class, is_kv_cache(block.class, name.as_deref()));
        let own = group_of(block, key, name.map(shortened));
        let list = lists.entry(key).or_default();
        match list.get_mut(&(own.name.clone(), own.kept_by.clone())) {
            Some(group) => add(group, &own),
            None => drop(list.insert((own.name.clone(), own.kept_by.clone()), own)),
        }
    }
    lists.into_values().flat_map(|list| largest(list.into_values().collect(), most)).collect()
}

fn group_of(block: &Holding, (ordinal, class, is_kv_cache): ListKey, name: Option<String>) -> HeldGroup {
    let kept_by = block.retainer_pattern().map(shortened);
    let (dtype, bytes) = (block.dtype.clone(), block.block_bytes);
    HeldGroup { ordinal, class, is_kv_cache, name, kept_by, dtype, bytes, blocks: 1 }
}

fn add(group: &mut HeldGroup, other: &HeldGroup) {
    group.bytes = group.bytes.saturating_add(other.bytes);
    group.blocks = group.blocks.saturating_add(other.blocks);
    if group.dtype != other.dtype {
        group.dtype = None;
    }
}

/// Returns the largest groups of a list, and the sum of the others without a name.
fn largest(mut groups: Vec<HeldGroup>, most: usize) -> Vec<HeldGroup> {
    groups.sort_by_key(|group| Reverse(group.bytes));
    let rest = groups.split_off(most.min(groups.len()));
    let rest = rest.into_iter().reduce(|mut sum, group| {
        add(&mut sum, &group);
        sum
    });
    groups.extend(rest.map(|rest| HeldGroup { name: None, kept_by: None, ..rest }));
    groups
}

/// Whether the last attribute of a tensor's name is one in which keys and values are kept.
fn is_kv_cache(class: HoldingClass, name: Option<&str>) -> bool {
    let (HoldingClass::Tensor | HoldingClass::Buffer, Some(name)) = (class, name) else { return false };
    let last = name.rsplit_once('.').map_or(name, |(_, last)| last);
    let last = last.split_once('[').map_or(last, |(name, _)| name);
    KV_NAMES.contains(&last) || name.split(['.', '[', ' ']).any(|part| part == PAST_KEY_VALUES)
}

fn shortened(name: String) -> String {
    let length = name.chars().count();
    if length <= NAME_CHARS {
        return name;
    }
    let end = NAME_CHARS / 2;
    let ends = [name.chars().take(end).collect::<String>(), name.chars().skip(length - end).collect()];
    ends.join("…")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(class: HoldingClass, name: &str, bytes: u64) -> Holding {
        let (name, dtype) = (Some(name.to_owned()), Some("float32".to_owned()));
        Holding { class, name, dtype, ..Holding::unknown(Ordinal(0), bytes, bytes) }
    }

    fn sums(blocks: &[Holding], most: usize) -> Vec<(HoldingClass, Option<String>, u64, u64)> {
        let blocks: Vec<&Holding> = blocks.iter().collect();
        let groups = sum_by_name(&blocks, most).into_iter();
        groups.map(|group| (group.class, group.name, group.bytes, group.blocks)).collect()
    }

    #[test]
    fn names_beyond_the_largest_are_one_group_and_all_groups_add_up() {
        let tensor = |name: &str, bytes| block(HoldingClass::Tensor, name, bytes);
        let blocks = [
            tensor("a[0]", 10),
            tensor("a[1]", 10),
            tensor("b", 15),
            tensor("c", 3),
            tensor("d", 2),
            block(HoldingClass::Parameter, "h.0.weight", 7),
        ];
        let named = |class, name: &str, bytes, blocks| (class, Some(name.to_owned()), bytes, blocks);
        let expected = [
            named(HoldingClass::Parameter, "h.*.weight", 7, 1),
            named(HoldingClass::Tensor, "a[*]", 20, 2),
            named(HoldingClass::Tensor, "b", 15, 1),
            (HoldingClass::Tensor, None, 5, 2),
        ];
        assert_eq!(sums(&blocks, 2), expected);
        assert_eq!(sums(&blocks, 0).iter().map(|(.., bytes, _)| bytes).sum::<u64>(), 47);
    }

    #[test]
    fn group_of_different_types_has_none_and_graphs_are_told_apart_by_their_retainer() {
        let half = Holding { dtype: Some("float16".to_owned()), ..block(HoldingClass::Tensor, "a[2]", 5) };
        let blocks = [block(HoldingClass::Tensor, "a[1]", 10), half];
        assert_eq!(sum_by_name(&blocks.each_ref(), 9)[0].dtype, None);
        assert_eq!(sum_by_name(&[&blocks[0]], 9)[0].dtype.as_deref(), Some("float32"));
        let saved = |kept_by: &str| Holding {
            kept_by: Some(kept_by.to_owned()),
            ..block(HoldingClass::SavedForBackward, "MulBackward0", 8)
        };
        let groups = sum_by_name(&[&saved("losses[1]"), &saved("losses[2]"), &saved("total")], 9);
        let keepers: Vec<_> = groups.iter().map(|group| (group.kept_by.as_deref(), group.blocks)).collect();
        assert_eq!(keepers, [(Some("losses[*]"), 2), (Some("total"), 1)]);
    }

    #[test]
    fn name_of_any_length_is_kept_at_both_ends() {
        let long = format!("{}é{}", "a".repeat(300), "z".repeat(300));
        let short = shortened(long);
        assert_eq!((short.chars().count(), short.starts_with("aaa"), short.ends_with("zzz")), (201, true, true));
        assert_eq!(shortened("model.layers".to_owned()), "model.layers");
    }
}
