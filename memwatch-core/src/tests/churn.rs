//! Allocation churn of processes.

use super::*;
use crate::features::churn::view::{FlowView, SizeView};

fn flows(story: impl Fn(&mut TestPipeline)) -> Vec<FlowView> {
    let mut pipeline = Pipeline::new(true);
    pipeline.watch_churn(2);
    let mut watch = TestPipeline::of(pipeline);
    watch.reading(vec![device(GPU_A, 0, [])]).starts(7).calls(on_gpu_a(7));
    story(&mut watch);
    watch.pipeline.churn().expect("it was asked for").kinds
}

#[test]
fn block_freed_before_two_more_allocations_is_temporary() {
    let reported = flows(|watch| {
        watch.calls(
            [mem_alloc(0xa0, 100), mem_free(0xa0), mem_alloc(0xa1, 200), mem_alloc(0xa2, 300)]
                .map(|call| call.process(7)),
        );
        watch.calls(
            [mem_free(0xa1), mem_alloc(0xa3, 1), mem_alloc(0xa4, 1), mem_free(0xa2)].map(|call| call.process(7)),
        );
    });
    let [device] = &reported[..] else { panic!("{reported:#?}") };
    assert_eq!((&*device.kind, device.allocations, device.frees, device.total_bytes), ("device", 5, 3, 602));
    assert_eq!((device.temporary, device.temporary_bytes), (2, 300));
}

#[test]
fn sizes_and_lifetimes_fall_into_classes_that_have_everything() {
    let reported = flows(|watch| {
        watch.calls([
            mem_alloc(0xa0, 100).process(7),
            mem_alloc(0xa1, 127).process(7),
            mem_host_alloc(0xb0, 64).process(7),
        ]);
        watch.ticks(2).calls([mem_free(0xa0).process(7), mem_free(0xdead).process(7)]);
    });
    let device = reported.iter().find(|flow| flow.kind == "device").expect("it allocated");
    assert_eq!(device.sizes, [SizeView { from_bytes: 64, below_bytes: Some(128), allocations: 2, bytes: 227 }]);
    let lived: Vec<u64> = device.lifetimes.iter().map(|class| class.frees).collect();
    assert_eq!(lived, [0, 0, 0, 0, 1, 0, 0]);
    assert_eq!((device.older_frees, device.frees), (1, 1));
    assert!(reported.iter().any(|flow| flow.kind == "pinned" && flow.mean_lifetime_ns.is_none()), "{reported:#?}");
}

#[test]
fn free_by_a_later_process_with_the_same_pid_is_an_older_free() {
    let reported = flows(|watch| {
        watch
            .calls([mem_alloc(0xa0, 100).process(7)])
            .event(7, ProcessEvent::Exit)
            .starts(7)
            .calls([mem_free(0xa0).process(7)]);
    });
    assert_eq!((reported[0].frees, reported[0].older_frees), (0, 1));
}
