//! The capture logic on a kernel made of hash maps, with injected faults.
extern crate std;

use core::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::vec::Vec;

use super::{CaptureKernel, InFlight, MappedAllocation, NESTING, ThreadKey, on_enter, on_return};
use crate::arming::ArmGroup;
use crate::loss::Loss;
use crate::plan::{CapturePlan, MapUpdate, ON_STACK, ONLY_LISTED};
use crate::record::{CallRecord, FLAG_OUT_UNREADABLE, FLAG_PEEK_UNREADABLE};
use crate::rm::RmRecord;
use crate::rm::capture::RmInFlight;

pub(crate) const THREAD: ThreadKey = ThreadKey { tgid: 100, tid: 101 };
pub(crate) const STACK: u64 = 0x7fff_0000;
const OUT: CapturePlan = CapturePlan::registers().out(0);

#[derive(Default)]
pub(crate) struct FakeKernel {
    pub(crate) clock_ns: Cell<u64>,
    pub(crate) memory: RefCell<HashMap<u64, u64>>,
    calls: RefCell<HashMap<u32, InFlight>>,
    emitted: RefCell<Vec<CallRecord>>,
    pub(crate) ioctls: RefCell<HashMap<u32, RmInFlight>>,
    pub(crate) emitted_ioctls: RefCell<Vec<RmRecord>>,
    pub(crate) stacks_copied: Cell<u64>,
    pub(crate) lost: RefCell<Vec<Loss>>,
    pub(crate) unwatched: Cell<bool>,
    listed: Cell<bool>,
    pub(crate) ring_full: Cell<bool>,
    pub(crate) in_flight_full: Cell<bool>,
    /// Time at which the probes of the first file were armed, for its calls and requests. All other
    /// files' probes are armed from the beginning.
    pub(crate) armed_ns: Cell<u64>,
    files: RefCell<HashMap<u32, u64>>,
    allocation_map: RefCell<HashMap<u64, MappedAllocation>>,
    teardowns: Cell<u64>,
    introduced: Cell<u64>,
}

impl CaptureKernel for FakeKernel {
    fn thread(&self) -> ThreadKey {
        THREAD
    }
    fn now_ns(&self) -> u64 {
        self.clock_ns.set(self.clock_ns.get() + 10);
        self.clock_ns.get()
    }
    fn watched(&self, _: u32) -> bool {
        !self.unwatched.get()
    }
    fn listed(&self, _: u32) -> bool {
        self.listed.get()
    }
    fn read_words<const N: usize>(&self, address: u64, words: &mut [u64; N]) -> bool {
        let memory = self.memory.borrow();
        let found = (address..).step_by(8).take(N).filter_map(|address| memory.get(&address).copied());
        let found: Vec<u64> = found.collect();
        if found.len() == N {
            words.copy_from_slice(&found);
        }
        found.len() == N
    }
    fn with_in_flight<R>(&self, thread: ThreadKey, change: impl FnOnce(&mut InFlight) -> R) -> Option<R> {
        if self.in_flight_full.get() {
            return None;
        }
        Some(change(self.calls.borrow_mut().entry(thread.tid).or_default()))
    }
    fn with_existing_in_flight<R>(&self, thread: ThreadKey, change: impl FnOnce(&mut InFlight) -> R) -> Option<R> {
        self.calls.borrow_mut().get_mut(&thread.tid).map(change)
    }
    fn armed_ns(&self, group: ArmGroup) -> u64 {
        let first = ArmGroup::default();
        if [first, first.of_requests()].contains(&group) { self.armed_ns.get() } else { 0 }
    }
    fn open_file(&self, descriptor: u32) -> u64 {
        self.files.borrow().get(&descriptor).copied().unwrap_or(0)
    }
    fn credit(&self, _: u32, address: u64, booked: &MappedAllocation) {
        self.allocation_map.borrow_mut().insert(address, *booked);
    }
    fn debit(&self, _: u32, address: u64) -> MappedAllocation {
        self.allocation_map.borrow_mut().remove(&address).unwrap_or_default()
    }
    fn note_teardown(&self, _: u32) {
        self.teardowns.set(self.teardowns.get() + 1);
    }
    fn introduce(&self, tgid: u32) {
        assert_eq!(tgid, THREAD.tgid);
        self.introduced.set(self.introduced.get() + 1);
    }
    fn emit(&self, record: &CallRecord) -> bool {
        if !self.ring_full.get() {
            self.emitted.borrow_mut().push(*record);
        }
        !self.ring_full.get()
    }
    fn lose(&self, tgid: u32, loss: Loss) {
        assert_eq!(tgid, THREAD.tgid);
        self.lost.borrow_mut().push(loss);
    }
}

