use memwatch_common::record::RingRecord;
use memwatch_common::tensor::{TENSOR_PROBES, TensorRecord};

use super::*;
use crate::decode::{BufferUsage, StackRef, TensorChange, TensorEvent};
use crate::snapshot::{BuffersView, UsageView};
use crate::words::{Framework, Ordinal, Tid};

/// Returns the start of the numbers of a process's only caching allocator. Its probes were attached
/// before or after its first driver allocation, whose record arrives later in both cases.
fn counted_from(probes_are_late: bool, finds_another_framework: bool) -> String {
    let mut watch = TestPipeline::begin();
    watch.starts(7).calls(on_gpu_a(7));
    let time_ns = if probes_are_late { watch.now_ns + SECOND_NS } else { watch.now_ns };
    watch.pipeline.step(Input::TensorsWatched { tgid: Tgid(7), missing: Vec::new(), time_ns });
    if finds_another_framework {
        let missing = TENSOR_PROBES.iter().map(|row| row.id).collect();
        watch.pipeline.step(Input::TensorsWatched { tgid: Tgid(7), missing, time_ns: watch.now_ns + SECOND_NS });
    }
    watch.calls([mem_alloc(0xd1, 2 << 20).process(7)]);
    let ordinal = Ordinal(0);
    let (allocated_bytes, reserved_bytes) = (512, 2 << 20);
    let what = TensorChange::Reported { ordinal, address: 0xd1, block_bytes: 512, allocated_bytes, reserved_bytes };
    let time_ns = watch.now_ns + 2 * SECOND_NS;
    let event = TensorEvent::made((Tgid(7), Tid(7)), time_ns, StackRef::NotAsked, what);
    watch.pipeline.state.tensors_mut(Tgid(7)).apply(&event);
    let tensors = watch.running(7).tensors.expect("they are watched");
    tensors.allocators[0].counted_from.to_string()
}

#[test]
fn allocator_counts_from_start_if_probed_before_its_first_allocation() {
    assert_eq!(counted_from(false, false), "start");
}

#[test]
fn allocation_record_that_arrives_after_the_probes_is_older() {
    assert_ne!(counted_from(true, false), "start");
}

#[test]
fn later_framework_does_not_change_the_start_of_the_pytorch_allocator() {
    assert_eq!(counted_from(false, true), "start");
}

/// Returns the ggml buffers of a process whose probes were attached before or after its first
/// driver allocation, with a buffer in that allocation.
fn with_buffer(probes_are_late: bool) -> BuffersView {
    let mut watch = TestPipeline::begin();
    watch.starts(7).calls(on_gpu_a(7));
    let time_ns = if probes_are_late { watch.now_ns + SECOND_NS } else { watch.now_ns };
    watch.pipeline.step(Input::FrameworkWatched { tgid: Tgid(7), framework: Framework::Ggml, time_ns });
    watch.calls([mem_alloc(0xd1, 2 << 20).process(7)]);
    let made = |probe, args, extra| {
        let time_ns = watch.now_ns + 2 * SECOND_NS;
        Input::Record(RingRecord::Tensor(TensorRecord {
            kind: 3,
            probe,
            tgid: 7,
            tid: 7,
            time_ns,
            args,
            extra,
            ..TensorRecord::default()
        }))
    };
    let records = [made(64, [0, 2 << 20, 0x50, 0, 0, 0], [0, 0xd1]), made(65, [0, 1, 0, 0, 0, 0], [0x50, 2 << 20])];
    for record in records {
        watch.pipeline.step(record);
    }
    let process = watch.running(7);
    assert!(process.frameworks.contains(&Framework::Ggml));
    process.tensors.expect("they are watched").buffers.expect("they are ggml's")
}

