//! Logic of the kernel half at the entry and the return of a call. Each probe has a plan, packed into the uprobe's
//! 64-bit attach cookie.
//!
//! The logic is generic over [`CaptureKernel`], so that tests can run it on a hash map and inject faults.

use crate::arming::ArmGroup;
use crate::loss::Loss;
use crate::plan::{
    CapturePlan, DIGEST, DIGEST_WORDS, FILE_IN_ARGUMENT_1, FILE_IN_OUT_WORD, MapUpdate, ON_STACK, ONLY_LISTED,
};
use crate::record::{CallRecord, FLAG_OUT_UNREADABLE, FLAG_PEEK_UNREADABLE, PEEK_WORDS, RecordKind};

/// Maximum nesting of watched calls in a thread.
pub const NESTING: usize = 2;

/// A call between its entry and its return.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CallFrame {
    /// Row of the probe table; meaningful if `stack_pointer` is not 0.
    pub probe: u64,
    /// User stack pointer at entry; 0 marks an unused frame.
    pub stack_pointer: u64,
    /// `CLOCK_BOOTTIME` at entry, nanoseconds.
    pub entered_ns: u64,
    /// Argument registers at entry.
    pub args: [u64; 6],
    /// Words read from a struct argument at entry.
    pub peek: [u64; PEEK_WORDS],
    /// 1 if those words could not be read at entry.
    pub peek_failed: u64,
    /// Entry that the call's entry probe removed from the allocation map; restored if the call fails.
    pub debited: MappedAllocation,
    /// Number of the file's [`ArmGroup`].
    pub group: u64,
    /// How many more times the entry was reported (one file attached to under two identities). Its return will be
    /// reported as often.
    pub echoes: u64,
}

/// An unused frame.
pub const NO_FRAME: CallFrame = CallFrame {
    probe: 0,
    stack_pointer: 0,
    entered_ns: 0,
    args: [0; 6],
    peek: [0; PEEK_WORDS],
    peek_failed: 0,
    debited: NOT_MAPPED_YET,
    group: 0,
    echoes: 0,
};

impl CallFrame {
    /// Whether the call was entered after every probe of its file was in place, so that its return is seen.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "it was made of one")]
    pub fn is_armed<K: CaptureKernel>(&self, kernel: &K) -> bool {
        self.entered_ns >= kernel.armed_ns(ArmGroup::numbered(self.group as u32))
    }
}

/// An address in the kernel half's allocation map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct MappedAllocation {
    /// Size in bytes.
    pub bytes: u64,
    /// Row of the probe table of the granting call; 0 for none.
    pub probe: u32,
    /// Owner whose share the entry counts for ([`crate::shares`]); set by the kernel half.
    pub owner: u32,
    /// Time at which the granting call returned: `CLOCK_BOOTTIME`, nanoseconds.
    pub granted_ns: u64,
}

const _: () = assert!(size_of::<MappedAllocation>() == 24);

/// Marks the absence of an entry.
pub const NOT_MAPPED_YET: MappedAllocation = MappedAllocation { bytes: 0, probe: 0, owner: 0, granted_ns: 0 };

/// Watched calls in flight in one thread, outermost first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct InFlight {
    /// Frames, used from the front.
    pub frames: [CallFrame; NESTING],
    /// Scratch space for the record of a returning call, which does not fit on the BPF stack.
    pub record: CallRecord,
    /// 1 if user space knows the thread's process.
    pub introduced: u64,
    /// Owner whose share the entry counts for ([`crate::shares`]); set by the kernel half.
    pub owner: u64,
}

/// Identity of a thread, in the initial pid namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ThreadKey {
    /// Process number.
    pub tgid: u32,
    /// Thread number.
    pub tid: u32,
}

