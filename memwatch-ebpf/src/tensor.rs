//! Events around PyTorch's caching allocator: registers, names and Python stacks go straight into the ring.
//!
//! What an event means is not known here; which words of it are wanted stands in the attach cookie.

use core::ffi::c_void;

use aya_ebpf::bindings::BPF_F_NO_PREALLOC;
use aya_ebpf::helpers::generated::bpf_probe_read_user_str;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap};
use memwatch_common::capture::{Kernel, Thread};
use memwatch_common::loss::Loss;
use memwatch_common::native::Registers;
use memwatch_common::record::RecordKind;
use memwatch_common::tensor::{
    BlockPlan, CHUNK_GRANTED, FLAG_EXTRA_UNREADABLE, FLAG_RETURN, ONLY_LISTED, Statistics, TEXT_BYTES, TensorPlan,
    TensorRecord, Text, TextRecord, Walk,
};

use crate::kernel::{Bpf, add};
use crate::native::Grant;
use crate::python::{self, Allocation, Walked};
use crate::{block, native, statistics, variable};

/// Processes whose events are wanted; read only where the cookie says so.
#[map]
static TENSOR_TARGETS: HashMap<u32, u8> = HashMap::with_max_entries(4096, BPF_F_NO_PREALLOC);

/// Tensor events of processes whose events are counted before any is traced; user space puts the processes in.
#[map]
static TENSOR_COUNTS: HashMap<u32, u64> = HashMap::with_max_entries(4096, BPF_F_NO_PREALLOC);

/// 1 once stacks are wanted of any process: until then nobody looks for what is known of one.
#[map]
static STACKS_WANTED: Array<u64> = Array::with_max_entries(1, 0);

/// What the records of one event have in common.
#[derive(Clone, Copy)]
struct Event {
    thread: Thread,
    probe: u16,
    time_ns: u64,
}

/// At a function's entry, or in its entry block where all arguments are still in place.
#[inline(always)]
pub(crate) fn on_enter(cookie: u64, args: &[u64; 6], rax: u64, registers: &Registers) {
    let thread = Bpf.thread();
    if !is_wanted(cookie, thread.tgid) {
        return;
    }
    let (probe, plan, _) = TensorPlan::from_cookie(cookie);
    if plan.forgets && !python::forget_code(thread.tgid, args[0]) {
        return;
    }
    let event = Event { thread, probe, time_ns: Bpf.now_ns() };
    if let BlockPlan::BufferTensor { name_bytes } = BlockPlan::of_cookie(cookie) {
        let mut record = blank(event);
        if !block::read_tensor(args, name_bytes, &mut record) {
            record.flags = FLAG_EXTRA_UNREADABLE;
        }
        send(event, record);
        return;
    }
    match plan.text {
        Text::None => {
            let allocator = send_words(event, (plan, cookie), args, (rax, registers));
            match plan.statistics {
                Statistics::None => {}
                Statistics::Offered if allocator != 0 => statistics::offer_of(thread, allocator, event.time_ns),
                Statistics::Announced => statistics::note_allocator(thread, args[0]),
                Statistics::Offered => statistics::offer(thread, event.time_ns),
            }
        }
        Text::Argument0 => send_text(event, args[0], TEXT_BYTES as u64),
        Text::StringInArgument1 => {
            let mut bytes_at = [0; 1];
            // Where it cannot be read, it is 0, and so is the text.
            Bpf.read_words(args[1], &mut bytes_at);
            send_text(event, bytes_at[0], TEXT_BYTES as u64);
        }
        Text::ValueInArgument3 => {
            let mut pair = [0; 4];
            // Where there is none, or it cannot be read, it is empty.
            if args[4] != 0 {
                Bpf.read_words(args[3], &mut pair);
            }
            send_text(event, pair[3], pair[2]);
        }
    }
}

/// One event more; nothing else of it is looked at.
#[inline(always)]
pub(crate) fn count() {
    if let Some(count) = TENSOR_COUNTS.get_ptr_mut(&Bpf.thread().tgid) {
        // SAFETY: the counter is aligned to eight bytes and lives in a map.
        unsafe { add(count, 1) };
    }
}

/// Where it returns.
#[inline(always)]
pub(crate) fn on_return(cookie: u64, value: u64) {
    let thread = Bpf.thread();
    if !is_wanted(cookie, thread.tgid) {
        return;
    }
    let (probe, plan, _) = TensorPlan::from_cookie(cookie);
    let event = Event { thread, probe, time_ns: Bpf.now_ns() };
    // The arguments are gone; the Python stack is as it was.
    let walks = matches!(plan.stack, Walk::Always);
    let walked = if walks { python::walk(event.thread, event.time_ns, None) } else { Walked::default() };
    let flags = FLAG_RETURN | walked.flags;
    send(event, TensorRecord { flags, extra: [value, 0], stack: walked.id, ..blank(event) });
}

/// Nothing is wanted any more of a process that has ended or has another program.
#[inline(always)]
pub(crate) fn forget(tgid: u32) {
    let _ = TENSOR_TARGETS.remove(&tgid);
    let _ = TENSOR_COUNTS.remove(&tgid);
}

