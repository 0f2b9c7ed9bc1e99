//! Memory refused by the kernel driver, with or without a failed call.

use memwatch_common::record::ProcessEvent;

use super::{ATTACHED_NS, SECOND_NS, TestPipeline, names, show};
use crate::decode::{StackRef, TensorChange, TensorEvent};
use crate::features::oom::view::{OomView, SurvivedView};
use crate::input::held_names::HeldNames;
use crate::input::{Input, ProcessFacts};
use crate::test_calls::rm::{NEWEST, Rm, video};
use crate::test_calls::*;
use crate::words::{CauseKind, Ordinal, Tgid, Tid};

const MIB: u64 = 1 << 20;
/// NV_ERR_NO_MEMORY.
const NO_MEMORY: u32 = 0x51;
const ALLOCATE: &str = "cuMemAlloc_v2";

/// Returns a process while failures are watched.
fn watched() -> TestPipeline {
    let mut watch = TestPipeline::begin();
    watch.pipeline.watch_ooms();
    watch.starts(7);
    watch
}

impl TestPipeline {
    /// Makes a call of this function whose request for this number of bytes the kernel driver
    /// refuses. Returns the time of the call's entry.
    fn refuses(&mut self, function: &str, bytes: u64) -> u64 {
        let call_ns = self.later();
        self.refuses_again(function, call_ns, bytes);
        call_ns
    }

    fn refuses_again(&mut self, function: &str, call_ns: u64, bytes: u64) {
        let entered_ns = self.later();
        let asked: Rm = video(NEWEST, (0xc1d0_0007, 0x5c00_0002, 0x15), bytes, bytes);
        let refused = asked.refused(NEWEST, NO_MEMORY).inside(function, call_ns).process(7);
        self.pipeline.step(refused.at(entered_ns, entered_ns + 1000).input());
    }

    fn returns(&mut self, call: TestCall, entered_ns: u64) {
        let returned_ns = self.later();
        self.pipeline.step(call.process(7).thread(7).at(entered_ns, returned_ns).input());
    }

    fn failures(&self) -> Vec<OomView> {
        self.pipeline.ooms().0.cloned().collect()
    }

    fn survived(&self) -> Vec<SurvivedView> {
        self.pipeline.survived().0.collect()
    }

    fn passes(&mut self, time_ns: u64) {
        self.now_ns += time_ns;
        self.pipeline.step(Input::Tick { time_ns: self.now_ns });
    }
}

fn asked(failure: &OomView) -> Vec<Option<u64>> {
    failure.refused.iter().map(|refused| refused.asked_bytes).collect()
}

#[test]
fn failure_lists_the_rm_requests_refused_during_its_call() {
    let mut watch = watched();
    let call_ns = watch.refuses(ALLOCATE, 900 * MIB);
    watch.refuses_again(ALLOCATE, call_ns, 902 * MIB);
    watch.returns(mem_alloc(0, 900 * MIB).failing(OUT_OF_MEMORY), call_ns);
    let failures = watch.failures();
    assert_eq!((failures.len(), failures[0].wanted_bytes), (1, 900 * MIB));
    assert_eq!(asked(&failures[0]), [Some(900 * MIB), Some(902 * MIB)]);
    assert_eq!(failures[0].refused[0].function.as_deref(), Some(ALLOCATE));
    assert_eq!(watch.survived(), []);
    // Failures within a second are merged into the first.
    let call_ns = watch.refuses(ALLOCATE, 800 * MIB);
    watch.returns(mem_alloc(0, 800 * MIB).failing(OUT_OF_MEMORY), call_ns);
    let failures = watch.failures();
    assert_eq!((failures.len(), failures[0].more, failures[0].refused.len()), (1, 1, 3));
}

