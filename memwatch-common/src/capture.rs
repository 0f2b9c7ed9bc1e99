//! What the kernel half does at a call's entry and return: a plan per probe, packed into the uprobe's 64-bit attach cookie.
//!
//! The logic is generic over [`Kernel`], so that tests run it on a hash map and inject faults.

use crate::loss::Loss;
use crate::record::{CallRecord, FLAG_OUT_UNREADABLE, FLAG_PEEK_UNREADABLE, PEEK_WORDS, RecordKind};

/// How many watched calls a thread may be inside at once.
pub const NESTING: usize = 2;

const NO_ARGUMENT: u8 = 0xF;

/// What to copy of one call besides its registers, status and times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapturePlan {
    out: [u8; 2],
    out_is_16_bytes: bool,
    peek: u8,
    peek_words: u8,
    peek_offset_bytes: u16,
}

impl CapturePlan {
    /// Registers only.
    pub const fn registers() -> Self {
        Self { out: [NO_ARGUMENT; 2], out_is_16_bytes: false, peek: NO_ARGUMENT, peek_words: 0, peek_offset_bytes: 0 }
    }

    /// At return, also read the eight bytes that argument `argument` points to. May be given twice.
    #[must_use]
    pub const fn out(mut self, argument: u8) -> Self {
        let index = if self.out[0] == NO_ARGUMENT { 0 } else { 1 };
        self.out[index] = argument;
        self
    }

    /// At return, also read the sixteen bytes that argument `argument` points to.
    #[must_use]
    pub const fn out_16(mut self, argument: u8) -> Self {
        self.out[0] = argument;
        self.out_is_16_bytes = true;
        self
    }

    /// Also read `words` (1, 3 or 5) eight-byte words at `offset_bytes` in the struct that `argument` points to.
    ///
    /// # Panics
    /// At compile time, where a row asks for what a cookie cannot carry.
    #[must_use]
    pub const fn peek(mut self, argument: u8, offset_bytes: u16, words: u8) -> Self {
        assert!(offset_bytes < 1024 && (words == 1 || words == 3 || words == 5));
        self.peek = argument;
        self.peek_words = words;
        self.peek_offset_bytes = offset_bytes;
        self
    }

    /// Number of out words this plan fills in [`CallRecord::out`].
    pub const fn out_words(&self) -> usize {
        if self.out_is_16_bytes || self.out[1] != NO_ARGUMENT {
            2
        } else if self.out[0] != NO_ARGUMENT {
            1
        } else {
            0
        }
    }

    /// Number of words this plan fills in [`CallRecord::peek`].
    pub const fn peek_words(&self) -> usize {
        self.peek_words as usize
    }

    /// Packs a probe's id and plan into an attach cookie.
    pub const fn cookie(self, probe: u16) -> u64 {
        (probe as u64)
            | (self.out[0] as u64) << 16
            | (self.out[1] as u64) << 20
            | (self.out_is_16_bytes as u64) << 24
            | (self.peek_words as u64) << 25
            | (self.peek as u64) << 28
            | (self.peek_offset_bytes as u64) << 32
    }

    /// The probe id and plan packed in an attach cookie.
    #[inline(always)]
    pub fn from_cookie(cookie: u64) -> (u16, Self) {
        let nibble = |shift: u32| ((cookie >> shift) & 0xF) as u8;
        let plan = Self {
            out: [nibble(16), nibble(20)],
            out_is_16_bytes: (cookie >> 24) & 1 == 1,
            peek: nibble(28),
            peek_words: ((cookie >> 25) & 7) as u8,
            peek_offset_bytes: ((cookie >> 32) & 0x3FF) as u16,
        };
        ((cookie & 0xFFFF) as u16, plan)
    }
}

/// A call between its entry and its return.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Frame {
    /// Row of the probe table; meaningful where `stack_pointer` is not 0.
    pub probe: u64,
    /// The user stack pointer at entry; 0 marks an unused frame.
    pub stack_pointer: u64,
    /// `CLOCK_BOOTTIME` at entry, nanoseconds.
    pub entered_ns: u64,
    /// Argument registers at entry.
    pub args: [u64; 6],
    /// The words read from a struct argument at entry.
    pub peek: [u64; PEEK_WORDS],
    /// 1 where those words could not be read at entry.
    pub peek_failed: u64,
    /// How often the entry was reported again (one file attached to under two identities): so often its return will be, too.
    pub echoes: u64,
}

/// The watched calls one thread is inside of, outermost first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct InFlight {
    /// Used from the front.
    pub frames: [Frame; NESTING],
}

/// The identity of a running thread, in the initial pid namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Thread {
    /// Process id.
    pub tgid: u32,
    /// Thread id.
    pub tid: u32,
}

