//! Program for blocks that PyTorch's caching allocator grants and frees, and for chunks that an
//! arena reports.
//!
//! Nearly all events are of this kind, and between two events the watched program evicts the
//! tracing code from the caches. A short program therefore costs less than the general one,
//! whichever path is taken (docs/project/overhead.md).

use aya_ebpf::bindings::pt_regs;
use memwatch_common::capture::CaptureKernel;
use memwatch_common::record::RecordKind;
use memwatch_common::tensor::{
    ACTIVE_TO_BYTES_WORDS, ALLOCATION_TO_BYTES_WORDS, BLOCK_WORDS, BlockPlan, CHUNK_GRANTED, FLAG_EXTRA_UNREADABLE,
    PRIVATE_POOL, StatisticsRole, TensorPlan, TensorRecord, Walk,
};

use crate::kernel::Bpf;
use crate::python::WalkResult;
use crate::{statistics, tensor, walk};

/// Upper bound of the size of a `DeviceCachingAllocator` (1.5 to 2 KiB in PyTorch 2.6 to 2.15),
/// which contains its two default pools. Private pools are allocated separately.
const ALLOCATOR_BYTES: u64 = 8 << 10;

/// Offset from the counter of allocated blocks to that of active blocks.
const COUNTER_WORDS: usize = ALLOCATION_TO_BYTES_WORDS - ACTIVE_TO_BYTES_WORDS + 1;

/// Marks an unreadable count.
const UNREADABLE: u64 = u64::MAX;

/// Probe at the call that reports a block, or at the entry of the function that reports a chunk.
#[inline(always)]
pub(crate) fn on_enter(cookie: u64, registers: &pt_regs) {
    let thread = Bpf.thread();
    if !tensor::is_wanted(cookie, thread.tgid) {
        return;
    }
    let (probe, plan, _) = TensorPlan::from_cookie(cookie);
    let time_ns = Bpf.now_ns();
    let (mut args, mut extra) = (crate::arguments(registers), [0; 2]);
    let (bytes, is_grant) = match plan.stack {
        Walk::Grants => (args[1], args[1].cast_signed() > 0),
        Walk::Chunks => (args[5], args[1] & u64::from(u32::MAX) == CHUNK_GRANTED),
        Walk::Never | Walk::Always => (0, false),
    };
    let was_read = match BlockPlan::of_cookie(cookie) {
        BlockPlan::Granted { allocator, block, offset_bytes } => {
            let allocator = crate::held(registers, allocator);
            read_granted(crate::held(registers, block), (allocator, offset_bytes), &mut args, &mut extra)
        }
        BlockPlan::GivenBack { allocator, offset_bytes } => {
            extra[1] = crate::held(registers, allocator);
            let count = active_without_owner(extra[1].wrapping_add(offset_bytes.into()));
            args[5] = if count == UNREADABLE { 0 } else { count };
            count != UNREADABLE
        }
        BlockPlan::Completed { offset_bytes } => read_completed(offset_bytes, &mut args),
        _ => read_chunk_counters(plan, &mut args, &mut extra),
    };
    let walked =
        if is_grant && tensor::are_stacks_wanted() { walk::of_grant(time_ns, bytes) } else { WalkResult::default() };
    tensor::send(TensorRecord {
        kind: RecordKind::Tensor as u8,
        flags: walked.flags | if was_read { 0 } else { FLAG_EXTRA_UNREADABLE },
        probe,
        tid: thread.tid,
        tgid: thread.tgid,
        reserved: 0,
        time_ns,
        args,
        extra,
        stack: walked.id,
    });
    if matches!(plan.statistics, StatisticsRole::Offered) && BlockPlan::names_allocator_in(cookie) && extra[1] != 0 {
        statistics::offer_of(thread, extra[1], time_ns);
    }
}

/// Reads the granted block from the allocator's state. Returns false if it is unreadable or
/// contradicts the arguments.
#[inline(always)]
fn read_granted(block: u64, (allocator, offset_bytes): (u64, u16), args: &mut [u64; 6], extra: &mut [u64; 2]) -> bool {
    let (words, was_read) = read_block(block, offset_bytes);
    *extra = [words.requested_bytes, allocator];
    let is_private = words.pool.wrapping_sub(allocator) >= ALLOCATOR_BYTES;
    args[4] = args[4] & 0xffff | if is_private { PRIVATE_POOL } else { 0 };
    args[5] = words.stream;
    was_read && words.address == args[0] && words.bytes == args[1]
}

/// Reads the block in argument 1, which returns to its pool. Returns false if unreadable.
#[inline(always)]
fn read_completed(offset_bytes: u16, args: &mut [u64; 6]) -> bool {
    let (words, was_read) = read_block(args[1], offset_bytes);
    *args = [args[0], words.address, words.bytes, words.requested_bytes, words.stream, words.device];
    was_read
}

/// Fields of a block.
struct BlockWords {
    device: u64,
    stream: u64,
    bytes: u64,
    requested_bytes: u64,
    pool: u64,
    address: u64,
}

/// Reads a block. A block starts with its device (a byte) and its stream (a word); `{size,
/// requested, pool, address}` follow at the offset.
#[inline(always)]
fn read_block(block: u64, offset_bytes: u16) -> (BlockWords, bool) {
    let (words, was_read) = Bpf::words::<{ BLOCK_WORDS as usize }>(block);
    // The verifier needs this bound; offsets of the rows are far smaller.
    let word = |at: u16| words[usize::from((offset_bytes / 8 + at) % BLOCK_WORDS)];
    let (bytes, requested_bytes, pool, address) = (word(0), word(1), word(2), word(3));
    (BlockWords { device: words[0], stream: words[1], bytes, requested_bytes, pool, address }, was_read)
}

/// Returns the number of blocks that are active although the program has freed them, or
/// [`UNREADABLE`].
///
/// Not inlined: nested BPF functions share 512 bytes of stack, and a walk needs some of it.
#[inline(never)]
fn active_without_owner(bytes_at: u64) -> u64 {
    let (words, was_read) = Bpf::words::<COUNTER_WORDS>(bytes_at.wrapping_sub(ALLOCATION_TO_BYTES_WORDS as u64 * 8));
    if was_read { words[COUNTER_WORDS - 1].wrapping_sub(words[0]) } else { UNREADABLE }
}

/// Reads the three counter words of an arena.
#[inline(always)]
fn read_chunk_counters(plan: TensorPlan, args: &mut [u64; 6], extra: &mut [u64; 2]) -> bool {
    let Some((_, offset_bytes)) = plan.peek else { return false };
    let (words, was_read) = Bpf::words(args[0].wrapping_add(offset_bytes.into()));
    [extra[0], extra[1], args[2]] = words;
    was_read
}
