//! Memory over time: sampled at an interval, and exact between two samples.

use super::*;
use crate::features::profile::view::{DeviceProfileView, ProcessProfileView, ProfileView};

impl TestPipeline {
    fn sampled(interval_ns: u64) -> Self {
        let mut pipeline = Pipeline::new(true);
        pipeline.watch_samples(interval_ns);
        Self::of(pipeline)
    }

    fn profile(&self) -> ProfileView {
        self.pipeline.profile().expect("it was asked for")
    }

    fn of_process(&self, tgid: u32) -> ProcessProfileView {
        let found = self.profile().processes.into_iter().find(|process| process.tgid == Tgid(tgid));
        found.expect("it has held something")
    }

    fn on_gpu(&self, tgid: u32) -> DeviceProfileView {
        let process = self.of_process(tgid);
        assert_eq!(process.gpus.len(), 1, "{process:#?}");
        process.gpus.into_iter().next().expect("it has one")
    }
}

/// Runs a process that holds 100 bytes for nine seconds, and 1000 for a moment within the tenth.
fn story(interval_ns: u64) -> TestPipeline {
    let mut watch = TestPipeline::sampled(interval_ns);
    watch.reading(vec![device(GPU_A, 500, [(7, 400)])]).starts(7).calls(on_gpu_a(7));
    watch.calls([mem_alloc(0xa0, 100).process(7)]).ticks(9);
    watch.calls([mem_alloc(0xa1, 900).process(7), mem_free(0xa1).process(7)]).tick();
    watch
}

#[test]
fn profile_peak_between_polls_is_exact() {
    let watch = story(SECOND_NS);
    let live = watch.on_gpu(7).live.expect("it has allocated");
    assert_eq!((live.current_bytes, live.peak_bytes, live.maximum_bytes, live.p99_bytes), (100, Some(1000), 100, 100));
    // 900 bytes for two milliseconds of ten seconds.
    assert_eq!(live.average_bytes, Some(100));
    let profile = watch.profile();
    assert_eq!((profile.interval_ns, profile.asked_interval_ns), (SECOND_NS, SECOND_NS));
    let gpu = &profile.gpus[0];
    assert_eq!(gpu.live.expect("it has").peak_bytes, Some(1000));
    let used = gpu.used.expect("it was read");
    assert_eq!((used.current_bytes, used.peak_bytes, gpu.total_bytes), (500, None, Some(80 << 30)));
    assert_eq!(watch.on_gpu(7).allocated, None, "PyTorch is not watched");
}

#[test]
fn how_often_time_is_reported_changes_nothing() {
    let once = story(SECOND_NS).profile();
    let mut watch = TestPipeline::sampled(SECOND_NS);
    let reported_often = |watch: &mut TestPipeline| {
        for part in 1..=10 {
            let time_ns = watch.now_ns + part * SECOND_NS / 10;
            watch.pipeline.step(Input::Tick { time_ns });
        }
        watch.now_ns += SECOND_NS;
    };
    watch.reading(vec![device(GPU_A, 500, [(7, 400)])]).starts(7).calls(on_gpu_a(7));
    watch.calls([mem_alloc(0xa0, 100).process(7)]);
    (0..9).for_each(|_| reported_often(&mut watch));
    watch.calls([mem_alloc(0xa1, 900).process(7), mem_free(0xa1).process(7)]);
    reported_often(&mut watch);
    assert_eq!(watch.profile(), once);
}

#[test]
fn two_processes_peak_together_on_their_gpu_and_apart_in_their_rows() {
    let mut watch = TestPipeline::sampled(SECOND_NS);
    watch.reading(vec![device(GPU_A, 0, [])]);
    for tgid in [7, 8] {
        watch.starts(tgid).calls(on_gpu_a(tgid));
        watch.calls([mem_alloc(0xa0, 100).process(tgid)]);
    }
    watch.ticks(2).calls([mem_free(0xa0).process(7)]).ticks(2);
    let all = watch.profile().gpus[0].live.expect("they have allocated");
    assert_eq!((all.current_bytes, all.peak_bytes, all.p90_bytes), (100, Some(200), 200));
    assert_eq!(watch.on_gpu(7).live.and_then(|live| live.peak_bytes), Some(100));
}

#[test]
fn profile_of_an_ended_process_keeps_its_numbers_and_frees_its_gpu() {
    let mut watch = story(SECOND_NS);
    watch.event(7, ProcessEvent::Exit).ticks(30);
    let process = watch.of_process(7);
    let live = process.gpus[0].live.expect("it had memory");
    assert!(process.ended_ns.is_some() && process.comm == "job7", "{process:#?}");
    assert_eq!(
        (live.current_bytes, live.peak_bytes, live.last_ns),
        (100, Some(1000), process.ended_ns.expect("it has"))
    );
    assert_eq!(watch.profile().gpus[0].live.map(|live| live.current_bytes), Some(0));
}

#[test]
fn memory_on_a_gpu_that_is_known_later_was_there_all_the_time() {
    let mut watch = TestPipeline::sampled(SECOND_NS);
    watch.runs_already(7).calls([mem_alloc(0xa0, 100).process(7)]).ticks(3);
    assert_eq!(watch.on_gpu(7).uuid, None);
    watch.reading(vec![device(GPU_A, 500, [(7, 400)])]).ticks(3);
    let row = watch.on_gpu(7);
    assert_eq!(row.uuid, Some(uuid(GPU_A)));
    assert!(row.live.is_some_and(|live| live.samples >= 6 && live.current_bytes == 100), "{row:#?}");
    assert_eq!(watch.profile().gpus[0].live.map(|live| live.current_bytes), Some(100));
}

#[test]
fn profile_is_none_unless_requested() {
    assert_eq!(TestPipeline::begin().pipeline.profile(), None);
}