#[test]
fn ggml_buffers_are_exact_if_probed_before_the_first_allocation() {
    let view = with_buffer(false);
    let [device] = &view.devices[..] else { panic!("{view:?}") };
    assert!(view.exact && !view.older_unknown && !view.scratch_traced);
    assert_eq!((device.device, device.buffers, device.bytes_in_use), (0, Some(1), Some(2 << 20)));
    let weights = UsageView { usage: BufferUsage::Weights, buffers: 1, bytes: 2 << 20 };
    assert_eq!(device.usages, [weights]);
}

#[test]
fn ggml_buffers_older_than_their_probes_have_unknown_totals() {
    let view = with_buffer(true);
    let [device] = &view.devices[..] else { panic!("{view:?}") };
    assert!(!view.exact && view.older_unknown);
    assert_eq!(
        (device.buffers, device.bytes_in_use, device.peak_bytes_in_use, device.num_buffers),
        (None, None, None, None)
    );
    assert_eq!((device.known_buffers, device.known_bytes), (1, 2 << 20));
}

/// Returns whether all ggml memory is known, for a process that maps memory itself before or after
/// its pool for temporaries is probed. With `is_late`, the record of the mapping arrives later.
fn knows_all_of_scratch(maps_first: bool, is_late: bool) -> bool {
    let mut watch = TestPipeline::begin();
    watch.starts(7).calls(on_gpu_a(7));
    let time_ns = watch.now_ns;
    watch.pipeline.step(Input::FrameworkWatched { tgid: Tgid(7), framework: Framework::Ggml, time_ns });
    let maps = [mem_create(0x11, 2 << 20, (1, 0)).process(7), mem_map(0xd0_0000, 2 << 20, 0, 0x11).process(7)];
    if maps_first && !is_late {
        watch.calls(maps);
        watch.pipeline.step(Input::ScratchWatched(Tgid(7), watch.now_ns));
    } else {
        let after_ns = if maps_first { SECOND_NS } else { 0 };
        watch.pipeline.step(Input::ScratchWatched(Tgid(7), watch.now_ns + after_ns));
        watch.calls(maps);
    }
    let process = watch.running(7);
    let buffers = process.tensors.expect("they are watched").buffers.expect("they are ggml's");
    assert!(buffers.scratch_traced);
    buffers.exact
}

#[test]
fn ggml_scratch_pool_is_unknown_for_memory_mapped_before_its_probes() {
    assert!(knows_all_of_scratch(false, false));
    assert!(!knows_all_of_scratch(true, false));
    assert!(!knows_all_of_scratch(true, true));
}

#[test]
fn blocks_of_a_toy_framework_are_in_the_snapshot() {
    let mut watch = TestPipeline::begin();
    watch.starts(7).calls(on_gpu_a(7)).calls([mem_alloc(0xd000, 2 << 20).process(7)]);
    let time_ns = watch.now_ns;
    watch.pipeline.step(Input::FrameworkWatched { tgid: Tgid(7), framework: Framework::Jax, time_ns });
    let (probe, args) = (67, [1, 4096, 0xd000, 0, 0, 0]);
    let record =
        TensorRecord { kind: 3, probe, tgid: 7, tid: 7, time_ns: time_ns + 1, args, ..TensorRecord::default() };
    watch.pipeline.step(Input::Record(RingRecord::Tensor(record)));
    let tensors = watch.running(7).tensors.expect("they are watched");
    let [device] = &tensors.attribution.devices[..] else { panic!("{tensors:?}") };
    assert_eq!((device.device, device.allocated_bytes, device.total.live_bytes), (0, 4096, 4096));
}

#[test]
fn without_probes_on_ggml_a_process_has_no_buffers_to_show() {
    let mut watch = TestPipeline::begin();
    watch.starts(7).calls(on_gpu_a(7));
    watch.pipeline.step(Input::TensorsWatched { tgid: Tgid(7), missing: Vec::new(), time_ns: watch.now_ns });
    assert_eq!(watch.running(7).tensors.expect("they are watched").buffers, None);
}
