//! The tracing level is lowered while a process is traced: what was traced before stays, and later
//! events are not overvalued.

use memwatch_common::tensor::TensorRecord;

use super::*;
use crate::allocators::names::SiteKey;
use crate::allocators::pytorch::{Doubt, StatFamily, StatScope};
use crate::attribution::price::TracingRequest;
use crate::input::TensorLevel;
use crate::input::allocator_state::{
    AllocatorNumbers, DeviceNumbers, MovingAllocatorState, MovingDevice, StateBlock, StateBlockUse,
};
use crate::recording::{Encoder, Front, RecordingPart, RecordingReader};
use crate::words::Ordinal;

const MIB: u64 = 1 << 20;

/// Reports an allocation by `reportMemoryUsageToProfiler`: its address, and the allocator's granted
/// bytes after it.
fn report(watch: &mut TestPipeline, address: u64, allocated_bytes: u64) {
    report_change(watch, [address, MIB, allocated_bytes]);
}

/// Reports a free by `reportMemoryUsageToProfiler`: its address, and the allocator's granted bytes
/// after it.
fn give_back(watch: &mut TestPipeline, address: u64, allocated_bytes: u64) {
    report_change(watch, [address, MIB.wrapping_neg(), allocated_bytes]);
}

fn report_change(watch: &mut TestPipeline, [address, bytes, allocated_bytes]: [u64; 3]) {
    let args = [address, bytes, allocated_bytes, 80 * MIB, 0x0001, 0];
    let (kind, time_ns) = (RecordKind::Tensor as u8, watch.later());
    let record = TensorRecord { kind, probe: 1, tid: 7, tgid: 7, time_ns, args, ..TensorRecord::default() };
    watch.pipeline.step(Input::Record(RingRecord::Tensor(record)));
}

fn lower(watch: &mut TestPipeline, events_per_second: u64) {
    choose(watch, TensorLevel::Modules, events_per_second);
}

/// Chooses this level at most, depending on the cost of its events.
fn choose(watch: &mut TestPipeline, level: TensorLevel, events_per_second: u64) {
    let asked = TracingRequest { level, by_default: true, ..TracingRequest::default() };
    let moment = (Tgid(7), watch.later());
    watch.pipeline.step(Input::TensorLevel(asked.choose(moment, events_per_second)));
}

/// Returns the counters of PyTorch 2.15's allocator from `words-2.15.0.txt`.
fn words() -> Vec<u64> {
    let text = include_str!("../allocators/pytorch/tests/words-2.15.0.txt");
    let words = text.lines().next().expect("a line").split(' ');
    words.map(|word| word.parse().expect("a word")).collect()
}

fn read(watch: &mut TestPipeline, words: Vec<u64>) {
    let device = DeviceNumbers { ordinal: Ordinal(0), allocator: 0x5000, words };
    let numbers = AllocatorNumbers { tgid: Tgid(7), time_ns: watch.later(), devices: vec![device] };
    watch.pipeline.step(Input::Numbers(Box::new(numbers)));
}

/// Returns a process with two tensors, and the granted bytes as its tensor events report them.
fn traced() -> TestPipeline {
    let mut watch = TestPipeline::begin();
    watch.runs_already(7);
    watch.pipeline.step(Input::TensorsWatched { tgid: Tgid(7), missing: Vec::new(), time_ns: 0 });
    report(&mut watch, 0x1000, MIB);
    report(&mut watch, 0x2000, 2 * MIB);
    watch
}

fn allocated(watch: &TestPipeline) -> Option<u64> {
    let tensors = watch.running(7).tensors?;
    tensors.allocators.first()?.allocated_bytes
}

#[test]
fn tensor_level_off_freezes_the_numbers_and_hides_them_from_analyses() {
    let mut watch = traced();
    assert_eq!((allocated(&watch), watch.running(7).level), (Some(2 * MIB), None));
    choose(&mut watch, TensorLevel::Off, 120_000);
    report(&mut watch, 0x3000, 3 * MIB);
    watch.lost(Some(7), Loss::TensorEventLost, 5);
    assert_eq!(allocated(&watch), Some(2 * MIB), "an event that was on its way");
    let choice = watch.running(7).level.expect("it was chosen");
    assert_eq!((choice.asked, choice.chosen, choice.events_per_second), (TensorLevel::Off, TensorLevel::Off, 120_000));
    let process = watch.pipeline.state.processes.get(&Tgid(7)).expect("it runs");
    assert!(process.current_tensors().is_none() && process.tensors_ended_ns() == Some(choice.time_ns));
    watch.event(7, ProcessEvent::Exec);
    assert_eq!(watch.running(7).level, None, "another image is another program");
}

