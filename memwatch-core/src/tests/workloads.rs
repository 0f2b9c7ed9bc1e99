//! Workloads over the life of their processes, and their names.

use super::*;
use crate::input::kv_cache::{KvCache, KvCacheContent, KvCacheDoubt, KvCacheFill, KvCacheReading, ServingEngine};
use crate::owner::{Container, ContainerNames};
use crate::snapshot::{KvCacheSums, WorkloadGpuView, WorkloadView};

const TRAIN: &str = "17db96a24ae1e9dd57143e62b1cb0d2d35e693c65c774c7470e87b0572e07c1a";
const SERVE: &str = "27db96a24ae1e9dd57143e62b1cb0d2d35e693c65c774c7470e87b0572e07c1b";

impl TestPipeline {
    /// Adds a process of this Docker container, seen from its start, that uses GPU A.
    pub(super) fn starts_in(&mut self, container: &str, tgid: u32) -> &mut Self {
        let start_ns = self.later();
        let cgroups = Some(format!("0::/system.slice/docker-{container}.scope\n"));
        self.pipeline.step(Input::Process(ProcessFacts { tgid, start_ns, cgroups, ..ProcessFacts::default() }));
        self.calls(on_gpu_a(tgid))
    }

    fn named(&mut self, container: &str, name: &str) -> &mut Self {
        let (id, name) = (container.to_owned(), Some(name.to_owned()));
        self.pipeline.step(Input::Names(vec![ContainerNames { id, name, ..ContainerNames::default() }]));
        self
    }

    fn workload(&self, name: &str) -> Option<WorkloadView> {
        self.snapshot().workloads.into_iter().find(|workload| workload.container.as_deref() == Some(name))
    }

    fn workload_on_a(&self, name: &str) -> WorkloadGpuView {
        let workload = self.workload(name).expect("it is listed");
        workload.gpus.into_iter().find(|row| row.uuid == Some(uuid(GPU_A))).expect("it has worked there")
    }
}

#[test]
fn workload_counters_survive_the_end_of_its_processes() {
    let mut watch = TestPipeline::begin();
    watch.reading(vec![device(GPU_A, 0, [])]);
    watch.starts_in(TRAIN, 7).starts_in(TRAIN, 8);
    watch.calls([mem_alloc(0xd1, 100).process(7), mem_alloc(0xd2, 30).process(8), mem_free(0xd1).process(7)]).tick();
    watch.calls([mem_alloc(0xd3, 50).process(7)]).event(7, ProcessEvent::Exit).tick();
    let row = watch.workload_on_a("17db96a24ae1");
    let device = row.kinds["device"];
    assert_eq!((device.allocations, device.frees, device.allocated_bytes, device.freed_bytes), (3, 2, 180, 150));
    assert_eq!((row.live_bytes, device.live_bytes), (30, 30));
    let workload = watch.workload("17db96a24ae1").expect("it is listed");
    assert_eq!((workload.kind.as_ref(), workload.processes, workload.ended_ns), ("container", 1, None));
}

#[test]
fn workload_peak_is_the_live_sum_and_at_least_each_process_peak() {
    let mut watch = TestPipeline::begin();
    watch.reading(vec![device(GPU_A, 0, [])]);
    watch.starts_in(TRAIN, 7).starts_in(TRAIN, 8);
    watch.calls([mem_alloc(0xd1, 100).process(7), mem_free(0xd1).process(7), mem_alloc(0xd2, 30).process(8)]).tick();
    assert_eq!(watch.workload_on_a("17db96a24ae1").peak_bytes, 100);
    watch.calls([mem_alloc(0xd1, 90).process(7)]).tick().event(7, ProcessEvent::Exit).tick();
    assert_eq!(watch.workload_on_a("17db96a24ae1").peak_bytes, 120);
}

#[test]
fn refusals_are_counted_by_status_and_outlive_the_process() {
    let mut watch = TestPipeline::begin();
    watch.reading(vec![device(GPU_A, 0, [])]);
    watch
        .starts_in(TRAIN, 7)
        .calls([mem_alloc(0, 1 << 40).failing(2).process(7), mem_alloc(0, 1).failing(700).process(7)]);
    watch.ticks(2);
    let refused_ns = watch.running(7).gpus[0].last_oom_ns.expect("one was refused for want of memory");
    watch.event(7, ProcessEvent::Exit).tick();
    let row = watch.workload_on_a("17db96a24ae1");
    assert_eq!(row.refusals.into_iter().collect::<Vec<_>>(), [(2, 1), (700, 1)]);
    assert_eq!(row.last_oom_ns, Some(refused_ns));
}

#[test]
fn a_workload_is_forgotten_five_minutes_after_its_last_process() {
    let mut watch = TestPipeline::begin();
    watch.reading(vec![device(GPU_A, 0, [])]);
    watch.starts_in(TRAIN, 7).calls([mem_alloc(0xd1, 100).process(7)]).event(7, ProcessEvent::Exit).ticks(299);
    let workload = watch.workload("17db96a24ae1").expect("it is still listed");
    assert_eq!((workload.processes, workload.ended_ns.is_some()), (0, true));
    assert!(watch.ticks(2).workload("17db96a24ae1").is_none());
}

