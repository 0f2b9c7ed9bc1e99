//! Splits free memory by stream and private pool, and reports which of it a request could use.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::model::{FragmentationShape, releasable_bytes};
use super::view::{FitView, StreamPoolView};
use crate::allocators::TensorLedger;
use crate::allocators::pytorch::{AllocatorMemory, AllocatorSegment, BlockState, PoolSize};
use crate::features::simulate::model::{LARGE_SEGMENT_BYTES, OWN_SEGMENT_BYTES, SMALL_SEGMENT_BYTES};
use crate::words::{Name, Ordinal};

const USUAL: (u64, u64) = (0, 0);

/// Returns the memory of each stream in the default pools and of each private pool. `tensors` shows
/// in which private pools graphs were captured.
pub(super) fn pools(tensors: Option<&TensorLedger>, ordinal: Ordinal, memory: &AllocatorMemory) -> Vec<StreamPoolView> {
    let mut rows: BTreeMap<((u64, u64), u64), (FragmentationShape, AllocatorSegment)> = BTreeMap::new();
    for (begin, segment) in memory.segments() {
        let stream = if segment.private_pool == USUAL { segment.stream } else { 0 };
        let (shape, _) =
            rows.entry((segment.private_pool, stream)).or_insert((FragmentationShape::default(), *segment));
        let cells = memory.cells().range(*begin..begin.saturating_add(segment.bytes));
        let blocks = cells.map(|(address, cell)| (address - begin, cell.bytes, cell.state));
        shape.add((segment, memory.is_kept(segment)), blocks);
    }
    let captured = tensors.map(|tensors| captures(tensors, ordinal, memory)).unwrap_or_default();
    let view = |((private_pool, _), (shape, segment)): (((u64, u64), u64), (FragmentationShape, AllocatorSegment))| {
        StreamPoolView {
            owner: owner(private_pool, captured.get(&private_pool).copied()),
            stream: segment.stream,
            private_pool,
            in_use: memory.is_kept(&segment),
            reusable_bytes: shape.reusable_bytes(),
            shape,
        }
    };
    let mut views: Vec<_> = rows.into_iter().map(view).collect();
    views.sort_by_key(|row| (Reverse(row.shape.reserved_bytes), row.private_pool, row.stream));
    views
}

/// Returns by private pool whether blocks were allocated in it during a graph capture. Pools
/// without an observed allocation are left out.
fn captures(tensors: &TensorLedger, ordinal: Ordinal, memory: &AllocatorMemory) -> BTreeMap<(u64, u64), bool> {
    let mut found = BTreeMap::new();
    for block in tensors.attribution().blocks().filter(|block| block.ordinal == ordinal && block.granted_ns > 0) {
        let segment = memory.segment_of(block.address).filter(|(_, segment)| segment.private_pool != USUAL);
        if let Some((_, segment)) = segment {
            *found.entry(segment.private_pool).or_insert(false) |= block.whose.captured;
        }
    }
    found
}

/// Returns the kind of owner. Pools that PyTorch creates for a capture have a first number, pools
/// that a program requests have a second one (c10/cuda/CUDACachingAllocator.cpp, `MemPool`).
const fn owner(private_pool: (u64, u64), captured: Option<bool>) -> Name {
    Name::Borrowed(match (private_pool, captured) {
        (USUAL, _) => "stream",
        ((1.., _), _) => "graph",
        (_, Some(true)) => "graphs",
        (_, Some(false)) => "mem_pool",
        (_, None) => "private",
    })
}

