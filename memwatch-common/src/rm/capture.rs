//! What the kernel half does at entry and return of an ioctl to NVIDIA's kernel driver: reads the
//! request at entry and the result at return.
//!
//! Like [`crate::capture`], it is generic over the kernel, so that tests run it on hash maps and
//! inject faults.

use super::{
    ARGUMENT_BYTES, CONTROLS, Does, FLAG_ARGUMENT_UNREADABLE, FLAG_ASKED_UNREADABLE, FLAG_PARAMS_UNREADABLE,
    FLAG_WRAPPED, MAGIC, PARAMS_OFFSET, PAYLOAD_BYTES, PLANS, RmPlan, RmRecord, XFER, class, plan,
};
use crate::arming::ArmGroup;
use crate::capture::{CaptureKernel, ThreadKey};
use crate::loss::Loss;
use crate::record::RecordKind;

/// `_IOC_SIZE` of [`XFER`]: `nv_ioctl_xfer_t` of `nv-ioctl.h`.
const XFER_BYTES: u16 = 16;
/// Class of video memory: `NV01_MEMORY_LOCAL_USER` of `cl0040.h`.
const VIDEO_MEMORY: u32 = 0x40;
/// Offset of the size in the parameters of a memory allocation: `NV_MEMORY_ALLOCATION_PARAMS` of
/// `nvos.h`.
const SIZE_OFFSET: u64 = 64;
/// Offsets at which [`Does::Map`] may have client and memory.
const MAPPED_OBJECT: [u64; 2] = [1188, 9252];
/// Value of `params_bytes` while it is not known whether the parameters are wanted.
const UNKNOWN: u64 = u64::MAX;

/// A thread's ioctl between entry and return, and the buffer for its record. Ioctls never nest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct RmInFlight {
    /// User stack pointer at entry; 0 if no ioctl is in flight.
    pub stack_pointer: u64,
    /// The request that the program passed.
    pub request: u64,
    /// The argument that the program passed; for a wrapped request, that of the wrapping one.
    pub given: u64,
    /// Address of the request's own argument.
    pub argument: u64,
    /// Address of the parameters of an allocation or control; 0 for none.
    pub params: u64,
    /// What the request does: a number of [`Does`].
    pub does: u64,
    /// Bytes of the argument that are read at return.
    pub argument_bytes: u64,
    /// Bytes of the parameters that are read at return.
    pub params_bytes: u64,
    /// User charged for the entry ([`crate::shares`]); written by the kernel.
    pub owner: u64,
    /// Number of the probed file's [`ArmGroup`].
    pub group: u64,
    /// The record, as far as it is known.
    pub record: RmRecord,
}

impl RmInFlight {
    /// Whether an ioctl is in flight and its return will be seen. One that entered before every
    /// probe of the file was in place may have returned unseen.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "it was made of one")]
    pub fn counts<K: CaptureKernel>(&self, kernel: &K) -> bool {
        self.stack_pointer != 0 && self.record.entered_ns >= kernel.armed_ns(ArmGroup::numbered(self.group as u32))
    }
}

/// Entry without an ioctl in flight.
pub const NO_IOCTL: RmInFlight = RmInFlight {
    stack_pointer: 0,
    request: 0,
    given: 0,
    argument: 0,
    params: 0,
    does: 0,
    argument_bytes: 0,
    params_bytes: 0,
    owner: 0,
    group: 0,
    record: RmRecord {
        kind: RecordKind::Rm as u8,
        flags: 0,
        nr: 0,
        reserved: 0,
        size: 0,
        probe: 0,
        tgid: 0,
        tid: 0,
        answer: 0,
        owner: 0,
        entered_ns: 0,
        returned_ns: 0,
        call_entered_ns: 0,
        asked_bytes: 0,
        stack: 0,
        payload: [0; PAYLOAD_BYTES],
    },
};

