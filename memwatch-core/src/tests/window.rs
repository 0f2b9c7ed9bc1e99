//! Features that are switched on later give the results of a watch that started without them.

use super::*;
use crate::features::profile::view::CourseView;

/// Switches on all features.
fn look(pipeline: &mut Pipeline) {
    pipeline.watch_forecasts(&[50.0]);
    pipeline.watch_ooms();
    pipeline.watch_churn(10);
    pipeline.watch_fragments();
    pipeline.watch_timeline(SECOND_NS, 1);
}

fn found(pipeline: &mut Pipeline) -> String {
    let ooms: Vec<_> = pipeline.ooms().0.cloned().collect();
    let changes = pipeline.take_forecast_changes();
    let looked = (pipeline.leaks(0.0), pipeline.forecasts(), pipeline.churn(), pipeline.fragments(None, false));
    format!("{:#?}", (looked, ooms, changes, pipeline.profile(), pipeline.timeline()))
}

/// One process grows and is refused memory, another holds 4000 bytes and is idle.
fn first_half(watch: &mut TestPipeline) {
    watch.reading(vec![device(GPU_A, 900, [(7, 400), (8, 400)])]);
    watch.starts(7).calls(on_gpu_a(7)).starts(8).calls(on_gpu_a(8)).calls([mem_alloc(0xb0, 4000).process(8)]);
    watch.calls([mem_alloc(0xc0, 9000).process(7), mem_free(0xc0).process(7)]);
    grow(watch, 0);
}

fn grow(watch: &mut TestPipeline, from: u64) {
    for step in from..from + 40 {
        watch.calls([mem_alloc(0x1000 + step, 100).process(7)]).tick();
    }
    watch.calls([mem_alloc(0, 90 << 30).process(7).failing(OUT_OF_MEMORY)]).ticks(2);
    watch.reading(vec![device(GPU_A, 20_000, [(7, 9000), (8, 5000)])]);
}

fn window(looks_before: bool) -> TestPipeline {
    let mut watch = TestPipeline::of(Pipeline::new(true));
    if looks_before {
        look(&mut watch.pipeline);
    }
    first_half(&mut watch);
    let now_ns = watch.now_ns;
    watch.pipeline.begin_window(now_ns);
    look(&mut watch.pipeline);
    watch.pipeline.show_present();
    grow(&mut watch, 100);
    watch
}

#[test]
fn window_excludes_findings_from_before_it() {
    let (mut one, mut other) = (window(true), window(false));
    assert_eq!(found(&mut one.pipeline), found(&mut other.pipeline));
    assert_eq!(one.pipeline.ooms().0.count(), 1, "that of the second half");
    let mut whole = TestPipeline::of(Pipeline::new(true));
    look(&mut whole.pipeline);
    first_half(&mut whole);
    grow(&mut whole, 100);
    assert_eq!(whole.pipeline.ooms().0.count(), 2);
    assert_ne!(found(&mut one.pipeline), found(&mut whole.pipeline));
}

#[test]
fn window_includes_memory_of_idle_processes() {
    let watch = window(true);
    let profile = watch.pipeline.profile().expect("it was asked for");
    let idle = profile.processes.iter().find(|process| process.tgid == Tgid(8)).expect("it holds memory");
    let live = idle.gpus[0].live.expect("its allocation was seen");
    assert_eq!((live.current_bytes, live.minimum_bytes, live.peak_bytes), (4000, 4000, Some(4000)));
    let of_gpu = |live: &CourseView| (live.minimum_bytes, live.current_bytes);
    let gpu = &profile.gpus[0];
    assert_eq!(gpu.live.as_ref().map(of_gpu), Some((8000 + 100, 12_000)), "4000 are there from the first look on");
    assert!(gpu.used.is_some_and(|used| used.begun_ns == profile.begun_ns), "NVML's last word holds");
}

#[test]
fn peaks_are_those_of_the_window_and_sums_those_of_all() {
    let watch = window(false);
    let row = watch.on(7, Some(GPU_A)).expect("it has allocated");
    assert_eq!((row.live_bytes, row.peak_bytes, row.allocations), (8000, 8000, 81));
    assert!(watch.running(7).peaks_begun_ns.is_some());
}
