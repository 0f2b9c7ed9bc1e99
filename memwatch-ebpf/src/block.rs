//! What a caching allocator's own books have of the block that comes or goes, read while its lock is held.

use memwatch_common::capture::Kernel;
use memwatch_common::native::Registers;
use memwatch_common::tensor::{
    ACTIVE_TO_BYTES_WORDS, ALLOCATION_TO_BYTES_WORDS, BlockPlan, CHUNK_FREED, CHUNK_GRANTED, CHUNK_OF_STREAM,
    CHUNK_STREAM_BYTES, CHUNK_WORDS, CounterPlan, Held, IN_USE_WORD, NODE_WORDS, PLACE_WORDS, PRIVATE_POOL,
    TensorRecord,
};

use crate::kernel::Bpf;
use crate::pool;

/// Where a block has its device and its stream: a byte and a word at its beginning (`Block` in c10/cuda/CUDACachingAllocator.cpp, the same in 2.6 to
/// 2.15).
const DEVICE_AND_STREAM: u64 = 0;

/// More than a `DeviceCachingAllocator` has, in which its two usual pools lie; private ones are memory of their own. 1.5 to 2 KiB in 2.6 to 2.15.
const ALLOCATOR_BYTES: u64 = 8 << 10;

/// Reads what the cookie's plan says, and puts it in the place of arguments and peeks that the row's meaning names; false where it could not be read, or is not
/// what the arguments say.
#[inline(always)]
pub(crate) fn read(
    cookie: u64,
    args: &mut [u64; 6],
    extra: &mut [u64; 2],
    (rax, registers): (u64, &Registers),
) -> bool {
    match BlockPlan::of_cookie(cookie) {
        // A tensor has no walk and no counters, and a way of its own: all that is read here meets all that follows, which the verifier goes through each time.
        BlockPlan::None | BlockPlan::BufferTensor { .. } => true,
        BlockPlan::Granted { allocator, block, offset_bytes } => {
            let (block, mut words, mut front) = (held(block, rax, registers), [0; 4], [0; 2]);
            let was_read = Bpf.read_words(block.wrapping_add(offset_bytes.into()), &mut words)
                && Bpf.read_words(block.wrapping_add(DEVICE_AND_STREAM), &mut front);
            let [bytes, requested_bytes, pool, address] = words;
            let allocator = held(allocator, rax, registers);
            *extra = [requested_bytes, allocator];
            let is_private = pool.wrapping_sub(allocator) >= ALLOCATOR_BYTES;
            args[4] = args[4] & 0xffff | if is_private { PRIVATE_POOL } else { 0 };
            args[5] = front[1];
            was_read && address == args[0] && bytes == args[1]
        }
        BlockPlan::GivenBack { allocator, offset_bytes } => {
            let (allocator, mut granted, mut active) = (held(allocator, rax, registers), [0; 1], [0; 1]);
            let bytes_at = allocator.wrapping_add(offset_bytes.into());
            let was_read = Bpf.read_words(bytes_at.wrapping_sub(ALLOCATION_TO_BYTES_WORDS as u64 * 8), &mut granted)
                && Bpf.read_words(bytes_at.wrapping_sub(ACTIVE_TO_BYTES_WORDS as u64 * 8), &mut active);
            *extra = [0, allocator];
            args[5] = active[0].wrapping_sub(granted[0]);
            was_read
        }
        BlockPlan::Completed { offset_bytes } => {
            let (mut words, mut front) = ([0; 4], [0; 2]);
            let was_read = Bpf.read_words(args[1].wrapping_add(offset_bytes.into()), &mut words)
                && Bpf.read_words(args[1].wrapping_add(DEVICE_AND_STREAM), &mut front);
            let [bytes, requested_bytes, _, address] = words;
            let [device, stream] = front;
            *args = [args[0], address, bytes, requested_bytes, stream, device];
            was_read
        }
        BlockPlan::ChunkGranted { allocator, counters } => {
            read_chunk(rax, held(allocator, rax, registers), args);
            read_counters(args[0], counters, args, extra)
        }
        BlockPlan::ChunkFreed { counters } => {
            *args = [args[0], CHUNK_FREED, 0, args[1], 0, 0];
            read_counters(args[0], counters, args, extra)
        }
        BlockPlan::Reserved { allocator, node, counters, is_grant } => {
            let verb = if is_grant { CHUNK_GRANTED } else { CHUNK_FREED };
            let has_node = read_node(held(node, rax, registers), verb, args);
            args[0] = held(allocator, rax, registers);
            read_counters(args[0], counters, args, extra) && has_node
        }
        BlockPlan::BufferMade => read_buffer(args, extra),
        BlockPlan::Pool(plan) => pool::read(plan, args, extra, rax),
    }
}

