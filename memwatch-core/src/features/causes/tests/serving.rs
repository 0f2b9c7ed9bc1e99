//! Causes in the KV cache of an inference server.

use super::super::{CauseEvidence, CauseKind, causes};
use crate::input::kv_cache::{KvCache, KvCacheFill, KvCachePeak, ServingEngine};
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

#[test]
fn kv_cache_that_is_never_half_needed_is_too_large_after_an_hour_with_requests() {
    const MINUTE_NS: u64 = 60_000_000_000;
    let now = pool(20, 0);
    let found = |used_blocks: u64, running: u64, minutes: u64| {
        let peak = (KvCachePeak { since_ns: 1, used_blocks, running }, minutes * MINUTE_NS);
        let evidence = CauseEvidence { kv_cache: Some(&now), kv_cache_peak: Some(peak), ..CauseEvidence::default() };
        causes(&evidence).into_iter().map(|cause| (cause.kind, cause.bytes, cause.count)).collect::<Vec<_>>()
    };
    // Of 1915 blocks of 2 MiB.
    assert_eq!(found(172, 8, 90), [(CauseKind::KvCacheTooLarge, (1915 - 344) << 21, Some(344))]);
    assert_eq!(found(3, 1, 90), [(CauseKind::KvCacheTooLarge, (1915 - 191) << 21, Some(191))], "a tenth stays");
    assert_eq!(found(172, 8, 59), [], "too early");
    assert_eq!(found(0, 0, 9_000), [], "no request has come");
    assert_eq!(found(700, 8, 9_000), [], "twice the need leaves too little to free");
}
