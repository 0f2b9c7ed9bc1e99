//! Reads the block that a pool of RAPIDS or CuPy grants or frees. The plan of each function says
//! where the block is.

use memwatch_common::capture::CaptureKernel;
use memwatch_common::tensor::{CHUNK_MEMORY_BYTES, MEMORY_ADDRESS_BYTES, PoolPlan, PoolShape, WEAK_OBJECT_BYTES};

use crate::kernel::Bpf;

/// Writes pool, bytes and address to arguments 0 to 2, CuPy's device to argument 3, and the
/// counters of the pool to the peeks. Returns false if unreadable.
#[inline(always)]
pub(crate) fn read(plan: PoolPlan, args: &mut [u64; 6], extra: &mut [u64; 2], rax: u64) -> bool {
    let was_read = match plan.shape {
        PoolShape::FromBlock => from_block(args[1], args[3], args[2], args, extra),
        PoolShape::FromFixed => from_block(args[0], args[2], args[1], args, extra),
        PoolShape::IntoBlock => put(args[1], args[3], args[2], args),
        PoolShape::IntoFixed => put(args[0], args[2], args[1], args),
        PoolShape::IntoArena => put(args[0], args[3], args[2], args),
        PoolShape::Wanted => put(args[0], args[2], 0, args),
        PoolShape::Answered => put(0, 0, rax, args),
        PoolShape::ChunkGranted => {
            let mut pool = [0; 1];
            Bpf.read_words(args[2].wrapping_add(WEAK_OBJECT_BYTES), &mut pool) && chunk(pool[0], args[1], args)
        }
        PoolShape::ChunkFreed => chunk(args[0], args[1], args),
    };
    was_read && counters(plan, args[0], extra)
}

/// Reads the counter words of a pool, if their offsets are known.
#[inline(always)]
fn counters(plan: PoolPlan, pool: u64, extra: &mut [u64; 2]) -> bool {
    if plan.counter_bytes == 0 {
        return true;
    }
    let at = pool.wrapping_add(u64::from(plan.counter_bytes));
    if matches!(plan.shape, PoolShape::ChunkGranted | PoolShape::ChunkFreed) {
        return Bpf.read_words(at, extra);
    }
    let mut word = [0; 1];
    let was_read = Bpf.read_words(at, &mut word);
    extra[0] = word[0];
    was_read
}

#[inline(always)]
fn put(pool: u64, bytes: u64, address: u64, args: &mut [u64; 6]) -> bool {
    *args = [pool, bytes, address, 0, 0, 0];
    true
}

/// Reads a free block of RAPIDS, which starts with its address and its size.
#[inline(always)]
fn from_block(pool: u64, bytes: u64, block: u64, args: &mut [u64; 6], extra: &mut [u64; 2]) -> bool {
    let mut address = [0; 1];
    let was_read = Bpf.read_words(block, &mut address);
    *extra = [0; 2];
    put(pool, bytes, address[0], args) && was_read
}

/// Reads a chunk of CuPy, which is a part of an allocation.
#[inline(always)]
fn chunk(pool: u64, chunk: u64, args: &mut [u64; 6]) -> bool {
    let (mut part, mut memory) = ([0; 3], [0; 3]);
    let was_read = Bpf.read_words(chunk.wrapping_add(CHUNK_MEMORY_BYTES), &mut part)
        && Bpf.read_words(part[0].wrapping_add(MEMORY_ADDRESS_BYTES), &mut memory);
    let ([_, offset_bytes, bytes], [address, _, device]) = (part, memory);
    *args = [pool, bytes, address.wrapping_add(offset_bytes), device & u64::from(u32::MAX), 0, 0];
    was_read
}
