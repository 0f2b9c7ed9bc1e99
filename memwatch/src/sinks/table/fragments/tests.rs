use memwatch_core::snapshot::{FitView, FragmentsView, SegmentBlockState, SegmentBlockView, SegmentView};

use super::*;
use crate::sinks::fixture;

const MIB: u64 = 1 << 20;

fn told() -> Told {
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
        segments: vec![segment(used), segment(vec![block(20 * MIB, SegmentBlockState::Free)])],
    };
    Told { view, simulation: None }
}

fn text(told: Told, ascii: bool) -> String {
    let options = TableOptions { ascii, columns: Some(40), ..TableOptions::default() };
    let mut out = Vec::new();
    write(&mut out, &[told], &fixture::training_node(), &fixture::clock(), &options).expect("memory takes all");
    String::from_utf8(out).expect("text is UTF-8")
}

#[test]
fn both_parts_stand_side_by_side_and_the_map_shows_where() {
    let options = TableOptions::default();
    let mut out = Vec::new();
    write(&mut out, &[told()], &fixture::training_node(), &fixture::clock(), &options).expect("memory takes all");
    let wide = String::from_utf8(out).expect("text is UTF-8");
    assert!(wide.contains("77.5 %     35.5 %"), "of 40 MiB 31 are unused, of 31 free 20 are one: {wide}");
    assert!(wide.contains("31.0 MiB in 2 blocks"), "{wide}");
    assert!(wide.contains("empty_cache() would give 20.0 MiB back"), "{wide}");
    assert!(wide.contains("how 10.0 MiB lie that the allocator had before the watch is not known"), "{wide}");
    assert!(wide.contains("11.0 MiB between blocks, 27.5 % of 40.0 MiB reserved"), "{wide}");
    let plain = text(told(), true);
    assert!(plain.is_ascii(), "{plain}");
    assert!(plain.contains("####") && plain.contains("....") && plain.contains('|'), "{plain}");
}

#[test]
fn a_request_is_told_where_its_memory_would_come_from() {
    let fit = |cached, driver_free_bytes| {
        let (wanted_bytes, driver_bytes, releasable_bytes) = (24 * MIB, 24 * MIB, 20 * MIB);
        let request = Some(FitView { wanted_bytes, cached, driver_bytes, driver_free_bytes, releasable_bytes });
        let told = told();
        remarks(&Told { view: FragmentsView { request, ..told.view }, simulation: None }).remove(0)
    };
    assert_eq!(fit(true, None), "a request of 24.0 MiB fits into a free block");
    assert!(fit(false, None).ends_with("the driver would have to give 24.0 MiB"));
    assert!(fit(false, Some(24 * MIB)).ends_with("which it has"));
    assert!(fit(false, Some(4 * MIB)).ends_with("once PyTorch has given back its unused segments"));
    assert!(fit(false, Some(4 * MIB - 1)).ends_with("the request would fail"));
}
