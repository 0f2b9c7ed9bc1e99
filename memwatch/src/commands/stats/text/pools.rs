//! Text output of the pools of RMM and CuPy.

use memwatch_core::decode::PoolKind;
use memwatch_core::snapshot::{PoolView, ProcessView, Snapshot};
use memwatch_core::words::Framework;

use crate::render::format::{UNKNOWN, bytes, count, known, plural};
use crate::render::sentences;
use crate::render::text::grid::{Align, TextGrid};

pub(super) fn heading(snapshot: &Snapshot, process: &ProcessView, pool: &PoolView) -> String {
    let in_use = match (pool.bytes_in_use, pool.peak_bytes_in_use) {
        (Some(in_use), Some(peak)) => format!("in use {}  peak {}", bytes(in_use), bytes(peak)),
        (Some(in_use), None) => format!("in use {}", bytes(in_use)),
        (None, _) => format!("in use at least {}", bytes(pool.known_bytes)),
    };
    format!(
        "PID {}  {}  GPU {}  {} {}  {in_use}  pool {}",
        process.tgid.0,
        sentences::short_command(process),
        sentences::gpu_number(snapshot, pool.uuid.as_ref()),
        pool.framework.name(),
        pool.kind.name().replace('_', " "),
        known(pool.pool_bytes, bytes),
    )
}

/// Returns the heading for a traced framework without pools.
pub(super) fn heading_of_none(process: &ProcessView, framework: Framework) -> String {
    let whose = format!("PID {}  {}", process.tgid.0, sentences::short_command(process));
    format!("{whose}  {}  no pool was made or used since the attach", framework.name())
}

/// Returns the numbers of a pool, in readable units and in bytes.
pub(super) fn numbers(pool: &PoolView) -> TextGrid {
    let mut grid = TextGrid::new(&[("METRIC", Align::Left), ("VALUE", Align::Right), ("BYTES", Align::Right)]);
    let mut push = |title: &str, value: Option<u64>, is_bytes: bool| {
        let readable = if is_bytes { known(value, bytes) } else { known(value, count) };
        let exact = value.filter(|_| is_bytes).map_or_else(String::new, |value| value.to_string());
        grid.push(vec![title.to_owned(), readable, exact]);
    };
    push("pool_bytes", pool.pool_bytes, true);
    push("bytes_in_use", pool.bytes_in_use, true);
    push("peak_bytes_in_use", pool.peak_bytes_in_use, true);
    push("num_allocs", pool.num_allocs, false);
    push("known blocks", Some(pool.known_blocks), false);
    push("bytes in known blocks", Some(pool.known_bytes), true);
    if pool.block_bytes.is_some() {
        push("size of each block", pool.block_bytes, true);
    }
    if pool.divided_bytes > 0 {
        push("divided by other allocators", Some(pool.divided_bytes), true);
    }
    grid
}

/// Returns sentences on why the numbers may be inexact.
pub(super) fn doubts(pool: &PoolView) -> Vec<String> {
    const STATED: &str = "its GPU is reported by the pool only: its memory was allocated before attach";
    const UNKNOWN_PLACE: &str = "its GPU is not known: no driver allocation that was seen holds its memory";
    let mut doubts = Vec::new();
    match &*pool.device_by {
        "name" => doubts.push(STATED.to_owned()),
        "unknown" => doubts.push(UNKNOWN_PLACE.to_owned()),
        _ => {}
    }
    if pool.pool_bytes.is_none() && pool.kind != PoolKind::Arena {
        doubts.push(format!("{UNKNOWN} this build does not show how large its pool is"));
    }
    if pool.out_of_step > 0 {
        let times = plural(pool.out_of_step, "time", "times");
        doubts.push(format!("out of step with the pool {times}: in no sum of exact numbers"));
    }
    match (pool.older_unknown, pool.bytes_in_use) {
        (false, _) => {}
        (true, None) => doubts.push(format!("{UNKNOWN} {}", sentences::OLDER_BLOCKS)),
        (true, Some(in_use)) => {
            doubts.push(format!("{} of {} are known one by one", bytes(pool.known_bytes), bytes(in_use)));
        }
    }
    doubts
}
