//! Ioctls on a kernel made of hash maps, with injected faults.
extern crate std;

use std::vec::Vec;

use super::{NO_IOCTL, RmInFlight, RmKernel, on_ioctl, on_ioctl_return};
use crate::capture::tests::{FakeKernel, STACK, THREAD};
use crate::capture::{ThreadKey, on_enter, on_return};
use crate::loss::Loss;
use crate::plan::CapturePlan;
use crate::rm::{
    FLAG_ARGUMENT_UNREADABLE, FLAG_ASKED_UNREADABLE, FLAG_PARAMS_UNREADABLE, FLAG_WRAPPED, PARAMS_OFFSET,
    PAYLOAD_BYTES, RmRecord,
};

const ARGUMENT: u64 = 0x1000;
const PARAMS: u64 = 0x2000;
const CLIENT: u64 = 0xc1d0_0001;

impl RmKernel for FakeKernel {
    fn with_ioctl<R>(&self, thread: ThreadKey, change: impl FnOnce(&mut RmInFlight) -> R) -> Option<R> {
        if self.in_flight_full.get() {
            return None;
        }
        Some(change(self.ioctls.borrow_mut().entry(thread.tid).or_insert(NO_IOCTL)))
    }
    fn with_existing_ioctl<R>(&self, thread: ThreadKey, change: impl FnOnce(&mut RmInFlight) -> R) -> Option<R> {
        self.ioctls.borrow_mut().get_mut(&thread.tid).map(change)
    }
    fn read_payload(&self, address: u64, payload: &mut [u8; PAYLOAD_BYTES], (at, bytes): (usize, u64)) -> bool {
        let memory = self.memory.borrow();
        let words = (address..address + bytes).step_by(8).map(|address| memory.get(&address).copied());
        let Some(words) = words.collect::<Option<Vec<u64>>>() else { return false };
        let bytes = words.into_iter().flat_map(u64::to_le_bytes).take(usize::try_from(bytes).expect("a few"));
        payload[at..].iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        true
    }
    fn copy_stack(&self, thread: ThreadKey, _: u64) -> u64 {
        assert_eq!(thread, THREAD);
        self.stacks_copied.set(self.stacks_copied.get() + 1);
        0x57ac + self.stacks_copied.get()
    }
    fn emit_rm(&self, record: &mut RmRecord) -> bool {
        if !self.ring_full.get() {
            self.emitted_ioctls.borrow_mut().push(*record);
        }
        !self.ring_full.get()
    }
}

const fn request(nr: u64, size: u64) -> u64 {
    3 << 30 | size << 16 | 0x46 << 8 | nr
}

/// Returns a kernel and a process whose memory has these words at the argument and at the
/// parameters.
fn with(argument: &[u64], params: &[u64]) -> FakeKernel {
    let at = |start: u64, words: &[u64]| (start..).step_by(8).zip(words.to_vec()).collect::<Vec<_>>();
    FakeKernel::with_memory(&[at(ARGUMENT, argument), at(PARAMS, params)].concat())
}

/// Returns a kernel and a process whose ioctl (48 bytes of arguments) allocates an object of this
/// class, with 1 MiB requested.
fn allocating(class: u64) -> FakeKernel {
    let mut params = [0; 16];
    params[8] = 1 << 20;
    with(&[CLIENT | 0x5c00_0001 << 32, 0x5c00_0002 | class << 32, PARAMS, 0, 0, 0], &params)
}

fn enter(kernel: &FakeKernel, request: u64) {
    on_ioctl(kernel, 0, (request, ARGUMENT), STACK);
}

fn ioctl(kernel: &FakeKernel, request: u64, answer: i64) {
    enter(kernel, request);
    on_ioctl_return(kernel, answer.cast_unsigned(), STACK + 8);
}

fn only(kernel: &FakeKernel) -> RmRecord {
    let emitted = kernel.emitted_ioctls.borrow();
    assert_eq!(emitted.len(), 1, "{emitted:?}");
    emitted[0]
}

