use memwatch_core::features::fragments::view::{
    DriverFitView, DriverFragmentsView, DriverGpuView, DriverPoolView, FitView, FragmentsView, LinearView,
    PhysicalView, SegmentBlockState, SegmentBlockView, SegmentView, StreamPoolView,
};
use memwatch_core::ledger::layout::Holes;
use memwatch_core::snapshot::PlaceNameView;

use super::*;
use crate::render::fixture;

const MIB: u64 = 1 << 20;

fn reported() -> FragmentReport {
    let snapshot = fixture::training_node();
    let process = &snapshot.processes[0];
    let large = ShapeView {
        segments: 2,
        reserved_bytes: 40 * MIB,
        allocated_bytes: 9 * MIB,
        free_bytes: 31 * MIB,
        free_blocks: 2,
        largest_free_bytes: 20 * MIB,
        split_bytes: 11 * MIB,
        split_blocks: 1,
        unused_segment_bytes: 20 * MIB,
        ..ShapeView::default()
    };
    let block = |bytes, state| SegmentBlockView { bytes, state };
    let segment = |blocks| SegmentView {
        address: 1 << 40,
        bytes: 20 * MIB,
        small: false,
        expandable: false,
        stream: 0,
        private_pool: (0, 0),
        blocks,
    };
    let worst = MomentView {
        time_ns: fixture::at(14, 5, 20),
        reserved_bytes: 40 * MIB,
        allocated_bytes: 9 * MIB,
        free_bytes: 31 * MIB,
        split_bytes: 11 * MIB,
        largest_free_bytes: 20 * MIB,
    };
    let used = vec![block(9 * MIB, SegmentBlockState::Allocated), block(11 * MIB, SegmentBlockState::Free)];
    let view = FragmentsView {
        tgid: process.tgid,
        observed_since_ns: process.observed_since_ns,
        device: 0,
        uuid: None,
        at_worst_ns: None,
        traced: true,
        reported_reserved_bytes: Some(50 * MIB),
        reported_allocated_bytes: Some(9 * MIB),
        small: ShapeView::default(),
        large,
        moments: vec![MomentView { split_bytes: 0, ..worst }, worst],
        worst: Some(worst),
        request: None,
        pools: vec![stream_pool("stream", (0, 0), large), stream_pool("graph", (3, 0), kept())],
        segments: vec![segment(used), segment(vec![block(20 * MIB, SegmentBlockState::Free)])],
        sites: vec![pin("line", Some("train.py:36 Trainer.step"), Some(11 * MIB)), pin("preexisting", None, Some(0))],
        modules: vec![pin("not_asked", None, Some(11 * MIB))],
    };
    FragmentReport { view, simulation: None }
}

/// Returns a segment of a CUDA graph, all of it free.
fn kept() -> ShapeView {
    let segment_bytes = 20 * MIB;
    ShapeView {
        segments: 1,
        reserved_bytes: segment_bytes,
        free_bytes: segment_bytes,
        stranded_bytes: segment_bytes,
        ..ShapeView::default()
    }
}

fn stream_pool(owner: &'static str, private_pool: (u64, u64), shape: ShapeView) -> StreamPoolView {
    let in_use = private_pool != (0, 0);
    StreamPoolView { owner: owner.into(), stream: 0, private_pool, in_use, shape, reusable_bytes: 0 }
}

fn pin(kind: &'static str, name: Option<&str>, alone_bytes: Option<u64>) -> PinView {
    let place = PlaceNameView { kind: kind.into(), name: name.map(str::to_owned) };
    PinView { place, held_bytes: 9 * MIB, share_bytes: alone_bytes.unwrap_or(0).max(MIB), alone_bytes }
}

fn driver() -> DriverFragmentsView {
    let snapshot = fixture::training_node();
    let process = &snapshot.processes[0];
    let device = LinearView {
        live_bytes: 3 * MIB,
        allocations: 7,
        small_allocations: 6,
        small_bytes: MIB,
        backed_bytes: 8 * MIB,
        granule_bytes: 2 * MIB,
        unused_bytes: 5 * MIB,
        estimated: true,
    };
    let gpu = DriverGpuView {
        uuid: snapshot.gpus.first().map(|gpu| gpu.uuid.clone()),
        device,
        physical: PhysicalView { live_bytes: 50 * MIB, idle_bytes: 30 * MIB },
        pool: DriverPoolView::new(5 * MIB, Some(32 * MIB), false),
        wasted_bytes: 62 * MIB,
        request: Some(fit(100 * MIB)),
    };
    let addresses = Holes { reserved_bytes: 100 * MIB, hole_bytes: 80 * MIB, holes: 2, largest_hole_bytes: 50 * MIB };
    let (tgid, observed_since_ns) = (process.tgid, process.observed_since_ns);
    DriverFragmentsView { tgid, observed_since_ns, at_worst_ns: None, addresses, gpus: vec![gpu] }
}

/// Returns the fit of a request of 1 MiB less than `driver_bytes` while the driver has 100 MiB
/// free.
fn fit(driver_bytes: u64) -> DriverFitView {
    DriverFitView { wanted_bytes: driver_bytes - MIB, driver_bytes, driver_free_bytes: Some(100 * MIB) }
}

fn of_driver(found: &FragmentFindings) -> String {
    let mut out = Vec::new();
    let options = TableOptions::default();
    write(&mut out, (found, 2), &fixture::training_node(), &fixture::clock(), &options).expect("memory takes all");
    String::from_utf8(out).expect("text is UTF-8")
}

