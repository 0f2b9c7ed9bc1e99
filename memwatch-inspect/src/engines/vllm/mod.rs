//! vLLM, engine v1: 0.9 to 0.33.
//!
//! The books of the pool are Python objects of the scheduler: `vllm/v1/core/block_pool.py` and
//! `vllm/v1/core/sched/scheduler.py`. With tensor parallelism the tensors are in child processes.

mod blocks;
mod requests;

use memwatch_core::input::kv_cache::{KvCacheDoubt, KvCacheFill};

use super::objects::EngineObjects;
use super::search::EngineHolder;
use super::{CountedPool, PoolShape};
use crate::memory::MemoryAccess;
use crate::python::modules::ClassName;

/// Classes that lead to a scheduler. The first one is the base of `AsyncScheduler`, the second one
/// of `EngineCoreProc`, in whose methods the process runs.
pub(super) const SCHEDULERS: [EngineHolder; 2] = [
    EngineHolder { class: ClassName { module: "vllm.v1.core.sched.scheduler", class: "Scheduler" }, path: &[] },
    EngineHolder { class: ClassName { module: "vllm.v1.engine.core", class: "EngineCore" }, path: &["scheduler"] },
];

/// Classes of the object that lists the tensors: the runner, and the worker in whose methods a
/// child process runs.
pub(super) const TENSOR_OWNERS: [EngineHolder; 3] = [
    EngineHolder { class: ClassName { module: "vllm.v1.worker.gpu_model_runner", class: "GPUModelRunner" }, path: &[] },
    EngineHolder {
        class: ClassName { module: "vllm.v1.executor.multiproc_executor", class: "WorkerProc" },
        path: &["worker", "worker", "model_runner"],
    },
    EngineHolder {
        class: ClassName { module: "vllm.v1.engine.core", class: "EngineCore" },
        path: &["model_executor", "driver_worker", "worker", "model_runner"],
    },
];

/// Reads how full the pool of a scheduler is.
///
/// # Errors
/// An attribute is missing, or the numbers are contradictory.
pub(super) fn fill<M: MemoryAccess>(
    objects: &EngineObjects<'_, M>,
    scheduler: u64,
) -> Result<KvCacheFill, KvCacheDoubt> {
    let pool = pool_of(objects, scheduler)?;
    let all = objects.number(pool, "num_gpu_blocks")?;
    let free_blocks = objects.number(objects.field(pool, "free_block_queue")?, "num_free_blocks")?;
    // Block 0 is the null block, which no request gets and which is not free.
    let blocks = all.checked_sub(1).filter(|blocks| *blocks > 0);
    let blocks = blocks.ok_or(KvCacheDoubt::Contradiction("the pool has no blocks"))?;
    if objects.length_of(pool, "blocks")? != all {
        return Err(KvCacheDoubt::Contradiction("num_gpu_blocks is not the length of blocks"));
    }
    let used_blocks = blocks.checked_sub(free_blocks);
    let used_blocks = used_blocks.ok_or(KvCacheDoubt::Contradiction("more blocks are free than there are"))?;
    let (running, waiting) = requests::count(objects, scheduler)?;
    Ok(KvCacheFill { blocks, used_blocks, free_blocks, running, waiting })
}

/// Counts the pool's blocks by their content, and those of each request.
///
/// # Errors
/// As [`fill`].
pub(super) fn count<M: MemoryAccess>(
    objects: &EngineObjects<'_, M>,
    scheduler: u64,
) -> Result<CountedPool, KvCacheDoubt> {
    let (used_blocks, content) = blocks::count(objects, pool_of(objects, scheduler)?)?;
    // A pool without a list of requests is still a pool.
    let requests = requests::largest(objects, scheduler).unwrap_or_default();
    Ok(CountedPool { used_blocks, content, requests })
}

/// Reads what the configuration says about blocks and layers.
///
/// # Errors
/// As [`fill`].
pub(super) fn shape<M: MemoryAccess>(
    objects: &EngineObjects<'_, M>,
    scheduler: u64,
) -> Result<PoolShape, KvCacheDoubt> {
    let pool = pool_of(objects, scheduler)?;
    let tensor_blocks = objects.number(pool, "num_gpu_blocks")?;
    let mut shape = PoolShape { tensor_blocks, ..PoolShape::default() };
    let config = objects.field(objects.field(scheduler, "kv_cache_manager")?, "kv_cache_config");
    let Ok(config) = config else { return Ok(shape) };
    shape.bytes = config_bytes(objects, config, tensor_blocks);
    let groups = objects.items_of(config, "kv_cache_groups").unwrap_or_default();
    let layers = groups.iter().map(|group| objects.length_of(*group, "layer_names").ok());
    shape.layers = layers.sum::<Option<u64>>().filter(|layers| *layers > 0);
    let tokens = groups.iter().map(|group| {
        let spec = objects.field(*group, "kv_cache_spec").ok()?;
        objects.number(spec, "block_size").ok()
    });
    let tokens: Vec<Option<u64>> = tokens.collect();
    shape.block_tokens = tokens.first().copied().flatten().filter(|_| tokens.iter().all(|own| *own == tokens[0]));
    Ok(shape)
}

/// Returns the tensors that a runner lists.
///
/// # Errors
/// The runner has no such list.
pub(super) fn tensors<M: MemoryAccess>(objects: &EngineObjects<'_, M>, runner: u64) -> Result<Vec<u64>, KvCacheDoubt> {
    objects.items_of(runner, "kv_caches")
}

/// Returns whether the engine sleeps with its KV cache: after `sleep()`, until `wake_up()` without
/// tags or with the tag `kv_cache`. `None` if its executor has no such state.
pub(super) fn is_asleep<M: MemoryAccess>(objects: &EngineObjects<'_, M>, core: u64) -> Option<bool> {
    let executor = objects.optional(core, "model_executor")?;
    let is_sleeping = objects.integer(objects.optional(executor, "is_sleeping")?)? != 0;
    Some(is_sleeping && objects.has_text(objects.optional(executor, "sleeping_tags")?, "kv_cache")?)
}

fn pool_of<M: MemoryAccess>(objects: &EngineObjects<'_, M>, scheduler: u64) -> Result<u64, KvCacheDoubt> {
    objects.field(objects.field(scheduler, "kv_cache_manager")?, "block_pool")
}

/// Returns the sum of the tensors' sizes; `None` if several layers of a packed layout have the same
/// memory, in which case the sizes overlap (0.27 and later).
fn config_bytes<M: MemoryAccess>(objects: &EngineObjects<'_, M>, config: u64, tensor_blocks: u64) -> Option<u64> {
    if objects.number(config, "num_blocks").ok()? != tensor_blocks {
        return None;
    }
    let tensors = objects.items_of(config, "kv_cache_tensors").ok()?;
    let size = |tensor: u64| {
        let packed = objects.optional(tensor, "block_stride").map(|stride| objects.integer(stride));
        let is_plain = packed.is_none_or(|stride| stride == Some(0)) && objects.length_of(tensor, "shared_by").is_ok();
        let size = objects.number(tensor, "size").ok().filter(|_| is_plain)?;
        size.is_multiple_of(tensor_blocks).then_some(size)
    };
    let sum = tensors.into_iter().map(size).try_fold(0u64, |sum, size| sum.checked_add(size?));
    sum.filter(|bytes| *bytes > 0)
}
