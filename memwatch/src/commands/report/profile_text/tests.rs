use memwatch_core::features::profile::view::DeviceProfileView;

use super::*;
use crate::render::fixture;
use crate::render::text::TableOptions;

const GIB: u64 = 1 << 30;

fn course(bytes: u64, peak_bytes: Option<u64>) -> CourseView {
    CourseView {
        current_bytes: bytes,
        average_bytes: Some(bytes / 2),
        maximum_bytes: bytes,
        peak_bytes,
        p50_bytes: bytes / 2,
        samples: 60,
        ..CourseView::default()
    }
}

fn profile() -> ProfileView {
    let snapshot = fixture::training_node();
    let (gpu, process) = (&snapshot.gpus[0], &snapshot.processes[0]);
    let fragmentation = RatioView { current: Some(0.25), average: 0.1, maximum: 0.5, ..RatioView::default() };
    let device = DeviceProfileView {
        uuid: Some(gpu.uuid.clone()),
        live: Some(course(8 * GIB, Some(9 * GIB))),
        fragmentation: Some(fragmentation),
        ..DeviceProfileView::default()
    };
    ProfileView {
        interval_ns: 2_000_000_000,
        asked_interval_ns: 1_000_000_000,
        begun_ns: snapshot.time_ns - 60_000_000_000,
        last_ns: snapshot.time_ns,
        gpus: vec![GpuProfileView {
            uuid: gpu.uuid.clone(),
            total_bytes: Some(80 * GIB),
            used: Some(course(40 * GIB, None)),
            live: None,
            utilization: course(40 * GIB, None).part_of(Some(80 * GIB)),
        }],
        processes: vec![ProcessProfileView {
            tgid: process.tgid,
            comm: "python\u{1b}[2J".to_owned(),
            gpus: vec![device],
            exact: false,
            ..ProcessProfileView::default()
        }],
    }
}

fn reported(profile: &ProfileView) -> String {
    let mut page = TextPage { text: String::new(), options: TableOptions::default() };
    section(&mut page, profile, &fixture::training_node(), &fixture::clock());
    page.text
}

#[test]
fn profile_text_gives_peaks_for_exact_series_and_none_for_sampled_ones() {
    let reported = reported(&profile());
    assert!(reported.contains("1 min 0 s, sampled every 2.0 s\n"), "{reported}");
    assert!(reported.contains("every 2.0 s instead of 1.0 s"), "{reported}");
    assert!(reported.contains("80.00 GiB: 25.0 % used on average, 50.0 % at most"), "{reported}");
    assert!(
        reported.contains("reserved and not allocated: 25.0 % now, 10.0 % on average, 50.0 % at most; inexact"),
        "{reported}"
    );
    let line =
        |what: &str| reported.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("{what}: {reported}"));
    assert!(line("used (NVML)").ends_with("40.00 GiB         -"), "{reported}");
    assert!(line("allocated by driver calls").ends_with(" 8.00 GiB  9.00 GiB"), "{reported}");
    assert!(!reported.contains('\u{1b}') && !reported.contains("allocated by all traced processes"), "{reported}");
}

#[test]
fn profile_text_without_gpu_memory_says_so() {
    assert!(reported(&ProfileView::default()).contains("No GPU, and no process with GPU memory.\n"));
}