impl FakeKernel {
    pub(crate) fn with_memory(words: &[(u64, u64)]) -> Self {
        Self { memory: RefCell::new(words.iter().copied().collect()), ..Self::default() }
    }
    fn call(&self, plan: CapturePlan, args: [u64; 6], status: u64) {
        on_enter(self, plan.cookie(7), &args, STACK);
        on_return(self, plan.cookie(7), status, STACK + 8);
    }
    fn only_record(&self) -> CallRecord {
        let emitted = self.emitted.borrow();
        assert_eq!(emitted.len(), 1);
        emitted[0]
    }
}

#[test]
fn a_call_carries_its_registers_times_status_and_out_word() {
    let kernel = FakeKernel::with_memory(&[(0x1000, 0xdead)]);
    kernel.call(OUT, [0x1000, 4096, 3, 4, 5, 6], 0);
    let record = kernel.only_record();
    assert_eq!((record.probe, record.status, record.tgid, record.tid), (7, 0, 100, 101));
    assert_eq!((record.entered_ns, record.returned_ns), (10, 20));
    assert_eq!(record.args, [0x1000, 4096, 3, 4, 5, 6]);
    kernel.call(OUT, [0x1000, 4096, 3, 4, 5, 6], 0);
    assert_eq!(kernel.introduced.get(), 1, "once for each thread");
    assert_eq!(record.out, [0xdead, 0]);
    assert!(kernel.lost.borrow().is_empty());
}

#[test]
fn only_listed_probe_records_calls_of_listed_processes_only() {
    let kernel = FakeKernel::with_memory(&[(0x1000, 0xdead)]);
    let cookie = OUT.cookie(7) | ONLY_LISTED;
    assert_eq!(CapturePlan::from_cookie(cookie), (7, OUT));
    for listed in [false, true, false] {
        kernel.listed.set(listed);
        on_enter(&kernel, cookie, &[0x1000, 0, 0, 0, 0, 0], STACK);
        on_return(&kernel, cookie, 0, STACK + 8);
    }
    assert_eq!(kernel.only_record().out, [0xdead, 0]);
    assert!(kernel.lost.borrow().is_empty());
    kernel.unwatched.set(true);
    kernel.listed.set(true);
    on_enter(&kernel, cookie, &[0x1000, 0, 0, 0, 0, 0], STACK);
    on_return(&kernel, cookie, 0, STACK + 8);
    assert_eq!(kernel.emitted.borrow().len(), 1, "a list makes nobody a target");
}

#[test]
fn a_failed_call_keeps_its_status_and_no_out_word() {
    let kernel = FakeKernel::with_memory(&[(0x1000, 0xdead)]);
    kernel.call(OUT, [0x1000, 4096, 0, 0, 0, 0], 2);
    assert_eq!((kernel.only_record().status, kernel.only_record().out), (2, [0, 0]));
}

#[test]
fn sixteen_out_bytes_and_two_out_pointers_fill_both_words() {
    let kernel = FakeKernel::with_memory(&[(0x1000, 1), (0x1008, 2), (0x2000, 3)]);
    kernel.call(CapturePlan::registers().out_16(0, 0), [0x1000, 0, 0, 0, 0, 0], 0);
    kernel.call(OUT.out(1), [0x1000, 0x2000, 0, 0, 0, 0], 0);
    let outs: Vec<_> = kernel.emitted.borrow().iter().map(|record| record.out).collect();
    assert_eq!(outs, [[1, 2], [1, 3]]);
}

#[test]
fn unreadable_out_pointer_is_flagged_and_counted_unlike_a_null_one() {
    let kernel = FakeKernel::default();
    kernel.call(OUT, [0x1000, 0, 0, 0, 0, 0], 0);
    assert_eq!(kernel.only_record().flags, FLAG_OUT_UNREADABLE);
    assert_eq!(*kernel.lost.borrow(), [Loss::OutUnreadable]);
    let kernel = FakeKernel::default();
    kernel.call(OUT, [0; 6], 0);
    assert_eq!(kernel.only_record().flags, 0);
    assert!(kernel.lost.borrow().is_empty());
}