/// Kernel functions that this module needs in addition to [`CaptureKernel`].
pub trait RmKernel: CaptureKernel {
    /// Runs `change` on the thread's ioctl in flight, after adding an empty entry if there is none;
    /// `None` if the table is full.
    fn with_ioctl<R>(&self, thread: ThreadKey, change: impl FnOnce(&mut RmInFlight) -> R) -> Option<R>;
    /// Runs `change` on the thread's ioctl in flight; `None` if the thread has no entry.
    fn with_existing_ioctl<R>(&self, thread: ThreadKey, change: impl FnOnce(&mut RmInFlight) -> R) -> Option<R>;
    /// Reads memory of the traced process into a payload; `place` is the offset in the payload and
    /// the number of bytes. Returns false and writes zeros if the memory cannot be read.
    fn read_payload(&self, address: u64, payload: &mut [u8; PAYLOAD_BYTES], place: (usize, u64)) -> bool;
    /// Copies the stack of the running thread, if stack copies are on and there is room. Returns
    /// the copy's id, or 0.
    fn copy_stack(&self, thread: ThreadKey, now_ns: u64) -> u64;
    /// Sends a record to user space; false if there is no room for it. While the record waits for
    /// room, its `owner` is the user it is charged to.
    fn emit_rm(&self, record: &mut RmRecord) -> bool;
}

/// What is known at entry of a request that is recorded.
#[derive(Clone, Copy)]
struct RmRequestPlan {
    plan: &'static RmPlan,
    argument: u64,
    flags: u8,
    params: u64,
    params_bytes: u64,
    asked_bytes: u64,
    copies_stack: bool,
}

/// Handles the entry of `ioctl`, with its second and third argument.
#[inline(always)]
pub fn on_ioctl<K: RmKernel>(kernel: &K, cookie: u64, (request, argument): (u64, u64), stack_pointer: u64) {
    let thread = kernel.thread();
    if !kernel.watched(thread.tgid) || is_echo(kernel, thread, (request, argument, stack_pointer)) {
        return;
    }
    let Some(asked) = asked(kernel, thread.tgid, request, argument) else { return };
    let entered_ns = kernel.now_ns();
    let (probe, call_entered_ns) = innermost(kernel, thread, stack_pointer);
    let stack = if asked.copies_stack { kernel.copy_stack(thread, entered_ns) } else { 0 };
    let noted = kernel.with_ioctl(thread, |call| {
        call.stack_pointer = stack_pointer;
        call.group = ArmGroup::of_cookie(cookie).of_requests().number().into();
        call.request = request;
        call.given = argument;
        call.argument = asked.argument;
        call.params = asked.params;
        call.does = asked.plan.does as u64;
        call.argument_bytes = asked.plan.argument_bytes.into();
        call.params_bytes = asked.params_bytes;
        let record = &mut call.record;
        record.flags = asked.flags;
        record.nr = asked.plan.nr;
        record.size = asked.plan.size;
        record.probe = probe;
        record.tgid = thread.tgid;
        record.tid = thread.tid;
        record.entered_ns = entered_ns;
        record.call_entered_ns = call_entered_ns;
        record.asked_bytes = asked.asked_bytes;
        record.stack = stack;
        record.payload = [0; PAYLOAD_BYTES];
    });
    if noted.is_none() {
        kernel.lose(thread.tgid, Loss::RmRecordLost);
    }
}

/// Whether this entry was reported before (one file probed under two identities). Clears any other
/// ioctl in flight: its return was not seen.
#[inline(always)]
fn is_echo<K: RmKernel>(kernel: &K, thread: ThreadKey, (request, argument, stack_pointer): (u64, u64, u64)) -> bool {
    let left_behind = kernel.with_existing_ioctl(thread, |call| {
        let counts = call.counts(kernel);
        let same = (call.stack_pointer, call.request, call.given) == (stack_pointer, request, argument);
        if !(counts && same) {
            call.stack_pointer = 0;
        }
        (counts, same)
    });
    match left_behind {
        Some((true, true)) => true,
        Some((true, false)) => {
            kernel.lose(thread.tgid, Loss::RmRecordLost);
            false
        }
        _ => false,
    }
}

/// Reads the request; `None` if it is not recorded.
#[inline(always)]
fn asked<K: RmKernel>(kernel: &K, tgid: u32, request: u64, argument: u64) -> Option<RmRequestPlan> {
    let request = RmRequestNumber::of(request)?;
    if request.size != XFER_BYTES || request.nr != u32::from(XFER) {
        return planned(kernel, tgid, request, (argument, 0));
    }
    let mut wrapping = [0; 2];
    if !kernel.read_words::<2>(argument, &mut wrapping) {
        kernel.lose(tgid, Loss::RmUnreadable);
        return None;
    }
    let (nr, size) = halves(wrapping[0]);
    let Ok(size) = u16::try_from(size) else {
        lose_unknown_layout(kernel, tgid, nr);
        return None;
    };
    planned(kernel, tgid, RmRequestNumber { nr, size, is_plain: false }, (wrapping[1], FLAG_WRAPPED))
}

