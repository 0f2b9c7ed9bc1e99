//! Events around PyTorch's caching allocator: registers, names and Python stacks go straight into the ring.
//!
//! The kernel half does not know the meaning of an event. The attach cookie says which of its words
//! to read.

use core::ffi::c_void;

use aya_ebpf::bindings::{BPF_F_NO_PREALLOC, pt_regs};
use aya_ebpf::helpers::generated::bpf_probe_read_user_str;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap};
use memwatch_common::capture::{CaptureKernel, ThreadKey};
use memwatch_common::loss::Loss;
use memwatch_common::record::RecordKind;
use memwatch_common::tensor::{
    BlockPlan, CHUNK_GRANTED, EventName, FLAG_EXTRA_UNREADABLE, FLAG_RETURN, ONLY_LISTED, StatisticsRole, TEXT_BYTES,
    TensorPlan, TensorRecord, TextRecord, Walk,
};

use crate::counter::add;
use crate::kernel::Bpf;
use crate::python::{self, WalkResult};
use crate::{arena, statistics, variable, walk};

/// Traced processes. Used only if the cookie requires it.
#[map]
static TENSOR_TARGETS: HashMap<u32, u8> = HashMap::with_max_entries(4096, BPF_F_NO_PREALLOC);

/// Event counts of processes whose events are counted before tracing; entries are created by user space.
#[map]
static TENSOR_COUNTS: HashMap<u32, u64> = HashMap::with_max_entries(4096, BPF_F_NO_PREALLOC);

/// 1 once stacks are requested in any process. Until then, the lookup per process is skipped.
#[map]
static STACKS_WANTED: Array<u64> = Array::with_max_entries(1, 0);

/// Common part of the records of one event.
#[derive(Clone, Copy)]
struct TensorEventHead {
    thread: ThreadKey,
    probe: u16,
    time_ns: u64,
}

/// Handles a probe at a function's entry, or in its entry block while all arguments are still in
/// place.
#[inline(always)]
pub(crate) fn on_enter(cookie: u64, registers: &pt_regs) {
    let thread = Bpf.thread();
    if !is_wanted(cookie, thread.tgid) {
        return;
    }
    let (probe, plan, _) = TensorPlan::from_cookie(cookie);
    let args = &crate::arguments(registers);
    if plan.forgets && !python::forget_code(thread.tgid, args[0]) {
        return;
    }
    let event = TensorEventHead { thread, probe, time_ns: Bpf.now_ns() };
    if let BlockPlan::BufferTensor { name_bytes } = BlockPlan::of_cookie(cookie) {
        send_placed(&event, name_bytes, args[0], args[1]);
        return;
    }
    match plan.text {
        EventName::None => {
            if matches!((plan.statistics, plan.stack), (StatisticsRole::Offered, Walk::Always)) {
                statistics::report_failure(thread, args[3], event.time_ns);
            }
            send_words(event, (plan, cookie), args, registers);
            match plan.statistics {
                StatisticsRole::None => {}
                StatisticsRole::Announced => statistics::note_allocator(thread, args[0]),
                StatisticsRole::Offered => statistics::offer(thread, event.time_ns),
            }
        }
        EventName::Argument0 => send_text(&event, args[0], TEXT_BYTES as u64),
        EventName::StringInArgument1 => {
            let mut bytes_at = [0; 1];
            // The address is 0 if unreadable; the text is then empty.
            Bpf.read_words(args[1], &mut bytes_at);
            send_text(&event, bytes_at[0], TEXT_BYTES as u64);
        }
        EventName::ValueInArgument3 => {
            let mut pair = [0; 4];
            // The text is empty if there is no value or it is unreadable.
            if args[4] != 0 {
                Bpf.read_words(args[3], &mut pair);
            }
            send_text(&event, pair[3], pair[2]);
        }
    }
}

/// Reports the placement of a tensor in a buffer.
///
/// Not inlined, like [`send_text`]: nested BPF functions share 512 bytes of stack, and a walk needs some of it.
#[inline(never)]
fn send_placed(event: &TensorEventHead, name_bytes: u16, place: u64, tensor: u64) {
    let mut record = blank(*event);
    if !arena::read_tensor(place, tensor.wrapping_add(name_bytes.into()), &mut record) {
        record.flags = FLAG_EXTRA_UNREADABLE;
    }
    send(record);
}

