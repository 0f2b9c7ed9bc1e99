//! A pipeline that is saved as bytes and loaded continues as if it had not been interrupted.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use memwatch_common::loss::Loss;
use proptest::collection::vec;
use proptest::prelude::*;

use super::properties::{interleave, records, steps};
use super::{ATTACHED_NS, GPU_A, GPU_B, SECOND_NS, TestPipeline, device, show};
use crate::allocators::pytorch::tests::properties::{AllocatorStep, TensorEventHistory, steps as tensor_steps};
use crate::allocators::test_stacks::stack;
use crate::attribution::price::TracingRequest;
use crate::decode::{NodeWords, StackRef, TensorChange, TensorEvent};
use crate::input::held_names::{HeldFinding, HeldGroup, HeldNames, HeldTotals};
use crate::input::holdings::{Holding, HoldingClass, Holdings, OwnerModule};
use crate::input::kv_cache::{KvCache, KvCacheDoubt, KvCacheFill, KvCacheReading, KvCacheRequest, ServingEngine};
use crate::input::{DeviceReading, Input, NvmlState, ProbeCoverage, ProcessFacts, TensorLevel};
use crate::pipeline::Pipeline;
use crate::pipeline::saved::STATE;
use crate::stack::PythonStack;
use crate::stack::native::{NativeEnd, NativeFrame, NativeRole, NativeStack};
use crate::test_calls::*;
use crate::words::{CauseKind, Ordinal, Tgid, Tid};

/// Formats the answers to all queries of a pipeline.
fn answers(pipeline: &Pipeline) -> String {
    let snapshot = pipeline.snapshot();
    let mut all = format!("{snapshot:#?}\n{:#?}\n{:#?}\n", pipeline.leaks(0.0), pipeline.forecasts());
    let (ooms, forgotten) = pipeline.ooms();
    write!(all, "{:#?} {forgotten}", ooms.collect::<Vec<_>>()).expect("a String takes any text");
    for process in &snapshot.processes {
        let tgid = process.tgid;
        write!(all, "{:#?}", (pipeline.state.call_paths(process), pipeline.state.history(tgid, true)))
            .expect("a String takes any text");
        let wants = (
            pipeline.state.wants_statistics(tgid),
            pipeline.state.drifting_allocators(tgid),
            pipeline.state.lacks_trace(tgid),
        );
        write!(all, "{wants:#?} {} {:#?}", pipeline.state.has_trace(tgid), pipeline.state.explain(tgid))
            .expect("a String takes any text");
    }
    let unplaced: Vec<_> = pipeline.state.unplaced().collect();
    let others = (pipeline.state.to_anchor(), unplaced, pipeline.state.with_graph_memory().collect::<Vec<_>>());
    write!(all, "{others:#?}").expect("a String takes any text");
    all
}

/// Compares the answers of two pipelines. On failure shows the first line that differs, with the
/// lines before it.
fn equal(one: &Pipeline, other: &Pipeline) -> Result<(), TestCaseError> {
    let (one, other) = (answers(one), answers(other));
    let Some(place) = one.lines().zip(other.lines()).position(|(one, other)| one != other) else {
        prop_assert_eq!(one.len(), other.len());
        return Ok(());
    };
    let around = |text: &str| text.lines().skip(place.saturating_sub(12)).take(14).collect::<Vec<_>>().join("\n");
    Err(TestCaseError::fail(format!("{}\n---- is not\n{}", around(&one), around(&other))))
}

/// Prepares a pipeline like a reader of a recording does.
fn prepared(mut pipeline: Pipeline) -> Pipeline {
    pipeline.watch_forecasts(&[]);
    pipeline.watch_ooms();
    pipeline.state.list_tensors_from(4096);
    pipeline
}

fn begun() -> Pipeline {
    let mut pipeline = prepared(Pipeline::new(true));
    pipeline.step(Input::Attached { time_ns: 1 });
    pipeline
}

fn kept_and_loaded(pipeline: &Pipeline) -> Pipeline {
    prepared(Pipeline::load(&pipeline.save()).expect("it is what was kept"))
}

