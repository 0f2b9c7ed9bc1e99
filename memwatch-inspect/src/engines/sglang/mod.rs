//! SGLang, 0.5.
//!
//! The pool is counted in tokens: `srt/mem_cache/allocator.py` has the free ones as the lengths of
//! two tensors on the GPU, whose shapes are in host memory, and `srt/mem_cache/radix_cache.py` those
//! of prefixes that no request uses.

use memwatch_core::input::kv_cache::{KvCacheContent, KvCacheDoubt, KvCacheFill};

use super::objects::EngineObjects;
use super::search::EngineHolder;
use super::{CountedPool, PoolShape};
use crate::holdings::shapes::TensorShapes;
use crate::memory::MemoryAccess;
use crate::python::modules::ClassName;

/// The class of a scheduler, in whose methods the process runs.
pub(super) const SCHEDULERS: [EngineHolder; 1] =
    [EngineHolder { class: ClassName { module: "sglang.srt.managers.scheduler", class: "Scheduler" }, path: &[] }];

/// Lists of the pool's tensors, by the kind of attention (srt/mem_cache/memory_pool.py).
const BUFFERS: [&str; 3] = ["k_buffer", "v_buffer", "kv_buffer"];

/// Tokens of a pool.
struct PoolTokens {
    size: u64,
    available: u64,
    evictable: u64,
    /// Tokens of prefixes in use.
    protected: u64,
}

/// Reads how full the pool of a scheduler is, in tokens.
///
/// # Errors
/// An attribute is missing, or the numbers are contradictory.
pub(super) fn fill<M: MemoryAccess>(
    objects: &EngineObjects<'_, M>,
    scheduler: u64,
) -> Result<KvCacheFill, KvCacheDoubt> {
    let tokens = tokens(objects, scheduler)?;
    let running = objects.length_of(objects.field(scheduler, "running_batch")?, "reqs")?;
    let waiting = objects.length_of(scheduler, "waiting_queue")?;
    let free_blocks = tokens.available.saturating_add(tokens.evictable);
    let in_prefixes = free_blocks.saturating_add(tokens.protected);
    if in_prefixes > tokens.size {
        return Err(KvCacheDoubt::Contradiction("more tokens are free or cached than there are"));
    }
    Ok(KvCacheFill { blocks: tokens.size, used_blocks: tokens.size - free_blocks, free_blocks, running, waiting })
}

/// Returns the content of the pool. The engine counts it itself, so this takes no longer than
/// [`fill`].
///
/// # Errors
/// As [`fill`].
pub(super) fn count<M: MemoryAccess>(
    objects: &EngineObjects<'_, M>,
    scheduler: u64,
    before: &KvCacheFill,
) -> Result<CountedPool, KvCacheDoubt> {
    let tokens = tokens(objects, scheduler)?;
    let free = tokens.available.saturating_add(tokens.evictable);
    if tokens.size != before.blocks {
        return Err(KvCacheDoubt::Changed);
    }
    let used_blocks = tokens.size.checked_sub(free).ok_or(KvCacheDoubt::Changed)?;
    let content =
        KvCacheContent { shared_blocks: None, reusable_blocks: tokens.evictable, empty_blocks: tokens.available };
    Ok(CountedPool { used_blocks, content, requests: Vec::new() })
}

/// Reads what the pool's tensors have room for.
///
/// # Errors
/// As [`fill`].
pub(super) fn shape<M: MemoryAccess>(
    objects: &EngineObjects<'_, M>,
    scheduler: u64,
) -> Result<PoolShape, KvCacheDoubt> {
    let allocator = objects.field(scheduler, "token_to_kv_pool_allocator")?;
    let (size, page) = (objects.number(allocator, "size")?, objects.number(allocator, "page_size")?);
    let pool = objects.field(allocator, "_kvcache")?;
    let layers = objects.number(pool, "layer_num").ok();
    // The tensors have one page more than the pool, for the output of padding.
    Ok(PoolShape { tensor_blocks: size.saturating_add(page), bytes: None, block_tokens: Some(1), layers })
}

/// Returns the tensors of a scheduler's pool.
///
/// # Errors
/// The pool has none that are known.
pub(super) fn tensors<M: MemoryAccess>(
    objects: &EngineObjects<'_, M>,
    scheduler: u64,
) -> Result<Vec<u64>, KvCacheDoubt> {
    let allocator = objects.field(scheduler, "token_to_kv_pool_allocator")?;
    let pool = objects.field(allocator, "_kvcache")?;
    let lists = BUFFERS.iter().filter_map(|name| objects.items_of(pool, name).ok());
    let tensors: Vec<u64> = lists.flatten().collect();
    if tensors.is_empty() { Err(objects.doubt("k_buffer")) } else { Ok(tensors) }
}

fn tokens<M: MemoryAccess>(objects: &EngineObjects<'_, M>, scheduler: u64) -> Result<PoolTokens, KvCacheDoubt> {
    let allocator = objects.field(scheduler, "token_to_kv_pool_allocator")?;
    if objects.optional(allocator, "full_attn_allocator").is_some() {
        // Layers with a sliding window have a second pool: one number would describe neither.
        return Err(objects.doubt("several pools: full_attn_allocator"));
    }
    let (size, page) = (objects.number(allocator, "size")?, objects.number(allocator, "page_size")?);
    learn_shapes(objects, scheduler)?;
    let pages = |name: &'static str| {
        let tensor = objects.field(allocator, name)?;
        let shapes = objects.learned.shapes.borrow();
        let length = shapes.as_ref().and_then(|shapes| shapes.length(objects.pass, objects.libraries, tensor));
        length.ok_or_else(|| objects.doubt(name))
    };
    let pages = pages("free_pages")?.saturating_add(pages("release_pages")?);
    let available = pages.checked_mul(page).filter(|available| *available <= size);
    let available = available.ok_or(KvCacheDoubt::Contradiction("more tokens are free than there are"))?;
    let cache = objects.field(scheduler, "tree_cache")?;
    // A cache without prefixes counts none.
    let prefixes = |name: &'static str| match objects.optional(cache, name) {
        Some(_) => objects.number(cache, name),
        None => Ok(0),
    };
    Ok(PoolTokens { size, available, evictable: prefixes("evictable_size_")?, protected: prefixes("protected_size_")? })
}

/// Finds the layout of tensors by those of the pool, unless an earlier reading has found it.
fn learn_shapes<M: MemoryAccess>(objects: &EngineObjects<'_, M>, scheduler: u64) -> Result<(), KvCacheDoubt> {
    if objects.learned.shapes.borrow().is_none() {
        let tensors = tensors(objects, scheduler)?;
        let shapes = TensorShapes::find(objects.pass, objects.libraries, &tensors);
        *objects.learned.shapes.borrow_mut() = Some(shapes.ok_or_else(|| objects.doubt("layout of tensors"))?);
    }
    Ok(())
}
