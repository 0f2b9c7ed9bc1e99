//! The pool of KV cache blocks of an inference server, read from the memory of the process that
//! schedules its requests.
//!
//! The pool's bytes are in a few tensors that the framework's allocator has in its totals already.
//! A reading describes these bytes and adds none.

use serde::{Deserialize, Deserializer, Serialize};

use crate::words::Tgid;

/// An inference engine with a pool of KV cache blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServingEngine {
    /// vLLM, engine v1.
    Vllm,
    /// SGLang.
    Sglang,
}

impl ServingEngine {
    /// Display name.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Vllm => "vLLM",
            Self::Sglang => "SGLang",
        }
    }
}

/// How full a pool is: a few integers, which are consistent by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvCacheFill {
    /// Blocks that requests can use. vLLM's null block is not among them.
    pub blocks: u64,
    /// Blocks in use by requests.
    pub used_blocks: u64,
    /// Blocks of no request. They may hold a prefix that a later request can reuse.
    pub free_blocks: u64,
    /// Requests that run, and have blocks.
    #[serde(rename = "running_requests")]
    pub running: u64,
    /// Requests that wait to run.
    #[serde(rename = "waiting_requests")]
    pub waiting: u64,
}

impl KvCacheFill {
    /// Returns whether almost all blocks are in use while requests wait. vLLM 0.11 schedules a
    /// waiting request as long as its blocks fit, so that some blocks stay free in a full pool.
    pub const fn is_full(&self) -> bool {
        /// Minimum part of the blocks in use, in percent.
        const FULL: u64 = 95;
        self.waiting > 0 && self.used_blocks.saturating_mul(100) >= self.blocks.saturating_mul(FULL)
    }
}

/// Blocks by their content, counted one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvCacheContent {
    /// Blocks in use by more than one request; `None` if the engine does not count users.
    pub shared_blocks: Option<u64>,
    /// Free blocks with a prefix that a later request can reuse.
    pub reusable_blocks: u64,
    /// Free blocks without one.
    pub empty_blocks: u64,
}

/// A request and its blocks. Several requests may share a block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvCacheRequest {
    /// The engine's identifier of the request.
    pub id: String,
    /// Number of blocks.
    pub blocks: u64,
}

/// A pool of KV cache blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvCache {
    /// The engine.
    pub engine: ServingEngine,
    /// Process that schedules the requests. The pool's tensors may be in its children.
    #[serde(rename = "scheduler_pid")]
    pub scheduler: Tgid,
    /// Bytes of the pool's tensors that this process has on GPUs; `None` if unknown, or if it has
    /// none.
    pub bytes: Option<u64>,
    /// Bytes of a block in all layers; `None` if unknown.
    pub block_bytes: Option<u64>,
    /// Tokens in a block; `None` if unknown, as in hybrid models, or if groups of layers differ.
    pub block_tokens: Option<u64>,
    /// Layers with a KV cache; `None` if unknown.
    pub layers: Option<u64>,
    /// Whether the engine sleeps: the pool's tensors keep their addresses, and no memory is behind
    /// them. `None` if unknown.
    pub asleep: Option<bool>,
    /// How full the pool is.
    pub fill: KvCacheFill,
    /// Blocks by content; `None` if they changed while they were read, or could not be read.
    pub content: Option<KvCacheContent>,
    /// Reason for a missing `content`.
    pub content_unknown: Option<KvCacheDoubt>,
    /// Requests with the most blocks, largest first.
    pub largest_requests: Vec<KvCacheRequest>,
}

impl KvCache {
    /// Returns the bytes of the blocks that requests can use; `None` if the size of a block is
    /// unknown.
    pub fn size_bytes(&self) -> Option<u64> {
        self.bytes_of(self.fill.blocks)
    }

    /// Returns the bytes of the blocks in use; `None` if the size of a block is unknown.
    pub fn used_bytes(&self) -> Option<u64> {
        self.bytes_of(self.fill.used_blocks)
    }

    /// Returns the bytes of the free blocks with a prefix that a later request can reuse; `None` if
    /// they are unknown.
    pub fn reusable_bytes(&self) -> Option<u64> {
        self.content.and_then(|content| self.bytes_of(content.reusable_blocks))
    }

    fn bytes_of(&self, blocks: u64) -> Option<u64> {
        self.block_bytes.map(|bytes| bytes.saturating_mul(blocks))
    }
}