/// Applies the inputs without breaks, and with saving and loading at these places, and compares the
/// results.
fn same(inputs: &[Input], breaks: &[prop::sample::Index]) -> Result<(), TestCaseError> {
    let (mut whole, mut broken) = (begun(), begun());
    let breaks: BTreeSet<usize> = breaks.iter().map(|place| place.index(inputs.len().max(1))).collect();
    for (place, input) in inputs.iter().enumerate() {
        if breaks.contains(&place) {
            broken = kept_and_loaded(&broken);
        }
        whole.step(input.clone());
        broken.step(input.clone());
    }
    equal(&whole, &broken)?;
    equal(&whole, &kept_and_loaded(&broken))
}

/// Returns the first requests of the two processes to the kernel driver.
fn driver_begins() -> Vec<Input> {
    let mut inputs = vec![Input::KernelDriver { version: Some("580.159.04".to_owned()) }];
    for (tgid, client) in [(7, 0xc1d0_0007), (8, 0xc1d0_0008)] {
        let requests = [
            rm::client(rm::NEWEST, client),
            rm::made(rm::NEWEST, (client, client, 2), 0x80),
            rm::made(rm::NEWEST, (client, 2, 3), 0x2080),
            rm::named(client, 3, [GPU_A; 16]),
        ];
        inputs.extend(requests.map(|rm| rm.process(tgid).at(3, 4).input()));
    }
    inputs
}

/// Returns memory of the kernel driver, an import of it, refusals, and an occasional exit.
fn driver_goes_on(place: u32) -> Vec<Input> {
    let (object, time_ns) = (0x5c00_0000 + place, u64::from(place) * SECOND_NS / 16);
    let names = (0xc1d0_0007, 2, object);
    let stack = || NativeStack::new(vec![frame("libcuda.so.1"), frame("libnccl.so.2")], NativeEnd::CopyEnds);
    let request = match place % 8 {
        0..3 => rm::video(rm::NEWEST, names, 4096 * 511, 4096 * 512).inside("cuMemAlloc_v2", time_ns).stack(5),
        3 => rm::duplicate((0xc1d0_0008, 2, object), (0xc1d0_0007, object - 1)).process(8),
        4 => rm::video(rm::NEWEST, names, 4096, 0).refused(rm::NEWEST, 0x51),
        5 => rm::mapped((0xc1d0_0007, object - 3), 0x7f00_0000 + u64::from(place) * 4096, 4096 * 512),
        6 => rm::pinned(names, 8192),
        _ => rm::free(0xc1d0_0007, object - 5),
    };
    let tgid = request.0.tgid;
    vec![Input::NativeStack { tgid, id: 5, stack: stack() }, request.at(time_ns + 1, time_ns + 2).input()]
}

fn frame(library: &str) -> NativeFrame {
    let name = Some("cuMemAlloc_v2".into());
    NativeFrame { function: name.clone(), name, library: library.into(), address: 1, role: NativeRole::Code }
}

