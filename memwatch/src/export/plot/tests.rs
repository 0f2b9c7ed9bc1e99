use memwatch_core::features::timeline::view::{EventView, PointView};

use super::svg::{escape, scale};
use super::*;
use crate::render::fixture;

const SECOND: u64 = 1_000_000_000;

fn timeline() -> (TimelineView, Snapshot) {
    let snapshot = fixture::training_node();
    let (uuid, tgid) = (snapshot.gpus[0].uuid.clone(), snapshot.processes[0].tgid);
    let begun_ns = snapshot.time_ns - 10 * SECOND;
    let points = |most: u64| {
        let point =
            move |second| PointView { time_ns: begun_ns + second * SECOND, bytes: second << 20, most_bytes: most };
        (1..=10).map(point).collect::<Vec<_>>()
    };
    let track = |tgid: Option<Tgid>, measure: &'static str, most| TrackView {
        tgid,
        command: "<b>&\u{1b}[2J".to_owned(),
        observed_since_ns: tgid.map(|_| 5),
        uuid: Some(uuid.clone()),
        measure: measure.into(),
        begun_ns,
        points: points(most),
        ..TrackView::default()
    };
    let failure = EventView {
        time_ns: begun_ns + SECOND,
        kind: "failure".into(),
        tgid: Some(tgid),
        bytes: Some(1 << 30),
        level: Some("driver".into()),
        symbol: Some("cuMemAlloc_v2".into()),
        ..EventView::default()
    };
    let view = TimelineView {
        interval_ns: SECOND,
        begun_ns,
        last_ns: snapshot.time_ns,
        tracks: vec![track(Some(tgid), "live", 64 << 20), track(None, "used", 0)],
        events: vec![failure],
        ..TimelineView::default()
    };
    (view, snapshot)
}

fn plot() -> Plot {
    let (timeline, snapshot) = timeline();
    Plot::new(&timeline, &snapshot, &fixture::clock())
}

#[test]
fn timeline_csv_has_a_row_per_point_with_unknown_cells_empty() {
    let (timeline, snapshot) = timeline();
    let text = crate::export::csv::timeline(&timeline, &fixture::clock());
    let lines: Vec<_> = text.split_terminator("\r\n").collect();
    assert_eq!(lines.len(), 21, "{text}");
    assert_eq!(lines[0], "time,pid,command,gpu_uuid,measure,bytes,most_bytes");
    let uuid = snapshot.gpus[0].uuid.as_str();
    assert!(lines[1].ends_with(&format!(",1234,\"<b>&\\x1b[2J\",{uuid},live,1048576,67108864")), "{text}");
    assert!(lines[20].ends_with(&format!(",,,{uuid},used,10485760,0")), "{text}");
}

#[test]
fn timeline_svg_puts_the_gpu_panel_first_and_marks_failures() {
    let svg = plot().svg();
    let (gpu, process) = (svg.find(">GPU 0  ").expect("a panel"), svg.find(">PID ").expect("another"));
    assert!(gpu < process && svg.contains("used (NVML)") && !svg.contains("reserved by PyTorch"), "{svg}");
    assert!(svg.contains("allocation of 1.00 GiB failed by cuMemAlloc_v2"), "{svg}");
    assert!(svg.contains("prefers-color-scheme:dark"));
    // The axis covers the peak between two samples.
    assert!(svg.contains(">64.0 MiB<"), "{svg}");
}

#[test]
fn a_failure_is_drawn_on_its_own_gpu_and_the_axis_has_times_of_day() {
    let (mut timeline, snapshot) = timeline();
    let other = GpuUuid::new("GPU-11111111-2222-3333-4444-555555555555");
    let used = timeline.tracks[1].clone();
    timeline.tracks.push(TrackView { uuid: Some(other.clone()), ..used });
    let failures = |timeline: &TimelineView| {
        let plot = Plot::new(timeline, &snapshot, &fixture::clock());
        plot.panels.iter().map(|panel| panel.marks.len()).collect::<Vec<_>>()
    };
    // Only one GPU of the failed process is known; it is the second.
    assert_eq!(failures(&timeline), [0, 1, 1]);
    timeline.events[0].uuid = Some(other);
    assert_eq!(failures(&timeline), [1, 0, 0]);
    let begin = fixture::clock().time_of_day(timeline.begun_ns + SECOND);
    assert!(plot().svg().contains(&format!(">{begin}<")), "{}", plot().svg());
}

#[test]
fn timeline_svg_and_html_escape_hostile_names() {
    let plot = plot();
    let page = String::from_utf8(plot.html().expect("it can be written")).expect("text");
    for text in [plot.svg(), page] {
        assert!(!text.contains("<b>") && !text.contains('\u{1b}') && text.contains("&lt;b&gt;&amp;"), "{text}");
    }
    assert_eq!(escape("a\"<>&"), "a&quot;&lt;&gt;&amp;");
}

#[test]
fn a_page_loads_nothing_and_has_its_holes_filled() {
    let page = String::from_utf8(plot().html().expect("it can be written")).expect("text");
    assert!(!page.contains("\"DATA\"") && !page.contains("<!--"), "{page}");
    assert!(!page.contains("src=") && !page.contains("url("), "{page}");
    // The namespace of SVG, in the picture and in the script.
    assert_eq!(page.matches("http://www.w3.org/2000/svg").count(), page.matches("://").count(), "{page}");
}

#[test]
fn an_axis_has_room_for_the_highest_and_few_lines() {
    for highest in [0, 1, 5, 1000, 3 << 30, 5 << 30, u64::MAX / 2] {
        let (ceiling, step) = scale(highest);
        assert!(ceiling >= highest && ceiling / step <= 4 && ceiling > 0, "{highest}: {ceiling} by {step}");
    }
}

#[test]
fn many_points_become_few_and_the_most_stays() {
    let points: Vec<PointView> = (0..5_000)
        .map(|number| PointView { time_ns: number, bytes: 1, most_bytes: u64::from(number == 3_000) })
        .collect();
    let few = thinned(&points);
    assert!(few.len() <= POINTS && few.iter().any(|point| point.most_bytes == 1));
    assert_eq!(few.last().map(|point| point.time_ns), Some(4_999));
}