/// Reason why a pool, or a part of it, is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvCacheDoubt {
    /// An attribute is missing, or is an object of an unexpected class: the engine has another
    /// layout.
    #[error("its objects have a layout that is not known here: {0}")]
    Layout(&'static str),
    /// Numbers contradict each other.
    #[error("its numbers contradict each other: {0}")]
    Contradiction(&'static str),
    /// The engine changed the pool in every attempt.
    #[error("it changed while it was read")]
    Changed,
    /// A limit of bytes or objects was reached.
    #[error("it is larger than what is read of a process")]
    TooLarge,
    /// The time limit was reached.
    #[error("reading it took too long")]
    TooSlow,
    /// No scheduler was found, although the engine is loaded.
    #[error("the process has loaded the engine and no scheduler of it was found")]
    NoScheduler,
    /// Any of these, as a recording or an agent has written it.
    #[error("{0}")]
    Recorded(String),
}

impl Serialize for KvCacheDoubt {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for KvCacheDoubt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::Recorded)
    }
}

/// One reading of the pool of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvCacheReading {
    /// Process that has the pool's tensors, or that schedules its requests.
    pub tgid: Tgid,
    /// End of the reading: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// The pool, or the reason why it is not known.
    pub pool: Result<KvCache, KvCacheDoubt>,
    /// Maxima of all readings of this pool so far; `None` in a single reading.
    #[serde(default)]
    pub peak: Option<KvCachePeak>,
}

impl KvCacheReading {
    /// Adds the maxima of the readings before this one. A pool of another size is another pool, and
    /// while a pool is not known its use may have been any.
    pub(crate) fn follow(&mut self, before: Option<&Self>) {
        let Ok(pool) = &self.pool else { return };
        let own =
            KvCachePeak { since_ns: self.time_ns, used_blocks: pool.fill.used_blocks, running: pool.fill.running };
        let is_same = |before: &KvCache| (before.scheduler, before.fill.blocks) == (pool.scheduler, pool.fill.blocks);
        let before = before.filter(|before| before.pool.as_ref().is_ok_and(is_same));
        self.peak = Some(before.and_then(|before| before.peak).map_or(own, |before| before.and(own)));
    }
}

/// Maxima of a pool over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvCachePeak {
    /// First reading: `CLOCK_BOOTTIME`, nanoseconds.
    pub since_ns: u64,
    /// Maximum blocks in use by requests, in any reading.
    pub used_blocks: u64,
    /// Maximum requests that ran, in any reading.
    #[serde(rename = "running_requests")]
    pub running: u64,
}

impl KvCachePeak {
    fn and(self, later: Self) -> Self {
        Self {
            since_ns: self.since_ns,
            used_blocks: self.used_blocks.max(later.used_blocks),
            running: self.running.max(later.running),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_is_of_the_readings_of_one_pool_without_a_gap() {
        let reading = |time_ns: u64, pool: Option<(u64, u64, u64)>| KvCacheReading {
            tgid: Tgid(7),
            time_ns,
            pool: pool.ok_or(KvCacheDoubt::Changed).map(|(blocks, used_blocks, running)| KvCache {
                engine: ServingEngine::Vllm,
                scheduler: Tgid(7),
                bytes: None,
                block_bytes: None,
                block_tokens: None,
                layers: None,
                asleep: None,
                fill: KvCacheFill { blocks, used_blocks, free_blocks: blocks - used_blocks, running, waiting: 0 },
                content: None,
                content_unknown: None,
                largest_requests: Vec::new(),
            }),
            peak: None,
        };
        let peaks = |readings: &[KvCacheReading]| {
            let mut last: Option<KvCacheReading> = None;
            for reading in readings {
                let mut reading = reading.clone();
                reading.follow(last.as_ref());
                last = Some(reading);
            }
            last.and_then(|last| last.peak).map(|peak| (peak.since_ns, peak.used_blocks, peak.running))
        };
        let mut readings =
            vec![reading(1, Some((100, 5, 1))), reading(2, Some((100, 30, 2))), reading(3, Some((100, 0, 4)))];
        assert_eq!(peaks(&readings), Some((1, 30, 4)));
        readings.push(reading(4, None));
        assert_eq!(peaks(&readings), None);
        readings.push(reading(5, Some((100, 7, 1))));
        assert_eq!(peaks(&readings), Some((5, 7, 1)));
        readings.push(reading(6, Some((90, 3, 1))));
        assert_eq!(peaks(&readings), Some((6, 3, 1)), "the engine has started again with another pool");
    }

    #[test]
    fn kv_cache_is_full_if_requests_wait_for_the_last_blocks() {
        let fill = |used_blocks: u64, waiting: u64| KvCacheFill {
            blocks: 1915,
            used_blocks,
            free_blocks: 1915 - used_blocks,
            running: 6,
            waiting,
        };
        assert!(fill(1866, 24).is_full(), "97.4 %");
        assert!(!fill(1866, 0).is_full(), "nothing waits");
        assert!(!fill(1700, 24).is_full(), "the wait has another reason");
    }
}
