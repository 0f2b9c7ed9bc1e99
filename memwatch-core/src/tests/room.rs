//! Many allocations of one user, next to those of another.

use memwatch_common::record::ProcessEvent;

use super::{GPU_A, TestPipeline, device, on_gpu_a};
use crate::input::{Input, ProcessFacts};
use crate::test_calls::*;
use crate::words::Tgid;

const CAPACITY: usize = 10_000;
const ALICE: u32 = 1000;
const BOB: u32 = 1001;
/// Subordinate user id, which Alice may give to her processes.
const SUBORDINATE: u32 = 100_000;

impl TestPipeline {
    fn bounded() -> Self {
        let mut watch = Self::begin();
        watch.pipeline.state.bound(CAPACITY);
        watch
    }

    fn starts_as(&mut self, tgid: u32, login_uid: u32) -> &mut Self {
        let (uid, login_uid) = (Some(SUBORDINATE + tgid), Some(login_uid));
        let facts = ProcessFacts { tgid, start_ns: self.later(), uid, login_uid, ..ProcessFacts::default() };
        self.pipeline.step(Input::Process(facts));
        self.calls(on_gpu_a(tgid))
    }

    fn listed(&self, tgid: u32) -> usize {
        self.pipeline.state.processes[&Tgid(tgid)].ledger.listed()
    }

    fn live(&self, tgid: u32) -> u64 {
        self.running(tgid).gpus[0].live_bytes
    }

    fn unlisted(&self, tgid: u32) -> u64 {
        self.running(tgid).losses.get("unlisted").copied().unwrap_or(0)
    }
}

#[test]
fn user_with_many_allocations_does_not_displace_other_users() {
    let mut watch = TestPipeline::bounded();
    for tgid in 1..=4 {
        watch.starts_as(tgid, ALICE);
        watch.calls((0..5000).map(|at| mem_alloc(0x1000 + at, 1).process(tgid)));
    }
    let listed: usize = (1..=4).map(|tgid| watch.listed(tgid)).sum();
    assert!((CAPACITY * 2 / 5..=CAPACITY * 11 / 20).contains(&listed), "{listed}");
    let (live, unlisted) =
        (1..=4).fold((0, 0), |(live, unlisted), tgid| (live + watch.live(tgid), unlisted + watch.unlisted(tgid)));
    assert_eq!(live + unlisted, 20_000, "each is listed or counted");
    assert!(!watch.running(4).exact && watch.running(1).exact, "the first was there when there was room");

    watch.starts_as(9, BOB).calls((0..2000).map(|at| mem_alloc(0x1000 + at, 1).process(9)));
    assert_eq!((watch.live(9), watch.running(9).exact, watch.unlisted(9)), (2000, true, 0));
    watch.event(1, ProcessEvent::Exit).tick();
    watch.starts_as(5, ALICE).calls((0..2000).map(|at| mem_alloc(0x1000 + at, 1).process(5)));
    assert_eq!((watch.live(5), watch.running(5).exact), (2000, true), "what she has given back is there again");
}

#[test]
fn listing_capacity_that_is_released_is_available_to_others() {
    let mut watch = TestPipeline::bounded();
    watch.starts_as(1, ALICE).calls((0..9000).map(|at| mem_alloc(0x1000 + at, 1).process(1)));
    let most = watch.listed(1);
    watch.calls((0..9000).map(|at| mem_free(0x1000 + at).process(1))).tick();
    watch.starts_as(2, BOB).calls((0..9000).map(|at| mem_alloc(0x1000 + at, 1).process(2)));
    assert!(watch.listed(2).abs_diff(most) < most / 10, "{} {most}", watch.listed(2));
}

#[test]
fn a_program_with_few_allocations_makes_as_many_calls_as_it_likes() {
    let mut watch = TestPipeline::bounded();
    watch.starts_as(1, ALICE);
    for at in 0..50_000 {
        watch.calls([mem_alloc(at % 7, 8).process(1), mem_free(at % 7).process(1)]);
    }
    assert!(watch.running(1).exact && watch.listed(1) < 64);
}

