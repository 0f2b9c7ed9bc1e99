//! Memory over time: samples with the peak between them, and events.

use super::*;
use crate::features::timeline::view::TimelineView;

fn timeline(large_bytes: u64) -> TimelineView {
    let mut pipeline = Pipeline::new(true);
    pipeline.watch_timeline(SECOND_NS, large_bytes);
    let mut watch = TestPipeline::of(pipeline);
    watch.reading(vec![device(GPU_A, 500, [])]).starts(7).calls(on_gpu_a(7));
    watch.calls([mem_alloc(0xa0, 100).process(7)]).ticks(3);
    watch.calls([mem_alloc(0xa1, 900).process(7), mem_free(0xa1).process(7)]);
    watch.calls([mem_alloc(0, 1 << 40).process(7).failing(2), mem_alloc(0, 7).process(7).failing(1)]).ticks(2);
    watch.event(7, ProcessEvent::Exit).tick();
    watch.pipeline.timeline().expect("it was asked for")
}

#[test]
fn timeline_keeps_the_maximum_between_polls_and_increasing_times() {
    let reported = timeline(1 << 30);
    let of_process = |measure: &str| {
        let own = reported.tracks.iter().find(|track| track.tgid == Some(Tgid(7)) && track.measure == *measure);
        own.expect("it has held memory").points.iter().map(|point| (point.bytes, point.most_bytes)).collect::<Vec<_>>()
    };
    assert_eq!(of_process("live"), [(100, 100), (100, 100), (100, 100), (100, 1000), (100, 100), (100, 100)]);
    assert!(reported.tracks.iter().all(|track| track.points.is_sorted_by(|one, other| one.time_ns < other.time_ns)));
    let gpu: Vec<&str> = reported.tracks.iter().filter(|one| one.tgid.is_none()).map(|one| &*one.measure).collect();
    assert_eq!(gpu, ["used", "live"]);
}

#[test]
fn timeline_events_are_reported_in_order() {
    let reported = timeline(500);
    let events: Vec<_> =
        reported.events.iter().map(|event| (&*event.kind, event.tgid.is_some(), event.bytes)).collect();
    let expected = [
        ("start", true, None),
        ("peak", false, Some(1000)),
        ("peak", true, Some(1000)),
        ("large", true, Some(900)),
        ("failure", true, Some(1 << 40)),
        ("exit", true, None),
    ];
    assert_eq!(events, expected, "{:#?}", reported.events);
    assert_eq!(reported.events[4].symbol.as_deref(), Some("cuMemAlloc_v2"));
    assert_eq!((reported.forgotten_events, reported.spans.len()), (0, 0));
}