/// Kernel functions that the capture logic needs.
pub trait CaptureKernel {
    /// Returns the running thread.
    fn thread(&self) -> ThreadKey;
    /// Returns `CLOCK_BOOTTIME` in nanoseconds.
    fn now_ns(&self) -> u64;
    /// Whether calls of this process are recorded.
    fn watched(&self, tgid: u32) -> bool;
    /// Whether calls of this process are recorded by probes that are attached to all processes ([`ONLY_LISTED`]).
    fn listed(&self, tgid: u32) -> bool;
    /// Reads `N` eight-byte words of the traced process. Returns false, and zeros, if they are unreadable.
    fn read_words<const N: usize>(&self, address: u64, words: &mut [u64; N]) -> bool;
    /// Runs `change` on the thread's calls in flight, after creating an empty entry if there is none.
    ///
    /// Returns `None` if the table or the owner's share of it is full.
    fn with_in_flight<R>(&self, thread: ThreadKey, change: impl FnOnce(&mut InFlight) -> R) -> Option<R>;
    /// Runs `change` on the thread's calls in flight, if there are any.
    fn with_existing_in_flight<R>(&self, thread: ThreadKey, change: impl FnOnce(&mut InFlight) -> R) -> Option<R>;
    /// Returns the time since when every probe of these files is in place: `CLOCK_BOOTTIME`, nanoseconds. A call
    /// entered earlier may return unseen.
    fn armed_ns(&self, group: ArmGroup) -> u64;
    /// Returns a number that identifies the open file behind a descriptor of the running process. It is the same in
    /// every process that shares the open file, until the last one closes it; 0 if there is none.
    fn open_file(&self, descriptor: u32) -> u64;
    /// Adds an address to the process's allocation map.
    fn credit(&self, tgid: u32, address: u64, booked: &MappedAllocation);
    /// Removes an address from the process's allocation map. Returns its entry, with probe 0 if there was none.
    fn debit(&self, tgid: u32, address: u64) -> MappedAllocation;
    /// Notes that addresses were freed that no call names.
    fn note_teardown(&self, tgid: u32);
    /// Introduces a process to user space before its first record.
    fn introduce(&self, tgid: u32);
    /// Passes a record to user space. Returns false if the ring is full.
    fn emit(&self, record: &CallRecord) -> bool;
    /// Counts a loss.
    fn lose(&self, tgid: u32, loss: Loss);
}

/// Handles the entry of a watched function: stores registers and time until the return.
#[inline(always)]
pub fn on_enter<K: CaptureKernel>(kernel: &K, cookie: u64, args: &[u64; 6], stack_pointer: u64) {
    let thread = kernel.thread();
    if !is_wanted(kernel, cookie, thread.tgid) {
        return;
    }
    let (probe, plan) = CapturePlan::from_cookie(cookie);
    let group = ArmGroup::of_cookie(cookie);
    let mut frame = CallFrame {
        probe: u64::from(probe),
        stack_pointer,
        entered_ns: kernel.now_ns(),
        args: *args,
        group: group.number().into(),
        ..NO_FRAME
    };
    if !plan.peek_at_return && !read_peek(kernel, &plan, args, stack_pointer, &mut frame.peek) {
        frame.peek_failed = 1;
    }
    if plan.book == MapUpdate::Debit {
        frame.debited = kernel.debit(thread.tgid, args[0]);
    }
    match kernel.with_in_flight(thread, |calls| push(calls, &frame) || push_over_unarmed(kernel, calls, &frame)) {
        Some(true) => {}
        Some(false) => kernel.lose(thread.tgid, Loss::NestedTooDeep),
        None => kernel.lose(thread.tgid, Loss::InFlightFull),
    }
}

#[inline(always)]
fn is_wanted<K: CaptureKernel>(kernel: &K, cookie: u64, tgid: u32) -> bool {
    kernel.watched(tgid) && (cookie & ONLY_LISTED == 0 || kernel.listed(tgid))
}

/// Stores a frame over unarmed ones. While probes are being attached, calls enter whose return has no probe yet;
/// their frames are never taken.
#[inline(always)]
fn push_over_unarmed<K: CaptureKernel>(kernel: &K, calls: &mut InFlight, frame: &CallFrame) -> bool {
    let left_behind = !calls.frames[0].is_armed(kernel);
    if left_behind {
        for slot in &mut calls.frames {
            slot.stack_pointer = 0;
        }
        calls.frames[0] = *frame;
    }
    left_behind
}

/// Stores a frame above those in which it is nested. Returns false if there is no space.
///
/// The stack grows down, so a frame whose stack pointer is at or below the new one has returned without being seen,
/// or is this call reported twice (one library attached through two mounts). In both cases the new frame replaces
/// it.
#[inline(always)]
fn push(calls: &mut InFlight, frame: &CallFrame) -> bool {
    let mut placed = false;
    for slot in &mut calls.frames {
        if placed {
            clear(slot);
        } else if slot.stack_pointer <= frame.stack_pointer {
            let again = slot.stack_pointer == frame.stack_pointer && slot.probe == frame.probe;
            let echoes = if again { slot.echoes + 1 } else { 0 };
            // The first report of this entry has already removed the freed address.
            let debited = if again { slot.debited } else { frame.debited };
            *slot = CallFrame { debited, echoes, ..*frame };
            placed = true;
        }
    }
    placed
}

/// Clears a frame: no return of its call is expected.
#[inline(always)]
fn clear(slot: &mut CallFrame) {
    slot.stack_pointer = 0;
    slot.echoes = 0;
}

