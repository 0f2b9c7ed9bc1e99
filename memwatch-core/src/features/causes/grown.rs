//! Finds names with growing memory from one reading of the live objects to the next.

use std::collections::BTreeMap;

use super::paths::{self, PathKind};
use crate::features::oom::view::OomView;
use crate::input::held_names::{HeldGroup, HeldNames};
use crate::input::holdings::HoldingClass;
use crate::words::Ordinal;

/// Minimum number of readings in which a name grows.
const READINGS: usize = 3;
/// Minimum number of readings if graphs of a single tensor grow: those of a loss are larger in one
/// moment of a step than in another, too.
const READINGS_OF_GRAPH: usize = 4;
/// Minimum growth as a part of all bytes of the last reading, as its inverse.
const LEAST_PART: u64 = 10;

/// A name with growing memory in the last readings.
#[derive(Clone, Debug, PartialEq)]
pub struct GrownName {
    /// Its blocks at the last reading.
    pub group: HeldGroup,
    /// Bytes at the first of these readings.
    pub first_bytes: u64,
    /// Number of blocks at the first of these readings.
    pub first_blocks: u64,
    /// Time from the first to the last of these readings, in nanoseconds.
    pub period_ns: u64,
}

impl GrownName {
    /// Returns the bytes that it grew by.
    pub const fn grown_bytes(&self) -> u64 {
        self.group.bytes.saturating_sub(self.first_bytes)
    }

    /// Returns its growth in bytes per minute.
    #[expect(clippy::cast_precision_loss, reason = "a rate for display")]
    pub fn bytes_per_minute(&self) -> f64 {
        self.grown_bytes() as f64 * 60e9 / self.period_ns.max(1) as f64
    }

    /// Returns the path to what holds the memory.
    pub fn path(&self) -> &str {
        self.group.kept_by.as_deref().or(self.group.name.as_deref()).unwrap_or_default()
    }
}

/// Returns the names that grew in each of the last readings, by at least a tenth of all in sum; the
/// one that grew most first. Readings are ordered by time.
pub(super) fn grown(readings: &[HeldNames]) -> Vec<GrownName> {
    let usable: Vec<&HeldNames> = readings.iter().filter(|reading| reading.without_names.is_none()).collect();
    let Some((last, earlier)) = usable.split_last() else { return Vec::new() };
    let threshold = last.bytes() / LEAST_PART;
    let now = by_path(last);
    let all = now.iter().filter_map(|(path, group)| of_path(path, group, last, earlier));
    let mut found: Vec<GrownName> = all.filter(|grown| grown.grown_bytes() >= threshold.max(1)).collect();
    found.sort_by_key(|grown| std::cmp::Reverse(grown.grown_bytes()));
    found
}

/// Returns the names that grew before a failure. A program that is ending has other paths to its
/// memory, and then the growth is that up to the reading before.
pub fn grown_before(failure: &OomView) -> Vec<GrownName> {
    let found = grown(failure.names_then());
    if found.is_empty() { grown(failure.names_before()) } else { found }
}

/// Whether growth of such blocks may be what the program ran out of memory by: a model that is being
/// loaded grows, too.
fn can_grow(group: &HeldGroup) -> bool {
    match group.class {
        HoldingClass::Tensor => group.name.is_some() && !group.is_kv_cache,
        HoldingClass::Unreachable => group.name.is_some(),
        HoldingClass::SavedForBackward => group.kept_by.is_some(),
        _ => false,
    }
}

/// Device and class of blocks, and the path to what holds them.
type PathKey<'r> = (Ordinal, HoldingClass, &'r str);

/// Sums the groups of a reading that can grow by their paths.
fn by_path(reading: &HeldNames) -> BTreeMap<PathKey<'_>, HeldGroup> {
    let mut paths = BTreeMap::<PathKey<'_>, HeldGroup>::new();
    for group in reading.groups.iter().filter(|group| can_grow(group)) {
        let Some(path) = group.kept_by.as_deref().or(group.name.as_deref()) else { continue };
        let sum = paths.entry((group.ordinal, group.class, path)).or_insert_with(|| HeldGroup {
            bytes: 0,
            blocks: 0,
            ..group.clone()
        });
        sum.bytes = sum.bytes.saturating_add(group.bytes);
        sum.blocks = sum.blocks.saturating_add(group.blocks);
    }
    paths
}

