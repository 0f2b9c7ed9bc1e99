//! What the pools of RAPIDS and CuPy have of the block that comes or goes: where each function has it, its plan says.

use memwatch_common::capture::Kernel;
use memwatch_common::tensor::{CHUNK_MEMORY_BYTES, MEMORY_ADDRESS_BYTES, PoolPlan, PoolShape, WEAK_OBJECT_BYTES};

use crate::kernel::Bpf;

/// Puts the pool, the bytes and the address into arguments 0 to 2, CuPy's device into 3, and what the pool counts into the peeks; false where it could not be
/// read.
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

/// The words of a pool that it counts in, where it is known which they are.
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

/// A free block of RAPIDS' begins with its address and its size.
#[inline(always)]
fn from_block(pool: u64, bytes: u64, block: u64, args: &mut [u64; 6], extra: &mut [u64; 2]) -> bool {
    let mut address = [0; 1];
    let was_read = Bpf.read_words(block, &mut address);
    *extra = [0; 2];
    put(pool, bytes, address[0], args) && was_read
}

/// A chunk of CuPy's is a part of a memory.
#[inline(always)]
fn chunk(pool: u64, chunk: u64, args: &mut [u64; 6]) -> bool {
    let (mut part, mut memory) = ([0; 3], [0; 3]);
    let was_read = Bpf.read_words(chunk.wrapping_add(CHUNK_MEMORY_BYTES), &mut part)
        && Bpf.read_words(part[0].wrapping_add(MEMORY_ADDRESS_BYTES), &mut memory);
    let ([_, offset_bytes, bytes], [address, _, device]) = (part, memory);
    *args = [pool, bytes, address.wrapping_add(offset_bytes), device & u64::from(u32::MAX), 0, 0];
    was_read
}
