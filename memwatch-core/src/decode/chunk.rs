//! Decodes reports of arenas about a chunk. ONNX Runtime reports only the address of a freed chunk.

use memwatch_common::tensor::{
    CHUNK_FREED, CHUNK_GRANTED, CHUNK_OF_STREAM, FLAG_EXTRA_UNREADABLE, FLAG_TEXT_CUT, TensorRecord, TextRecord,
    tensor_probe,
};
use serde::{Deserialize, Serialize};

use crate::input::arenas::ArenaCounters;
use crate::words::Framework;

/// Report of an arena about a chunk, made while it holds its lock and after it has counted the
/// chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArenaChunkReport {
    /// Address of the arena: the `this` of its methods.
    pub allocator: u64,
    /// Framework of the arena.
    pub framework: Framework,
    /// Whether the chunk was granted rather than taken back.
    pub is_grant: bool,
    /// Whether the chunk was granted for a stream, so that the program runs its model rather than
    /// loads it. Known for ONNX Runtime only.
    pub is_of_stream: bool,
    /// First address.
    pub address: u64,
    /// Size requested by the program, bytes.
    pub requested_bytes: u64,
    /// Size as rounded by the arena, bytes.
    pub bytes: u64,
    /// Counters of the arena after the change; `None` if their location in this build is unknown.
    pub counters: Option<ArenaCounters>,
}

/// State of an arena, while it holds its lock, before it takes back a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkGoes {
    /// Address of the arena: the `this` of its methods.
    pub allocator: u64,
    /// Framework of the arena.
    pub framework: Framework,
    /// First address of the chunk.
    pub address: u64,
    /// Counters of the arena before the change; `None` if they could not be read.
    pub before: Option<ArenaCounters>,
}

/// Operator of a granted chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkNamed {
    /// [`memwatch_common::tensor::chunk_key`] of the chunk.
    pub chunk: u32,
    /// Name of the operator, not empty; a longer name is truncated to `…` and its end.
    pub operator: Box<str>,
}

impl ChunkNamed {
    /// Decodes a record; `None` if it contains no name.
    pub(super) fn of(record: &TextRecord) -> Option<Self> {
        let is_read = record.flags & FLAG_EXTRA_UNREADABLE == 0 && !record.text().is_empty();
        let text = String::from_utf8_lossy(record.text());
        let operator = if record.flags & FLAG_TEXT_CUT == 0 { text.into() } else { format!("…{text}").into() };
        is_read.then_some(Self { chunk: record.chunk, operator })
    }
}

impl ArenaChunkReport {
    /// Decodes a record; `None` if it is neither a grant nor a free.
    pub(super) fn of(record: &TensorRecord, readable: bool) -> Option<Self> {
        let [allocator, verb, _, address, requested_bytes, bytes] = record.args;
        let is_grant = match verb & !CHUNK_OF_STREAM {
            CHUNK_GRANTED => true,
            CHUNK_FREED => false,
            _ => return None,
        };
        let (framework, is_of_stream) = (framework_of(record)?, verb & CHUNK_OF_STREAM != 0);
        let counters = readable.then_some(counters(record));
        Some(Self { allocator, framework, is_grant, is_of_stream, address, requested_bytes, bytes, counters })
    }
}

impl ChunkGoes {
    /// Decodes a record; `None` if its row is unknown.
    pub(super) fn of(record: &TensorRecord, readable: bool) -> Option<Self> {
        let [allocator, _, _, address, ..] = record.args;
        let before = readable.then(|| counters(record));
        Some(Self { allocator, framework: framework_of(record)?, address, before })
    }
}

fn counters(record: &TensorRecord) -> ArenaCounters {
    let [num_allocs, bytes_in_use] = record.extra;
    ArenaCounters { num_allocs, bytes_in_use, peak_bytes_in_use: record.args[2] }
}

fn framework_of(record: &TensorRecord) -> Option<Framework> {
    Framework::of_library(tensor_probe(record.probe)?.library)
}