#[inline(always)]
pub(crate) fn is_wanted(cookie: u64, tgid: u32) -> bool {
    cookie & ONLY_LISTED == 0 || TENSOR_TARGETS.get_ptr(&tgid).is_some()
}

/// Sends the event; returns the allocator that it is of, where the plan says in which register that is.
#[inline(always)]
fn send_words(
    event: Event,
    (plan, cookie): (TensorPlan, u64),
    args: &[u64; 6],
    (rax, registers): (u64, &Registers),
) -> u64 {
    let mut extra = [0; 2];
    let mut args = *args;
    let was_block_read = block::read(cookie, &mut args, &mut extra, (rax, registers));
    let walks = match plan.stack {
        Walk::Never => false,
        Walk::Always => true,
        Walk::Grants => args[1].cast_signed() > 0,
        Walk::Chunks => args[1] & u64::from(u32::MAX) == CHUNK_GRANTED,
    };
    let walks = walks && STACKS_WANTED.get(0).is_some_and(|wanted| *wanted != 0);
    let is_grant = matches!(plan.stack, Walk::Grants | Walk::Chunks);
    let bytes = if matches!(plan.stack, Walk::Chunks) { args[5] } else { args[1] };
    let allocation = if is_grant { Some(Allocation { stack_pointer: registers.rsp, bytes }) } else { None };
    let mut walked = if walks { python::walk(event.thread, event.time_ns, allocation) } else { Walked::default() };
    if walks && is_grant {
        let grant = Grant { thread: event.thread, time_ns: event.time_ns, bytes };
        walked = native::copy(grant, walked, registers);
    }
    let was_read = match plan.peek {
        None if BlockPlan::is_in(cookie) => was_block_read,
        Some((argument, offset_bytes)) if plan.thread_variable => {
            let word = variable::word(event.thread, pick(&args, argument), offset_bytes);
            extra[0] = word.unwrap_or(0);
            word.is_some()
        }
        Some((argument, offset_bytes)) if plan.counters => {
            let mut words = [0; 3];
            let was_read = Bpf.read_words(pick(&args, argument).wrapping_add(u64::from(offset_bytes)), &mut words);
            [extra[0], extra[1], args[2]] = words;
            was_read
        }
        Some((argument, offset_bytes)) => {
            Bpf.read_words(pick(&args, argument).wrapping_add(u64::from(offset_bytes)), &mut extra)
        }
        // Of a call the return address is not on the stack yet.
        None if plan.stack_words => {
            Bpf.read_words(registers.rsp.wrapping_add(if plan.at_call { 0 } else { 8 }), &mut extra)
        }
        None => !plan.counters,
    };
    let unreadable = if was_read { 0 } else { FLAG_EXTRA_UNREADABLE };
    let flags = walked.flags | unreadable;
    send(event, TensorRecord { flags, args, extra, stack: walked.id, ..blank(event) });
    if BlockPlan::names_allocator_in(cookie) { extra[1] } else { 0 }
}

/// An argument by its number.
#[inline(always)]
fn pick(args: &[u64; 6], argument: u8) -> u64 {
    match argument {
        0 => args[0],
        1 => args[1],
        2 => args[2],
        3 => args[3],
        4 => args[4],
        _ => args[5],
    }
}

#[inline(always)]
fn blank(event: Event) -> TensorRecord {
    TensorRecord {
        kind: RecordKind::Tensor as u8,
        flags: 0,
        probe: event.probe,
        tid: event.thread.tid,
        tgid: event.thread.tgid,
        reserved: 0,
        time_ns: event.time_ns,
        args: [0; 6],
        extra: [0; 2],
        stack: 0,
    }
}

#[inline(always)]
fn send(event: Event, record: TensorRecord) {
    match Bpf::reserve::<TensorRecord>() {
        Some(mut entry) => {
            entry.write(record);
            Bpf::submit(entry);
        }
        None => Bpf.lose(event.thread.tgid, Loss::TensorEventLost),
    }
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "a text is 72 bytes long")]
fn send_text(event: Event, address: u64, bytes: u64) {
    let Some(mut entry) = Bpf::reserve::<TextRecord>() else {
        Bpf.lose(event.thread.tgid, Loss::TensorEventLost);
        return;
    };
    let record = entry.write(TextRecord {
        kind: RecordKind::Text as u8,
        flags: 0,
        probe: event.probe,
        tid: event.thread.tid,
        tgid: event.thread.tgid,
        chunk: 0,
        time_ns: event.time_ns,
        text: [0; TEXT_BYTES],
    });
    // SAFETY: the helper writes at most as many bytes as the text has, and checks the user address itself.
    let read = unsafe {
        bpf_probe_read_user_str(record.text.as_mut_ptr().cast::<c_void>(), TEXT_BYTES as u32, address as *const c_void)
    };
    if read < 0 {
        record.text[0] = 0;
        record.flags = FLAG_EXTRA_UNREADABLE;
    }
    if let Some(end) = record.text.get_mut(bytes.min(TEXT_BYTES as u64) as usize) {
        *end = 0;
    }
    Bpf::submit(entry);
}
