//! What the failed process held by name, from the agent's readings of its live objects.

use std::collections::BTreeMap;

use memwatch_core::features::causes::{GrownName, grown_before};
use memwatch_core::features::oom::view::OomView;
use memwatch_core::input::held_names::{HeldGroup, HeldNames, HeldTotals};
use memwatch_core::input::holdings::HoldingClass;
use memwatch_core::words::json;
use serde::Serialize;

use crate::render::format::{bytes, count, duration, percent, plural, printable, rate_per_minute};

/// Maximum number of groups, and of grown names, that are listed.
const LISTED: usize = 5;

/// Lists the largest groups of the failed device, and the names that grew before.
pub(super) fn facts(oom: &OomView) -> Vec<(&'static str, String)> {
    let readings = oom.names_then();
    let Some(then) = readings.last() else { return Vec::new() };
    let age = match oom.time_ns.checked_sub(then.time_ns) {
        Some(before_ns) => format!("{} before it", duration(before_ns)),
        None => format!("{} after it", duration(then.time_ns - oom.time_ns)),
    };
    let own = then.groups.iter().filter(|group| oom.device.is_none_or(|device| group.ordinal.0 == device));
    let mut groups = BTreeMap::<String, (u64, u64)>::new();
    for group in own {
        let (bytes, blocks) = groups.entry(group_name(group)).or_default();
        (*bytes, *blocks) = (bytes.saturating_add(group.bytes), blocks.saturating_add(group.blocks));
    }
    let all: u64 = groups.values().map(|(bytes, _)| bytes).sum();
    if all == 0 {
        return Vec::new();
    }
    if let Some(why) = &then.without_names {
        return vec![("holds", format!("names were not read, {age}: {}", printable(why)))];
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, (bytes, _))| std::cmp::Reverse(*bytes));
    let partial = if then.is_partial { ", in part" } else { "" };
    let mut facts = vec![("holds", format!("{:>10}  by name, read {age}{partial}", bytes(all)))];
    for (name, (own, blocks)) in groups.iter().take(LISTED) {
        let (part, blocks) = (percent(*own, all), plural(*blocks, "block", "blocks"));
        facts.push(("", format!("{:>10}  {part:>7}  {name}  {blocks}", bytes(*own))));
    }
    if groups.len() > LISTED {
        let rest: u64 = groups[LISTED..].iter().map(|(_, (bytes, _))| bytes).sum();
        let number = count((groups.len() - LISTED) as u64);
        facts.push(("", format!("{:>10}  {:>7}  {number} more", bytes(rest), percent(rest, all))));
    }
    let mut label = Some("grew");
    for grown in grown_before(oom).iter().take(LISTED) {
        facts.push((label.take().unwrap_or_default(), growth(grown)));
    }
    facts
}

/// Formats `saved for backward, kept by train.py:main: losses[*]`.
fn group_name(group: &HeldGroup) -> String {
    let class = if group.is_kv_cache { "KV cache" } else { group.class.label() };
    let path = match (&group.kept_by, &group.name) {
        (Some(keeper), _) => format!(", kept by {keeper}"),
        (None, Some(name)) => format!(": {name}"),
        (None, None) => String::new(),
    };
    printable(&format!("{class}{path}")).into_owned()
}

/// Formats `+9.10 GiB in 12 min (+776.5 MiB/min): train.py:main: losses[*]`.
fn growth(grown: &GrownName) -> String {
    let (grew, period) = (bytes(grown.grown_bytes()), duration(grown.period_ns));
    let rate = rate_per_minute(grown.bytes_per_minute());
    format!("{:>10}  in {period} ({rate}): {}", format!("+{grew}"), printable(grown.path()))
}

/// A reading of the failed process's live objects by name.
#[derive(Serialize)]
pub(super) struct OomNames<'a> {
    /// Time of the reading.
    #[serde(serialize_with = "json::date")]
    read_ns: u64,
    /// Whether it is the one that shows best what the process held at the failure.
    is_of_failure: bool,
    totals: Vec<OomTotals>,
    groups: Vec<OomGroup<'a>>,
    is_partial: bool,
    without_names: Option<&'a str>,
}

#[derive(Serialize)]
struct OomTotals {
    device: i32,
    allocated_bytes: u64,
    reserved_bytes: u64,
    /// Free memory beside blocks in use and its largest piece, outside of small and private pools.
    split_bytes: Option<u64>,
    largest_piece_bytes: Option<u64>,
}

/// Blocks with one name; `name` is `null` for those beyond the largest of their class.
#[derive(Serialize)]
struct OomGroup<'a> {
    device: i32,
    class: HoldingClass,
    is_kv_cache: bool,
    name: Option<&'a str>,
    kept_by: Option<&'a str>,
    dtype: Option<&'a str>,
    bytes: u64,
    blocks: u64,
}

/// A name with growing memory in the last readings before the failure.
#[derive(Serialize)]
pub(super) struct OomGrown {
    name: String,
    class: HoldingClass,
    first_bytes: u64,
    last_bytes: u64,
    #[serde(serialize_with = "json::seconds")]
    period_ns: u64,
    bytes_per_minute: f64,
}

/// Returns the readings as JSON data, oldest first.
pub(super) fn data(oom: &OomView) -> Vec<OomNames<'_>> {
    let of_failure = oom.names_then().len().checked_sub(1);
    oom.names.iter().enumerate().map(|(at, reading)| reading_data(reading, Some(at) == of_failure)).collect()
}

fn reading_data(reading: &HeldNames, is_of_failure: bool) -> OomNames<'_> {
    let totals = |totals: &HeldTotals| OomTotals {
        device: totals.ordinal.0,
        allocated_bytes: totals.allocated_bytes,
        reserved_bytes: totals.reserved_bytes,
        split_bytes: totals.pieces.map(|pieces| pieces.bytes),
        largest_piece_bytes: totals.pieces.map(|pieces| pieces.largest_bytes),
    };
    let mut groups: Vec<&HeldGroup> = reading.groups.iter().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.bytes));
    OomNames {
        read_ns: reading.time_ns,
        is_of_failure,
        totals: reading.totals.iter().map(totals).collect(),
        groups: groups.into_iter().map(group_data).collect(),
        is_partial: reading.is_partial,
        without_names: reading.without_names.as_deref(),
    }
}

fn group_data(group: &HeldGroup) -> OomGroup<'_> {
    OomGroup {
        device: group.ordinal.0,
        class: group.class,
        is_kv_cache: group.is_kv_cache,
        name: group.name.as_deref(),
        kept_by: group.kept_by.as_deref(),
        dtype: group.dtype.as_deref(),
        bytes: group.bytes,
        blocks: group.blocks,
    }
}

/// Returns the names that grew before the failure as JSON data, the one that grew most first.
pub(super) fn grown_data(oom: &OomView) -> Vec<OomGrown> {
    let data = |grown: GrownName| OomGrown {
        name: grown.path().to_owned(),
        class: grown.group.class,
        first_bytes: grown.first_bytes,
        last_bytes: grown.group.bytes,
        period_ns: grown.period_ns,
        bytes_per_minute: grown.bytes_per_minute(),
    };
    grown_before(oom).into_iter().map(data).collect()
}
