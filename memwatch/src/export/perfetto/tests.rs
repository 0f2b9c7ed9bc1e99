use memwatch_core::features::timeline::view::{PointView, SpanView};

use super::proto::Trace;
use super::*;
use crate::render::fixture;

fn read() -> Vec<TracePacket> {
    let snapshot = fixture::training_node();
    let tgid = snapshot.processes[0].tgid;
    let track = TrackView {
        tgid: Some(tgid),
        comm: "python".to_owned(),
        uuid: Some(snapshot.gpus[0].uuid.clone()),
        measure: "live".into(),
        begun_ns: 100,
        points: vec![PointView { time_ns: 200, bytes: 5, most_bytes: 9 }],
        ..TrackView::default()
    };
    let span = |begun_ns, number: &'static str| SpanView {
        tgid,
        kind: "step".into(),
        name: number.into(),
        begun_ns,
        last_ns: begun_ns + 50,
    };
    let failure =
        EventView { time_ns: 120, kind: "failure".into(), tgid: Some(tgid), bytes: Some(7), ..EventView::default() };
    let timeline = TimelineView {
        begun_ns: 100,
        last_ns: 200,
        tracks: vec![track],
        spans: vec![span(100, "1"), span(150, "2")],
        events: vec![failure],
        ..TimelineView::default()
    };
    Trace::decode(&*write(&timeline, &snapshot, &fixture::clock())).expect("it reads what it wrote").packet
}

#[test]
fn perfetto_events_have_a_described_track_and_increasing_times() {
    let mut known = std::collections::BTreeSet::new();
    let mut last_ns = 0;
    for packet in read() {
        known.extend(packet.track_descriptor.as_ref().map(|track| track.uuid));
        if let Some(event) = &packet.track_event {
            assert!(known.contains(&event.track_uuid), "{packet:?}");
            let time_ns = packet.timestamp.expect("an event has a time");
            assert!(time_ns >= last_ns, "{packet:?}");
            last_ns = time_ns;
        }
    }
}

#[test]
fn perfetto_counters_keep_the_maximum_and_slices_do_not_overlap() {
    let packets = read();
    let events: Vec<&TraceEvent> = packets.iter().filter_map(|packet| packet.track_event.as_ref()).collect();
    let counted: Vec<i64> = events.iter().filter_map(|event| event.counter_value).collect();
    assert_eq!(counted, [9, 5]);
    let slices: Vec<i32> =
        events.iter().map(|event| event.kind).filter(|kind| [SLICE_BEGIN, SLICE_END].contains(kind)).collect();
    assert_eq!(slices, [SLICE_BEGIN, SLICE_END, SLICE_BEGIN, SLICE_END]);
    let failure = events.iter().find(|event| event.kind == INSTANT).expect("an allocation failed");
    assert_eq!(failure.debug_annotations[0].uint_value, Some(7));
}
