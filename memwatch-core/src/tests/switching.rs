//! Calls that set a thread's context and are not traced: how memory is attributed without them, and
//! when they must be traced.

use super::*;

const PRIMARY_A: u64 = 0xc0;
const PRIMARY_B: u64 = 0xc1;

impl TestPipeline {
    fn sees(&mut self, tgid: u32, seen: bool) -> &mut Self {
        self.pipeline.step(Input::ContextChanges(Tgid(tgid), seen));
        self
    }

    fn may_be_several(&self, tgid: u32) -> bool {
        self.pipeline.state.context_use(Tgid(tgid)).expect("it runs").may_be_several
    }

    fn live_on(&self, tgid: u32, gpu: Option<u8>) -> u64 {
        self.on(tgid, gpu).map_or(0, |row| row.live_bytes)
    }
}

fn both_gpus(processes: [(u32, u64); 1]) -> Vec<DeviceFacts> {
    vec![device(GPU_A, 2000, processes), device(GPU_B, 2000, processes)]
}

#[test]
fn single_context_process_has_all_memory_on_its_gpu_without_switches() {
    let mut watch = TestPipeline::begin();
    watch.starts(7).reading(both_gpus([(1, 100)])).calls(on_gpu_a(7)).sees(7, false);
    watch.calls([mem_alloc(0xd1, 300).process(7).thread(8), mem_alloc(0xd2, 20).process(7)]);
    watch.sees(7, true).calls([mem_alloc(0xd3, 5).process(7).thread(9)]);
    assert_eq!((watch.live_on(7, Some(GPU_A)), watch.may_be_several(7)), (325, false));
}

#[test]
fn second_context_makes_unseen_allocations_unplaced_until_a_switch() {
    let mut watch = TestPipeline::begin();
    watch.starts(7).reading(both_gpus([(1, 100)])).calls(on_gpu_a(7)).sees(7, false);
    watch.calls([device_get_uuid(1, GPU_B), primary_ctx_retain(PRIMARY_B, 1)].map(|call| call.process(7)));
    assert!(watch.may_be_several(7));
    watch.calls([mem_alloc(0xd1, 300).process(7)]).sees(7, true).calls([mem_alloc(0xd2, 20).process(7)]);
    assert_eq!([Some(GPU_A), Some(GPU_B), None].map(|gpu| watch.live_on(7, gpu)), [0, 0, 320], "it stands on none");
    watch.calls([ctx_set_current(PRIMARY_B), mem_alloc(0xd3, 5)].map(|call| call.process(7)));
    watch.calls([ctx_set_current(PRIMARY_A), mem_alloc(0xd4, 1)].map(|call| call.process(7).thread(8)));
    assert_eq!([Some(GPU_A), Some(GPU_B), None].map(|gpu| watch.live_on(7, gpu)), [1, 5, 320]);
}

#[test]
fn late_process_may_have_several_contexts_if_nvml_lists_two_gpus() {
    let mut watch = TestPipeline::begin();
    watch.runs_already(7).calls([ctx_set_current(PRIMARY_A).process(7)]);
    assert!(watch.may_be_several(7), "nobody has looked");
    watch.reading(vec![device(GPU_A, 2000, [(7, 100)]), device(GPU_B, 2000, [(1, 100)])]);
    assert!(!watch.may_be_several(7));
    watch.reading(both_gpus([(7, 100)]));
    assert!(watch.may_be_several(7));
}

#[test]
fn context_changes_are_counted_and_exec_resumes_tracing_them() {
    let mut watch = TestPipeline::begin();
    watch.starts(7).calls(on_gpu_a(7)).calls([ctx_push(PRIMARY_A), ctx_pop(PRIMARY_A)].map(|call| call.process(7)));
    assert_eq!(watch.pipeline.state.context_changes().collect::<Vec<_>>(), [(Tgid(7), 3)]);
    watch.sees(7, false).event(7, ProcessEvent::Exec);
    let context_use = watch.pipeline.state.context_use(Tgid(7)).expect("it runs");
    assert!(context_use.sees_changes && !context_use.may_be_several);
}