#[test]
fn listed_objects_of_every_kind_are_bounded() {
    type Makes = fn(u64) -> TestCall;
    let many: [(&str, Makes); 20] = [
        ("managed", |at| mem_alloc_managed(at, 1)),
        ("host", |at| mem_host_alloc(at, 1)),
        ("pool", |at| mem_alloc_async(at, 1)),
        ("register", |at| mem_host_register(at, 1)),
        ("create", |at| mem_create(at, 2 << 20, (ON_DEVICE, 0))),
        ("import", mem_import),
        ("map", |at| mem_map(at << 21, 2 << 20, 0, 1)),
        ("array", |at| array_create(at, 8)),
        ("context", |at| ctx_create(at, 0)),
        ("device", |at| ctx_create(at, u32::try_from(at).expect("few"))),
        ("push", |at| ctx_push(at % 2 + 1)),
        ("stream", stream_create),
        ("pools", |at| mem_pool_create(at, 1, (ON_DEVICE, 0))),
        ("alias", ipc_open),
        ("buffer", external_memory_get_mapped_buffer),
        ("multicast", multicast_create),
        ("reserve", |at| mem_address_reserve(at, 1)),
        ("library", library_load_data),
        ("green", |at| green_ctx_create(at, 0)),
        ("capture", stream_begin_capture),
    ];
    for (name, call) in many {
        let mut watch = TestPipeline::bounded();
        watch.starts_as(1, ALICE).calls((1..20_000).map(|at| call(at).process(1)));
        assert!(watch.listed(1) <= CAPACITY * 11 / 20, "{name}: {}", watch.listed(1));
        assert!(!watch.running(1).exact && watch.unlisted(1) > 0, "{name}");
    }
}

#[test]
fn unmap_is_applied_without_listing_capacity_and_is_not_a_loss() {
    let mut watch = TestPipeline::bounded();
    watch
        .starts_as(1, ALICE)
        .calls([mem_create(1, 2 << 20, (ON_DEVICE, 0)), mem_map(2 << 30, 2 << 20, 0, 1)].map(|call| call.process(1)));
    watch.calls((1..20_000).map(|at| mem_alloc(at, 1).process(1))).calls([mem_release(1).process(1)]);
    let (before, unlisted) = (watch.live(1), watch.unlisted(1));
    watch.calls([mem_unmap(2 << 30, 2 << 20).process(1)]);
    assert_eq!((before - watch.live(1), watch.unlisted(1) - unlisted), (2 << 20, 0));
}

#[test]
fn ended_processes_are_remembered_up_to_a_limit_per_user() {
    let mut watch = TestPipeline::bounded();
    watch.starts_as(5000, BOB).calls([mem_alloc(1, 7).process(5000)]).event(5000, ProcessEvent::Exit);
    for tgid in 1..4900 {
        watch.starts_as(tgid, ALICE).calls([mem_alloc(1, 1).process(tgid)]).event(tgid, ProcessEvent::Exit);
    }
    let remembered = watch.pipeline.state.ended.len();
    assert!((2048..2400).contains(&remembered), "{remembered}");
    assert_eq!(watch.ended(5000).expect("his are as many as they were").gpus[0].peak_bytes, 7);
}

#[test]
fn bytes_that_nvml_does_not_charge_are_in_no_gpus_sum() {
    let mut watch = TestPipeline::begin();
    watch.starts_as(1, ALICE).calls([mem_alloc(0xa0, 10 << 40).process(1)]);
    watch.starts_as(2, BOB).calls([mem_alloc(0xb0, 100).process(2)]).tick();
    watch.reading(vec![device(GPU_A, 700, [(2, 600)])]);
    let gpu = watch.gpu(GPU_A);
    assert_eq!((gpu.live_bytes, gpu.attributed_bytes, gpu.unattributed_bytes), (100, 100, Some(600)));
    let (hers, his) = (watch.running(1).gpus[0].clone(), watch.running(2).gpus[0].clone());
    assert_eq!((hers.live_bytes, hers.unconfirmed_bytes, his.unconfirmed_bytes), (10 << 40, 10 << 40, 0));

    watch.tick().reading(vec![device(GPU_A, 700, [(1, 400), (2, 600)])]);
    assert_eq!((watch.gpu(GPU_A).live_bytes, watch.running(1).gpus[0].unconfirmed_bytes), (500, (10 << 40) - 400));
    watch.calls([mem_free(0xa0).process(1)]);
    assert_eq!((watch.gpu(GPU_A).live_bytes, watch.running(1).gpus[0].unconfirmed_bytes), (100, 0));
}

#[test]
fn unproven_process_is_inexact_until_its_calls_are_seen() {
    let mut watch = TestPipeline::begin();
    watch.process(7, super::ATTACHED_NS + 1).pipeline.step(Input::Unproven([Tgid(7)].into()));
    watch.reading(vec![device(GPU_A, 700, [(7, 600)])]);
    let process = watch.running(7);
    assert!(!process.exact && !process.from_start && process.is_unprobed() && !watch.snapshot().complete);
    assert_eq!((process.gpus[0].used_bytes, process.gpus[0].preexisting_bytes.unwrap_or(0)), (Some(600), 0));
    watch.pipeline.step(Input::Unproven([].into()));
    let process = watch.running(7);
    assert!(process.exact && process.from_start && !process.is_unprobed() && watch.snapshot().complete);
}