/// What the capture logic needs of the kernel.
pub trait Kernel {
    /// The thread this runs in.
    fn thread(&self) -> Thread;
    /// `CLOCK_BOOTTIME`, nanoseconds.
    fn now_ns(&self) -> u64;
    /// Whether calls of this process are wanted.
    fn watched(&self, tgid: u32) -> bool;
    /// `N` eight-byte words of the traced process, if they can be read.
    fn read_words<const N: usize>(&self, address: u64) -> Option<[u64; N]>;
    /// Runs `change` on the thread's calls in flight, making an empty entry first where there is none.
    ///
    /// `None` when the table is full.
    fn with_in_flight<R>(&self, thread: Thread, change: impl FnOnce(&mut InFlight) -> R) -> Option<R>;
    /// Runs `change` on the thread's calls in flight, if there are any.
    fn with_existing_in_flight<R>(&self, thread: Thread, change: impl FnOnce(&mut InFlight) -> R) -> Option<R>;
    /// Since when every probe is in place: `CLOCK_BOOTTIME`, nanoseconds. A call entered earlier may return unseen.
    fn armed_ns(&self) -> u64;
    /// Hands a record to user space; false when the ring is full.
    fn emit(&self, record: &CallRecord) -> bool;
    /// Counts a loss.
    fn lose(&self, tgid: u32, loss: Loss);
}

/// At a watched function's entry: remembers registers and time until the return.
#[inline(always)]
pub fn on_enter<K: Kernel>(kernel: &K, cookie: u64, args: &[u64; 6], stack_pointer: u64) {
    let thread = kernel.thread();
    if !kernel.watched(thread.tgid) {
        return;
    }
    let (probe, plan) = CapturePlan::from_cookie(cookie);
    let peeked = read_peek(kernel, &plan, args);
    let frame = Frame {
        probe: u64::from(probe),
        stack_pointer,
        entered_ns: kernel.now_ns(),
        args: *args,
        peek: peeked.unwrap_or([0; PEEK_WORDS]),
        peek_failed: u64::from(peeked.is_none()),
        echoes: 0,
    };
    match kernel.with_in_flight(thread, |calls| push(calls, &frame) || push_over_unarmed(kernel, calls, &frame)) {
        Some(true) => {}
        Some(false) => kernel.lose(thread.tgid, Loss::NestedTooDeep),
        None => kernel.lose(thread.tgid, Loss::InFlightFull),
    }
}

/// While probes are being attached, calls enter whose return has no probe yet: they leave frames that nobody will take.
#[inline(always)]
fn push_over_unarmed<K: Kernel>(kernel: &K, calls: &mut InFlight, frame: &Frame) -> bool {
    let left_behind = calls.frames[0].entered_ns < kernel.armed_ns();
    if left_behind {
        for slot in &mut calls.frames {
            slot.stack_pointer = 0;
        }
        calls.frames[0] = *frame;
    }
    left_behind
}

/// Puts a frame above those it is nested in; false when there is no room.
///
/// The stack grows down, so a frame whose stack pointer is at or below the new one has returned without being seen, or is this
/// very call reported twice (one library attached through two mounts): either way the new frame takes its place.
#[inline(always)]
fn push(calls: &mut InFlight, frame: &Frame) -> bool {
    let mut placed = false;
    for slot in &mut calls.frames {
        if placed {
            clear(slot);
        } else if slot.stack_pointer <= frame.stack_pointer {
            let again = slot.stack_pointer == frame.stack_pointer && slot.probe == frame.probe;
            let echoes = if again { slot.echoes + 1 } else { 0 };
            *slot = Frame { echoes, ..*frame };
            placed = true;
        }
    }
    placed
}

/// Nothing of this frame's call is expected any more.
#[inline(always)]
fn clear(slot: &mut Frame) {
    slot.stack_pointer = 0;
    slot.echoes = 0;
}

/// Whether this return was reported already: its frame has been taken, and its entry had been reported as often as this.
#[inline(always)]
fn is_echo(calls: &mut InFlight, probe: u16) -> bool {
    let mut found = false;
    for slot in &mut calls.frames {
        if !found && slot.stack_pointer == 0 && slot.probe == u64::from(probe) && slot.echoes > 0 {
            slot.echoes -= 1;
            found = true;
        }
    }
    found
}