#[test]
fn a_struct_not_resident_at_entry_is_read_at_return() {
    let plan = CapturePlan::registers().peek(2, 8, 1);
    let kernel = FakeKernel::default();
    on_enter(&kernel, plan.cookie(7), &[0, 0, 0x3000, 0, 0, 0], STACK);
    kernel.memory.borrow_mut().insert(0x3008, 0x1_0000_0001);
    on_return(&kernel, plan.cookie(7), 0, STACK + 8);
    assert_eq!((kernel.only_record().peek[0], kernel.only_record().flags), (0x1_0000_0001, 0));
    assert!(kernel.lost.borrow().is_empty());
}

#[test]
fn a_struct_that_stays_unreadable_is_flagged_and_counted() {
    let kernel = FakeKernel::default();
    kernel.call(CapturePlan::registers().peek(1, 0, 5), [0, 0x3000, 0, 0, 0, 0], 0);
    assert_eq!(kernel.only_record().flags, FLAG_PEEK_UNREADABLE);
    assert_eq!(*kernel.lost.borrow(), [Loss::PeekUnreadable]);
}

#[test]
fn tolerant_peek_needs_only_the_first_word_readable() {
    let plan = CapturePlan::registers().peek(2, 0, 5).tolerant();
    let kernel = FakeKernel::with_memory(&[(0x3000, 11), (0x3008, 0), (0x3010, 7)]);
    kernel.call(plan, [0, 0, 0x3000, 0, 0, 0], 0);
    let record = kernel.only_record();
    assert_eq!((record.flags, record.peek), (0, [11, 0, 7, 0, 0]));
    assert!(kernel.lost.borrow().is_empty());
    let kernel = FakeKernel::with_memory(&[(0x3008, 0), (0x3010, 7)]);
    kernel.call(plan, [0, 0, 0x3000, 0, 0, 0], 0);
    assert_eq!(kernel.only_record().flags, FLAG_PEEK_UNREADABLE);
    assert_eq!(*kernel.lost.borrow(), [Loss::PeekUnreadable]);
}

#[test]
fn the_peeked_struct_is_the_one_at_entry_even_if_the_call_changes_it() {
    let plan = CapturePlan::registers().peek(0, 0, 3);
    let kernel = FakeKernel::with_memory(&[(0x3000, 1), (0x3008, 2), (0x3010, 3)]);
    on_enter(&kernel, plan.cookie(7), &[0x3000, 0, 0, 0, 0, 0], STACK);
    kernel.memory.borrow_mut().insert(0x3000, 99);
    on_return(&kernel, plan.cookie(7), 0, STACK + 8);
    assert_eq!(kernel.only_record().peek, [1, 2, 3, 0, 0]);
}

#[test]
fn a_full_ring_and_a_full_table_are_counted() {
    let kernel = FakeKernel::default();
    kernel.ring_full.set(true);
    kernel.call(CapturePlan::registers(), [0; 6], 0);
    assert_eq!(*kernel.lost.borrow(), [Loss::RingFull]);
    let kernel = FakeKernel::default();
    kernel.in_flight_full.set(true);
    kernel.call(CapturePlan::registers(), [0; 6], 0);
    assert_eq!(*kernel.lost.borrow(), [Loss::InFlightFull]);
}

#[test]
fn nested_calls_return_in_order_and_one_too_many_is_counted() {
    let kernel = FakeKernel::default();
    let cookie = |probe| CapturePlan::registers().cookie(probe);
    for (depth, probe) in (0u64..).zip(1..=3u16) {
        on_enter(&kernel, cookie(probe), &[u64::from(probe); 6], STACK - depth * 64);
    }
    assert_eq!(*kernel.lost.borrow(), [Loss::NestedTooDeep]);
    assert_eq!(NESTING, 2);
    on_return(&kernel, cookie(2), 0, STACK - 64 + 8);
    on_return(&kernel, cookie(1), 0, STACK + 8);
    let probes: Vec<_> = kernel.emitted.borrow().iter().map(|record| (record.probe, record.args[0])).collect();
    assert_eq!(probes, [(2, 2), (1, 1)]);
}

#[test]
fn one_call_seen_through_two_mounts_gives_one_record() {
    let kernel = FakeKernel::default();
    let cookie = CapturePlan::registers().cookie(7);
    on_enter(&kernel, cookie, &[1; 6], STACK);
    on_enter(&kernel, cookie, &[1; 6], STACK);
    on_return(&kernel, cookie, 0, STACK + 8);
    assert_eq!(kernel.emitted.borrow().len(), 1);
    on_return(&kernel, cookie, 0, STACK + 8);
    assert_eq!(kernel.emitted.borrow().len(), 1, "the second report of the return finds no frame");
    assert!(kernel.lost.borrow().is_empty(), "and is no loss");
    on_return(&kernel, cookie, 0, STACK + 8);
    assert_eq!(*kernel.lost.borrow(), [Loss::ReturnWithoutEntry], "a third one was not announced by an entry");
}