/// An ioctl request, by the fields that the driver distinguishes.
#[derive(Clone, Copy)]
struct RmRequestNumber {
    nr: u32,
    size: u16,
    /// A request of UVM, which is a plain number.
    is_plain: bool,
}

impl RmRequestNumber {
    /// Splits a request; `None` if it belongs to another driver. A request is 32 bits wide:
    /// direction 2, size 14, type 8, number 8 (`asm-generic/ioctl.h`).
    #[inline(always)]
    fn of(request: u64) -> Option<Self> {
        let [nr, magic, low, high, ..] = request.to_le_bytes();
        let size = u16::from_le_bytes([low, high]) & 0x3fff;
        if magic == MAGIC {
            Some(Self { nr: nr.into(), size, is_plain: false })
        } else {
            (magic == 0 && low == 0 && high == 0).then_some(Self { nr: nr.into(), size: 0, is_plain: true })
        }
    }
}

#[inline(always)]
fn planned<K: RmKernel>(
    kernel: &K,
    tgid: u32,
    request: RmRequestNumber,
    (argument, flags): (u64, u8),
) -> Option<RmRequestPlan> {
    let found = u8::try_from(request.nr).ok().and_then(|nr| plan(nr, request.size));
    let Some(plan) = found.filter(|plan| (plan.size == 0) == request.is_plain) else {
        if !request.is_plain {
            lose_unknown_layout(kernel, tgid, request.nr);
        }
        return None;
    };
    let mut asked =
        RmRequestPlan { plan, argument, flags, params: 0, params_bytes: 0, asked_bytes: 0, copies_stack: false };
    if !matches!(plan.does, Does::Alloc | Does::Control) {
        return Some(asked);
    }
    // Both have the pointer to their parameters at 16. Their class or command is at 12 or 8.
    let mut words = [0; 3];
    if !kernel.read_words::<3>(argument, &mut words) {
        // The page may not have been resident; the driver touches it.
        asked.flags |= FLAG_ASKED_UNREADABLE;
        asked.params_bytes = UNKNOWN;
        return Some(asked);
    }
    let (command, class) = halves(words[1]);
    let kept = RecordedParams::of(plan.does, command, class)?;
    asked.params = words[2];
    asked.params_bytes = kept.params_bytes;
    asked.copies_stack = kept.is_memory && class == VIDEO_MEMORY;
    if kept.is_memory && asked.params != 0 {
        let mut size = [0; 1];
        if !kernel.read_words::<1>(asked.params.wrapping_add(SIZE_OFFSET), &mut size) {
            asked.flags |= FLAG_ASKED_UNREADABLE;
        }
        asked.asked_bytes = size[0];
    }
    Some(asked)
}

/// What to record of an allocation or control.
#[derive(Clone, Copy)]
struct RecordedParams {
    params_bytes: u64,
    is_memory: bool,
}

impl RecordedParams {
    /// Selects by the word at 8 for a control, and by the word at 12 for an allocation.
    #[inline(always)]
    fn of(does: Does, command: u32, number: u32) -> Option<Self> {
        if matches!(does, Does::Control) {
            let (_, bytes) = CONTROLS.iter().find(|(kept, _)| *kept == command)?;
            return Some(Self { params_bytes: (*bytes).into(), is_memory: false });
        }
        let class = class(number)?;
        Some(Self { params_bytes: class.params_bytes.into(), is_memory: class.is_memory })
    }
}

/// Counts a loss if the table has the request's number, but with other sizes only.
#[inline(always)]
fn lose_unknown_layout<K: RmKernel>(kernel: &K, tgid: u32, nr: u32) {
    if nr == u32::from(XFER) || PLANS.iter().any(|plan| plan.size != 0 && u32::from(plan.nr) == nr) {
        kernel.lose(tgid, Loss::RmLayout);
    }
}

