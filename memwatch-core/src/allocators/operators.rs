//! Which operator of TensorFlow a chunk is for: its name and its grant are two records of one moment in one thread, in either order.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use memwatch_common::tensor::chunk_key;
use serde::{Deserialize, Serialize};

use super::framework::FrameworkAllocator;
use super::names::LayerKey;
use super::places::Granted;
use super::{Block, TensorLedger};
use crate::decode::{ChunkNamed, TensorChange, TensorEvent};
use crate::words::{Framework, Tid};

/// So many threads are known at once.
const THREADS: usize = 4096;

/// What of a chunk has come, and by what it is known.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Half {
    chunk: u32,
    what: What,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum What {
    Name(LayerKey),
    Grant(Granted),
}

/// Of each thread the name that waits for its grant, or the grant that may have its name next.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Operators(HashMap<Tid, Half, RandomState>);

impl Operators {
    fn put(&mut self, tid: Tid, half: Half) {
        if self.0.len() >= THREADS && !self.0.contains_key(&tid) {
            self.0.clear();
        }
        self.0.insert(tid, half);
    }

    /// The other half of this chunk, if it is the last that has come of this thread. What belongs to another chunk is of no use any more.
    fn take(&mut self, tid: Tid, chunk: u32) -> Option<What> {
        self.0.remove(&tid).filter(|half| half.chunk == chunk).map(|half| half.what)
    }

    /// Events did not arrive: what waits may be of a chunk that was there before.
    pub(super) fn lose(&mut self) {
        self.0.clear();
    }

    /// The thread is no more.
    pub(super) fn end(&mut self, tid: Tid) {
        self.0.remove(&tid);
    }
}

/// By what a granted chunk is known that may have a name; `None` for anything else.
fn key_of(event: &TensorEvent) -> Option<u32> {
    match &event.what {
        TensorChange::Chunk(chunk) if chunk.is_grant && chunk.framework == Framework::TensorFlow => {
            Some(chunk_key(chunk.allocator, chunk.address))
        }
        _ => None,
    }
}

impl<A: FrameworkAllocator> TensorLedger<A> {
    /// A chunk is for an operator: the one that was granted last in the thread, or comes next.
    pub(super) fn name_chunk(&mut self, tid: Tid, named: &ChunkNamed) {
        let (chunk, layer) = (named.chunk, self.names.operator(&named.operator));
        if let Some(What::Grant(granted)) = self.operators.take(tid, chunk) {
            self.places.move_granted(&granted, layer);
            self.durations.rename(tid, layer);
        } else {
            self.operators.put(tid, Half { chunk, what: What::Name(layer) });
        }
    }

    /// The row of the operator that a block is for which this event grants, where its name has come; where not, the block's name may be the thread's next
    /// event. `layer` is where the block stands without a name.
    pub(super) fn operator_of(&mut self, event: &TensorEvent, block: &Block, layer: LayerKey) -> Option<LayerKey> {
        let chunk = key_of(event)?;
        if let Some(What::Name(operator)) = self.operators.take(event.tid, chunk) {
            return Some(operator);
        }
        let what = What::Grant(self.places.granted(block, layer));
        self.operators.put(event.tid, Half { chunk, what });
        None
    }
}

#[cfg(test)]
#[path = "tests/operators.rs"]
mod tests;