#[test]
fn fragment_text_lists_driver_memory_by_kind_and_marks_estimates() {
    let found = FragmentFindings { allocators: Vec::new(), drivers: vec![driver()] };
    let text = of_driver(&found);
    assert!(text.contains("physical  50.0 MiB  50.0 MiB  30.0 MiB  neither mapped nor bound"), "{text}");
    assert!(text.contains("32.0 MiB  27.0 MiB") && text.contains("1 row with less unused"), "{text}");
    assert!(text.contains("80.0 MiB have no memory, in 2 pieces, the longest 50.0 MiB"), "{text}");
    assert!(text.contains("with 100.0 MiB free on GPU 0, has room for a request of 99.0 MiB"), "{text}");
    let mut wanted = found;
    wanted.drivers[0].gpus[0].request = Some(fit(102 * MIB));
    assert!(of_driver(&wanted).contains("would refuse a request of 101.0 MiB"));
    let rows = wanted.driver_rows();
    let marks: Vec<_> = rows.iter().map(|row| (row.kind, row.unused_bytes, row.is_estimated)).collect();
    let mib = |mib: u64| Some(mib * MIB);
    assert_eq!(marks, [("physical", mib(30), false), ("pool", mib(27), false), ("device", mib(5), true)]);
}

#[test]
fn fragment_text_lists_only_wasted_driver_memory_beside_an_allocator() {
    let mut idle = driver();
    idle.gpus[0].physical.idle_bytes = 0;
    idle.gpus[0].device.unused_bytes = 0;
    let found = FragmentFindings { allocators: vec![reported()], drivers: vec![idle] };
    assert_eq!(found.driver_rows().iter().map(|row| row.kind).collect::<Vec<_>>(), ["pool"]);
}

#[test]
fn fragment_text_lists_the_lines_that_pin_memory_where_known() {
    let found = FragmentFindings { allocators: vec![reported()], ..FragmentFindings::default() };
    let text = of_driver(&found);
    assert!(text.contains("11.0 MiB  11.0 MiB  9.0 MiB  train.py:36 Trainer.step"), "{text}");
    assert!(text.contains("(pre-existing)") && !text.contains("BY LAYER"), "{text}");
}

fn text(reported: FragmentReport, ascii: bool) -> String {
    let options = TableOptions { ascii, columns: Some(40), ..TableOptions::default() };
    let mut out = Vec::new();
    let found = FragmentFindings { allocators: vec![reported], ..FragmentFindings::default() };
    write(&mut out, (&found, 10), &fixture::training_node(), &fixture::clock(), &options).expect("memory takes all");
    String::from_utf8(out).expect("text is UTF-8")
}

#[test]
fn fragment_text_shows_both_parts_side_by_side_and_a_map() {
    let options = TableOptions::default();
    let mut out = Vec::new();
    let found = FragmentFindings { allocators: vec![reported()], ..FragmentFindings::default() };
    write(&mut out, (&found, 10), &fixture::training_node(), &fixture::clock(), &options).expect("memory takes all");
    let wide = String::from_utf8(out).expect("text is UTF-8");
    assert!(wide.contains("77.5 %         35.5 %"), "of 40 MiB 31 are unused, of 31 free 20 are one: {wide}");
    assert!(wide.contains("31.0 MiB in 2 blocks"), "{wide}");
    assert!(wide.contains("empty_cache() would release 20.0 MiB"), "{wide}");
    assert!(wide.contains("are free in 1 private pool: empty_cache() releases them only once"), "{wide}");
    let row = |name: &str| wide.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    assert!(row("default stream").ends_with("20.0 MiB  11.0 MiB       0 B            20.0 MiB"), "{wide}");
    assert!(row("CUDA graph 3").contains("0 B       0 B  20.0 MiB"), "{wide}");
    assert!(wide.contains("the table lacks 10.0 MiB of the 50.0 MiB reserved: their layout is not known"), "{wide}");
    assert!(wide.contains("11.0 MiB inactive split, 27.5 % of 40.0 MiB reserved"), "{wide}");
    let plain = text(reported(), true);
    assert!(plain.is_ascii(), "{plain}");
    assert!(plain.contains("####") && plain.contains("....") && plain.contains('|'), "{plain}");
}

#[test]
fn a_request_is_reported_where_its_memory_would_come_from() {
    let fit_beside = |other_streams, cached, driver_free_bytes| {
        let stream = 0;
        let (wanted_bytes, driver_bytes, releasable_bytes) = (24 * MIB, 24 * MIB, 20 * MIB);
        let request = Some(FitView {
            wanted_bytes,
            stream,
            cached,
            other_streams,
            driver_bytes,
            driver_free_bytes,
            releasable_bytes,
        });
        let reported = reported();
        remarks(&FragmentReport { view: FragmentsView { request, ..reported.view }, simulation: None }).remove(0)
    };
    let fit = |cached, driver_free_bytes| fit_beside(Vec::new(), cached, driver_free_bytes);
    assert_eq!(fit(true, None), "a request of 24.0 MiB on the default stream fits into a free block");
    let elsewhere = fit_beside(vec![0x7f, 0x80], false, Some(24 * MIB));
    assert!(
        elsewhere.contains("on the default stream has no free block, though one on 2 other streams has: the driver")
    );
    assert!(fit(false, None).ends_with("the driver would have to give 24.0 MiB"));
    assert!(fit(false, Some(24 * MIB)).ends_with("which it has"));
    assert!(fit(false, Some(4 * MIB)).ends_with("once PyTorch has given back its unused segments"));
    assert!(fit(false, Some(4 * MIB - 1)).ends_with("the request would fail"));
}
