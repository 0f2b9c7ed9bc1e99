//! Matches chunks to TensorFlow operators. The name and the grant of a chunk are two consecutive
//! records of one thread, in either order.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use memwatch_common::tensor::chunk_key;
use serde::{Deserialize, Serialize};

use super::names::ModuleKey;
use super::places::GrantInProgress;
use super::{TensorBlock, TensorLedger};
use crate::decode::{ChunkNamed, TensorChange, TensorEvent};
use crate::words::{Framework, Tid};

/// Maximum number of threads tracked.
const THREADS: usize = 4096;

/// The part of a chunk that has arrived, and the key of the chunk.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct ChunkHalf {
    chunk: u32,
    what: ChunkHalfKind,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum ChunkHalfKind {
    Name(ModuleKey),
    Grant(GrantInProgress),
}

/// By thread, a name that waits for its grant or a grant that waits for its name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Operators(HashMap<Tid, ChunkHalf, RandomState>);

impl Operators {
    fn put(&mut self, tid: Tid, half: ChunkHalf) {
        if self.0.len() >= THREADS && !self.0.contains_key(&tid) {
            self.0.clear();
        }
        self.0.insert(tid, half);
    }

    /// Takes the other part of this chunk if it was the last of this thread. The part of another
    /// chunk is dropped.
    fn take(&mut self, tid: Tid, chunk: u32) -> Option<ChunkHalfKind> {
        self.0.remove(&tid).filter(|half| half.chunk == chunk).map(|half| half.what)
    }

    /// Drops all parts: after lost events, a part may belong to an earlier chunk.
    pub(super) fn lose(&mut self) {
        self.0.clear();
    }

    /// Removes a thread that exited.
    pub(super) fn end(&mut self, tid: Tid) {
        self.0.remove(&tid);
    }
}

/// Returns the key of a granted chunk that may have a name; `None` for other events.
fn key_of(event: &TensorEvent) -> Option<u32> {
    match &event.what {
        TensorChange::Chunk(chunk) if chunk.is_grant && chunk.framework == Framework::TensorFlow => {
            Some(chunk_key(chunk.allocator, chunk.address))
        }
        _ => None,
    }
}

impl TensorLedger {
    /// Handles the operator name of a chunk: the last one granted in the thread, or the next.
    pub(super) fn name_chunk(&mut self, tid: Tid, named: &ChunkNamed) {
        let (chunk, module) = (named.chunk, self.names.operator(&named.operator));
        if let Some(ChunkHalfKind::Grant(granted)) = self.operators.take(tid, chunk) {
            self.attribution.move_granted(&granted, module);
            self.durations.rename(tid, module);
        } else {
            self.operators.put(tid, ChunkHalf { chunk, what: ChunkHalfKind::Name(module) });
        }
    }

    /// Returns the operator of the block that this event grants, if its name has arrived. Otherwise
    /// the name may be the thread's next event; `module` is where the block is counted until then.
    pub(super) fn operator_of(
        &mut self,
        event: &TensorEvent,
        block: &TensorBlock,
        module: ModuleKey,
    ) -> Option<ModuleKey> {
        let chunk = key_of(event)?;
        if let Some(ChunkHalfKind::Name(operator)) = self.operators.take(event.tid, chunk) {
            return Some(operator);
        }
        let what = ChunkHalfKind::Grant(self.attribution.granted(block, module));
        self.operators.put(event.tid, ChunkHalf { chunk, what });
        None
    }
}

#[cfg(test)]
#[path = "tests/operators.rs"]
mod tests;