#[test]
fn failure_has_the_readings_before_it_and_the_first_after_it() {
    let mut watch = watched();
    let reads = |watch: &mut TestPipeline, bytes| {
        watch.now_ns += SECOND_NS;
        let reading = names(watch.now_ns, bytes);
        watch.pipeline.step(Input::HeldNames(Box::new(reading)));
    };
    for bytes in [100 * MIB, 400 * MIB, 800 * MIB] {
        reads(&mut watch, bytes);
    }
    let call_ns = watch.later();
    watch.returns(mem_alloc(0, 900 * MIB).failing(OUT_OF_MEMORY), call_ns);
    reads(&mut watch, 20 * MIB);
    reads(&mut watch, 10 * MIB);
    let failure = &watch.failures()[0];
    let bytes = |names: &[HeldNames]| names.iter().map(|reading| reading.bytes() / MIB).collect::<Vec<_>>();
    assert_eq!(bytes(&failure.names), [100, 400, 800, 20]);
    assert_eq!(bytes(failure.names_then()), [100, 400, 800], "it had freed most before the reading after it");
    let cause = &watch.pipeline.causes()[0];
    assert_eq!((cause.kind, cause.subject.as_deref()), (CauseKind::Unbounded, Some("kept[*]")));
    // After ten seconds the outcome is known, and a reading says nothing about the failure.
    let call_ns = watch.later();
    watch.passes(2 * SECOND_NS);
    watch.returns(mem_alloc(0, 900 * MIB).failing(OUT_OF_MEMORY), call_ns);
    watch.passes(20 * SECOND_NS);
    let later = names(watch.now_ns, 5 * MIB);
    watch.pipeline.step(Input::HeldNames(Box::new(later)));
    assert_eq!(bytes(&watch.failures()[1].names).last(), Some(&10));
}

#[test]
fn reading_without_names_hides_none_of_those_before_it() {
    let mut watch = watched();
    watch.pipeline.step(Input::HeldNames(Box::new(names(ATTACHED_NS, 700 * MIB))));
    let call_ns = watch.later();
    watch.returns(mem_alloc(0, 900 * MIB).failing(OUT_OF_MEMORY), call_ns);
    let ending = HeldNames { without_names: Some("it ends".to_owned()), ..names(watch.now_ns + 1, 800 * MIB) };
    watch.pipeline.step(Input::HeldNames(Box::new(ending)));
    let failure = &watch.failures()[0];
    assert_eq!((failure.names.len(), failure.names_then().len()), (2, 1));
}

#[test]
fn a_failure_without_a_refused_request_has_none_behind_it() {
    let mut watch = watched();
    let call_ns = watch.later();
    watch.returns(mem_alloc(0, 900 * MIB).failing(OUT_OF_MEMORY), call_ns);
    assert_eq!(asked(&watch.failures()[0]), []);
}

#[test]
fn refused_request_granted_on_retry_is_listed_as_survived() {
    let mut watch = watched();
    let call_ns = watch.refuses(ALLOCATE, 128 * MIB);
    watch.returns(mem_alloc(0xd0, 128 * MIB), call_ns);
    assert_eq!(watch.failures(), []);
    let survived = watch.survived();
    assert_eq!((survived.len(), survived[0].status, survived[0].tgid), (1, Some(0), Tgid(7)));
    assert_eq!(survived[0].refused.asked_bytes, Some(128 * MIB));
}

#[test]
fn refused_request_outside_a_watched_call_has_an_unknown_outcome() {
    let mut watch = watched();
    watch.refuses("cuLaunchKernel", 128 * MIB);
    assert_eq!((watch.failures(), watch.survived().len()), (Vec::new(), 1));
    assert_eq!(watch.survived()[0].status, None);
}

#[test]
fn failed_context_creation_has_the_size_of_the_refused_request() {
    let mut watch = watched();
    let call_ns = watch.refuses("cuDevicePrimaryCtxRetain", 414 * MIB);
    watch.returns(primary_ctx_retain(0, 0).failing(OUT_OF_MEMORY), call_ns);
    let failures = watch.failures();
    assert_eq!((failures.len(), failures[0].wanted_bytes), (1, 414 * MIB));
    assert_eq!(failures[0].symbol.as_deref(), Some("cuDevicePrimaryCtxRetain"));
}

