//! What arenas report of a chunk: of JAX and TensorFlow all, of ONNX Runtime's where one goes only its address.

use memwatch_common::tensor::{
    CHUNK_FREED, CHUNK_GRANTED, CHUNK_OF_STREAM, FLAG_EXTRA_UNREADABLE, FLAG_TEXT_CUT, TensorRecord, TextRecord,
    tensor_probe,
};
use serde::{Deserialize, Serialize};

use crate::input::arenas::ArenaCounters;
use crate::words::Framework;

/// What an arena reports of a chunk, within its lock and after it has counted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// The arena: the `this` of its methods.
    pub allocator: u64,
    /// Whose arena it is.
    pub framework: Framework,
    /// Whether it was granted; else it was taken back.
    pub is_grant: bool,
    /// Whether it was granted for a stream: a program that runs its model, and does not load it. Known of ONNX Runtime alone.
    pub is_of_stream: bool,
    /// Where it begins.
    pub address: u64,
    /// As the program asked for it, in bytes.
    pub requested_bytes: u64,
    /// As the arena rounded it, in bytes.
    pub bytes: u64,
    /// What the arena has counted now; `None` where this build does not show where that is.
    pub counters: Option<ArenaCounters>,
}

/// What an arena knows within its lock before it takes back a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkGoes {
    /// The arena: the `this` of its methods.
    pub allocator: u64,
    /// Whose arena it is.
    pub framework: Framework,
    /// Where the chunk begins.
    pub address: u64,
    /// What the arena had counted before; `None` where that could not be read.
    pub before: Option<ArenaCounters>,
}

/// Which operator a granted chunk is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkNamed {
    /// The [`memwatch_common::tensor::chunk_key`] of the chunk.
    pub chunk: u32,
    /// The operator's name, which is not empty; `…` and the end of a longer one.
    pub operator: Box<str>,
}

impl ChunkNamed {
    /// What a record says; `None` where it has no name.
    pub(super) fn of(record: &TextRecord) -> Option<Self> {
        let is_read = record.flags & FLAG_EXTRA_UNREADABLE == 0 && !record.text().is_empty();
        let text = String::from_utf8_lossy(record.text());
        let operator = if record.flags & FLAG_TEXT_CUT == 0 { text.into() } else { format!("…{text}").into() };
        is_read.then_some(Self { chunk: record.chunk, operator })
    }
}

impl Chunk {
    /// What a record says; `None` where it is neither a grant nor a free.
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
    /// What a record says; `None` where its row is not known.
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