#[test]
fn lower_tensor_level_continues_with_the_known_numbers() {
    let mut watch = traced();
    lower(&mut watch, 5_000);
    report(&mut watch, 0x3000, 3 * MIB);
    assert_eq!(allocated(&watch), Some(3 * MIB));
    assert_eq!(watch.running(7).level.map(|choice| choice.chosen), Some(TensorLevel::Blocks));
}

#[test]
fn level_choice_for_an_ended_process_creates_no_process() {
    let mut watch = traced();
    watch.event(7, ProcessEvent::Exit);
    lower(&mut watch, 4_500);
    assert!(!watch.pipeline.state.knows(Tgid(7)));
}

#[test]
fn a_choice_is_recorded_and_replayed() {
    let asked = TracingRequest { level: TensorLevel::Lines, by_default: true, ..TracingRequest::default() };
    let input = Input::TensorLevel(asked.choose((Tgid(7), 900), 120_000));
    let mut encoder = Encoder::default();
    encoder.push(&input);
    let mut bytes = Encoder::front(&Front { format: crate::recording::FORMAT, ..Front::default() });
    bytes.extend(encoder.chunk(0).expect("it is packed").expect("there is one"));
    let mut reader = RecordingReader::open(&bytes[..]).expect("it is a recording");
    let Some(RecordingPart::Chunk(chunk)) = reader.next_part().expect("memory can be read") else {
        panic!("there is one")
    };
    let mut read = Vec::new();
    chunk.for_each(|input| read.push(input)).expect("what was written is read");
    assert_eq!((&read[..], read[0].time_ns()), (&[input][..], Some(900)));
}

#[test]
fn lower_tensor_level_reads_allocator_totals_and_keeps_traced_lines() {
    let mut watch = traced();
    lower(&mut watch, 120_000);
    report(&mut watch, 0x3000, 3 * MIB);
    assert_eq!(allocated(&watch), Some(2 * MIB), "an event that was on its way");
    read(&mut watch, words());
    let process = watch.pipeline.state.processes.get(&Tgid(7)).expect("it runs");
    let tensors = process.current_tensors().expect("they are read");
    let allocator = &tensors.allocators()[&Ordinal(0)];
    let number = |side| allocator.number(StatFamily::AllocatedBytes, StatScope::All, side).expect("a side");
    assert_eq!((number("current").value, number("peak").value), (43_561_472, 45_449_216));
    assert_eq!(number("peak").doubt, Some(Doubt::AsRead), "it goes on");
    let places = &tensors.attribution().devices()[&Ordinal(0)];
    let untraced = places.sites().find(|(site, _)| *site == SiteKey::UNTRACED).map(|(_, sum)| sum.live_bytes);
    assert_eq!((untraced, places.total().live_bytes), (Some(43_561_472 - 2 * MIB), 43_561_472));
    assert_eq!((places.unplaced_bytes(), tensors.attribution().blocks().count()), (0, 2), "what was traced stands");
}

#[test]
fn statistics_that_are_torn_or_of_a_traced_process_are_ignored() {
    let mut watch = traced();
    read(&mut watch, words());
    assert_eq!(allocated(&watch), Some(2 * MIB), "its events are surer");
    lower(&mut watch, 120_000);
    let torn = words().into_iter().enumerate().map(|(index, word)| if index == 1 { 0 } else { word });
    read(&mut watch, torn.collect());
    read(&mut watch, vec![1; 3]);
    assert_eq!(allocated(&watch), Some(2 * MIB));
}