/// Reads what a buffer's context begins with.
#[inline(always)]
fn read_buffer(args: &mut [u64; 6], extra: &mut [u64; 2]) -> bool {
    let was_read = Bpf.read_words(args[1], extra);
    *args = [args[0], args[2], args[1], 0, 0, 0];
    was_read
}

/// Reads what a tensor is called and where its place is; false where it cannot be read.
#[inline(always)]
pub(crate) fn read_tensor(args: &[u64; 6], name_bytes: u16, record: &mut TensorRecord) -> bool {
    let mut place = [0; PLACE_WORDS];
    let has_place = Bpf.read_words(args[0], &mut place);
    let [_, base, _, offset] = place;
    record.extra = [base, offset];
    Bpf.read_words(args[1].wrapping_add(name_bytes.into()), &mut record.args) && has_place
}

/// Reads which chunk an arena has granted, if any.
#[inline(always)]
fn read_chunk(chunk: u64, allocator: u64, args: &mut [u64; 6]) {
    let (mut words, mut stream) = ([0; CHUNK_WORDS], [0; 1]);
    let has_chunk =
        Bpf.read_words(chunk, &mut words) && Bpf.read_words(chunk.wrapping_add(CHUNK_STREAM_BYTES), &mut stream);
    let [bytes, requested_bytes, _, address] = words;
    let verb = CHUNK_GRANTED | if stream[0] == 0 { 0 } else { CHUNK_OF_STREAM };
    *args = [allocator, if has_chunk { verb } else { 0 }, 0, address, requested_bytes, bytes];
}

/// Reads which memory outside its regions an arena has reserved, or gives back.
#[inline(always)]
fn read_node(node: u64, verb: u64, args: &mut [u64; 6]) -> bool {
    let mut words = [0; NODE_WORDS];
    let has_node = Bpf.read_words(node, &mut words);
    let [_, address, bytes] = words;
    *args = [0, if has_node { verb } else { 0 }, 0, address, bytes, bytes];
    has_node
}

/// Reads what an arena has counted.
#[inline(always)]
fn read_counters(allocator: u64, plan: CounterPlan, args: &mut [u64; 6], extra: &mut [u64; 2]) -> bool {
    let (mut count, mut in_use, mut peak) = ([0; 1], [0; 1], [0; 1]);
    let begin = allocator.wrapping_add(plan.offset_bytes.into());
    let was_read = Bpf.read_words(begin, &mut count)
        && Bpf.read_words(begin.wrapping_add(u64::from(IN_USE_WORD) * 8), &mut in_use)
        && Bpf.read_words(begin.wrapping_add(u64::from(plan.peak_word) * 8), &mut peak);
    *extra = [count[0], in_use[0]];
    args[2] = peak[0];
    was_read
}

#[inline(always)]
fn held(register: Held, rax: u64, registers: &Registers) -> u64 {
    match register {
        Held::Rax => rax,
        Held::Rbx => registers.rbx,
        Held::Rbp => registers.rbp,
        Held::R12 => registers.r12_to_r15[0],
        Held::R13 => registers.r12_to_r15[1],
        Held::R14 => registers.r12_to_r15[2],
        Held::R15 => registers.r12_to_r15[3],
    }
}