#[test]
fn workload_takes_a_late_name_that_a_later_container_does_not_inherit() {
    let mut watch = TestPipeline::begin();
    watch.reading(vec![device(GPU_A, 0, [])]);
    watch.starts_in(TRAIN, 7).starts_in(SERVE, 9).calls([mem_alloc(0xd1, 100).process(7)]);
    let wanted: Vec<_> =
        watch.pipeline.state.names().nameless().map(|nameless| nameless.container.id.clone()).collect();
    assert_eq!(wanted, [TRAIN, SERVE]);
    watch.named(TRAIN, "train").tick();
    assert!(watch.workload("17db96a24ae1").is_none());
    assert_eq!(watch.workload_on_a("train").live_bytes, 100);
    let name = |process: ProcessView| process.owner.container.and_then(|container: Container| container.name);
    assert_eq!(name(watch.running(7)).as_deref(), Some("train"));
    watch.event(7, ProcessEvent::Exit).starts_in(TRAIN, 8);
    assert_eq!(name(watch.running(8)), None);
}

#[test]
fn moved_process_takes_its_live_bytes_and_leaves_its_counters() {
    let mut watch = TestPipeline::begin();
    watch.reading(vec![device(GPU_A, 0, [])]);
    watch.starts_in(TRAIN, 7).calls([mem_alloc(0xd1, 100).process(7)]).tick();
    let cgroups = format!("0::/system.slice/docker-{SERVE}.scope\n");
    watch.pipeline.step(Input::Cgroups { tgid: Tgid(7), cgroups });
    watch.tick();
    let (left, joined) = (watch.workload_on_a("17db96a24ae1"), watch.workload_on_a("27db96a24ae1"));
    assert_eq!((left.live_bytes, left.kinds["device"].allocations, left.kinds["device"].frees), (0, 1, 1));
    assert_eq!((joined.live_bytes, joined.kinds["device"].allocations), (100, 1));
}

#[test]
fn a_lost_record_makes_its_workload_inexact_for_good() {
    let mut watch = TestPipeline::begin();
    watch.starts_in(TRAIN, 7).starts_in(TRAIN, 8).lost(Some(7), Loss::RingFull, 1);
    assert!(!watch.workload("17db96a24ae1").expect("it is listed").exact);
    watch.event(7, ProcessEvent::Exit).tick();
    assert!(!watch.workload("17db96a24ae1").expect("it is listed").exact);
}

/// A reading of a pool of 400 blocks of 1 MiB in this process.
fn kv_cache(tgid: u32, scheduler: u32, block_bytes: Option<u64>) -> Input {
    let pool = KvCache {
        engine: ServingEngine::Vllm,
        scheduler: Tgid(scheduler),
        bytes: block_bytes.map(|bytes| bytes * 401),
        block_bytes,
        block_tokens: Some(16),
        layers: Some(4),
        asleep: None,
        fill: KvCacheFill { blocks: 400, used_blocks: 100, free_blocks: 300, running: 5, waiting: 2 },
        content: Some(KvCacheContent { shared_blocks: None, reusable_blocks: 250, empty_blocks: 50 }),
        content_unknown: None,
        largest_requests: Vec::new(),
    };
    Input::KvCache(Box::new(KvCacheReading { tgid: Tgid(tgid), time_ns: ATTACHED_NS, pool: Ok(pool), peak: None }))
}

#[test]
fn workload_kv_caches_add_up_and_requests_are_those_of_each_scheduler() {
    let mut watch = TestPipeline::begin();
    watch.reading(vec![device(GPU_A, 0, [])]);
    watch.starts_in(SERVE, 7).starts_in(SERVE, 8).starts_in(SERVE, 9);
    watch.calls([7, 8, 9].map(|tgid| mem_alloc(0xd1, 100).process(tgid))).tick();
    assert_eq!(watch.workload_on_a("27db96a24ae1").kv_cache, None);
    // Two ranks of one scheduler, and another server whose bytes are not known.
    for (tgid, scheduler, block_bytes) in [(7, 6, Some(1 << 20)), (8, 6, Some(1 << 20)), (9, 9, None)] {
        watch.pipeline.step(kv_cache(tgid, scheduler, block_bytes));
    }
    let expected = KvCacheSums {
        size_bytes: Some(800 << 20),
        used_bytes: Some(200 << 20),
        reusable_bytes: Some(500 << 20),
        running_requests: 10,
        waiting_requests: 4,
    };
    assert_eq!(watch.tick().workload_on_a("27db96a24ae1").kv_cache, Some(expected));
    watch.event(7, ProcessEvent::Exec);
    let unknown =
        KvCacheReading { tgid: Tgid(8), time_ns: ATTACHED_NS, pool: Err(KvCacheDoubt::NoScheduler), peak: None };
    watch.pipeline.step(Input::KvCache(Box::new(unknown)));
    let left = KvCacheSums { running_requests: 5, waiting_requests: 2, ..KvCacheSums::default() };
    assert_eq!(watch.tick().workload_on_a("27db96a24ae1").kv_cache, Some(left), "an exec ends its server");
}
