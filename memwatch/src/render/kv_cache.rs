//! Sentences on the KV cache of an inference server.

use memwatch_core::input::kv_cache::{KvCache, KvCacheDoubt, KvCacheRequest, ServingEngine};
use memwatch_core::snapshot::ProcessView;
use memwatch_core::words::Tgid;

use super::format::{bytes, count, percent, plural, printable};

/// Maximum number of requests that are named.
const LISTED: usize = 3;

/// Formats `KV cache  56.92 GiB  32 layers, 29,141 blocks of 2.0 MiB: 22.0 % used by 24 requests (0
/// waiting) · 77.6 % reusable prefix · 0.4 % empty`. `tgid` is the process with the pool's tensors.
pub(crate) fn pool(pool: &KvCache, tgid: Tgid) -> String {
    let size = pool.bytes.map(|all| format!("{}  ", bytes(all))).unwrap_or_default();
    let layers = pool.layers.map(|layers| format!("{}, ", plural(layers, "layer", "layers"))).unwrap_or_default();
    let (one, many) = match pool.engine {
        ServingEngine::Vllm => ("block", "blocks"),
        ServingEngine::Sglang => ("token", "tokens"),
    };
    let each = pool.block_bytes.map(|each| format!(" of {}", bytes(each))).unwrap_or_default();
    let blocks = plural(pool.fill.blocks, one, many);
    let elsewhere =
        if pool.scheduler == tgid { String::new() } else { format!(" · scheduled by PID {}", pool.scheduler.0) };
    let asleep = if pool.asleep == Some(true) { "asleep, no memory is behind it: " } else { "" };
    format!("KV cache  {asleep}{size}{layers}{blocks}{each}: {}{elsewhere}", content(pool))
}

/// Formats `22.0 % used by 24 requests (0 waiting) · 77.6 % reusable prefix · 0.4 % empty`.
fn content(pool: &KvCache) -> String {
    let part = |blocks: u64| percent(blocks, pool.fill.blocks);
    let requests = plural(pool.fill.running, "request", "requests");
    let waiting = count(pool.fill.waiting);
    let used = format!("{} used by {requests} ({waiting} waiting)", part(pool.fill.used_blocks));
    if let Some(content) = &pool.content {
        let (reusable, empty) = (part(content.reusable_blocks), part(content.empty_blocks));
        format!("{used} · {reusable} reusable prefix · {empty} empty")
    } else {
        let why = pool.content_unknown.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        format!("{used} · {} reusable prefix or empty{why}", part(pool.fill.free_blocks))
    }
}

/// Formats `largest requests: cmpl-1 with 629 blocks, cmpl-2 with 398 blocks · 250 blocks are shared by
/// several requests`; `None` if neither is known.
pub(crate) fn requests(pool: &KvCache) -> Option<String> {
    let request = |request: &KvCacheRequest| {
        format!("{} with {}", printable(&request.id), plural(request.blocks, "block", "blocks"))
    };
    let largest: Vec<String> = pool.largest_requests.iter().take(LISTED).map(request).collect();
    let shared = pool.content.and_then(|content| content.shared_blocks).filter(|shared| *shared > 0);
    let shared = shared.map(|shared| {
        let verb = if shared == 1 { "is" } else { "are" };
        format!("{} {verb} shared by several requests", plural(shared, "block", "blocks"))
    });
    let largest = (!largest.is_empty()).then(|| format!("largest requests: {}", largest.join(", ")));
    let parts: Vec<String> = largest.into_iter().chain(shared).collect();
    (!parts.is_empty()).then(|| parts.join(" · "))
}

/// Formats the last reading of a watch: [`pool`], or why there is none. `None` if the process serves
/// no requests.
pub(crate) fn last(process: &ProcessView) -> Option<String> {
    let read = process.kv_cache.as_ref()?;
    Some(read.pool.as_ref().map_or_else(unknown, |known| pool(known, process.tgid)))
}

/// Says why a pool is not known.
pub(crate) fn unknown(why: &KvCacheDoubt) -> String {
    format!("KV cache  not known: {why}")
}

#[cfg(test)]
mod tests {
    use memwatch_core::input::kv_cache::{KvCacheContent, KvCacheFill};

    use super::*;

    fn example() -> KvCache {
        KvCache {
            engine: ServingEngine::Vllm,
            scheduler: Tgid(7),
            bytes: Some(29_142 * (2 << 20)),
            block_bytes: Some(2 << 20),
            block_tokens: Some(16),
            layers: Some(32),
            asleep: Some(false),
            fill: KvCacheFill { blocks: 29_141, used_blocks: 6_422, free_blocks: 22_719, running: 24, waiting: 3 },
            content: Some(KvCacheContent { shared_blocks: Some(250), reusable_blocks: 22_621, empty_blocks: 98 }),
            content_unknown: None,
            largest_requests: vec![KvCacheRequest { id: "cmpl-1\u{1b}".to_owned(), blocks: 629 }],
        }
    }

    #[test]
    fn kv_cache_line_has_bytes_blocks_and_their_content() {
        assert_eq!(
            pool(&example(), Tgid(7)),
            "KV cache  56.92 GiB  32 layers, 29,141 blocks of 2.0 MiB: 22.0 % used by 24 requests (3 waiting) · 77.6 % reusable prefix · 0.3 % empty"
        );
        let text = requests(&example()).expect("a request");
        assert_eq!(text, "largest requests: cmpl-1\\x1b with 629 blocks · 250 blocks are shared by several requests");
    }

    #[test]
    fn kv_cache_line_says_what_is_not_known() {
        let bytes = KvCache { bytes: None, block_bytes: None, layers: None, ..example() };
        assert!(pool(&bytes, Tgid(8)).starts_with("KV cache  29,141 blocks: 22.0 % used"));
        assert!(pool(&bytes, Tgid(8)).ends_with("0.3 % empty · scheduled by PID 7"));
        let changing = KvCache { content: None, content_unknown: Some(KvCacheDoubt::Changed), ..example() };
        let text = pool(&changing, Tgid(7));
        assert!(
            text.ends_with("(3 waiting) · 78.0 % reusable prefix or empty: it changed while it was read"),
            "{text}"
        );
        let asleep = KvCache { asleep: Some(true), ..example() };
        let text = pool(&asleep, Tgid(7));
        assert!(text.starts_with("KV cache  asleep, no memory is behind it: 56.92 GiB  32 layers"), "{text}");
        let why = unknown(&KvCacheDoubt::Contradiction("more blocks are free than there are"));
        assert_eq!(why, "KV cache  not known: its numbers contradict each other: more blocks are free than there are");
    }
}
