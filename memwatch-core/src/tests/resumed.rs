//! A replay that continues at later states instead of following every input.

use super::*;
use crate::pipeline::excerpt::Excerpt;
use crate::snapshot::Viewer;
use crate::words::CauseKind;

/// A recorder: every input, and the detectors that an agent has.
fn recorder() -> TestPipeline {
    let mut watch = TestPipeline::begin();
    watch.pipeline.watch_forecasts(&[]);
    watch.pipeline.watch_ooms();
    watch.starts(7).calls(on_gpu_a(7)).calls([mem_alloc(0xa0, 100).process(7)]);
    watch.reading(vec![device(GPU_A, 500, [(7, 500)])]).tick();
    watch
}

/// A replay that begins at the recorder's state, and keeps what has ended.
fn replay(recorder: &TestPipeline) -> Pipeline {
    let mut replay = saved(recorder);
    replay.state.keep_ended(true);
    replay.begin_window(recorder.now_ns);
    replay.watch_ooms();
    replay.watch_leaks();
    replay.watch_timeline(SECOND_NS, 1 << 30);
    replay.show_present();
    replay
}

fn saved(recorder: &TestPipeline) -> Pipeline {
    Pipeline::load(&recorder.pipeline.save()).expect("it was saved")
}

#[test]
fn replay_continues_with_the_later_state_its_failures_and_its_series() {
    let mut recorder = recorder();
    let (mut replay, since_ns) = (replay(&recorder), recorder.now_ns);
    recorder.calls([mem_alloc(0xa1, 900).process(7), mem_free(0xa1).process(7), mem_alloc(0xa2, 50).process(7)]);
    recorder.calls([mem_alloc(0, 1 << 40).process(7).failing(OUT_OF_MEMORY)]).tick();
    replay.resume(saved(&recorder), since_ns);
    let failure = |pipeline: &Pipeline| pipeline.ooms().0.cloned().collect::<Vec<_>>();
    assert_eq!(failure(&replay), failure(&recorder.pipeline));
    assert_eq!(failure(&replay).len(), 1);
    assert_eq!(replay.snapshot(), recorder.snapshot());

    // What the log learns of the failure later is taken over, and an end is kept beyond the time
    // that the recorder keeps it.
    recorder.event(7, ProcessEvent::Exit).tick();
    replay.step(Input::ProcessEnded { tgid: Tgid(7), time_ns: recorder.now_ns });
    recorder.ticks(20).starts(9).calls(on_gpu_a(9)).calls([mem_alloc(0xb0, 30).process(9)]).tick();
    replay.resume(saved(&recorder), since_ns);
    let known = failure(&replay);
    assert!(known.len() == 1 && known[0].ended_ns.is_some(), "{known:?}");
    let tgids: Vec<u32> = replay.snapshot().processes.iter().map(|process| process.tgid.0).collect();
    assert_eq!(tgids, [7, 9]);
    let present: Vec<u32> = recorder.snapshot().processes.iter().map(|process| process.tgid.0).collect();
    assert_eq!(present, [9]);

    let timeline = replay.timeline().expect("it was asked for");
    let kinds: Vec<&str> = timeline.events.iter().map(|event| &*event.kind).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "failure").count(), 1, "{kinds:?}");
    assert_eq!(kinds.iter().filter(|kind| **kind == "exit").count(), 1, "{kinds:?}");
    let live = timeline.tracks.iter().find(|track| track.tgid == Some(Tgid(7)) && track.measure == *"live");
    let live: Vec<u64> = live.expect("it held memory").points.iter().map(|point| point.bytes).collect();
    assert!(live.contains(&100) && live.contains(&150), "{live:?}");
}

#[test]
fn failures_before_the_window_are_not_taken_over() {
    let mut recorder = recorder();
    recorder.calls([mem_alloc(0, 1 << 40).process(7).failing(OUT_OF_MEMORY)]).ticks(2);
    let (mut replay, since_ns) = (replay(&recorder), recorder.now_ns);
    recorder.ticks(2);
    replay.resume(saved(&recorder), since_ns);
    assert_eq!(replay.ooms().0.count(), 0);
    assert_eq!(recorder.pipeline.ooms().0.count(), 1);
}

