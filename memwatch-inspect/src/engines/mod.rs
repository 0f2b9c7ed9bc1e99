//! Reads how full the KV cache pool of an inference server is, from the objects of its scheduler.
//!
//! Each engine is one directory: the classes to search for, and where its numbers are. Identities
//! decide whether a reading is accepted, never the version of an engine.

mod objects;
mod search;
mod sglang;
mod vllm;

use std::ops::Range;

use memwatch_core::input::kv_cache::{
    KvCache, KvCacheContent, KvCacheDoubt, KvCacheFill, KvCacheRequest, ServingEngine,
};
use memwatch_core::words::Tgid;

use crate::holdings::{Blocks, shapes};
use crate::memory::MemoryAccess;
use crate::pass::Pass;
use crate::python::layout::CpythonLayout;
use objects::{EngineObjects, LearnedFields};
pub use search::SearchBreadth;
use search::{EngineHolder, search};

/// Maximum number of bytes per reading. A pool of a million blocks has about 200 MB of objects.
const MOST_BYTES: u64 = 1 << 30;
/// Maximum number of bytes kept while objects are read: those of a pool of 100,000 blocks.
const MOST_KEPT_BYTES: usize = 24 << 20;
/// Number of attempts to read a pool that the engine changes.
const TRIES: usize = 5;
/// Maximum number of requests that are listed.
const MOST_REQUESTS: usize = 8;

/// A process's memory and its Python.
#[derive(Debug)]
pub struct EngineMemory<'a, M> {
    /// Memory of the process.
    pub memory: &'a M,
    /// Layout of its Python version.
    pub layout: &'a CpythonLayout,
    /// Address ranges of PyTorch's libraries, as in [`crate::holdings::InspectOptions::libraries`].
    pub libraries: &'a [Range<u64>],
}

impl<M> Clone for EngineMemory<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for EngineMemory<'_, M> {}

/// What the configuration of a pool says about its blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PoolShape {
    /// Blocks that the pool's tensors have room for, with those that requests never get.
    tensor_blocks: u64,
    /// Bytes of all tensors, if the configuration tells them.
    bytes: Option<u64>,
    block_tokens: Option<u64>,
    layers: Option<u64>,
}

/// Content of a pool, as counted in one pass.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CountedPool {
    used_blocks: u64,
    content: KvCacheContent,
    requests: Vec<KvCacheRequest>,
}

/// Reader of the pool of one scheduler. It keeps what it has learned for the next reading of the
/// same process.
#[derive(Debug)]
pub struct EngineReader {
    engine: ServingEngine,
    /// The object that led to the scheduler, if it is not the scheduler itself.
    owner: Option<u64>,
    scheduler: u64,
    learned: LearnedFields,
}

impl EngineReader {
    /// Finds the scheduler of an engine in a process; `None` if the process has not loaded the
    /// module of any.
    ///
    /// A scheduler is mostly in a variable of a running method.
    ///
    /// # Errors
    /// An engine is loaded, and no scheduler was found whose pool can be read.
    pub fn find<M: MemoryAccess>(
        process: EngineMemory<'_, M>,
        breadth: SearchBreadth,
    ) -> Result<Option<Self>, KvCacheDoubt> {
        let mut why = None;
        let engines: [(_, &[EngineHolder]); 2] =
            [(ServingEngine::Vllm, &vllm::SCHEDULERS), (ServingEngine::Sglang, &sglang::SCHEDULERS)];
        for (engine, holders) in engines {
            let mut found = None;
            let is_loaded = search(process, (holders, breadth), &mut |holder, scheduler| {
                let owner = (holder != scheduler).then_some(holder);
                let reader = Self { engine, owner, scheduler, learned: LearnedFields::default() };
                match reader.fill(process) {
                    Ok(_) => found = Some(reader),
                    Err(doubt) => why = Some(doubt),
                }
                found.is_some()
            });
            if found.is_some() {
                return Ok(found);
            }
            if is_loaded {
                why = why.or(Some(KvCacheDoubt::NoScheduler));
            }
        }
        why.map_or(Ok(None), Err)
    }

    /// Reads only how full the pool is: a few kilobytes, and less than a millisecond, from the second
    /// reading on.
    ///
    /// # Errors
    /// The scheduler is gone, or its numbers are contradictory in all attempts.
    pub fn fill<M: MemoryAccess>(&self, process: EngineMemory<'_, M>) -> Result<KvCacheFill, KvCacheDoubt> {
        let mut fill = self.fill_once(process);
        for _ in 1..TRIES {
            if fill.is_ok() {
                break;
            }
            fill = self.fill_once(process);
        }
        fill
    }

