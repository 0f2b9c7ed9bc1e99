//! Texts for causes in the KV cache of an inference server.

use memwatch_core::features::causes::Cause;
use memwatch_core::input::kv_cache::ServingEngine;

use super::CauseParts;
use crate::render::format::{duration, percent, plural};

/// Texts for a full KV cache. `subject` is the engine.
pub(super) fn full_kv_cache(cause: &Cause, parts: &CauseParts) -> [String; 3] {
    let CauseParts { size, subject, number, .. } = parts;
    let waiting = plural(*number, "request waits", "requests wait");
    let in_use = cause.kv_cache.map_or_else(String::new, |fill| {
        let running = plural(fill.running, "request runs", "requests run");
        format!(", {} of its blocks; {running}", percent(fill.used_blocks, fill.blocks))
    });
    let used = if cause.bytes == 0 { in_use.trim_start_matches(", ").to_owned() } else { format!("{size}{in_use}") };
    let fix = if subject == ServingEngine::Sglang.title() {
        "more memory for the pool (--mem-fraction-static up), shorter requests (--context-length down), fewer at once (--max-running-requests down), or half the bytes for a token (--kv-cache-dtype fp8_e5m2)"
    } else {
        "more memory for the pool (--gpu-memory-utilization up), shorter requests (--max-model-len down), fewer at once (--max-num-seqs down), or half the bytes for a token (--kv-cache-dtype fp8)"
    };
    [format!("the KV cache of {subject} is full"), format!("in use: {used}, {waiting}"), fix.to_owned()]
}

/// Texts for a KV cache that is much larger than its requests needed.
pub(super) fn large_kv_cache(cause: &Cause, parts: &CauseParts) -> [String; 3] {
    let CauseParts { size, subject, number, .. } = parts;
    let period = duration(cause.period_ns.unwrap_or(0));
    let in_use = cause.kv_cache.map_or_else(String::new, |fill| {
        let running = plural(fill.running, "request", "requests");
        format!(", at most {} of its blocks in use by up to {running}", percent(fill.used_blocks, fill.blocks))
    });
    let spare = if cause.bytes == 0 { String::new() } else { format!("{size} beyond twice its need: ") };
    let evidence = format!("{spare}in {period}{in_use}");
    let options = if subject == ServingEngine::Sglang.title() {
        format!("--mem-fraction-static down, or --max-total-tokens {number}")
    } else {
        format!("--gpu-memory-utilization down, or --num-gpu-blocks-override {number}")
    };
    let frees = if cause.bytes == 0 { String::new() } else { format!(": frees {size}") };
    [
        format!("the KV cache of {subject} is larger than its requests need"),
        evidence,
        format!("{options}{frees}; a request of full length must still fit, and fewer prefixes stay for reuse"),
    ]
}

#[cfg(test)]
mod tests {
    use memwatch_core::features::causes::CauseKind;
    use memwatch_core::input::kv_cache::KvCacheFill;

    use super::*;
    use crate::render::causes::tests::cause;
    use crate::render::causes::words;

    #[test]
    fn full_kv_cache_has_the_options_of_its_engine_as_a_fix() {
        let fill = KvCacheFill { blocks: 1915, used_blocks: 1866, free_blocks: 49, running: 6, waiting: 24 };
        let of = |engine: ServingEngine, bytes: u64| {
            let subject = Some(engine.title().to_owned());
            let (bytes_per_minute, count) = (None, Some(24));
            let cause = cause(CauseKind::KvCacheFull);
            words(&Cause { subject, bytes, bytes_per_minute, count, kv_cache: Some(fill), ..cause })
        };
        let [what, evidence, fix] = of(ServingEngine::Vllm, 1866 << 21);
        assert_eq!(what, "the KV cache of vLLM is full");
        assert_eq!(evidence, "in use: 3.64 GiB, 97.4 % of its blocks; 6 requests run, 24 requests wait");
        assert!(fix.contains("--gpu-memory-utilization"), "{fix}");
        let [_, evidence, fix] = of(ServingEngine::Sglang, 0);
        assert_eq!(evidence, "in use: 97.4 % of its blocks; 6 requests run, 24 requests wait");
        assert!(fix.contains("--mem-fraction-static"), "{fix}");
    }

    #[test]
    fn large_kv_cache_says_for_how_long_it_was_read_and_what_a_smaller_one_frees() {
        let fill = KvCacheFill { blocks: 29_141, used_blocks: 2_623, free_blocks: 26_518, running: 8, waiting: 0 };
        let of = |engine: ServingEngine, bytes: u64| {
            let subject = Some(engine.title().to_owned());
            let (bytes_per_minute, count, period_ns) = (None, Some(5_246), Some(11_520_000_000_000));
            let cause = cause(CauseKind::KvCacheTooLarge);
            words(&Cause { subject, bytes, bytes_per_minute, count, kv_cache: Some(fill), period_ns, ..cause })
        };
        let [what, evidence, fix] = of(ServingEngine::Vllm, 23_895 << 21);
        assert_eq!(what, "the KV cache of vLLM is larger than its requests need");
        assert_eq!(
            evidence,
            "46.67 GiB beyond twice its need: in 3 h 12 min, at most 9.0 % of its blocks in use by up to 8 requests"
        );
        assert!(fix.contains("--num-gpu-blocks-override 5246: frees 46.67 GiB"), "{fix}");
        let [_, _, fix] = of(ServingEngine::Sglang, 0);
        assert!(fix.contains("--max-total-tokens 5246; "), "{fix}");
    }
}