fn long(record: &RmRecord, at: usize) -> u64 {
    u64::from_le_bytes(record.payload[at..at + 8].try_into().expect("eight bytes"))
}

#[test]
fn rm_allocation_record_has_requested_and_granted_bytes() {
    let kernel = allocating(0x40);
    enter(&kernel, request(0x2b, 48));
    kernel.memory.borrow_mut().insert(PARAMS + 64, 6 << 20);
    on_ioctl_return(&kernel, 0, STACK + 8);
    let record = only(&kernel);
    assert_eq!((record.nr, record.size, record.flags, record.answer), (0x2b, 48, 0, 0));
    assert_eq!((record.tgid, record.tid, record.entered_ns, record.returned_ns), (100, 101, 10, 20));
    assert_eq!((record.asked_bytes, long(&record, PARAMS_OFFSET + 64)), (1 << 20, 6 << 20));
    assert_eq!((long(&record, 0) & 0xffff_ffff, long(&record, 8) >> 32), (CLIENT, 0x40));
    assert_eq!((record.stack, kernel.stacks_copied.get()), (0x57ad, 1));
    assert!(kernel.lost.borrow().is_empty());
}

#[test]
fn a_refused_allocation_comes_with_its_status() {
    let kernel = allocating(0x40);
    kernel.memory.borrow_mut().insert(ARGUMENT + 40, 0x51);
    ioctl(&kernel, request(0x2b, 48), 0);
    assert_eq!(long(&only(&kernel), 40), 0x51);
    ioctl(&kernel, request(0x2b, 48), -1);
    assert_eq!(kernel.emitted_ioctls.borrow()[1].answer, -1);
}

#[test]
fn rm_filter_keeps_known_classes_and_copies_stacks_for_video_memory() {
    for (class, is_kept) in [(0x40, true), (0x3e, true), (0x80, true), (0x50a0, false), (0xc86f, false)] {
        let kernel = allocating(class);
        ioctl(&kernel, request(0x2b, 48), 0);
        assert_eq!(kernel.emitted_ioctls.borrow().len(), usize::from(is_kept), "{class:#x}");
        assert_eq!(kernel.stacks_copied.get(), u64::from(class == 0x40), "{class:#x}");
        assert!(kernel.lost.borrow().is_empty());
    }
    for (command, is_kept) in [(0x2080_014a, true), (0x205, true), (0x2080_1803, false)] {
        let kernel = with(&[CLIENT | 0x5c00_0003 << 32, command, PARAMS, 56], &[4, 5, 6, 7, 8, 9, 10]);
        ioctl(&kernel, request(0x2a, 32), 0);
        assert_eq!(kernel.emitted_ioctls.borrow().len(), usize::from(is_kept), "{command:#x}");
    }
    let kernel = with(&[CLIENT, 0x205, PARAMS, 32], &[4, 5, 6, 7]);
    ioctl(&kernel, request(0x2a, 32), 0);
    assert_eq!(long(&only(&kernel), PARAMS_OFFSET + 24), 7);
}

#[test]
fn a_request_of_another_size_is_counted_and_one_of_another_driver_is_not() {
    for (asked, is_odd) in [
        (request(0x2b, 56), true),
        (request(0x4a, 192), true),
        (request(0x29, 0), true),
        (request(0xd3, 24), true),
        (request(0xc8, 2304), false),
        // A UVM number with the driver's magic, and a request of UVM's own that has no row.
        (request(33, 0), false),
        (37, false),
        // A terminal's ioctl.
        (0x5401, false),
    ] {
        let kernel = with(&[0; 8], &[]);
        ioctl(&kernel, asked, 0);
        let lost: &[Loss] = if is_odd { &[Loss::RmLayout] } else { &[] };
        assert_eq!(*kernel.lost.borrow(), lost, "{asked:#x}");
        assert!(kernel.emitted_ioctls.borrow().is_empty(), "{asked:#x}");
    }
}