#[test]
fn nested_calls_seen_through_two_mounts_give_one_record_each() {
    let kernel = FakeKernel::default();
    let cookie = |probe| CapturePlan::registers().cookie(probe);
    for _ in 0..2 {
        let twice = |probe, depth| (0..2).for_each(|_| on_enter(&kernel, cookie(probe), &[1; 6], STACK - depth));
        twice(1, 0);
        twice(2, 64);
        (0..2).for_each(|_| on_return(&kernel, cookie(2), 0, STACK - 64 + 8));
        (0..2).for_each(|_| on_return(&kernel, cookie(1), 0, STACK + 8));
    }
    let probes: Vec<_> = kernel.emitted.borrow().iter().map(|record| record.probe).collect();
    assert_eq!(probes, [2, 1, 2, 1]);
    assert!(kernel.lost.borrow().is_empty());
}

#[test]
fn return_without_entry_is_a_loss_despite_an_earlier_missing_echo() {
    let kernel = FakeKernel::default();
    let cookie = CapturePlan::registers().cookie(7);
    on_enter(&kernel, cookie, &[1; 6], STACK);
    on_enter(&kernel, cookie, &[1; 6], STACK);
    on_return(&kernel, cookie, 0, STACK + 8);
    kernel.call(CapturePlan::registers(), [1; 6], 0);
    on_return(&kernel, cookie, 0, STACK + 8);
    assert_eq!(*kernel.lost.borrow(), [Loss::ReturnWithoutEntry]);
}

#[test]
fn frame_abandoned_by_longjmp_does_not_pair_with_a_later_return() {
    let kernel = FakeKernel::default();
    let cookie = CapturePlan::registers().cookie(7);
    on_enter(&kernel, cookie, &[1; 6], STACK - 512);
    on_enter(&kernel, cookie, &[2; 6], STACK);
    on_return(&kernel, cookie, 0, STACK + 8);
    assert_eq!(kernel.only_record().args, [2; 6]);
}

#[test]
fn a_process_that_is_not_watched_leaves_no_trace() {
    let kernel = FakeKernel::default();
    kernel.unwatched.set(true);
    kernel.call(OUT, [0x1000, 0, 0, 0, 0, 0], 0);
    assert!(kernel.emitted.borrow().is_empty() && kernel.lost.borrow().is_empty() && kernel.calls.borrow().is_empty());
}

#[test]
fn frames_left_behind_while_probes_were_attached_make_room_without_a_loss() {
    let kernel = FakeKernel::default();
    let cookie = |probe| CapturePlan::registers().cookie(probe);
    on_enter(&kernel, cookie(1), &[1; 6], STACK);
    on_enter(&kernel, cookie(2), &[2; 6], STACK - 64);
    kernel.armed_ns.set(kernel.now_ns());
    on_enter(&kernel, cookie(3), &[3; 6], STACK - 128);
    on_return(&kernel, cookie(3), 0, STACK - 128 + 8);
    assert_eq!(kernel.only_record().args, [3; 6]);
    assert!(kernel.lost.borrow().is_empty());
}

#[test]
fn return_without_entry_is_a_loss_except_for_calls_before_the_attach() {
    let kernel = FakeKernel::default();
    let cookie = CapturePlan::registers().cookie(7);
    on_return(&kernel, cookie, 0, STACK + 8);
    assert!(kernel.lost.borrow().is_empty());
    on_enter(&kernel, cookie, &[1; 6], STACK);
    on_return(&kernel, cookie, 0, STACK + 8);
    on_return(&kernel, cookie, 0, STACK + 8);
    assert_eq!(*kernel.lost.borrow(), [Loss::ReturnWithoutEntry]);
}

#[test]
fn while_one_group_of_files_is_probed_a_loss_in_another_still_counts() {
    let groups = [ArmGroup::of_file(0, 0), ArmGroup::of_file(1001, 0)];
    let lost = groups.map(|group| {
        let kernel = FakeKernel::default();
        let cookie = group.in_cookie(CapturePlan::registers().cookie(7));
        on_enter(&kernel, cookie, &[1; 6], STACK);
        on_return(&kernel, cookie, 0, STACK + 8);
        kernel.armed_ns.set(u64::MAX);
        on_return(&kernel, cookie, 0, STACK + 8);
        kernel.lost.borrow().len()
    });
    assert_eq!(lost, [0, 1]);
}

