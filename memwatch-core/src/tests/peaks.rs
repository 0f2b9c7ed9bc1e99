//! Peaks that are reset.

use super::*;

impl TestPipeline {
    fn peaks_reset(&mut self, tgid: Option<u32>) -> u64 {
        let time_ns = self.later();
        self.pipeline.step(Input::PeaksReset { tgid: tgid.map(Tgid), time_ns });
        time_ns
    }

    /// Returns live bytes and peak on GPU A, and the start of the peak's period.
    fn peak(&self, tgid: u32) -> (u64, u64, Option<u64>) {
        let row = self.on(tgid, Some(GPU_A)).expect("it has allocated there");
        (row.live_bytes, row.peak_bytes, self.running(tgid).peaks_begun_ns)
    }
}

fn two_processes() -> TestPipeline {
    let mut watch = TestPipeline::begin();
    watch.reading(vec![device(GPU_A, 0, [])]);
    for tgid in [7, 8] {
        watch.starts(tgid).calls(on_gpu_a(tgid));
        let (large, small) = (u64::from(tgid) << 16, u64::from(tgid) << 24);
        watch.calls([mem_alloc(large, 100), mem_alloc(small, 30), mem_free(large)].map(|call| call.process(tgid)));
    }
    watch
}

#[test]
fn after_a_reset_the_peak_is_the_most_since_then_and_says_since_when() {
    let mut watch = two_processes();
    assert_eq!((watch.peak(7), watch.peak(8)), ((30, 130, None), (30, 130, None)));
    let time_ns = watch.peaks_reset(Some(7));
    assert_eq!((watch.peak(7), watch.peak(8)), ((30, 30, Some(time_ns)), (30, 130, None)));
    watch.calls([mem_alloc(0xd1, 5).process(7), mem_free(0xd1).process(7)]);
    assert_eq!(watch.peak(7), (30, 35, Some(time_ns)));
    assert_eq!(watch.on(7, Some(GPU_A)).map(|row| row.kinds["device"].peak_bytes), Some(35));
}

#[test]
fn peaks_reset_without_a_pid_resets_all_and_creates_no_process() {
    let mut watch = two_processes();
    watch.peaks_reset(Some(9));
    assert_eq!(watch.snapshot().processes.len(), 2);
    let time_ns = watch.peaks_reset(None);
    assert_eq!((watch.peak(7), watch.peak(8)), ((30, 30, Some(time_ns)), (30, 30, Some(time_ns))));
}

#[test]
fn the_peak_of_a_workload_does_not_fall_with_those_of_its_processes() {
    let mut watch = two_processes();
    let peak = |watch: &TestPipeline| watch.snapshot().workloads[0].gpus[0].peak_bytes;
    let before_bytes = peak(&watch);
    assert_eq!(before_bytes, 130);
    watch.peaks_reset(None);
    assert_eq!(peak(&watch), before_bytes);
}