#[test]
fn raised_tensor_level_follows_events_and_marks_the_gap_as_lost() {
    let mut watch = traced();
    lower(&mut watch, 120_000);
    read(&mut watch, words());
    lower(&mut watch, 100);
    assert_eq!(watch.running(7).level.map(|choice| choice.chosen), Some(TensorLevel::Modules));
    report(&mut watch, 0x9000, 4 * MIB);
    assert_eq!(allocated(&watch), Some(4 * MIB), "by its own report");
    let process = watch.pipeline.state.processes.get(&Tgid(7)).expect("it runs");
    let tensors = process.current_tensors().expect("they are traced");
    let number =
        tensors.allocators()[&Ordinal(0)].number(StatFamily::Allocation, StatScope::All, "peak").expect("a side");
    assert_eq!(number.doubt, Some(Doubt::EventsLost));
    assert!(tensors.wants_allocator_state(), "they say what came meanwhile");
}

#[test]
fn growth_between_windows_is_a_leak_at_the_driver_level() {
    let leaks = |lowers: bool| {
        let mut watch = traced();
        watch.pipeline.watch_leaks();
        watch.calls(on_gpu_a(7));
        if lowers {
            lower(&mut watch, 120_000);
            read(&mut watch, words());
            for is_open in [true, false] {
                let time_ns = watch.later();
                watch.pipeline.step(Input::TraceWindow { tgid: Tgid(7), time_ns, is_open });
            }
        }
        for second in 0..60 {
            watch.calls([mem_alloc(0x7000_0000 + second * 2 * MIB, 2 * MIB).process(7)]).tick();
        }
        let mut leaks = watch.pipeline.leaks(1_048_576.0);
        let findings = leaks.pop().expect("of the process").findings;
        let grows = findings.into_iter().filter(|finding| finding.verdict.grows());
        grows.map(|finding| (finding.level.into_owned(), finding.file)).collect::<Vec<_>>()
    };
    assert_eq!(leaks(true), [("driver".to_owned(), None)]);
    assert_eq!(leaks(false), [("driver".to_owned(), None)], "no allocator of tensors has it, and no line therefore");
}

#[test]
fn number_missed_in_a_window_is_known_again_after_a_full_trace() {
    let mut watch = traced();
    lower(&mut watch, 120_000);
    read(&mut watch, words());
    for is_open in [true, false] {
        let time_ns = watch.later();
        watch.pipeline.step(Input::TraceWindow { tgid: Tgid(7), time_ns, is_open });
        // Without a trace, a report does not have the requested size.
        report(&mut watch, 0x9000, 43_561_472 + MIB);
    }
    let doubt = |watch: &TestPipeline| {
        let process = watch.pipeline.state.processes.get(&Tgid(7)).expect("it runs");
        let tensors = process.current_tensors().expect("they are read");
        tensors.allocators()[&Ordinal(0)]
            .number(StatFamily::RequestedBytes, StatScope::All, "current")
            .expect("a side")
            .doubt
    };
    read(&mut watch, words());
    assert_eq!(doubt(&watch), Some(Doubt::AsRead));
    lower(&mut watch, 100);
    assert_eq!(doubt(&watch), Some(Doubt::EventsLost), "what came meanwhile was missed");
    let words = words().try_into().expect("so many");
    let time_ns = watch.later();
    watch.pipeline.step(Input::Statistics { tgid: Tgid(7), allocator: 0x5000, time_ns, words: Box::new(words) });
    assert_eq!(doubt(&watch), None, "its own numbers say it");
}

/// Reads blocks of 1 MiB each at these addresses, while no event is traced.
fn stand(watch: &mut TestPipeline, addresses: &[u64]) {
    let block = |address: &u64| StateBlock {
        address: *address,
        bytes: MIB,
        requested_bytes: MIB,
        state: StateBlockUse::ActiveAllocated,
    };
    let blocks = addresses.iter().map(block).collect();
    let device = MovingDevice { ordinal: Ordinal(0), allocated_bytes: 0, reserved_bytes: 0, blocks };
    let time_ns = watch.later();
    let allocator_state = MovingAllocatorState { tgid: Tgid(7), began_ns: time_ns, time_ns, devices: vec![device] };
    watch.pipeline.step(Input::MovingAllocatorState(Box::new(allocator_state)));
}