    /// Reads the pool with its content. `tgid` is the process of the scheduler, and `bytes` those
    /// of the pool's tensors, if the caller has read them.
    ///
    /// # Errors
    /// As [`Self::fill`]. If only the content cannot be read, the result has the reason.
    pub fn read<M: MemoryAccess>(
        &self,
        process: EngineMemory<'_, M>,
        tgid: Tgid,
        bytes: Option<u64>,
    ) -> Result<KvCache, KvCacheDoubt> {
        let (mut fill, mut counted) = self.read_once(process)?;
        for _ in 1..TRIES {
            if !matches!(counted, Err(KvCacheDoubt::Changed | KvCacheDoubt::Layout(_))) {
                break;
            }
            (fill, counted) = self.read_once(process)?;
        }
        let pass = Pass::new(process.memory, MOST_BYTES);
        let objects = self.objects(&pass, process);
        let shape = self.shape(&objects).unwrap_or_default();
        let asleep = match self.engine {
            ServingEngine::Vllm => self.owner.and_then(|core| vllm::is_asleep(&objects, core)),
            ServingEngine::Sglang => None,
        };
        let bytes = bytes.or(shape.bytes);
        let whole = |bytes: u64| {
            let blocks = Some(shape.tensor_blocks).filter(|blocks| *blocks > 0)?;
            bytes.is_multiple_of(blocks).then(|| bytes / blocks)
        };
        let (content, content_unknown, largest_requests) = match counted {
            Ok(counted) => (Some(counted.content), None, counted.requests),
            Err(why) => (None, Some(why), Vec::new()),
        };
        Ok(KvCache {
            engine: self.engine,
            scheduler: tgid,
            bytes,
            block_bytes: bytes.and_then(whole),
            block_tokens: shape.block_tokens,
            layers: shape.layers,
            asleep,
            fill,
            content,
            content_unknown,
            largest_requests,
        })
    }

    /// Reads the pool between two readings of how full it is. The content is that of one moment if
    /// the used blocks that it has are those of a moment in between.
    fn read_once<M: MemoryAccess>(
        &self,
        process: EngineMemory<'_, M>,
    ) -> Result<(KvCacheFill, Result<CountedPool, KvCacheDoubt>), KvCacheDoubt> {
        let before = self.fill(process)?;
        let pass = Pass::new(process.memory, MOST_BYTES).keeping(MOST_KEPT_BYTES);
        let counted = self.count(&self.objects(&pass, process), &before);
        let after = self.fill(process)?;
        if before.blocks != after.blocks {
            return Ok((after, Err(KvCacheDoubt::Changed)));
        }
        let counted = counted.and_then(|counted| {
            let between = before.used_blocks.min(after.used_blocks)..=before.used_blocks.max(after.used_blocks);
            let all = [counted.used_blocks, counted.content.reusable_blocks, counted.content.empty_blocks];
            let is_whole = all.into_iter().try_fold(0u64, u64::checked_add) == Some(after.blocks);
            (between.contains(&counted.used_blocks) && is_whole).then_some(counted).ok_or(KvCacheDoubt::Changed)
        });
        let used_blocks = counted.as_ref().map_or(after.used_blocks, |counted| counted.used_blocks);
        let fill = KvCacheFill { used_blocks, free_blocks: after.blocks.saturating_sub(used_blocks), ..after };
        Ok((fill, counted))
    }

    fn fill_once<M: MemoryAccess>(&self, process: EngineMemory<'_, M>) -> Result<KvCacheFill, KvCacheDoubt> {
        let pass = Pass::new(process.memory, MOST_BYTES);
        let objects = self.objects(&pass, process);
        pass.sparsely(|| match self.engine {
            ServingEngine::Vllm => vllm::fill(&objects, self.scheduler),
            ServingEngine::Sglang => sglang::fill(&objects, self.scheduler),
        })
    }

    fn count<M: MemoryAccess>(
        &self,
        objects: &EngineObjects<'_, M>,
        fill: &KvCacheFill,
    ) -> Result<CountedPool, KvCacheDoubt> {
        match self.engine {
            ServingEngine::Vllm => vllm::count(objects, self.scheduler),
            ServingEngine::Sglang => sglang::count(objects, self.scheduler, fill),
        }
    }

    fn shape<M: MemoryAccess>(&self, objects: &EngineObjects<'_, M>) -> Result<PoolShape, KvCacheDoubt> {
        match self.engine {
            ServingEngine::Vllm => vllm::shape(objects, self.scheduler),
            ServingEngine::Sglang => sglang::shape(objects, self.scheduler),
        }
    }

    fn objects<'a, M: MemoryAccess>(
        &'a self,
        pass: &'a Pass<'a, M>,
        process: EngineMemory<'a, M>,
    ) -> EngineObjects<'a, M> {
        EngineObjects::new(pass, process, &self.learned)
    }
}

/// Reads the bytes of the pool's tensors in a process that holds them: the storages in `blocks` of
/// all tensors that the engine's runner lists. `None` if the process has none that can be read, or no
/// runner is found.
pub fn pool_bytes<M: MemoryAccess>(
    process: EngineMemory<'_, M>,
    blocks: &Blocks,
    breadth: SearchBreadth,
) -> Option<u64> {
    let engines: [&[EngineHolder]; 2] = [&vllm::TENSOR_OWNERS, &sglang::SCHEDULERS];
    let mut bytes = None;
    for (holders, engine) in engines.into_iter().zip([ServingEngine::Vllm, ServingEngine::Sglang]) {
        let learned = LearnedFields::default();
        let pass = Pass::new(process.memory, MOST_BYTES).keeping(MOST_KEPT_BYTES);
        search(process, (holders, breadth), &mut |_, owner| {
            let objects = EngineObjects::new(&pass, process, &learned);
            let tensors = match engine {
                ServingEngine::Vllm => vllm::tensors(&objects, owner),
                ServingEngine::Sglang => sglang::tensors(&objects, owner),
            };
            let tensors = tensors.unwrap_or_default();
            bytes = shapes::storages(&pass, process.libraries, blocks, &tensors)
                .map(|storages| storages.iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add));
            bytes.is_some()
        });
        if bytes.is_some() {
            break;
        }
    }
    bytes
}