#[test]
fn pytorch_failure_lists_its_refused_requests_and_recovery_is_survived() {
    let mut watch = watched();
    watch.pipeline.step(Input::TensorsWatched { tgid: Tgid(7), missing: Vec::new(), time_ns: ATTACHED_NS });
    let call_ns = watch.refuses(ALLOCATE, 512 * MIB);
    watch.returns(mem_alloc(0, 512 * MIB).failing(OUT_OF_MEMORY), call_ns);
    assert_eq!(watch.failures(), [], "it looks for memory itself");
    let what =
        TensorChange::OutOfMemory { ordinal: Ordinal(0), wanted_bytes: 500, allocated_bytes: 0, reserved_bytes: 0 };
    let time_ns = watch.later();
    let event = TensorEvent::made((Tgid(7), Tid(7)), time_ns, StackRef::NotAsked, what);
    show(&mut watch.pipeline, &event);
    let failures = watch.failures();
    assert_eq!((&*failures[0].level, asked(&failures[0])), ("tensor", vec![Some(512 * MIB)]));
    assert_eq!(watch.survived(), []);
    watch.passes(2 * SECOND_NS);
    let call_ns = watch.refuses(ALLOCATE, 256 * MIB);
    watch.returns(mem_alloc(0, 256 * MIB).failing(OUT_OF_MEMORY), call_ns);
    watch.passes(11 * SECOND_NS);
    let survived = watch.survived();
    assert_eq!((survived.len(), survived[0].status), (1, Some(OUT_OF_MEMORY)));
    show(&mut watch.pipeline, &TensorEvent { time_ns: watch.now_ns, ..event });
    assert_eq!(asked(&watch.failures()[1]), [], "that was another one");
}

#[test]
fn refused_call_granted_on_retry_is_not_a_failure() {
    let mut watch = watched();
    let call_ns = watch.refuses(ALLOCATE, 700 * MIB);
    watch.returns(mem_alloc(0, 700 * MIB).failing(OUT_OF_MEMORY), call_ns);
    assert_eq!(watch.failures().len(), 1, "until it is retried");
    let call_ns = watch.later();
    watch.returns(mem_alloc(0xd0, 700 * MIB), call_ns);
    watch.passes(2 * SECOND_NS);
    assert_eq!(watch.failures(), []);
    assert_eq!((watch.survived().len(), watch.survived()[0].status), (1, Some(OUT_OF_MEMORY)));
    let own = watch.running(7);
    assert!(own.failures[0].is_retried);
    assert_eq!((own.gpus[0].ooms, own.gpus[0].retries, own.gpus[0].last_oom_ns), (0, 1, None));
}

#[test]
fn process_that_ends_after_a_refused_call_has_failed() {
    for is_watched in [false, true] {
        let mut watch = watched();
        if is_watched {
            watch.pipeline.step(Input::TensorsWatched { tgid: Tgid(7), missing: Vec::new(), time_ns: ATTACHED_NS });
        }
        let call_ns = watch.later();
        watch.returns(mem_alloc(0, 700 * MIB).failing(OUT_OF_MEMORY), call_ns);
        watch.passes(3 * SECOND_NS);
        assert_eq!(watch.failures().len(), usize::from(!is_watched));
        watch.event(7, ProcessEvent::Exit);
        let failures = watch.failures();
        assert_eq!((failures.len(), failures[0].ended_ns.is_some(), failures[0].more), (1, true, 0));
    }
}

/// A PyTorch failure in a thread, then blocks of these sizes granted to another or the same one, and
/// the end of the process three seconds later.
fn after_a_failure(failing: u32, then: &[(u32, u64)]) -> OomView {
    let mut watch = watched();
    watch.pipeline.step(Input::TensorsWatched { tgid: Tgid(7), missing: Vec::new(), time_ns: ATTACHED_NS });
    let wanted_bytes = 900 * MIB;
    let failure =
        TensorChange::OutOfMemory { ordinal: Ordinal(0), wanted_bytes, allocated_bytes: 0, reserved_bytes: 0 };
    let mut happens = |tid: u32, what: TensorChange| {
        let event = TensorEvent::made((Tgid(7), Tid(tid)), watch.later(), StackRef::NotAsked, what);
        show(&mut watch.pipeline, &event);
    };
    happens(failing, failure);
    for (tid, bytes) in then {
        let block_bytes = i64::try_from(*bytes).expect("small");
        let (address, allocated_bytes, reserved_bytes) = (0xd0, *bytes, *bytes);
        let ordinal = Ordinal(0);
        happens(*tid, TensorChange::Reported { ordinal, address, block_bytes, allocated_bytes, reserved_bytes });
    }
    watch.passes(3 * SECOND_NS);
    watch.event(7, ProcessEvent::Exit);
    watch.failures().pop().expect("it has failed")
}

