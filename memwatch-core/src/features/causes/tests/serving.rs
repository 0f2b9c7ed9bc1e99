//! Causes in the KV cache of an inference server.

use super::super::{CauseEvidence, CauseKind, causes};
use crate::input::kv_cache::{KvCache, KvCacheFill, ServingEngine};
use crate::words::Tgid;

fn pool(used_blocks: u64, waiting: u64) -> KvCache {
    KvCache {
        engine: ServingEngine::Vllm,
        scheduler: Tgid(7),
        bytes: None,
        block_bytes: Some(2 << 20),
        block_tokens: None,
        layers: None,
        asleep: None,
        fill: KvCacheFill { blocks: 1915, used_blocks, free_blocks: 1915 - used_blocks, running: 6, waiting },
        content: None,
        content_unknown: None,
        largest_requests: Vec::new(),
    }
}

#[test]
fn kv_cache_full_is_a_cause_with_the_bytes_in_use() {
    let full = pool(1866, 24);
    let found = causes(&CauseEvidence { tgid: Tgid(7), kv_cache: Some(&full), ..CauseEvidence::default() });
    let [cause] = &found[..] else { panic!("{found:?}") };
    assert_eq!((cause.kind, cause.bytes, cause.count), (CauseKind::KvCacheFull, 1866 << 21, Some(24)));
    assert_eq!((cause.subject.as_deref(), cause.kv_cache), (Some("vLLM"), Some(full.fill)));
}

#[test]
fn kv_cache_with_free_blocks_or_without_waiting_requests_is_no_cause() {
    // 24 requests wait for another reason, such as a limit of running requests; nothing waits; the
    // blocks that are in use are few, whatever the others hold.
    for pool in [pool(1700, 24), pool(1915, 0), pool(20, 24)] {
        let found = causes(&CauseEvidence { kv_cache: Some(&pool), ..CauseEvidence::default() });
        assert_eq!(found, [], "{:?}", pool.fill);
    }
}