/// Returns the live bytes of each call site in mebibytes by its kind, and whether all rows add up
/// to the allocator's granted bytes.
fn rows(watch: &TestPipeline) -> (Vec<(String, u64)>, bool) {
    let tensors = watch.running(7).tensors.expect("it has PyTorch");
    let device = tensors.attribution.devices.first().expect("one device");
    let sites = device.sites.iter().filter(|site| site.sum.live_bytes > 0);
    let rows = sites.map(|site| (site.kind.to_string(), site.sum.live_bytes / MIB)).collect();
    let sum: u64 = device.sites.iter().map(|site| site.sum.live_bytes).sum();
    let of_phases: u64 = device.phases.iter().map(|phase| phase.sum.live_bytes).sum();
    (rows, sum == device.allocated_bytes && of_phases == device.allocated_bytes && device.unplaced_bytes == 0)
}

#[test]
fn windowed_line_keeps_a_block_while_it_is_live_and_rest_is_untraced() {
    let mut watch = traced();
    lower(&mut watch, 120_000);
    read(&mut watch, words());
    // A reading of a running allocator may miss a block that exists.
    stand(&mut watch, &[0x1000, 0x9000]);
    assert_eq!(rows(&watch), (vec![("untraced".to_owned(), 39), ("not_asked".to_owned(), 2)], true));
    stand(&mut watch, &[0x1000, 0x9000]);
    assert_eq!(rows(&watch), (vec![("untraced".to_owned(), 40), ("not_asked".to_owned(), 1)], true), "it has gone");
    let tensors = watch.running(7).tensors.expect("it has PyTorch");
    let line = tensors.attribution.devices[0].sites.iter().find(|site| site.kind == "not_asked").expect("the line");
    assert!(line.sum.at_least && line.sum.is_lower_bound(), "more may have come of it than was traced");
}

#[test]
fn a_process_that_began_under_the_watch_has_nothing_that_is_older() {
    let mut watch = TestPipeline::begin();
    watch.starts(7);
    watch.pipeline.step(Input::TensorsWatched { tgid: Tgid(7), missing: Vec::new(), time_ns: 0 });
    report(&mut watch, 0x1000, MIB);
    lower(&mut watch, 120_000);
    read(&mut watch, words());
    stand(&mut watch, &[0x1000, 0x9000]);
    lower(&mut watch, 100);
    report(&mut watch, 0xa000, 43_561_472 + MIB);
    let (rows, _) = rows(&watch);
    assert!(rows.iter().all(|(kind, _)| kind != "preexisting"), "{rows:?}");
}

#[test]
fn the_end_of_a_process_has_its_allocators_last_numbers_at_every_level() {
    for is_read in [true, false] {
        let mut watch = traced();
        if is_read {
            lower(&mut watch, 120_000);
        }
        read(&mut watch, words());
        watch.lost(Some(7), Loss::TensorEventLost, 5);
        // The allocator's address is known from a reading or from the events.
        let place = words().try_into().expect("so many");
        let time_ns = watch.later();
        watch.pipeline.state.tensors_mut(Tgid(7)).know_place(0x5000, Ordinal(0));
        watch.pipeline.step(Input::Statistics { tgid: Tgid(7), allocator: 0x5000, time_ns, words: Box::new(place) });
        watch.event(7, ProcessEvent::Exit);
        let ended = watch.pipeline.state.ended.iter().last().expect("it has ended");
        let allocator = &ended.tensors.as_ref().expect("it had PyTorch").allocators()[&Ordinal(0)];
        let peak = allocator.number(StatFamily::AllocatedBytes, StatScope::All, "peak").expect("a side");
        assert_eq!((peak.value, peak.doubt), (45_449_216, None), "read alone: {is_read}");
    }
}

#[test]
fn a_failure_is_seen_while_nothing_else_is_traced() {
    let mut watch = traced();
    watch.pipeline.watch_ooms();
    lower(&mut watch, 120_000);
    read(&mut watch, words());
    let args = [64 * MIB, 50_000_000, 60_000_000, 0x0001, 0, 0];
    let (kind, time_ns) = (RecordKind::Tensor as u8, watch.later());
    let record = TensorRecord { kind, probe: 2, tid: 7, tgid: 7, time_ns, args, ..TensorRecord::default() };
    watch.pipeline.step(Input::Record(RingRecord::Tensor(record)));
    assert_eq!(allocated(&watch), Some(50_000_000), "as it reports with the failure");
    let (failures, _) = watch.pipeline.ooms();
    assert_eq!(failures.map(|failure| failure.wanted_bytes).collect::<Vec<_>>(), [64 * MIB]);
}