/// Counts an event without reading it.
#[inline(always)]
pub(crate) fn count() {
    if let Some(count) = TENSOR_COUNTS.get_ptr_mut(&Bpf.thread().tgid) {
        // SAFETY: the counter is aligned to eight bytes and lives in a map.
        unsafe { add(count, 1) };
    }
}

/// Handles a probe at a function's return.
#[inline(always)]
pub(crate) fn on_return(cookie: u64, value: u64) {
    let thread = Bpf.thread();
    if !is_wanted(cookie, thread.tgid) {
        return;
    }
    let (probe, plan, _) = TensorPlan::from_cookie(cookie);
    let event = TensorEventHead { thread, probe, time_ns: Bpf.now_ns() };
    // The arguments have been overwritten by now; the Python stack is unchanged.
    let walks = matches!(plan.stack, Walk::Always);
    let walked = if walks { walk::of_event(event.time_ns) } else { WalkResult::default() };
    let flags = FLAG_RETURN | walked.flags;
    send(TensorRecord { flags, extra: [value, 0], stack: walked.id, ..blank(event) });
}

/// Stops tracing a process that has exited or called exec.
#[inline(always)]
pub(crate) fn forget(tgid: u32) {
    let _ = TENSOR_TARGETS.remove(&tgid);
    let _ = TENSOR_COUNTS.remove(&tgid);
}

#[inline(always)]
pub(crate) fn is_wanted(cookie: u64, tgid: u32) -> bool {
    cookie & ONLY_LISTED == 0 || TENSOR_TARGETS.get_ptr(&tgid).is_some()
}

/// Whether stacks are requested in any process.
#[inline(always)]
pub(crate) fn are_stacks_wanted() -> bool {
    STACKS_WANTED.get(0).is_some_and(|wanted| *wanted != 0)
}

#[inline(always)]
fn send_words(event: TensorEventHead, (plan, cookie): (TensorPlan, u64), args: &[u64; 6], registers: &pt_regs) {
    let mut extra = [0; 2];
    let mut args = *args;
    let was_block_read = arena::read(cookie, &mut args, &mut extra, registers);
    let walks = match plan.stack {
        Walk::Never => false,
        Walk::Always => true,
        Walk::Grants => args[1].cast_signed() > 0,
        Walk::Chunks => args[1] & u64::from(u32::MAX) == CHUNK_GRANTED,
    };
    let walks = walks && are_stacks_wanted();
    let is_grant = matches!(plan.stack, Walk::Grants | Walk::Chunks);
    let bytes = if matches!(plan.stack, Walk::Chunks) { args[5] } else { args[1] };
    let walked = match (walks, is_grant) {
        (false, _) => WalkResult::default(),
        (true, true) => walk::of_grant(event.time_ns, bytes),
        (true, false) => walk::of_event(event.time_ns),
    };
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
        // At a call instruction the return address is not on the stack yet.
        None if plan.stack_words => {
            Bpf.read_words(crate::stack_pointer(registers).wrapping_add(if plan.at_call { 0 } else { 8 }), &mut extra)
        }
        None => !plan.counters,
    };
    let unreadable = if was_read { 0 } else { FLAG_EXTRA_UNREADABLE };
    let flags = walked.flags | unreadable;
    send(TensorRecord { flags, args, extra, stack: walked.id, ..blank(event) });
}

/// Returns an argument by its number.
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
fn blank(event: TensorEventHead) -> TensorRecord {
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
pub(crate) fn send(record: TensorRecord) {
    match Bpf::reserve::<TensorRecord>() {
        Some(mut entry) => {
            entry.write(record);
            Bpf::submit_often(entry, record.time_ns);
        }
        None => lost(record.tgid),
    }
}

#[inline(never)]
fn lost(tgid: u32) {
    Bpf.lose(tgid, Loss::TensorEventLost);
}

#[inline(never)]
#[expect(clippy::cast_possible_truncation, reason = "a text is 72 bytes long")]
fn send_text(event: &TensorEventHead, address: u64, bytes: u64) {
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
