//! A level that is lowered while a process is traced: what was traced by then stays, and nothing that comes later is taken for more than it is.

use memwatch_common::tensor::TensorRecord;

use super::*;
use crate::attribution::price::Asked;
use crate::input::TensorLevel;
use crate::recording::{Encoder, Front, Part, Reader};

const MIB: u64 = 1 << 20;

/// `reportMemoryUsageToProfiler` for a block that comes: its address, what the allocator has granted by now.
fn report(watch: &mut Watch, address: u64, allocated_bytes: u64) {
    let args = [address, MIB, allocated_bytes, 8 * MIB, 0x0001, 0];
    let (kind, time_ns) = (RecordKind::Tensor as u8, watch.later());
    let record = TensorRecord { kind, probe: 1, tid: 7, tgid: 7, time_ns, args, ..TensorRecord::default() };
    watch.pipeline.step(Input::Record(Record::Tensor(record)));
}

fn lower(watch: &mut Watch, events_per_second: u64) {
    let asked = Asked { level: TensorLevel::Layers, reports_only: false, by_default: true };
    let moment = (Tgid(7), watch.later());
    watch.pipeline.step(Input::TensorLevel(asked.choose(moment, TensorLevel::Layers, events_per_second)));
}

/// A process with two tensors, and what its allocator has granted to it by its tensors' view.
fn traced() -> Watch {
    let mut watch = Watch::begin();
    watch.runs_already(7);
    watch.pipeline.step(Input::TensorsWatched { tgid: Tgid(7), missing: Vec::new(), time_ns: 0 });
    report(&mut watch, 0x1000, MIB);
    report(&mut watch, 0x2000, 2 * MIB);
    watch
}

fn allocated(watch: &Watch) -> Option<u64> {
    let tensors = watch.running(7).tensors?;
    tensors.allocators.first()?.allocated_bytes
}

#[test]
fn tensors_that_are_switched_off_stay_as_they_were_and_no_analysis_takes_them_for_new() {
    let mut watch = traced();
    assert_eq!((allocated(&watch), watch.running(7).level), (Some(2 * MIB), None));
    lower(&mut watch, 120_000);
    report(&mut watch, 0x3000, 3 * MIB);
    watch.lost(Some(7), Loss::TensorEventLost, 5);
    assert_eq!(allocated(&watch), Some(2 * MIB), "an event that was on its way");
    let choice = watch.running(7).level.expect("it was chosen");
    assert_eq!(
        (choice.asked, choice.chosen, choice.events_per_second),
        (TensorLevel::Layers, TensorLevel::Off, 120_000)
    );
    let process = watch.pipeline.processes.get(&Tgid(7)).expect("it runs");
    assert!(process.current_tensors().is_none() && process.tensors_ended_ns() == Some(choice.time_ns));
    watch.event(7, ProcessEvent::Exec);
    assert_eq!(watch.running(7).level, None, "another image is another program");
}

#[test]
fn a_lower_level_goes_on_with_what_it_has() {
    let mut watch = traced();
    lower(&mut watch, 14_000);
    report(&mut watch, 0x3000, 3 * MIB);
    assert_eq!(allocated(&watch), Some(3 * MIB));
    assert_eq!(watch.running(7).level.map(|choice| choice.chosen), Some(TensorLevel::Blocks));
}

#[test]
fn a_choice_for_a_process_that_has_ended_makes_no_ghost() {
    let mut watch = traced();
    watch.event(7, ProcessEvent::Exit);
    lower(&mut watch, 14_000);
    assert!(!watch.pipeline.knows(Tgid(7)));
}

#[test]
fn a_choice_is_recorded_and_replayed() {
    let asked = Asked { level: TensorLevel::Sites, reports_only: true, by_default: true };
    let input = Input::TensorLevel(asked.choose((Tgid(7), 900), TensorLevel::Sites, 120_000));
    let mut encoder = Encoder::default();
    encoder.push(&input);
    let mut bytes = Encoder::front(&Front { format: crate::recording::FORMAT, ..Front::default() });
    bytes.extend(encoder.chunk(0).expect("it is packed").expect("there is one"));
    let mut reader = Reader::open(&bytes[..]).expect("it is a recording");
    let Some(Part::Chunk(chunk)) = reader.next_part().expect("memory can be read") else { panic!("there is one") };
    let mut read = Vec::new();
    chunk.for_each(|input| read.push(input)).expect("what was written is read");
    assert_eq!((&read[..], read[0].time_ns()), (&[input][..], Some(900)));
}
