//! Reads the state that an arena or a pool records about the chunk being granted or freed, while
//! its lock is held.

use aya_ebpf::bindings::pt_regs;
use memwatch_common::capture::CaptureKernel;
use memwatch_common::tensor::{
    BlockPlan, CHUNK_FREED, CHUNK_GRANTED, CHUNK_OF_STREAM, CHUNK_STREAM_WORD, CHUNK_WORDS, COUNTER_WORDS, CounterPlan,
    IN_USE_WORD, NODE_WORDS, PLACE_WORDS, TensorRecord,
};

use crate::held;
use crate::kernel::Bpf;
use crate::pool;

/// Reads the values that the plan in the cookie requests, into the arguments and peeks that the
/// row's meaning names. Returns false if they are unreadable or contradict the arguments.
#[inline(always)]
pub(crate) fn read(cookie: u64, args: &mut [u64; 6], extra: &mut [u64; 2], registers: &pt_regs) -> bool {
    match BlockPlan::of_cookie(cookie) {
        // Tensors need no walk and no counters, and return early: otherwise the verifier would
        // follow each path from here through all the code below. Blocks of caching allocators have
        // a separate program.
        BlockPlan::None
        | BlockPlan::BufferTensor { .. }
        | BlockPlan::Granted { .. }
        | BlockPlan::GivenBack { .. }
        | BlockPlan::Completed { .. } => true,
        BlockPlan::ChunkGranted { allocator, counters } => {
            read_chunk(crate::return_value(registers), held(registers, allocator), args);
            read_counters(args[0], counters, args, extra)
        }
        BlockPlan::ChunkFreed { counters } => {
            *args = [args[0], CHUNK_FREED, 0, args[1], 0, 0];
            read_counters(args[0], counters, args, extra)
        }
        BlockPlan::Reserved { allocator, node, counters, is_grant } => {
            let verb = if is_grant { CHUNK_GRANTED } else { CHUNK_FREED };
            let has_node = read_node(held(registers, node), verb, args);
            args[0] = held(registers, allocator);
            read_counters(args[0], counters, args, extra) && has_node
        }
        BlockPlan::BufferMade => read_buffer(args, extra),
        BlockPlan::Pool(plan) => pool::read(plan, args, extra, crate::return_value(registers)),
    }
}

/// Reads the start of a buffer's context.
#[inline(always)]
fn read_buffer(args: &mut [u64; 6], extra: &mut [u64; 2]) -> bool {
    let was_read = Bpf.read_words(args[1], extra);
    *args = [args[0], args[2], args[1], 0, 0, 0];
    was_read
}

/// Reads the name and the address of a tensor. Returns false if unreadable.
#[inline(always)]
pub(crate) fn read_tensor(place: u64, name: u64, record: &mut TensorRecord) -> bool {
    let (words, has_place) = Bpf::words::<PLACE_WORDS>(place);
    let [_, base, _, offset] = words;
    record.extra = [base, offset];
    Bpf.read_words(name, &mut record.args) && has_place
}

/// Reads the chunk that an arena has granted, if any.
#[inline(always)]
fn read_chunk(chunk: u64, allocator: u64, args: &mut [u64; 6]) {
    let mut words = [0; CHUNK_WORDS];
    let has_chunk = Bpf.read_words(chunk, &mut words);
    let [bytes, requested_bytes, _, address, ..] = words;
    let verb = CHUNK_GRANTED | if words[CHUNK_STREAM_WORD] == 0 { 0 } else { CHUNK_OF_STREAM };
    *args = [allocator, if has_chunk { verb } else { 0 }, 0, address, requested_bytes, bytes];
}

/// Reads the memory that an arena reserves or gives back outside its regions.
#[inline(always)]
fn read_node(node: u64, verb: u64, args: &mut [u64; 6]) -> bool {
    let mut words = [0; NODE_WORDS];
    let has_node = Bpf.read_words(node, &mut words);
    let [_, address, bytes] = words;
    *args = [0, if has_node { verb } else { 0 }, 0, address, bytes, bytes];
    has_node
}

/// Reads the counters of an arena.
#[inline(always)]
fn read_counters(allocator: u64, plan: CounterPlan, args: &mut [u64; 6], extra: &mut [u64; 2]) -> bool {
    let mut words = [0; COUNTER_WORDS];
    let was_read = Bpf.read_words(allocator.wrapping_add(plan.offset_bytes.into()), &mut words);
    *extra = [words[0], words[usize::from(IN_USE_WORD)]];
    // The verifier needs the bound in this form.
    args[2] = words[usize::from(plan.peak_word) % COUNTER_WORDS];
    was_read
}