#[test]
fn process_that_a_later_state_does_not_know_has_not_ended() {
    let recorder = recorder();
    let mut replay = replay(&recorder);
    let mut restarted = TestPipeline::of(Pipeline::new(false));
    restarted.now_ns = recorder.now_ns + 5 * SECOND_NS;
    restarted.tick();
    replay.resume(saved(&restarted), 0);
    replay.step(Input::Tick { time_ns: restarted.now_ns + SECOND_NS });
    assert_eq!(replay.snapshot().processes, []);
    let timeline = replay.timeline().expect("it was asked for");
    assert!(timeline.events.iter().all(|event| &*event.kind != "exit"), "{:?}", timeline.events);
    let live = timeline.tracks.iter().find(|track| track.tgid == Some(Tgid(7)) && track.measure == *"live");
    assert_eq!(live.expect("it held memory").comm, "job7");
}

#[test]
fn failure_of_a_process_before_a_restart_has_its_cause() {
    let mut recorder = recorder();
    let (mut replay, since_ns) = (replay(&recorder), recorder.now_ns - SECOND_NS);
    for bytes in [10, 40, 90] {
        let time_ns = recorder.later();
        recorder.pipeline.step(Input::HeldNames(Box::new(names(time_ns, bytes << 20))));
    }
    recorder.calls([mem_alloc(0, 1 << 40).process(7).failing(OUT_OF_MEMORY)]).tick();
    replay.resume(saved(&recorder), since_ns);
    let causes = |pipeline: &Pipeline| {
        let found = pipeline.causes().into_iter().next();
        found.map(|cause| (cause.tgid, cause.kind, cause.subject))
    };
    let expected = Some((Tgid(7), CauseKind::Unbounded, Some("kept[*]".to_owned())));
    assert_eq!(causes(&replay), expected);
    let mut restarted = TestPipeline::of(Pipeline::new(false));
    restarted.now_ns = recorder.now_ns + 5 * SECOND_NS;
    restarted.tick();
    replay.resume(saved(&restarted), since_ns);
    assert_eq!(causes(&replay), expected, "of the failure alone");
}

#[test]
fn a_users_part_of_a_state_has_the_users_failures_with_nothing_of_others() {
    let mut all = TestPipeline::begin();
    all.pipeline.watch_ooms();
    for (tgid, uid) in [(7, 1000), (8, 1001)] {
        let (start_ns, comm) = (all.later(), format!("program{tgid}of{uid}"));
        all.pipeline.step(Input::Process(ProcessFacts {
            tgid,
            start_ns,
            comm,
            uid: Some(uid),
            ..ProcessFacts::default()
        }));
        all.calls(on_gpu_a(tgid)).calls([mem_alloc(0xa0, 100).process(tgid)]);
    }
    for tgid in [7, 8] {
        all.calls([mem_alloc(0, 1 << 40).process(tgid).failing(OUT_OF_MEMORY)]).ticks(2);
    }
    let (_, own) = Excerpt::begin(1000, &all.pipeline);
    let seen: Vec<_> = own.ooms().0.cloned().collect();
    let expected = all.pipeline.ooms().0.find(|failure| failure.tgid == Tgid(7)).expect("it failed");
    assert_eq!(seen.len(), 1);
    assert_eq!(*seen[0].snapshot, expected.snapshot.observed_by(Viewer::User(1000)));
    let text = format!("{own:?}");
    assert!(text.contains("program7of1000") && !text.contains("of1001"), "{text}");
}

#[test]
fn failure_keeps_the_processes_on_its_gpu_and_all_gpus() {
    let mut watch = TestPipeline::begin();
    watch.pipeline.watch_ooms();
    for tgid in [7, 8, 9] {
        watch.starts(tgid);
    }
    watch.calls(on_gpu_a(7)).calls([mem_alloc(0xa0, 100).process(7)]);
    watch.reading(vec![device(GPU_A, 900, [(7, 400), (9, 500)]), device(GPU_B, 600, [(8, 600)])]);
    watch.calls([mem_alloc(0, 1 << 40).process(7).failing(OUT_OF_MEMORY)]).ticks(2);
    let failure = watch.pipeline.ooms().0.next().expect("it failed").clone();
    let tgids: Vec<u32> = failure.snapshot.processes.iter().map(|process| process.tgid.0).collect();
    assert_eq!((tgids, failure.snapshot.gpus.len()), (vec![7, 9], 2));
    assert_eq!(watch.snapshot().processes.len(), 3);
}