#[test]
fn steps_are_counted_where_ranges_are_followed_at_every_level() {
    let mut watch = traced();
    let step = |watch: &mut TestPipeline, name: &str, probe| {
        let mut text = [0; memwatch_common::tensor::TEXT_BYTES];
        text[..name.len()].copy_from_slice(name.as_bytes());
        let (kind, time_ns) = (RecordKind::Text as u8, watch.later());
        let record =
            memwatch_common::tensor::TextRecord { kind, flags: 0, probe, tid: 7, tgid: 7, chunk: 0, time_ns, text };
        watch.pipeline.step(Input::Record(RingRecord::Text(record)));
        let (kind, time_ns) = (RecordKind::Tensor as u8, watch.later());
        let end = TensorRecord { kind, probe: 21, tid: 7, tgid: 7, time_ns, ..TensorRecord::default() };
        watch.pipeline.step(Input::Record(RingRecord::Tensor(end)));
    };
    let steps = |watch: &TestPipeline| watch.running(7).tensors.and_then(|tensors| tensors.attribution.steps);
    step(&mut watch, "Optimizer.step#SGD.step", 20);
    assert_eq!(steps(&watch), Some(1));
    lower(&mut watch, 120_000);
    read(&mut watch, words());
    assert_eq!(steps(&watch), None, "it is not known that more are seen");
    step(&mut watch, "Optimizer.step#SGD.step", 20);
    assert_eq!(steps(&watch), Some(2));
}

#[test]
fn windowed_rows_sum_to_the_total_after_frees_of_unseen_blocks() {
    let mut watch = TestPipeline::begin();
    watch.starts(7);
    watch.pipeline.step(Input::TensorsWatched { tgid: Tgid(7), missing: Vec::new(), time_ns: 0 });
    report(&mut watch, 0x1000, MIB);
    lower(&mut watch, 120_000);
    read(&mut watch, words());
    stand(&mut watch, &[0x1000, 0x9000, 0xa000]);
    let mut allocated_bytes = 43_561_472;
    for window in 0..3_u64 {
        let time_ns = watch.later();
        watch.pipeline.step(Input::TraceWindow { tgid: Tgid(7), time_ns, is_open: true });
        // Frees without a known allocation, followed by allocations in their place.
        for block in 0..8 {
            allocated_bytes -= MIB;
            give_back(&mut watch, 0x10_0000 * (window + 1) + block, allocated_bytes);
        }
        for block in 0..8 {
            allocated_bytes += MIB;
            report(&mut watch, 0x50_0000 * (window + 1) + block, allocated_bytes);
        }
        assert!(rows(&watch).1, "{:?} in window {window}", rows(&watch));
        let time_ns = watch.later();
        watch.pipeline.step(Input::TraceWindow { tgid: Tgid(7), time_ns, is_open: false });
        read(&mut watch, words());
        allocated_bytes = 43_561_472;
        assert!(rows(&watch).1, "{:?} after window {window}", rows(&watch));
    }
    let device = &watch.running(7).tensors.expect("it has PyTorch").attribution.devices[0];
    assert_eq!(Some(device.peak_bytes()), device.allocator_peak_bytes, "the allocator's own");
}

#[test]
fn preexisting_bytes_are_never_counted_as_untraced() {
    let mut watch = TestPipeline::begin();
    watch.runs_already(7);
    lower(&mut watch, 120_000);
    read(&mut watch, words());
    let addresses: Vec<u64> = (1..=20).map(|block| block << 20).collect();
    stand(&mut watch, &addresses);
    read(&mut watch, words());
    let tensors = watch.running(7).tensors.expect("it has PyTorch");
    let row = |kind: &str| {
        let site = tensors.attribution.devices[0].sites.iter().find(|site| site.kind == kind).expect("a row");
        (site.sum.live_bytes, site.sum.peak_bytes)
    };
    let later_bytes = 43_561_472 - 20 * MIB;
    assert_eq!((row("preexisting").0, row("untraced")), (20 * MIB, (later_bytes, later_bytes)));
}
