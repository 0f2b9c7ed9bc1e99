//! Counts vLLM's requests, and the blocks of each.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use memwatch_core::input::kv_cache::{KvCacheDoubt, KvCacheRequest};

use crate::engines::MOST_REQUESTS;
use crate::engines::objects::EngineObjects;
use crate::memory::MemoryAccess;

/// Queues of requests that wait although none of them is at the head of `waiting`. The first one
/// exists from 0.20 on and counts in vLLM's own metric; the others from 0.33 on.
const SKIPPED: &str = "skipped_waiting";
const OTHERS: [&str; 2] = ["kv_holding_waiting", "deferred_waiting"];
/// Maximum number of letters of a request's identifier.
const MOST_LETTERS: usize = 64;

/// Returns the numbers of running and waiting requests.
///
/// # Errors
/// A list of requests is missing.
pub(super) fn count<M: MemoryAccess>(
    objects: &EngineObjects<'_, M>,
    scheduler: u64,
) -> Result<(u64, u64), KvCacheDoubt> {
    let running = objects.length_of(scheduler, "running")?;
    let waiting = queue_length(objects, objects.field(scheduler, "waiting")?)?;
    let queue = |name: &'static str| {
        let queue = objects.optional(scheduler, name)?;
        queue_length(objects, queue).ok()
    };
    let waiting = waiting.saturating_add(queue(SKIPPED).unwrap_or(0));
    let others: u64 = OTHERS.into_iter().filter_map(queue).fold(0, u64::saturating_add);
    let all = waiting.saturating_add(others);
    // `requests` has every request once. A queue whose requests are in another one, too, would
    // exceed it.
    let known = objects.length_of(scheduler, "requests").unwrap_or(u64::MAX);
    Ok((running, if running.saturating_add(all) <= known { all } else { waiting }))
}

/// Returns the length of a queue: a deque, or an object with a heap for requests with priorities.
fn queue_length<M: MemoryAccess>(objects: &EngineObjects<'_, M>, queue: u64) -> Result<u64, KvCacheDoubt> {
    match objects.length(queue) {
        Some(length) => Ok(length),
        None => objects.length_of(queue, "_heap"),
    }
}

/// Returns the requests with the most blocks. Groups of layers have lists of their own, whose blocks
/// come from the same pool.
///
/// # Errors
/// The lists of blocks by request are missing.
pub(super) fn largest<M: MemoryAccess>(
    objects: &EngineObjects<'_, M>,
    scheduler: u64,
) -> Result<Vec<KvCacheRequest>, KvCacheDoubt> {
    let manager = objects.field(scheduler, "kv_cache_manager")?;
    let groups = objects.items_of(objects.field(manager, "coordinator")?, "single_type_managers")?;
    let mut blocks = HashMap::<String, u64, FixedState>::default();
    for group in groups {
        let lists = objects.field(group, "req_to_blocks")?;
        for entry in objects.objects.entries(lists).ok_or_else(|| objects.doubt("req_to_blocks"))? {
            let length = objects.length(entry.value).ok_or_else(|| objects.doubt("req_to_blocks"))?;
            let Some(id) = objects.objects.text(entry.key).filter(|_| length > 0) else { continue };
            let sum = blocks.entry(id.chars().take(MOST_LETTERS).collect()).or_default();
            *sum = sum.saturating_add(length);
        }
    }
    let mut requests: Vec<_> = blocks.into_iter().map(|(id, blocks)| KvCacheRequest { id, blocks }).collect();
    requests.sort_unstable_by(|one, other| other.blocks.cmp(&one.blocks).then_with(|| one.id.cmp(&other.id)));
    requests.truncate(MOST_REQUESTS);
    Ok(requests)
}
