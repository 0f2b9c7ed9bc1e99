use memwatch_core::features::forecast::view::ForecastsView;
use memwatch_core::features::oom::view::CacheView;
use memwatch_core::words::Tgid;

use super::*;
use crate::render::fixture;

fn failed(snapshot: Snapshot, tgid: Tgid, cache: Option<CacheView>, wanted_bytes: u64) -> OomView {
    OomView {
        time_ns: snapshot.time_ns,
        tgid,
        level: "tensor".into(),
        device: Some(0),
        uuid: snapshot.gpus.first().map(|gpu| gpu.uuid.clone()),
        symbol: None,
        wanted_bytes,
        whose: None,
        cache,
        more: 0,
        snapshot: Box::new(snapshot),
    }
}

fn reported(ooms: &[&OomView]) -> String {
    reported_at_end_of(&fixture::busy_node(), ooms)
}

fn reported_at_end_of(snapshot: &Snapshot, ooms: &[&OomView]) -> String {
    let mut out = Vec::new();
    let forecasts = ForecastsView::default();
    let report = OomReport { ooms, forgotten: 3, forecasts: &forecasts, changes: &[] };
    write(&mut out, &report, snapshot, &fixture::clock(), &TableOptions::default()).expect("memory takes all");
    String::from_utf8(out).expect("text is UTF-8")
}

const GIB: u64 = 1 << 30;

#[test]
fn pieces_that_would_have_been_enough_lead_to_the_setting_that_joins_them() {
    let snapshot = fixture::training_node();
    let tgid = snapshot.processes[0].tgid;
    let cache =
        CacheView { split_bytes: 3 * GIB, largest_free_bytes: GIB, reserved_bytes: 9 * GIB, ..CacheView::default() };
    let reported_of = |cache| reported(&[&failed(snapshot.clone(), tgid, Some(cache), 2 * GIB)]);
    let text = reported_of(cache);
    assert!(text.contains("3.0 GiB lay free in pieces between blocks in use, the largest 1.0 GiB"), "{text}");
    assert!(text.contains("says memwatch simulate"), "{text}");
    assert!(text.contains("most held") && text.contains("and 3 more before these"), "{text}");
    let text = reported_of(CacheView { is_expandable: true, ..cache });
    assert!(!text.contains("memwatch simulate"), "{text}");
}

#[test]
fn without_a_forecast_the_reason_is_stated() {
    let mut snapshot = fixture::training_node();
    assert!(reported_at_end_of(&snapshot, &[]).contains("No forecast: NVML does not say"));
    for process in &mut snapshot.processes {
        process.ended_ns = Some(snapshot.time_ns);
    }
    assert!(reported_at_end_of(&snapshot, &[]).contains("No forecast: what was watched has ended."));
    snapshot.processes.clear();
    assert!(reported_at_end_of(&snapshot, &[]).contains("or nothing was seen on them"));
}

#[test]
fn others_that_hold_enough_are_named() {
    let snapshot = fixture::busy_node();
    let process = snapshot.processes.iter().find(|process| !process.gpus.is_empty()).expect("somebody has memory");
    let tgid = process.tgid;
    let mut oom = failed(snapshot.clone(), Tgid(u32::MAX), None, 1);
    oom.uuid.clone_from(&process.gpus[0].uuid);
    let text = reported(&[&oom]);
    assert!(text.contains("other processes held") && text.contains(&format!("PID {}", tgid.0)), "{text}");
}

#[test]
fn more_than_the_gpu_has_is_stated_first_and_nothing_is_a_sentence_too() {
    let snapshot = fixture::training_node();
    let tgid = snapshot.processes[0].tgid;
    let text = reported(&[&failed(snapshot, tgid, None, u64::MAX)]);
    assert!(text.contains("is more than the whole GPU has"), "{text}");
    assert!(reported(&[]).contains("No allocation has failed for want of memory.\n"));
}