/// Returns the probe id and entry time of the innermost driver call that the thread is in; zeros
/// for none. The stack grows down.
#[inline(always)]
fn innermost<K: RmKernel>(kernel: &K, thread: ThreadKey, stack_pointer: u64) -> (u16, u64) {
    let found = kernel.with_existing_in_flight(thread, |calls| {
        let mut innermost = (0, 0);
        for frame in &calls.frames {
            if frame.stack_pointer > stack_pointer {
                innermost = (frame.probe, frame.entered_ns);
            }
        }
        innermost
    });
    let (probe, entered_ns) = found.unwrap_or((0, 0));
    let [low, high, ..] = probe.to_le_bytes();
    (u16::from_le_bytes([low, high]), entered_ns)
}

/// Returns the lower and the upper 32 bits.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "each is half of it")]
fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// Handles the return of `ioctl`. Ignores an ioctl without an entry: it is not recorded, began
/// before the session, or was reported before.
#[inline(always)]
pub fn on_ioctl_return<K: RmKernel>(kernel: &K, return_value: u64, stack_pointer: u64) {
    let thread = kernel.thread();
    kernel.with_existing_ioctl(thread, |call| {
        // The return address has been popped.
        if call.stack_pointer == 0 || stack_pointer.wrapping_sub(call.stack_pointer) > 8 {
            return;
        }
        call.stack_pointer = 0;
        call.record.answer = halves(return_value).0.cast_signed();
        call.record.returned_ns = kernel.now_ns();
        if !read_answer(kernel, call) {
            return;
        }
        let record = &mut call.record;
        // A request that the driver refused has no effect, so an unreadable one is no loss.
        let unread = FLAG_ASKED_UNREADABLE | FLAG_ARGUMENT_UNREADABLE | FLAG_PARAMS_UNREADABLE;
        if record.flags & unread != 0 && record.answer >= 0 {
            kernel.lose(thread.tgid, Loss::RmUnreadable);
        }
        if !kernel.emit_rm(record) {
            kernel.lose(thread.tgid, Loss::RmRecordLost);
        }
    });
}

/// Reads the result of an ioctl; false if the ioctl is not recorded.
#[inline(always)]
fn read_answer<K: RmKernel>(kernel: &K, call: &mut RmInFlight) -> bool {
    let RmInFlight { record, params, params_bytes, .. } = call;
    if !kernel.read_payload(call.argument, &mut record.payload, (0, call.argument_bytes)) {
        record.flags |= FLAG_ARGUMENT_UNREADABLE;
        return true;
    }
    if call.does == Does::Map as u64 {
        for (place, offset) in [24, 32].into_iter().zip(MAPPED_OBJECT) {
            // Only one of the two layouts is this long, so one of the reads fails.
            kernel.read_payload(call.argument.wrapping_add(offset), &mut record.payload, (place, 8));
        }
        return true;
    }
    if *params_bytes == UNKNOWN {
        let is_control = call.does == Does::Control as u64;
        let does = if is_control { Does::Control } else { Does::Alloc };
        let Some(kept) = RecordedParams::of(does, word(&record.payload, 8), word(&record.payload, 12)) else {
            return false;
        };
        *params_bytes = kept.params_bytes;
        let (low, high) = (word(&record.payload, 16), word(&record.payload, 20));
        *params = u64::from(low) | u64::from(high) << 32;
        if !kept.is_memory {
            record.flags &= !FLAG_ASKED_UNREADABLE;
        }
    }
    let has_params = *params != 0 && *params_bytes != 0;
    if has_params && !kernel.read_payload(*params, &mut record.payload, (PARAMS_OFFSET, *params_bytes)) {
        record.flags |= FLAG_PARAMS_UNREADABLE;
    }
    true
}

#[inline(always)]
fn word(payload: &[u8; PAYLOAD_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([payload[at], payload[at + 1], payload[at + 2], payload[at + 3]])
}

/// Maximum number of bytes of a read into a payload, at its beginning or at [`PARAMS_OFFSET`].
pub const fn room(at: usize) -> u64 {
    if at == 0 { ARGUMENT_BYTES as u64 } else { (PAYLOAD_BYTES - at) as u64 }
}

#[cfg(test)]
#[path = "capture_tests.rs"]
mod tests;