#[test]
fn failure_that_the_program_handled_is_not_what_it_ended_of() {
    let outcome = |failure: OomView| (failure.is_survived, failure.ended_ns.is_some(), failure.exited_ns.is_some());
    let (survived, died) = ((true, false, true), (false, true, false));
    assert_eq!(outcome(after_a_failure(7, &[])), died);
    assert_eq!(outcome(after_a_failure(7, &[(7, 128 * MIB)])), survived);
    assert_eq!(outcome(after_a_failure(7, &[(7, 512); 40])), survived, "it works with small tensors");
    assert_eq!(outcome(after_a_failure(7, &[(7, 512); 3])), died, "a handler of the error needs few");
    assert_eq!(outcome(after_a_failure(7, &[(8, 128 * MIB); 9])), died, "another thread has not noticed yet");
    assert_eq!(outcome(after_a_failure(8, &[(7, 128 * MIB)])), survived, "the backward pass has its own thread");
}

#[test]
fn program_that_fails_again_ends_of_its_last_failure_alone() {
    let mut watch = watched();
    let fails = |watch: &mut TestPipeline| {
        let call_ns = watch.later();
        watch.returns(mem_alloc(0, 700 * MIB).failing(OUT_OF_MEMORY), call_ns);
    };
    fails(&mut watch);
    watch.passes(2 * SECOND_NS);
    let call_ns = watch.later();
    watch.returns(mem_alloc(0xd0, 300 * MIB), call_ns);
    fails(&mut watch);
    watch.passes(SECOND_NS);
    watch.event(7, ProcessEvent::Exit);
    let failures = watch.failures();
    let outcomes: Vec<_> = failures.iter().map(|one| (one.is_survived, one.ended_ns.is_some())).collect();
    assert_eq!(outcomes, [(true, false), (false, true)]);
}

#[test]
fn failures_of_one_owner_do_not_displace_those_of_others() {
    let mut watch = watched();
    watch.starts_in("17db96a24ae1e9dd57143e62b1cb0d2d35e693c65c774c7470e87b0572e07c1a", 8);
    for tgid in std::iter::once(8).chain(std::iter::repeat_n(7, 200)) {
        let (entered_ns, returned_ns) = (watch.later(), watch.later());
        let call = mem_alloc(0, u64::from(tgid) * MIB).failing(OUT_OF_MEMORY).process(tgid);
        watch.pipeline.step(call.thread(tgid).at(entered_ns, returned_ns).input());
        watch.passes(2 * SECOND_NS);
    }
    let failures = watch.failures();
    assert_eq!((failures.len(), failures[0].tgid), (64, Tgid(8)));
    assert_eq!(watch.pipeline.ooms().1, 137);
}

#[test]
fn failures_of_many_subordinate_ids_do_not_displace_those_of_another_user() {
    let mut watch = watched();
    let (hostile, other) = (1001, 1002);
    for number in 0..200 {
        let (tgid, login_uid) = if number == 0 { (8, other) } else { (100 + number, hostile) };
        let (uid, login_uid) = (Some(100_000 + number), Some(login_uid));
        let facts = ProcessFacts { tgid, start_ns: watch.later(), uid, login_uid, ..ProcessFacts::default() };
        watch.pipeline.step(Input::Process(facts));
        let (entered_ns, returned_ns) = (watch.later(), watch.later());
        let call = mem_alloc(0, MIB).failing(OUT_OF_MEMORY).process(tgid);
        watch.pipeline.step(call.thread(tgid).at(entered_ns, returned_ns).input());
    }
    let failures = watch.failures();
    assert_eq!((failures.len(), failures[0].tgid), (64, Tgid(8)));
}