/// Returns inputs of two processes with ticks, readings, losses, an exit and all other inputs that
/// do not come from the ring.
fn with_the_world(records: Vec<Input>) -> Vec<Input> {
    let process = |tgid| ProcessFacts { tgid, start_ns: 2, comm: format!("job{tgid}"), ..ProcessFacts::default() };
    let mut inputs = vec![
        Input::Coverage(ProbeCoverage { mechanism: "uprobe_multi".into(), ..ProbeCoverage::default() }),
        Input::Process(process(7)),
        Input::Process(ProcessFacts { cgroups: Some("0::/system.slice/train.service".to_owned()), ..process(8) }),
        Input::Lost { tgid: Some(Tgid(9)), loss: Loss::OutUnreadable, count: 2 },
        Input::Lost { tgid: None, loss: Loss::RingFull, count: 1 },
    ];
    let half = records.len() / 2;
    inputs.extend(driver_begins());
    for (place, record) in (0_u32..).zip(records) {
        inputs.push(record);
        inputs.extend(driver_goes_on(place));
        let place = place as usize;
        if (place + 1).is_multiple_of(16) {
            inputs.push(Input::Tick { time_ns: (place as u64) * SECOND_NS });
        }
        if place == half {
            let devices = vec![device(GPU_A, 90_000, [(7, 50_000), (8, 40_000)]), device(GPU_B, 70_000, [(8, 70_000)])];
            let (begin_ns, end_ns, state) = (SECOND_NS, SECOND_NS + 1, NvmlState::Ok);
            inputs.push(Input::Devices(DeviceReading { begin_ns, end_ns, state, devices }));
            inputs.push(Input::PeaksReset { tgid: Some(Tgid(7)), time_ns: SECOND_NS + 2 });
        }
    }
    let state = NvmlState::Unavailable("gone".to_owned());
    inputs.push(Input::Devices(DeviceReading { begin_ns: 1, end_ns: 2, state, devices: Vec::new() }));
    let gone = rm::free(0xc1d0_0007, 0x5c00_0100).process(7).at(399 * SECOND_NS, 399 * SECOND_NS + 9);
    inputs.push(gone.input());
    inputs.push(Input::ProcessEnded { tgid: Tgid(8), time_ns: 400 * SECOND_NS });
    inputs.push(Input::Tick { time_ns: 401 * SECOND_NS });
    inputs
}

/// Returns the stacks of a small program, numbered from 1.
fn stacks() -> [PythonStack; 5] {
    let call = "nn Linear 0x20 layers.0";
    let wrapped = "nn DistributedDataParallel 0x8 - around Net 0x10";
    [
        stack(&["train.py load:3"]),
        stack(&["net.py Net.forward:9", call, "nn Net 0x10 -", "train.py step:12"]),
        stack(&["net.py Net.forward:11", "nn Net 0x10 -", wrapped, "train.py step:12"]),
        stack(&["torch/optim/adamw.py AdamW.step:220", "train.py step:14"]),
        stack(&["torch/autograd/graph.py _engine_run_backward:7", "train.py step:13"]),
    ]
}

/// Returns what a thread does between its allocations.
fn deed(what: u8, number: u32) -> TensorChange {
    let graph = u64::from(number % 2);
    match what % 12 {
        0 => TensorChange::RangeBegins("Optimizer.step#AdamW.step".into()),
        1 => TensorChange::RangeBegins(format!("phase {}", number % 3).into()),
        2..5 => TensorChange::RangeEnds,
        5 => TensorChange::NvtxPush(format!("range {}", number % 3).into()),
        6 => TensorChange::NvtxPop,
        7 => TensorChange::NodeBegins { words: (!number.is_multiple_of(5)).then_some(node(number)) },
        8 | 9 => TensorChange::SequenceNumber(u64::from(number % 20)),
        10 => TensorChange::CaptureBegins(graph),
        _ => TensorChange::CaptureEnds(graph),
    }
}

/// Returns a node's words: with a number, without one, or with a pointer that could be a number.
fn node(number: u32) -> NodeWords {
    let sequence = u64::from(number % 20);
    NodeWords(match number % 3 {
        0 => [sequence, 1],
        1 => [0x48_2d90 + sequence * 16, sequence],
        _ => [0x48_2d90, u64::MAX],
    })
}

/// Applies one step of a PyTorch program: its allocators' reports, and its threads' other actions.
fn train(
    pipeline: &mut Pipeline,
    event: &TensorEvent,
    words: Option<&crate::allocators::pytorch::tests::properties::Readable>,
) {
    let tensors = pipeline.state.tensors_mut(event.tgid);
    let wants = tensors.wants_statistics();
    tensors.apply(event);
    if let Some((allocator, words)) = words.filter(|_| wants) {
        tensors.learn_statistics(*allocator, event.time_ns, words);
    }
    show(pipeline, event);
    if event.time_ns.is_multiple_of(7_000_000) {
        pipeline.step(Input::Tick { time_ns: event.time_ns * 1000 });
    }
}

