use super::*;
use crate::decode::{StackRef, TensorChange, TensorEvent};
use crate::words::{Ordinal, Tid};

/// Where the numbers of a process's only caching allocator count from; its probes were put in before or after its first allocation of the driver,
/// whose record comes afterwards either way.
fn counted_from(probes_are_late: bool) -> String {
    let mut watch = Watch::begin();
    watch.starts(7).calls(on_gpu_a(7));
    let time_ns = if probes_are_late { watch.now_ns + SECOND_NS } else { watch.now_ns };
    watch.pipeline.step(Input::TensorsWatched { tgid: Tgid(7), missing: Vec::new(), time_ns });
    watch.calls([mem_alloc(0xd1, 2 << 20).process(7)]);
    let ordinal = Ordinal(0);
    let (allocated_bytes, reserved_bytes) = (512, 2 << 20);
    let what = TensorChange::Reported { ordinal, address: 0xd1, block_bytes: 512, allocated_bytes, reserved_bytes };
    let time_ns = watch.now_ns + 2 * SECOND_NS;
    let event = TensorEvent::made((Tgid(7), Tid(7)), time_ns, StackRef::NotAsked, what);
    watch.pipeline.tensors_mut(Tgid(7)).apply(&event);
    let tensors = watch.running(7).tensors.expect("they are watched");
    tensors.allocators[0].counted_from.to_string()
}

#[test]
fn an_allocator_counts_from_the_start_where_its_probes_came_before_the_first_allocation() {
    assert_eq!(counted_from(false), "start");
}

#[test]
fn an_allocation_whose_record_comes_after_the_word_on_the_probes_is_older_than_they_are() {
    assert_ne!(counted_from(true), "start");
}