/// Whether this return was already reported: its frame was taken, and its entry had been reported as many times.
#[inline(always)]
fn is_echo(frames: &mut [CallFrame; NESTING], probe: u16) -> bool {
    let mut found = false;
    for slot in frames {
        if !found && slot.stack_pointer == 0 && slot.probe == u64::from(probe) && slot.echoes > 0 {
            slot.echoes -= 1;
            found = true;
        }
    }
    found
}

/// Handles the return of a watched function: completes the record and emits it. Only watched processes have calls
/// in flight.
#[inline(always)]
pub fn on_return<K: CaptureKernel>(kernel: &K, cookie: u64, return_value: u64, stack_pointer: u64) {
    let thread = kernel.thread();
    if cookie & ONLY_LISTED != 0 && !kernel.listed(thread.tgid) {
        return;
    }
    let (probe, plan) = CapturePlan::from_cookie(cookie);
    let seen = kernel.with_existing_in_flight(thread, |calls| {
        let InFlight { frames, record, introduced, .. } = calls;
        let straddles = frames[0].entered_ns < kernel.armed_ns(ArmGroup::of_cookie(cookie));
        let index = returning(frames, probe, stack_pointer).ok_or_else(|| straddles || is_echo(frames, probe))?;
        let frame = &mut frames[index];
        *record = CallRecord {
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
        if *introduced == 0 {
            kernel.introduce(thread.tgid);
            *introduced = 1;
        }
        complete(kernel, &plan, frame, record);
        frame.stack_pointer = 0;
        Ok(())
    });
    match seen {
        // Not a loss: the thread has entered no watched call since all probes are in place, so it was inside this
        // call when they were attached, and another tracer's return probe on the function led here. Or this return
        // was reported before.
        Some(Ok(()) | Err(true)) | None => {}
        Some(Err(false)) => kernel.lose(thread.tgid, Loss::ReturnWithoutEntry),
    }
}

/// Completes a record with the data known only at the return, and emits it.
#[inline(always)]
fn complete<K: CaptureKernel>(kernel: &K, plan: &CapturePlan, frame: &CallFrame, record: &mut CallRecord) {
    if record.status == 0 {
        read_outs(kernel, plan, record);
        if plan.file == FILE_IN_OUT_WORD {
            record.peek[0] = kernel.open_file(descriptor(record.out[0]));
        }
    }
    if frame.peek_failed != 0 || (plan.peek_at_return && record.status == 0) {
        // The page may not have been resident at entry; the call itself has accessed it since.
        let is_read = read_peek(kernel, plan, &frame.args, frame.stack_pointer, &mut record.peek)
            || plan.tolerant && read_peek_by_word(kernel, plan, &frame.args, &mut record.peek);
        if !is_read {
            record.flags |= FLAG_PEEK_UNREADABLE;
            kernel.lose(record.tgid, Loss::PeekUnreadable);
        }
    }
    keep_ledger(kernel, plan, record, &frame.debited);
    if !kernel.emit(record) {
        kernel.lose(record.tgid, Loss::RingFull);
    }
}

/// Returns a 32-bit return value. The upper half of the register is undefined.
#[inline(always)]
fn low_word(return_value: u64) -> i32 {
    let [a, b, c, d, ..] = return_value.to_le_bytes();
    i32::from_le_bytes([a, b, c, d])
}

/// Finds the frame of the returning call, and drops frames nested in it whose return was never seen.
///
/// At the return probe the return address has been popped, so the stack pointer is one word above that at the
/// entry.
#[inline(always)]
fn returning(frames: &mut [CallFrame; NESTING], probe: u16, stack_pointer: u64) -> Option<usize> {
    let mut found = None;
    for (index, slot) in frames.iter_mut().enumerate() {
        if found.is_some() {
            clear(slot);
        } else if slot.probe == u64::from(probe)
            && slot.stack_pointer != 0
            && stack_pointer.wrapping_sub(slot.stack_pointer) <= 8
        {
            found = Some(index);
        }
    }
    found
}

/// Updates the allocation map, which follows the driver directly, unlike records, which may be lost.
#[inline(always)]
fn keep_ledger<K: CaptureKernel>(kernel: &K, plan: &CapturePlan, record: &CallRecord, debited: &MappedAllocation) {
    let succeeded = record.status == 0;
    let bytes = match plan.book {
        MapUpdate::None => return,
        MapUpdate::Debit => {
            if !succeeded && debited.probe != 0 {
                kernel.credit(record.tgid, record.args[0], debited);
            }
            return;
        }
        MapUpdate::Teardown => {
            if succeeded {
                kernel.note_teardown(record.tgid);
            }
            return;
        }
        MapUpdate::Credit => record.args[1],
        MapUpdate::CreditRows => record.out[1].wrapping_mul(record.args[3]),
    };
    if succeeded && record.out[0] != 0 {
        kernel.credit(
            record.tgid,
            record.out[0],
            &MappedAllocation { bytes, probe: u32::from(record.probe), owner: 0, granted_ns: record.returned_ns },
        );
    }
}

#[inline(always)]
fn read_outs<K: CaptureKernel>(kernel: &K, plan: &CapturePlan, record: &mut CallRecord) {
    // With a null out-pointer (cuCtxPopCurrent) there is nothing to read.
    let mut unreadable = false;
    let first = at_offset(argument(&record.args, plan.out[0]), plan.out_offset_words[0]);
    let [first_word, second_word] = &mut record.out;
    if first != 0 {
        unreadable |= !read_word(kernel, first, first_word);
    }
    let second = if plan.out_is_16_bytes && first != 0 {
        first.wrapping_add(8)
    } else {
        at_offset(argument(&record.args, plan.out[1]), plan.out_offset_words[1])
    };
    if second != 0 {
        unreadable |= !read_word(kernel, second, second_word);
    }
    if unreadable {
        record.flags |= FLAG_OUT_UNREADABLE;
        if !plan.tolerant {
            kernel.lose(record.tgid, Loss::OutUnreadable);
        }
    }
}

#[inline(always)]
fn read_word<K: CaptureKernel>(kernel: &K, address: u64, word: &mut u64) -> bool {
    let mut words = [0];
    let readable = kernel.read_words::<1>(address, &mut words);
    *word = words[0];
    readable
}

/// Adds an offset to a pointer. A null pointer stays null, since it points to no struct.
#[inline(always)]
fn at_offset(pointer: u64, offset_words: u8) -> u64 {
    if pointer == 0 { 0 } else { pointer.wrapping_add(u64::from(offset_words) * 8) }
}

/// Reads the words of a struct argument that the plan requires. Returns false if they are unreadable at this time.
#[inline(always)]
fn read_peek<K: CaptureKernel>(
    kernel: &K,
    plan: &CapturePlan,
    args: &[u64; 6],
    stack_pointer: u64,
    peek: &mut [u64; PEEK_WORDS],
) -> bool {
    if plan.file == FILE_IN_ARGUMENT_1 {
        peek[0] = kernel.open_file(descriptor(args[1]));
        return true;
    }
    let base = if plan.peek == ON_STACK { stack_pointer } else { argument(args, plan.peek) };
    if base == 0 {
        return true;
    }
    let address = base.wrapping_add(u64::from(plan.peek_offset_bytes));
    match plan.peek_words {
        1 => read_word(kernel, address, &mut peek[0]),
        3 => {
            let mut words = [0; 3];
            let readable = kernel.read_words::<3>(address, &mut words);
            [peek[0], peek[1], peek[2]] = words;
            readable
        }
        DIGEST => {
            let mut words = [0; DIGEST_WORDS];
            let readable = kernel.read_words::<DIGEST_WORDS>(address, &mut words);
            [peek[0], peek[1]] = digest(&words);
            readable
        }
        _ => kernel.read_words::<PEEK_WORDS>(address, peek),
    }
}

/// Reads each readable word of a struct with several layouts. The call has accessed every word of its layout; the
/// others may be on a page that is not resident. Returns false if not even the first word, which selects the
/// layout, is readable.
#[inline(always)]
fn read_peek_by_word<K: CaptureKernel>(
    kernel: &K,
    plan: &CapturePlan,
    args: &[u64; 6],
    peek: &mut [u64; PEEK_WORDS],
) -> bool {
    let base = argument(args, plan.peek).wrapping_add(u64::from(plan.peek_offset_bytes));
    let mut first_is_readable = false;
    for (index, word) in peek.iter_mut().enumerate() {
        let is_readable = read_word(kernel, base.wrapping_add(8 * index as u64), word);
        first_is_readable |= index == 0 && is_readable;
    }
    first_is_readable
}

/// Returns 128 bits that distinguish 64-byte handles: two multiplicative hashes with different odd factors.
#[inline(always)]
fn digest(words: &[u64; DIGEST_WORDS]) -> [u64; 2] {
    let [mut low, mut high] = [0xcbf2_9ce4_8422_2325_u64, 0x6c62_272e_07bb_0142];
    for word in words {
        low = (low ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        low ^= low >> 29;
        high = (high ^ word).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
        high ^= high >> 31;
    }
    [low, high]
}

/// Returns a file descriptor, which is a 32-bit argument. The upper half of its register is undefined.
#[inline(always)]
fn descriptor(register: u64) -> u32 {
    let [a, b, c, d, ..] = register.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// Returns argument `index`, or 0 for none. With constant indexes only, since the verifier refuses a run-time index
/// into the registers.
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
pub(crate) mod tests;