fn same_training(
    steps: Vec<(AllocatorStep, (u8, u8, u32))>,
    from_start: bool,
    breaks: &BTreeSet<usize>,
) -> Result<(), TestCaseError> {
    let (mut whole, mut broken) = (begun(), begun());
    let mut history = TensorEventHistory::new(steps.len().is_multiple_of(2), steps.len() % 3);
    for pipeline in [&mut whole, &mut broken] {
        let start_ns = if from_start { 2 } else { 0 };
        pipeline.step(Input::Process(ProcessFacts { tgid: 7, start_ns, ..ProcessFacts::default() }));
        pipeline.step(Input::TensorsWatched { tgid: Tgid(7), missing: Vec::new(), time_ns: 0 });
        for (id, stack) in (1..).zip(stacks()) {
            pipeline.step(Input::Stack { tgid: Tgid(7), id, stack });
        }
    }
    for (place, (step, (what, thread, number))) in steps.into_iter().enumerate() {
        if breaks.contains(&place) {
            broken = kept_and_loaded(&broken);
        }
        history.step(step);
        let time_ns = 1_000_000 * (place as u64 + 1);
        let stack = StackRef::Known(u64::from(number % 6));
        let process = Tgid(7);
        let tid = Tid(u32::from(thread % 3) + 1);
        let own = TensorEvent::made((process, tid), time_ns, stack, deed(what, number));
        let reported: Vec<_> =
            history.events.drain(..).map(|(event, words)| (TensorEvent { stack, ..event }, words)).collect();
        for pipeline in [&mut whole, &mut broken] {
            train(pipeline, &own, None);
            for (event, words) in &reported {
                train(pipeline, event, words.as_ref());
            }
            if what == u8::MAX {
                pipeline.step(Input::Lost { tgid: Some(process), loss: Loss::TensorEventLost, count: 1 });
            }
        }
    }
    equal(&whole, &broken)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn watch_resumes_from_serialized_state_at_any_record(
        first in steps(),
        second in steps(),
        turns in vec(any::<bool>(), 0..200),
        breaks in vec(any::<prop::sample::Index>(), 1..4),
    ) {
        let records = interleave(&records(7, 2, &first), &records(8, 3, &second), &turns);
        same(&with_the_world(records), &breaks)?;
    }

    #[test]
    fn tensor_tracing_resumes_from_serialized_state_at_any_event(
        steps in tensor_steps(),
        besides in vec(any::<(u8, u8, u32)>(), 120),
        from_start: bool,
        breaks in vec(0_usize..120, 1..4),
    ) {
        let steps = steps.into_iter().zip(besides).collect();
        same_training(steps, from_start, &breaks.into_iter().collect())?;
    }

    #[test]
    fn bytes_of_any_kind_are_loaded_without_a_panic(
        bytes in vec(any::<u8>(), 0..300), keeps in any::<prop::sample::Index>(), at in any::<prop::sample::Index>()
    ) {
        let mut whole = some_of_everything().save();
        whole.truncate(keeps.index(whole.len() + 1));
        if !whole.is_empty() && !bytes.is_empty() {
            let at = at.index(whole.len());
            whole[at] = bytes[0];
        } else {
            whole.extend(bytes);
        }
        if let Ok(pipeline) = Pipeline::load(&whole) {
            prop_assert_eq!(pipeline.save().is_empty(), false);
        }
    }
}