#[test]
fn wrapped_rm_request_is_recorded_as_the_inner_request() {
    let free = [CLIENT | 0x5c00_0001 << 32, 0x5c00_0002];
    let kernel = with(&[0x29 | 16 << 32, PARAMS], &free);
    ioctl(&kernel, request(0xd3, 16), 0);
    let record = only(&kernel);
    assert_eq!((record.nr, record.size, record.flags), (0x29, 16, FLAG_WRAPPED));
    assert_eq!((long(&record, 0), long(&record, 8)), (free[0], free[1]));
    for (wrapped, is_odd) in [(0x29 | 20 << 32, true), (0x129 | 16 << 32, false), (0x2b | 0x10030 << 32, true)] {
        let kernel = with(&[wrapped, PARAMS], &free);
        ioctl(&kernel, request(0xd3, 16), 0);
        assert!(kernel.emitted_ioctls.borrow().is_empty());
        assert_eq!(kernel.lost.borrow().len(), usize::from(is_odd), "{wrapped:#x}");
    }
    let kernel = with(&[], &[]);
    ioctl(&kernel, request(0xd3, 16), 0);
    assert_eq!(*kernel.lost.borrow(), [Loss::RmUnreadable]);
}

#[test]
fn rm_mapping_reads_client_and_memory_in_both_layouts() {
    let kernel = with(&[0x7f00_0000_0000, 6 << 20, 0], &[]);
    kernel.memory.borrow_mut().insert(ARGUMENT + 1188, 0x5c00_0002_c1d0_0001);
    ioctl(&kernel, 33, 0);
    let record = only(&kernel);
    assert_eq!((record.nr, record.size, record.flags), (33, 0, 0));
    assert_eq!((long(&record, 0), long(&record, 8)), (0x7f00_0000_0000, 6 << 20));
    assert_eq!((long(&record, 24), long(&record, 32)), (0x5c00_0002_c1d0_0001, 0));
    kernel.memory.borrow_mut().insert(ARGUMENT + 9252, 7);
    ioctl(&kernel, 33, 0);
    assert_eq!(long(&kernel.emitted_ioctls.borrow()[1], 32), 7);
    assert!(kernel.lost.borrow().is_empty(), "what is too far away for the other layout is no loss");
}

#[test]
fn unreadable_rm_request_is_flagged_and_counted() {
    // The parameters are unreadable, at entry and at return.
    let kernel = with(&[CLIENT, 0x40 << 32, PARAMS, 0, 0, 0], &[]);
    ioctl(&kernel, request(0x2b, 48), 0);
    assert_eq!(only(&kernel).flags, FLAG_ASKED_UNREADABLE | FLAG_PARAMS_UNREADABLE);
    assert_eq!(*kernel.lost.borrow(), [Loss::RmUnreadable]);
    let kernel = with(&[], &[]);
    ioctl(&kernel, request(0x29, 16), 0);
    assert_eq!((only(&kernel).flags, long(&only(&kernel), 0)), (FLAG_ARGUMENT_UNREADABLE, 0));
    assert_eq!(*kernel.lost.borrow(), [Loss::RmUnreadable]);
    // The request was refused, so it had no effect.
    let kernel = with(&[], &[]);
    ioctl(&kernel, request(0x29, 16), -1);
    assert_eq!((only(&kernel).flags, kernel.lost.borrow().len()), (FLAG_ARGUMENT_UNREADABLE, 0));
}