/// At a watched function's return: completes the record and hands it on.
#[inline(always)]
pub fn on_return<K: Kernel>(kernel: &K, cookie: u64, return_value: u64, stack_pointer: u64) {
    let thread = kernel.thread();
    if !kernel.watched(thread.tgid) {
        return;
    }
    let (probe, plan) = CapturePlan::from_cookie(cookie);
    let popped = kernel.with_existing_in_flight(thread, |calls| {
        let straddles = calls.frames[0].entered_ns < kernel.armed_ns();
        pop(calls, probe, stack_pointer).ok_or_else(|| straddles || is_echo(calls, probe))
    });
    let frame = match popped {
        Some(Ok(frame)) => frame,
        // Not seen entering since all probes are in place, the thread was inside the call when they came, and another tracer's return
        // probe on the same function brought it here: that call is older than the watch. Or this very return was reported before.
        None | Some(Err(true)) => return,
        Some(Err(false)) => {
            kernel.lose(thread.tgid, Loss::ReturnWithoutEntry);
            return;
        }
    };
    let mut record = CallRecord {
        kind: RecordKind::Call as u8,
        flags: 0,
        probe,
        status: low_word(return_value),
        tgid: thread.tgid,
        tid: thread.tid,
        entered_ns: frame.entered_ns,
        returned_ns: kernel.now_ns(),
        args: frame.args,
        out: [0; 2],
        peek: frame.peek,
    };
    if record.status == 0 {
        read_outs(kernel, &plan, &mut record);
    }
    if frame.peek_failed != 0 {
        // The page was not resident at entry; the call itself has touched it since.
        if let Some(words) = read_peek(kernel, &plan, &record.args) {
            record.peek = words;
        } else {
            record.flags |= FLAG_PEEK_UNREADABLE;
            kernel.lose(thread.tgid, Loss::PeekUnreadable);
        }
    }
    if !kernel.emit(&record) {
        kernel.lose(thread.tgid, Loss::RingFull);
    }
}

/// A 32-bit return value: the upper half of the register is undefined.
#[inline(always)]
fn low_word(return_value: u64) -> i32 {
    let [a, b, c, d, ..] = return_value.to_le_bytes();
    i32::from_le_bytes([a, b, c, d])
}

/// Takes the frame of the call that returns now, and all frames nested in it that were never seen returning.
///
/// At the return probe the return address has been popped, so the stack pointer is one word above the entry's.
#[inline(always)]
fn pop(calls: &mut InFlight, probe: u16, stack_pointer: u64) -> Option<Frame> {
    let mut found = None;
    for slot in &mut calls.frames {
        if found.is_some() {
            clear(slot);
        } else if slot.probe == u64::from(probe)
            && slot.stack_pointer != 0
            && stack_pointer.wrapping_sub(slot.stack_pointer) <= 8
        {
            found = Some(*slot);
            slot.stack_pointer = 0;
        }
    }
    found
}

#[inline(always)]
fn read_outs<K: Kernel>(kernel: &K, plan: &CapturePlan, record: &mut CallRecord) {
    // A null out-pointer is the caller's way of not asking (cuCtxPopCurrent); there is nothing to read.
    let mut unreadable = false;
    let first = argument(&record.args, plan.out[0]);
    if first != 0 {
        let word = kernel.read_words::<1>(first);
        unreadable |= word.is_none();
        record.out[0] = word.map_or(0, |[word]| word);
    }
    let second =
        if plan.out_is_16_bytes && first != 0 { first.wrapping_add(8) } else { argument(&record.args, plan.out[1]) };
    if second != 0 {
        let word = kernel.read_words::<1>(second);
        unreadable |= word.is_none();
        record.out[1] = word.map_or(0, |[word]| word);
    }
    if unreadable {
        record.flags |= FLAG_OUT_UNREADABLE;
        kernel.lose(record.tgid, Loss::OutUnreadable);
    }
}

#[inline(always)]
fn read_peek<K: Kernel>(kernel: &K, plan: &CapturePlan, args: &[u64; 6]) -> Option<[u64; PEEK_WORDS]> {
    let base = argument(args, plan.peek);
    if base == 0 {
        return Some([0; PEEK_WORDS]);
    }
    let address = base.wrapping_add(u64::from(plan.peek_offset_bytes));
    match plan.peek_words {
        1 => kernel.read_words::<1>(address).map(|[a]| [a, 0, 0, 0, 0]),
        3 => kernel.read_words::<3>(address).map(|[a, b, c]| [a, b, c, 0, 0]),
        _ => kernel.read_words::<5>(address),
    }
}

/// Argument `index`, or 0 for none. Constant indices only: the verifier refuses a run-time index into the registers.
#[inline(always)]
fn argument(args: &[u64; 6], index: u8) -> u64 {
    match index {
        0 => args[0],
        1 => args[1],
        2 => args[2],
        3 => args[3],
        4 => args[4],
        5 => args[5],
        _ => 0,
    }
}

#[cfg(test)]
#[path = "capture_tests.rs"]
mod tests;