fn of_path(key: &PathKey<'_>, group: &HeldGroup, last: &HeldNames, earlier: &[&HeldNames]) -> Option<GrownName> {
    let (_, class, path) = *key;
    let is_of_one = class == HoldingClass::SavedForBackward && paths::kind(path) == PathKind::Plain;
    let needed = if is_of_one { READINGS_OF_GRAPH } else { READINGS };
    let mut first = (group.bytes, group.blocks, last.time_ns);
    let mut count = 1;
    for reading in earlier.iter().rev() {
        // A name that was absent may have been among the small ones.
        let before = by_path(reading);
        let Some(before) = before.get(key) else { break };
        if before.bytes >= first.0 || (is_of_one && before.blocks >= first.1) {
            break;
        }
        first = (before.bytes, before.blocks, reading.time_ns);
        count += 1;
    }
    let (first_bytes, first_blocks, first_ns) = first;
    let period_ns = last.time_ns.saturating_sub(first_ns);
    (count >= needed).then(|| GrownName { group: group.clone(), first_bytes, first_blocks, period_ns })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn group(class: HoldingClass, path: &str, bytes: u64) -> HeldGroup {
        let is_graph = class == HoldingClass::SavedForBackward;
        HeldGroup {
            ordinal: Ordinal(0),
            class,
            is_kv_cache: false,
            name: Some(if is_graph { "MulBackward0".to_owned() } else { path.to_owned() }),
            kept_by: is_graph.then(|| path.to_owned()),
            dtype: None,
            bytes,
            blocks: bytes / 10,
        }
    }

    /// Readings of 30 seconds each, with weights of 100 bytes and one name of these bytes.
    fn paths(class: HoldingClass, path: &str, bytes: &[u64]) -> Vec<(String, u64, u64)> {
        let reading = |(number, bytes): (usize, &u64)| HeldNames {
            time_ns: number as u64 * 30 * SECOND_NS,
            groups: vec![group(HoldingClass::Parameter, "weight", 100), group(class, path, *bytes)],
            ..HeldNames::default()
        };
        let readings: Vec<_> = bytes.iter().enumerate().map(reading).collect();
        let found = grown(&readings).into_iter();
        found.map(|grown| (grown.path().to_owned(), grown.first_bytes, grown.period_ns / SECOND_NS)).collect()
    }

    #[test]
    fn name_that_grew_in_each_of_three_readings_is_found_since_it_began_to() {
        let tensor = |bytes: &[u64]| paths(HoldingClass::Tensor, "kept[*]", bytes);
        assert_eq!(tensor(&[50, 20, 60, 100]), [("kept[*]".to_owned(), 20, 60)]);
        assert_eq!(tensor(&[20, 60]), [], "two readings may differ in anything");
        assert_eq!(tensor(&[20, 60, 60]), [], "it has stopped");
        assert_eq!(tensor(&[90, 95, 100]), [], "a twentieth of all is no cause");
        assert_eq!(paths(HoldingClass::Parameter, "layers.*", &[20, 60, 100]), [], "a model is loaded");
    }

    #[test]
    fn graph_of_one_tensor_takes_four_readings_and_graphs_of_a_list_three() {
        let graph = |path, bytes: &[u64]| paths(HoldingClass::SavedForBackward, path, bytes);
        assert_eq!(graph("losses[*]", &[20, 60, 100]), [("losses[*]".to_owned(), 20, 60)]);
        assert_eq!(graph("loss", &[20, 60, 100]), [], "a step's graph is larger or smaller by its moment");
        assert_eq!(graph("loss", &[20, 60, 100, 200]), [("loss".to_owned(), 20, 90)]);
    }

    #[test]
    fn rate_is_of_the_time_between_the_readings() {
        let grown = GrownName {
            group: group(HoldingClass::Tensor, "kept[*]", 70),
            first_bytes: 10,
            first_blocks: 1,
            period_ns: 30 * SECOND_NS,
        };
        assert!((grown.bytes_per_minute() - 120.0).abs() < 1e-9);
    }
}