#[test]
fn rm_params_not_resident_at_entry_are_read_at_return() {
    for (class, flags, lost) in [(0x40, FLAG_ASKED_UNREADABLE, 1), (0x80, 0, 0)] {
        let later = allocating(class).memory.into_inner();
        let kernel = with(&[], &[]);
        enter(&kernel, request(0x2b, 48));
        kernel.memory.replace(later);
        on_ioctl_return(&kernel, 0, STACK + 8);
        let record = only(&kernel);
        assert_eq!((record.flags, kernel.lost.borrow().len()), (flags, lost), "{class:#x}");
        assert_eq!((long(&record, 8) >> 32, record.asked_bytes), (class, 0));
        assert_eq!(long(&record, PARAMS_OFFSET + 64), if class == 0x40 { 1 << 20 } else { 0 });
    }
    let later = allocating(0x50a0).memory.into_inner();
    let kernel = with(&[], &[]);
    enter(&kernel, request(0x2b, 48));
    kernel.memory.replace(later);
    on_ioctl_return(&kernel, 0, STACK + 8);
    assert!(kernel.emitted_ioctls.borrow().is_empty() && kernel.lost.borrow().is_empty(), "that class is not kept");
}

#[test]
fn a_record_names_the_innermost_call_that_the_thread_is_inside_of() {
    let kernel = allocating(0x40);
    let plan = CapturePlan::registers();
    on_enter(&kernel, plan.cookie(29), &[0; 6], STACK + 0x200);
    on_enter(&kernel, plan.cookie(7), &[0; 6], STACK + 0x100);
    ioctl(&kernel, request(0x2b, 48), 0);
    on_return(&kernel, plan.cookie(7), 0, STACK + 0x108);
    ioctl(&kernel, request(0x2b, 48), 0);
    on_return(&kernel, plan.cookie(29), 0, STACK + 0x208);
    ioctl(&kernel, request(0x2b, 48), 0);
    let inside: Vec<_> =
        kernel.emitted_ioctls.borrow().iter().map(|record| (record.probe, record.call_entered_ns)).collect();
    assert_eq!(inside, [(7, 20), (29, 10), (0, 0)]);
    // An inner call returned unrecorded.
    on_enter(&kernel, plan.cookie(7), &[0; 6], STACK - 0x100);
    ioctl(&kernel, request(0x2b, 48), 0);
    assert_eq!(kernel.emitted_ioctls.borrow()[3].probe, 0);
}

#[test]
fn an_entry_that_is_reported_twice_makes_one_record_and_one_copy() {
    let kernel = allocating(0x40);
    for _ in 0..2 {
        enter(&kernel, request(0x2b, 48));
    }
    for _ in 0..2 {
        on_ioctl_return(&kernel, 0, STACK + 8);
    }
    assert_eq!((only(&kernel).entered_ns, kernel.stacks_copied.get()), (10, 1));
    assert!(kernel.lost.borrow().is_empty());
}

#[test]
fn rm_return_without_entry_is_a_loss_unless_older_than_its_probes() {
    for (armed_ns, lost) in [(0, 1), (15, 0)] {
        let kernel = allocating(0x40);
        enter(&kernel, request(0x2b, 48));
        kernel.armed_ns.set(armed_ns);
        // Nothing is stored for this request.
        enter(&kernel, 0x5401);
        on_ioctl_return(&kernel, 0, STACK + 8);
        assert!(kernel.emitted_ioctls.borrow().is_empty(), "that was another's return");
        assert_eq!(kernel.lost.borrow().len(), lost);
    }
    let kernel = allocating(0x40);
    on_ioctl_return(&kernel, 0, STACK + 8);
    enter(&kernel, request(0x2b, 48));
    on_ioctl_return(&kernel, 0, STACK + 64);
    assert!(kernel.emitted_ioctls.borrow().is_empty(), "that was a return further out");
}

#[test]
fn full_ring_and_full_table_count_as_losses_of_watched_processes_only() {
    let kernel = allocating(0x40);
    kernel.ring_full.set(true);
    ioctl(&kernel, request(0x2b, 48), 0);
    kernel.in_flight_full.set(true);
    ioctl(&kernel, request(0x2b, 48), 0);
    assert_eq!(*kernel.lost.borrow(), [Loss::RmRecordLost; 2]);
    let kernel = allocating(0x40);
    kernel.unwatched.set(true);
    ioctl(&kernel, request(0x2b, 48), 0);
    assert!(kernel.emitted_ioctls.borrow().is_empty() && kernel.ioctls.borrow().is_empty());
}