#[test]
fn out_words_are_found_at_their_offsets_in_a_struct() {
    let kernel = FakeKernel::with_memory(&[(0x1068, 64), (0x1070, 0xaddf), (0x1000, 1), (0x1008, 2), (0x1010, 3)]);
    kernel.call(CapturePlan::registers().out_16(4, 104).peek(4, 0, 3), [0, 0, 0, 0, 0x1000, 0], 0);
    let record = kernel.only_record();
    assert_eq!((record.out, record.peek), ([64, 0xaddf], [1, 2, 3, 0, 0]));
}

#[test]
fn handle_digest_is_equal_on_the_stack_and_behind_a_pointer() {
    let handle = |base: u64, last: u64| (0..8).map(move |index| (base + 8 * index, if index == 7 { last } else { 9 }));
    let words: Vec<_> = handle(STACK + 8, 1).chain(handle(0x1000, 1)).chain(handle(0x2000, 2)).collect();
    let kernel = FakeKernel::with_memory(&words);
    kernel.call(CapturePlan::registers().digest(ON_STACK), [0; 6], 0);
    kernel.call(CapturePlan::registers().digest_out(0), [0x1000, 0, 0, 0, 0, 0], 0);
    kernel.call(CapturePlan::registers().digest(2), [0, 0, 0x2000, 0, 0, 0], 0);
    let peeks: Vec<_> = kernel.emitted.borrow().iter().map(|record| record.peek).collect();
    assert_eq!(peeks[0], peeks[1]);
    assert_ne!(peeks[0][..2], peeks[2][..2]);
    assert!(kernel.lost.borrow().is_empty());
}

#[test]
fn out_handle_of_a_failed_call_is_not_read() {
    let kernel = FakeKernel::default();
    kernel.call(CapturePlan::registers().digest_out(0), [0x1000, 0, 0, 0, 0, 0], 1);
    assert_eq!((kernel.only_record().flags, kernel.only_record().peek), (0, [0; 5]));
    assert!(kernel.lost.borrow().is_empty());
}

#[test]
fn a_descriptor_is_reported_as_its_open_file() {
    let kernel = FakeKernel::with_memory(&[(0x1000, 0xffff_ffff_0000_0005)]);
    kernel.files.borrow_mut().extend([(5, 0xf11e), (6, 0xf11e)]);
    kernel.call(OUT.file_in_out_word(), [0x1000, 0, 0, 0, 0, 0], 0);
    kernel.call(OUT.file_in_argument_1(), [0x1000, 6, 0, 0, 0, 0], 0);
    kernel.call(OUT.file_in_argument_1(), [0x1000, 7, 0, 0, 0, 0], 0);
    let files: Vec<_> = kernel.emitted.borrow().iter().map(|record| record.peek[0]).collect();
    assert_eq!(files, [0xf11e, 0xf11e, 0]);
}

#[test]
fn the_allocator_state_follow_grants_and_frees_even_where_the_ring_is_full() {
    let kernel = FakeKernel::with_memory(&[(0x1000, 0xa000), (0x1008, 512)]);
    kernel.ring_full.set(true);
    kernel.call(OUT.book(MapUpdate::Credit), [0x1000, 4096, 0, 0, 0, 0], 0);
    assert_eq!(
        kernel.allocation_map.borrow()[&0xa000],
        MappedAllocation { bytes: 4096, probe: 7, owner: 0, granted_ns: 20 }
    );
    let free = CapturePlan::registers().book(MapUpdate::Debit);
    kernel.call(free, [0xa000, 0, 0, 0, 0, 0], 1);
    assert_eq!(
        kernel.allocation_map.borrow()[&0xa000],
        MappedAllocation { bytes: 4096, probe: 7, owner: 0, granted_ns: 20 },
        "a failed free frees nothing"
    );
    kernel.call(free, [0xa000, 0, 0, 0, 0, 0], 0);
    assert!(kernel.allocation_map.borrow().is_empty());
    kernel.call(OUT.out(1).book(MapUpdate::CreditRows), [0x1000, 0x1008, 0, 10, 0, 0], 0);
    assert_eq!(kernel.allocation_map.borrow()[&0xa000].bytes, 5120);
    kernel.call(OUT.book(MapUpdate::Credit), [0x1000, 1, 0, 0, 0, 0], 2);
    assert_eq!(kernel.allocation_map.borrow().len(), 1, "a refused grant is none");
    kernel.call(CapturePlan::registers().book(MapUpdate::Teardown), [0; 6], 0);
    assert_eq!(kernel.teardowns.get(), 1);
}