/// Returns the result for a request in the default pools, on the stream with most allocated bytes.
pub(super) fn fit(memory: &AllocatorMemory, wanted_bytes: u64, driver_free_bytes: Option<u64>) -> FitView {
    let bytes = wanted_bytes.max(1).next_multiple_of(512);
    let pool = PoolSize::of_request(bytes);
    let mut allocated: BTreeMap<u64, u64> = BTreeMap::new();
    let mut with_room = BTreeSet::new();
    for (begin, segment) in memory.segments().iter().filter(|(_, segment)| segment.private_pool == USUAL) {
        for (_, cell) in memory.cells().range(*begin..begin.saturating_add(segment.bytes)) {
            match cell.state {
                BlockState::Allocated => *allocated.entry(segment.stream).or_default() += cell.bytes,
                BlockState::Inactive if segment.pool == pool && cell.bytes >= bytes => {
                    with_room.insert(segment.stream);
                }
                BlockState::Inactive | BlockState::Pending => {}
            }
        }
    }
    let stream =
        allocated.into_iter().max_by_key(|(stream, bytes)| (*bytes, Reverse(*stream))).map_or(0, |most| most.0);
    let driver_bytes = match pool {
        PoolSize::Small => SMALL_SEGMENT_BYTES,
        PoolSize::Large if bytes < OWN_SEGMENT_BYTES => LARGE_SEGMENT_BYTES,
        PoolSize::Large => bytes.next_multiple_of(SMALL_SEGMENT_BYTES),
    };
    FitView {
        wanted_bytes,
        stream,
        cached: with_room.remove(&stream),
        other_streams: with_room.into_iter().collect(),
        driver_bytes,
        driver_free_bytes,
        releasable_bytes: releasable_bytes(memory),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocators::pytorch::SegmentCell;
    use crate::decode::StackRef;
    use crate::words::Tid;

    const MIB: u64 = 1 << 20;

    fn segment(stream: u64, private_pool: (u64, u64)) -> AllocatorSegment {
        let (pool, stack) = (PoolSize::Large, StackRef::NotAsked);
        AllocatorSegment { bytes: 64 * MIB, pool, is_expandable: false, stream, private_pool, stack }
    }

    fn block(bytes: u64) -> SegmentCell {
        let (state, stack) = (BlockState::Allocated, StackRef::NotAsked);
        SegmentCell { bytes, requested_bytes: Some(bytes), state, stack, tid: Tid(1), time_ns: 0 }
    }

    /// The default stream uses 24 of 64 MiB, another stream none, and the pools of two graphs 8 MiB
    /// each.
    fn memory() -> AllocatorMemory {
        let mut memory = AllocatorMemory::default();
        let all = [(0, USUAL, 24), (7, USUAL, 0), (7, (1, 0), 8), (7, (2, 0), 8)];
        for (place, (stream, private_pool, used)) in (1_u64..).zip(all) {
            memory.add_segment(place << 32, segment(stream, private_pool));
            if used > 0 {
                memory.grant(place << 32, block(used * MIB));
            }
        }
        memory.add_segment(9 << 32, segment(7, (2, 0)));
        memory
    }

    #[test]
    fn free_memory_is_releasable_reusable_or_stranded() {
        let mut memory = memory();
        let rows = |memory: &AllocatorMemory| {
            let rows = pools(None, Ordinal(0), memory).into_iter();
            let free = |row: StreamPoolView| {
                let shape = row.shape;
                let parts = [shape.unused_segment_bytes, row.reusable_bytes, shape.stranded_bytes];
                assert_eq!(parts.iter().sum::<u64>(), shape.free_bytes);
                (row.owner, row.private_pool, row.stream, parts.map(|bytes| bytes / MIB))
            };
            rows.map(free).collect::<Vec<_>>()
        };
        let graph = |number, parts| ("graph".into(), (number, 0), 7, parts);
        let stream = |stream, parts| ("stream".into(), USUAL, stream, parts);
        let (default, other) = (stream(0, [0, 40, 0]), stream(7, [64, 0, 0]));
        assert_eq!(rows(&memory), [graph(2, [0, 0, 120]), default.clone(), other.clone(), graph(1, [0, 0, 56])]);
        assert_eq!(releasable_bytes(&memory), 64 * MIB);
        // The release of one of the pool's segments shows that the graph no longer exists.
        memory.add_segment(10 << 32, segment(7, (2, 0)));
        memory.remove_segment(9 << 32, 64 * MIB);
        assert_eq!(rows(&memory), [graph(2, [64, 0, 56]), default, other, graph(1, [0, 0, 56])]);
        assert_eq!(releasable_bytes(&memory), 128 * MIB);
    }

    #[test]
    fn a_request_has_no_free_block_of_another_stream_or_pool() {
        let memory = memory();
        let fits = |mib: u64| {
            let fit = fit(&memory, mib * MIB, None);
            (fit.stream, fit.cached, fit.other_streams)
        };
        assert_eq!(fits(40), (0, true, vec![7]));
        assert_eq!(fits(64), (0, false, vec![7]));
        assert_eq!(fits(65), (0, false, vec![]));
        assert_eq!(fit(&memory, 64 * MIB, None).driver_bytes, 64 * MIB);
    }

    #[test]
    fn a_pool_that_programs_ask_for_is_its_users() {
        let owners = [(USUAL, None), ((3, 0), None), ((0, 3), None), ((0, 3), Some(true)), ((0, 3), Some(false))];
        let named = owners.map(|(pool, captured)| owner(pool, captured).into_owned());
        assert_eq!(named, ["stream", "graph", "private", "graphs", "mem_pool"]);
    }
}
