//! The part of a recording that one user may see.

use super::*;
use crate::pipeline::excerpt::Excerpt;
use crate::snapshot::Viewer;

const ANN: u32 = 1000;
const BOB: u32 = 1001;

fn starts(watch: &mut TestPipeline, tgid: u32, uid: u32) -> Input {
    let (start_ns, comm) = (watch.later(), format!("program{tgid}of{uid}"));
    Input::Process(ProcessFacts { tgid, start_ns, comm, uid: Some(uid), ..ProcessFacts::default() })
}

fn allocates(watch: &mut TestPipeline, tgid: u32, address: u64, bytes: u64) -> Vec<Input> {
    let calls = on_gpu_a(tgid).into_iter().chain([mem_alloc(address, bytes).process(tgid)]);
    calls
        .map(|call| {
            let entered_ns = watch.later();
            call.at(entered_ns, entered_ns + 1000).input()
        })
        .collect()
}

fn event(watch: &mut TestPipeline, tgid: u32, uid: u32, event: ProcessEvent) -> Input {
    let (kind, time_ns) = (RecordKind::Process as u8, watch.later());
    let record = ProcessRecord { kind, event: event as u8, tgid, time_ns, uid, ..ProcessRecord::default() };
    Input::Record(RingRecord::Process(record))
}

/// Steps everybody's pipeline and the user's by the same inputs.
fn step(everybody: &mut TestPipeline, (excerpt, own): (&mut Excerpt, &mut Pipeline), inputs: Vec<Input>) {
    for input in inputs {
        if let Some(input) = excerpt.take(input.clone()) {
            own.step(input);
        }
        everybody.pipeline.step(input);
    }
}

#[test]
fn excerpt_has_a_users_processes_as_everybodys_recording_has_them_and_nothing_of_others() {
    let mut all = TestPipeline::begin();
    for (tgid, uid) in [(7, ANN), (8, BOB)] {
        let mut inputs = vec![starts(&mut all, tgid, uid)];
        inputs.extend(allocates(&mut all, tgid, 0xd1, 300));
        for input in inputs {
            all.pipeline.step(input);
        }
    }
    all.reading(vec![device(GPU_A, 1200, [(7, 400), (8, 600)])]).tick();
    let (mut excerpt, mut own) = Excerpt::begin(ANN, &all.pipeline);
    assert_eq!(own.snapshot().processes, all.snapshot().observed_by(Viewer::User(ANN)).processes);
    let mut inputs = allocates(&mut all, 7, 0xe1, 50);
    inputs.extend(allocates(&mut all, 8, 0xe1, 70));
    inputs.extend([starts(&mut all, 9, BOB), starts(&mut all, 10, ANN)]);
    inputs.extend(allocates(&mut all, 9, 0xf1, 11));
    inputs.extend(allocates(&mut all, 10, 0xf1, 13));
    inputs.push(Input::Lost { tgid: Some(Tgid(8)), loss: Loss::RingFull, count: 3 });
    inputs.push(event(&mut all, 9, BOB, ProcessEvent::Exit));
    // The number is Ann's from now on.
    inputs.push(starts(&mut all, 9, ANN));
    inputs.extend(allocates(&mut all, 9, 0xa1, 17));
    let now_ns = all.later();
    inputs.push(Input::Tick { time_ns: now_ns });
    step(&mut all, (&mut excerpt, &mut own), inputs);
    let (seen, expected) = (own.snapshot(), all.snapshot().observed_by(Viewer::User(ANN)));
    assert_eq!(seen.processes, expected.processes);
    let tgids: Vec<u32> = seen.processes.iter().map(|process| process.tgid.0).collect();
    assert_eq!(tgids, [7, 9, 10]);
    let text = format!("{own:?}");
    assert!(text.contains("program10of1000") && !text.contains("of1001") && !text.contains("Tgid(8)"), "{text}");
}

#[test]
fn excerpt_of_a_process_that_changes_hands_ends_and_begins_with_its_user() {
    let mut all = TestPipeline::begin();
    let (mut excerpt, mut own) = Excerpt::begin(ANN, &all.pipeline);
    let mut inputs = vec![starts(&mut all, 7, ANN)];
    inputs.extend(allocates(&mut all, 7, 0xd1, 300));
    inputs.push(event(&mut all, 7, BOB, ProcessEvent::Exec));
    inputs.extend(allocates(&mut all, 7, 0xe1, 5));
    step(&mut all, (&mut excerpt, &mut own), inputs);
    own.step(Input::Tick { time_ns: all.later() });
    let live: Vec<u64> = own.snapshot().processes[0].gpus.iter().map(|gpu| gpu.live_bytes).collect();
    assert_eq!(live, [300], "what Bob's program allocates is not Ann's to see");
}