/// Returns a pipeline with content in each of its parts.
fn some_of_everything() -> Pipeline {
    let mut watch = TestPipeline::of(begun());
    watch.runs_already(7).starts(8).lost(Some(8), Loss::RingFull, 1);
    watch.calls([device_get_uuid(0, GPU_A).process(7)]);
    let asked = driver_begins().into_iter().chain((0..16).flat_map(driver_goes_on));
    asked.for_each(|input| watch.pipeline.step(input));
    watch.reading(vec![device(GPU_A, 90_000, [(7, 50_000)])]).tick();
    let mut pipeline = watch.pipeline;
    let asked = TracingRequest { level: TensorLevel::Modules, ..TracingRequest::default() };
    pipeline.step(Input::TensorLevel(asked.choose((Tgid(7), ATTACHED_NS), 1_000)));
    let mut history = TensorEventHistory::new(false, 0);
    for step in 0..200_u32 {
        let byte = (step * 37).to_le_bytes()[0];
        history.step((byte, byte / 2, step * 7919));
    }
    for (id, stack) in (1..).zip(stacks()) {
        pipeline.step(Input::Stack { tgid: Tgid(7), id, stack });
    }
    for (index, (event, words)) in (0_u32..).zip(&history.events) {
        let stack = StackRef::Known(u64::from(index % 6));
        train(&mut pipeline, &TensorEvent { stack, ..event.clone() }, words.as_ref());
        let what = deed((index % 256).to_le_bytes()[0], index);
        train(&mut pipeline, &TensorEvent { stack, what, ..event.clone() }, None);
    }
    let owner = OwnerModule {
        address: 4096,
        class: "Linear".into(),
        name: "fc1".into(),
        root_address: 8192,
        root_class: "Net".into(),
    };
    let row = Holding { owner: Some(owner), ..Holding::unknown(Ordinal(0), 1 << 20, 512) };
    let time_ns = ATTACHED_NS + SECOND_NS;
    pipeline.step(Input::Holdings(Box::new(Holdings {
        tgid: Tgid(7),
        time_ns,
        rows: vec![row],
        ..Holdings::default()
    })));
    let fill = KvCacheFill { blocks: 399, used_blocks: 100, free_blocks: 299, running: 2, waiting: 1 };
    let pool = KvCache {
        engine: ServingEngine::Vllm,
        scheduler: Tgid(7),
        bytes: Some(400 << 20),
        block_bytes: Some(1 << 20),
        block_tokens: Some(16),
        layers: Some(4),
        asleep: Some(false),
        fill,
        content: None,
        content_unknown: Some(KvCacheDoubt::Recorded("it changed while it was read".to_owned())),
        largest_requests: vec![KvCacheRequest { id: "long".to_owned(), blocks: 97 }],
    };
    pipeline.step(Input::KvCache(Box::new(KvCacheReading { tgid: Tgid(7), time_ns, pool: Ok(pool), peak: None })));
    pipeline.step(Input::HeldNames(Box::new(held_names(time_ns))));
    pipeline
}

fn held_names(time_ns: u64) -> HeldNames {
    let group = HeldGroup {
        ordinal: Ordinal(0),
        class: HoldingClass::SavedForBackward,
        is_kv_cache: false,
        name: Some("MulBackward0".to_owned()),
        kept_by: Some("losses[*]".to_owned()),
        dtype: Some("float32".to_owned()),
        bytes: 512,
        blocks: 2,
    };
    let finding =
        HeldFinding { kind: CauseKind::GraphsKept, bytes: 512, count: 5, subject: Some("losses[*]".to_owned()) };
    HeldNames {
        tgid: Tgid(7),
        time_ns,
        totals: vec![HeldTotals { ordinal: Ordinal(0), allocated_bytes: 512, reserved_bytes: 2 << 20, pieces: None }],
        groups: vec![group],
        findings: vec![finding],
        is_partial: false,
        without_names: None,
    }
}

/// A changed layout shows in the names of types, fields and variants, or in the length.
#[test]
fn the_layout_of_a_state_is_the_one_that_its_number_says() {
    let pipeline = some_of_everything();
    let text = format!("{pipeline:?}");
    let words: BTreeSet<&str> = text
        .split(|letter: char| !letter.is_alphanumeric() && letter != '_')
        .filter(|word| word.starts_with(char::is_alphabetic))
        .collect();
    let mut sum = crc32fast::Hasher::new();
    for word in &words {
        sum.update(format!("{word} ").as_bytes());
    }
    let layout = (STATE, sum.finalize(), pipeline.save().len());
    assert_eq!(layout, (34, 4_069_580_711, 29_349), "another layout has another number in `saved.rs`");
}

#[test]
fn serialized_state_of_another_length_is_rejected() {
    let state = some_of_everything().save();
    assert!(Pipeline::load(&state[..state.len() - 1]).is_err());
    assert!(Pipeline::load(&[&state[..], &[0]].concat()).is_err());
}