#[test]
fn failure_lists_itself_and_the_processes_with_most_memory_only() {
    let mut watch = watched();
    for tgid in 100..300 {
        let (start_ns, command) = (watch.later(), "c".repeat(4096));
        let facts = ProcessFacts { tgid, start_ns, command, uid: Some(1001), ..ProcessFacts::default() };
        watch.pipeline.step(Input::Process(facts));
        let (entered_ns, returned_ns) = (watch.later(), watch.later());
        let address = u64::from(tgid) << 32;
        let call = mem_alloc(address, u64::from(tgid) * MIB).process(tgid);
        watch.pipeline.step(call.thread(tgid).at(entered_ns, returned_ns).input());
    }
    for tgid in [7, 100] {
        let (entered_ns, returned_ns) = (watch.later(), watch.later());
        let call = mem_alloc(0, 1000 * MIB).failing(OUT_OF_MEMORY).process(tgid);
        watch.pipeline.step(call.thread(tgid).at(entered_ns, returned_ns).input());
    }
    for (failure, own) in watch.failures().iter().zip([7, 100]) {
        let listed: Vec<u32> = failure.snapshot.processes.iter().map(|process| process.tgid.0).collect();
        let expected: Vec<u32> = std::iter::once(own).chain(277..300).collect();
        assert_eq!(listed, expected);
        let failed = failure.snapshot.processes[0].failures.len();
        let longest = failure.snapshot.processes[1..].iter().map(|process| process.command.len()).max();
        assert_eq!((failed, longest), (1, Some(256)), "its own state is of this moment");
    }
}

#[test]
fn of_many_survived_ones_the_last_are_kept_and_all_are_counted() {
    let mut watch = watched();
    (1..=40).for_each(|mib| watch.refuses_again("cuLaunchKernel", 1, mib * MIB));
    let (kept, forgotten) = watch.pipeline.survived();
    let kept: Vec<_> = kept.map(|one| one.refused.asked_bytes).collect();
    assert_eq!((kept.len(), forgotten, kept.last()), (32, 8, Some(&Some(40 * MIB))));
}

#[test]
fn failure_after_a_second_is_separate_from_earlier_refusals() {
    let mut watch = watched();
    watch.pipeline.step(Input::TensorsWatched { tgid: Tgid(7), missing: Vec::new(), time_ns: ATTACHED_NS });
    let fails = |watch: &mut TestPipeline, bytes: u64| {
        let call_ns = watch.refuses(ALLOCATE, bytes);
        watch.returns(mem_alloc(0, bytes).failing(OUT_OF_MEMORY), call_ns);
        let (allocated_bytes, reserved_bytes) = (0, 0);
        let what =
            TensorChange::OutOfMemory { ordinal: Ordinal(0), wanted_bytes: bytes, allocated_bytes, reserved_bytes };
        let time_ns = watch.later();
        show(&mut watch.pipeline, &TensorEvent::made((Tgid(7), Tid(7)), time_ns, StackRef::NotAsked, what));
    };
    fails(&mut watch, 600 * MIB);
    watch.passes(700_000_000);
    // The allocator frees its cache and retries.
    let call_ns = watch.refuses(ALLOCATE, 900 * MIB);
    watch.returns(mem_alloc(0, 900 * MIB).failing(OUT_OF_MEMORY), call_ns);
    let call_ns = watch.later();
    watch.returns(mem_alloc(0xd0, 900 * MIB), call_ns);
    watch.passes(700_000_000);
    fails(&mut watch, 400 * MIB);
    watch.passes(100_000_000);
    fails(&mut watch, 300 * MIB);
    let failures = watch.failures();
    let wanted: Vec<_> = failures.iter().map(|failure| (failure.wanted_bytes, failure.more)).collect();
    assert_eq!(wanted, [(600 * MIB, 0), (400 * MIB, 1)]);
    assert_eq!(asked(&failures[0]), [Some(600 * MIB)]);
    assert_eq!(asked(&failures[1]), [Some(400 * MIB), Some(300 * MIB)]);
    assert_eq!(watch.survived().iter().map(|one| one.refused.asked_bytes).collect::<Vec<_>>(), [Some(900 * MIB)]);
}
