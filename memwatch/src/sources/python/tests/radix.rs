//! KV caches of a stand-in for SGLang with the tensors of real PyTorch, on the host.

use memwatch_core::input::kv_cache::{KvCache, KvCacheContent, KvCacheDoubt, KvCacheFill};
use memwatch_core::words::{Ordinal, Tgid};
use memwatch_inspect::engines::{EngineMemory, EngineReader, SearchBreadth, pool_bytes};
use memwatch_inspect::holdings::{AllocatedBlock, Blocks};
use serde::Deserialize;

use super::holdings::environments;
use super::interpreters::StoppingScript;
use super::script;
use crate::sources::python::PythonProcess;

/// A case of `radix.py`.
#[derive(Deserialize)]
struct RadixCase {
    case: String,
    tid: u32,
    truth: TokenTruth,
}

/// What the scheduler itself counts, in tokens, and address and bytes of the storages.
#[derive(Deserialize)]
struct TokenTruth {
    size: u64,
    available: u64,
    evictable: u64,
    running: u64,
    waiting: u64,
    buffers: Vec<(u64, u64)>,
}

impl TokenTruth {
    fn blocks(&self) -> Blocks {
        let block = |(address, bytes): &(u64, u64)| AllocatedBlock {
            ordinal: Ordinal(0),
            address: *address,
            bytes: *bytes,
            requested_bytes: *bytes,
        };
        Blocks::new(self.buffers.iter().map(block).collect())
    }
}

fn read(python: &PythonProcess, bytes: Option<u64>) -> Result<Option<KvCache>, KvCacheDoubt> {
    let (memory, layout) = (python.resolver.memory(), python.resolver.layout());
    let process = EngineMemory { memory, layout, libraries: &[] };
    let reader = EngineReader::find(process, SearchBreadth::Frames)?;
    reader.map(|reader| reader.read(process, Tgid(7), bytes)).transpose()
}

#[test]
fn sglang_pool_is_counted_in_tokens_by_the_shapes_of_its_tensors() {
    for environment in environments() {
        let (program, runtime) = (environment.join("venv/bin/python"), environment.join("runtime"));
        let mut script = StoppingScript::run(&program, &script("radix.py"), Some(("LD_LIBRARY_PATH", &runtime)));
        let mut cases = 0;
        while let Some(line) = script.line() {
            let RadixCase { case, tid, truth } = serde_json::from_str(&line).expect("JSON");
            script.wait_for_stop(tid);
            let python = PythonProcess::attach(script.tgid()).expect("it is readable").expect("it is Python");
            let (memory, layout) = (python.resolver.memory(), python.resolver.layout());
            let bytes =
                pool_bytes(EngineMemory { memory, layout, libraries: &[] }, &truth.blocks(), SearchBreadth::All);
            let found = read(&python, bytes);
            cases += 1;
            match case.as_str() {
                "more than there are" => assert!(matches!(found, Err(KvCacheDoubt::Contradiction(_))), "{found:?}"),
                "two pools" => assert!(matches!(found, Err(KvCacheDoubt::Layout(_))), "{found:?}"),
                _ => compare(&found.expect("it is known").expect("it serves"), &truth, &case),
            }
            script.go_on();
        }
        assert_eq!(cases, 5, "{}", environment.display());
    }
}

fn compare(pool: &KvCache, truth: &TokenTruth, case: &str) {
    let free_blocks = truth.available + truth.evictable;
    let fill = KvCacheFill {
        blocks: truth.size,
        used_blocks: truth.size - free_blocks,
        free_blocks,
        running: truth.running,
        waiting: truth.waiting,
    };
    assert_eq!(pool.fill, fill, "{case}");
    let content =
        KvCacheContent { shared_blocks: None, reusable_blocks: truth.evictable, empty_blocks: truth.available };
    assert_eq!((pool.content, pool.content_unknown.clone()), (Some(content), None), "{case}");
    let bytes: u64 = truth.buffers.iter().map(|(_, bytes)| *bytes).sum();
    assert_eq!((pool.bytes, pool.block_bytes), (Some(bytes), Some(4 * 2 * 2 * 8 * 2)), "{case}");
    assert_eq!((pool.layers, pool.block_tokens), (Some(4), Some(1)), "{case}");
}
