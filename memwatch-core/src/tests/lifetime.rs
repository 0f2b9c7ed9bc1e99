//! Identity of processes: processes that start, call exec, exit and reuse ids, and the process that
//! a loss belongs to.

use memwatch_common::loss::Loss;
use memwatch_common::record::{CallRecord, ProcessEvent, ProcessRecord, RecordKind, RingRecord};

use super::{ATTACHED_NS, GPU_A, SECOND_NS, TestPipeline, device, on_gpu_a};
use crate::input::{DeviceReading, Input, NvmlState, ProcessFacts};
use crate::pipeline::Pipeline;
use crate::snapshot::ProcessView;
use crate::test_calls::*;
use crate::words::Tgid;

#[test]
fn a_number_used_again_within_one_batch_is_another_process() {
    let mut watch = TestPipeline::begin();
    watch.starts(7).calls(on_gpu_a(7)).calls([mem_alloc(0xd0, 100).process(7)]).event(7, ProcessEvent::Exit);
    assert!(!watch.pipeline.state.knows(Tgid(7)), "the shell has to ask /proc again");
    watch.starts(7).calls(on_gpu_a(7)).calls([mem_alloc(0xd0, 30).process(7)]);
    watch.reading(vec![device(GPU_A, 600, [(7, 600)])]);
    let (ended, running) = (watch.ended(7).expect("kept for a while"), watch.running(7));
    assert_eq!((ended.gpus[0].live_bytes, ended.gpus[0].peak_bytes, ended.implicit_frees), (0, 100, 1));
    assert_eq!(ended.gpus[0].used_bytes, None, "what NVML says is of the running one");
    assert_eq!(
        (running.gpus[0].live_bytes, running.gpus[0].peak_bytes, running.gpus[0].used_bytes),
        (30, 30, Some(600))
    );
}

#[test]
fn reused_pid_begins_after_the_end_of_the_previous_process() {
    let mut watch = TestPipeline::begin();
    let reported_ns = watch.later();
    watch.starts(7).calls([mem_alloc(0xd0, 100).process(7)]).event(7, ProcessEvent::Exit);
    watch.process(7, reported_ns).calls([mem_alloc(0xd0, 30).process(7)]);
    let processes = watch.snapshot().processes;
    let ended: Vec<bool> = processes.iter().map(|process| process.ended_ns.is_some()).collect();
    assert_eq!(ended, [true, false]);
    assert!(Some(processes[1].observed_since_ns) >= processes[0].ended_ns);
    assert!(processes[1].from_start);
}

#[test]
fn nvml_reading_of_a_process_is_forgotten_when_it_ends() {
    let mut watch = TestPipeline::begin();
    watch.runs_already(7).reading(vec![device(GPU_A, 200, [(7, 200)])]).event(7, ProcessEvent::Exit);
    watch.calls([mem_alloc(0xd0, 100).process(7)]);
    assert_eq!(watch.running(7).gpus[0].preexisting_bytes, None);
}

#[test]
fn a_reading_older_than_a_process_is_of_the_one_before_under_its_number() {
    let mut watch = TestPipeline::begin();
    let (begin_ns, end_ns) = (watch.later(), watch.later());
    watch.starts(7);
    let devices = vec![device(GPU_A, 9000, [(7, 9000)])];
    watch.pipeline.step(Input::Devices(DeviceReading { begin_ns, end_ns, state: NvmlState::Ok, devices }));
    assert_eq!(watch.gpu(GPU_A).context_bytes, None);
}

#[test]
fn late_process_facts_still_prove_an_observation_from_the_start() {
    let mut watch = TestPipeline::begin();
    let start_ns = watch.later();
    watch.calls([mem_alloc(0xd0, 100).process(7)]);
    assert!(!watch.running(7).from_start, "nobody has reported it");
    watch.process(7, start_ns);
    assert!(watch.running(7).from_start);
    assert_eq!(watch.running(7).gpus[0].live_bytes, 100);
}

#[test]
fn late_library_probe_leaves_a_gap_that_later_facts_do_not_close() {
    let mut watch = TestPipeline::begin();
    let start_ns = watch.later();
    watch.process(7, start_ns).reading(vec![device(GPU_A, 0, [])]);
    let time_ns = watch.later();
    watch.pipeline.step(Input::ObservedFrom { tgid: Tgid(7), time_ns });
    watch.process(7, start_ns).reading(vec![device(GPU_A, 700, [(7, 700)])]);
    let seen = watch.running(7);
    assert_eq!((seen.from_start, seen.observed_since_ns), (false, time_ns));
    assert_eq!(seen.gpus[0].preexisting_bytes, Some(700), "what NVML did not list before does not count");
}

#[test]
fn facts_that_come_after_a_late_probe_do_not_hide_it() {
    let mut watch = TestPipeline::begin();
    let (start_ns, time_ns) = (watch.later(), watch.later());
    watch.pipeline.step(Input::ObservedFrom { tgid: Tgid(7), time_ns });
    watch.process(7, start_ns);
    assert!(!watch.running(7).from_start);
}

#[test]
fn process_started_under_the_watch_is_seen_from_start_despite_the_clock() {
    let mut watch = TestPipeline::begin();
    let start_ns = ATTACHED_NS - 5_000_000;
    let facts = ProcessFacts { tgid: 7, start_ns, started_under_watch: true, ..ProcessFacts::default() };
    watch.pipeline.step(Input::Process(facts));
    assert!(watch.running(7).from_start);
}

#[test]
fn process_with_a_new_start_time_ends_the_previous_one() {
    let mut watch = TestPipeline::begin();
    watch.runs_already(7).calls([mem_alloc(0xd0, 100).process(7)]).starts(7);
    assert_eq!(watch.ended(7).map(|ended| ended.implicit_frees), Some(1));
    assert_eq!((watch.running(7).from_start, watch.running(7).gpus.len()), (true, 0));
}

#[test]
fn facts_read_again_after_an_exec_are_of_the_same_process() {
    let mut watch = TestPipeline::begin();
    let start_ns = watch.later();
    watch.process(7, start_ns).calls([mem_alloc(0xd0, 100).process(7)]);
    let comm = "renamed".to_owned();
    let facts = ProcessFacts { tgid: 7, start_ns: start_ns + 10_000_000, comm, ..ProcessFacts::default() };
    watch.pipeline.step(Input::Process(facts));
    assert_eq!(watch.running(7).gpus[0].live_bytes, 100);
    assert_eq!(watch.running(7).comm, "renamed");
    assert_eq!(watch.snapshot().processes.len(), 1);
}

#[test]
fn an_exec_frees_what_the_former_image_held_and_leaves_nothing_older() {
    let mut watch = TestPipeline::begin();
    watch.runs_already(7).calls([mem_alloc(0xd0, 100).process(7)]).reading(vec![device(GPU_A, 300, [(7, 300)])]);
    watch.event(7, ProcessEvent::Exec).calls(on_gpu_a(7)).calls([mem_alloc(0xd0, 5).process(7)]);
    watch.reading(vec![device(GPU_A, 523, [(7, 523)])]);
    let row = watch.on(7, Some(GPU_A)).expect("it has allocated");
    assert_eq!((row.live_bytes, row.peak_bytes, row.preexisting_bytes), (5, 100, Some(0)));
    assert_eq!((watch.running(7).implicit_frees, watch.running(7).from_start), (1, true));
    assert_eq!(watch.gpu(GPU_A).context_bytes, Some(518), "learnt from the new image alone");
}

#[test]
fn an_exec_or_exit_of_a_process_never_heard_of_shows_nothing() {
    let mut watch = TestPipeline::begin();
    watch.event(7, ProcessEvent::Fork).event(7, ProcessEvent::Exec).event(7, ProcessEvent::Exit);
    watch.pipeline.step(Input::ProcessEnded { tgid: Tgid(7), time_ns: ATTACHED_NS });
    assert_eq!(watch.snapshot().processes, []);
}

#[test]
fn a_target_that_was_gone_before_the_probes_has_ended() {
    let mut watch = TestPipeline::begin();
    watch.runs_already(7).pipeline.step(Input::ProcessEnded { tgid: Tgid(7), time_ns: ATTACHED_NS + 5 });
    assert_eq!(watch.ended(7).and_then(|ended| ended.ended_ns), Some(ATTACHED_NS + 5));
}

#[test]
fn a_loss_makes_its_process_inexact_and_the_whole_incomplete() {
    let mut watch = TestPipeline::begin();
    watch.starts(7).starts(8).lost(Some(7), Loss::RingFull, 3).lost(Some(7), Loss::RingFull, 2);
    let snapshot = watch.snapshot();
    assert!(!snapshot.complete);
    assert_eq!(snapshot.losses.into_iter().collect::<Vec<_>>(), [("ring_full".into(), 5)]);
    assert_eq!((watch.running(7).exact, watch.running(8).exact), (false, true));
    assert_eq!(watch.running(7).losses.into_iter().collect::<Vec<_>>(), [("ring_full".into(), 5)]);
}

#[test]
fn loss_count_of_zero_is_not_a_loss() {
    let mut watch = TestPipeline::begin();
    watch.starts(7).lost(Some(7), Loss::RingFull, 0).lost(None, Loss::InFlightFull, 0);
    assert!(watch.snapshot().complete && watch.running(7).exact);
}

#[test]
fn loss_of_an_unknown_process_marks_all_that_may_have_run_by_then() {
    let mut watch = TestPipeline::begin();
    watch.starts(7).runs_already(8).tick().lost(None, Loss::RingFull, 1);
    assert_eq!((watch.running(7).exact, watch.running(8).exact), (false, false));
    watch.starts(11).tick().starts(9).runs_already(10);
    assert!(!watch.running(11).exact, "nobody knows whether it was there when they were lost");
    assert!(watch.running(9).exact, "it started afterwards");
    assert!(!watch.running(10).exact, "it was there, only not heard of");
}

#[test]
fn loss_reported_after_its_process_ended_creates_no_process() {
    let mut watch = TestPipeline::begin();
    watch.starts(7).event(7, ProcessEvent::Exit).lost(Some(7), Loss::RingFull, 1);
    assert!(!watch.pipeline.state.knows(Tgid(7)));
    assert_eq!(watch.ended(7).map(|ended| ended.exact), Some(false));
    assert_eq!(watch.snapshot().processes.len(), 1);
}

#[test]
fn a_loss_counted_before_its_process_is_heard_of_is_charged_to_it_then() {
    let mut watch = TestPipeline::begin();
    watch.lost(Some(7), Loss::RingFull, 1);
    assert!(watch.snapshot().processes.is_empty() && !watch.snapshot().complete);
    watch.starts(7);
    assert!(!watch.running(7).exact);
}

#[test]
fn a_record_of_no_row_and_an_event_of_no_name_are_losses_of_their_process() {
    let mut watch = TestPipeline::begin();
    watch.starts(7);
    let call = CallRecord { kind: RecordKind::Call as u8, probe: u16::MAX, tgid: 7, ..CallRecord::default() };
    watch.pipeline.step(Input::Record(RingRecord::Call(call)));
    let event = ProcessRecord { kind: RecordKind::Process as u8, event: 99, tgid: 7, ..ProcessRecord::default() };
    watch.pipeline.step(Input::Record(RingRecord::Process(event)));
    assert_eq!(watch.running(7).losses.into_iter().collect::<Vec<_>>(), [("undecodable_record".into(), 2)]);
}

#[test]
fn an_ended_process_is_shown_for_ten_seconds() {
    let mut watch = TestPipeline::begin();
    watch.starts(7).event(7, ProcessEvent::Exit).ticks(9);
    assert!(watch.ended(7).is_some());
    watch.tick();
    assert!(watch.ended(7).is_none());
}

#[test]
fn an_ended_target_is_shown_for_good() {
    let mut watch = TestPipeline::of(Pipeline::new(true));
    let facts = ProcessFacts { tgid: 7, start_ns: watch.later(), target: true, ..ProcessFacts::default() };
    watch.pipeline.step(Input::Process(facts));
    watch.event(7, ProcessEvent::Exit).ticks(3600);
    assert!(watch.ended(7).is_some());
}

#[test]
fn of_a_targets_children_only_all_that_touched_a_gpu_are_remembered() {
    let mut watch = TestPipeline::of(Pipeline::new(true));
    let later_ns = ATTACHED_NS + 60 * SECOND_NS;
    watch.starts(8).starts(7).calls([mem_alloc(0xd0, 100).process(7)]);
    for tgid in [7, 8] {
        watch.pipeline.step(Input::ProcessEnded { tgid: Tgid(tgid), time_ns: ATTACHED_NS + SECOND_NS });
    }
    watch.pipeline.step(Input::Tick { time_ns: later_ns });
    let remembered: Vec<_> = watch.pipeline.snapshot().processes.iter().map(|process| process.tgid).collect();
    assert_eq!(remembered, [Tgid(7)]);
}

#[test]
fn cgroup_move_changes_the_owner_without_a_loss() {
    let job = |step: &str| format!("4:memory:/slurm/uid_0/job_7/step_{step}\n0::/\n");
    let mut watch = TestPipeline::begin();
    let (tgid, cgroups) = (Tgid(7), Some(job("0")));
    watch.pipeline.step(Input::Process(ProcessFacts { tgid: 7, cgroups, ..ProcessFacts::default() }));
    let step = |watch: &TestPipeline| watch.running(7).owner.slurm.and_then(|job| job.step);
    assert_eq!(step(&watch).as_deref(), Some("0"));
    watch.event(7, ProcessEvent::Move);
    assert_eq!((step(&watch).as_deref(), watch.snapshot().complete), (Some("0"), true));
    watch.pipeline.step(Input::Cgroups { tgid, cgroups: job("1") });
    assert_eq!(step(&watch).as_deref(), Some("1"));
    assert_eq!(watch.pipeline.state.cgroups().into_iter().collect::<Vec<_>>(), ["/slurm/uid_0/job_7/step_1"]);
    watch.event(7, ProcessEvent::Exit);
    assert!(watch.pipeline.state.cgroups().is_empty());
}

#[test]
fn ended_process_is_distinguished_from_a_later_one_with_its_pid() {
    let mut watch = TestPipeline::begin();
    watch.starts(7);
    let facts = |start_ns| ProcessFacts { tgid: 7, start_ns, ..ProcessFacts::default() };
    let start_ns = watch.running(7).start_ns.expect("it was reported");
    assert!(!watch.pipeline.state.has_ended(&facts(start_ns)), "it runs");
    watch.event(7, ProcessEvent::Exit);
    assert!(watch.pipeline.state.has_ended(&facts(start_ns)));
    assert!(!watch.pipeline.state.has_ended(&facts(start_ns + SECOND_NS)));
}

#[test]
fn loss_of_an_unknown_process_is_not_charged_to_a_later_one_of_its_pid() {
    let mut watch = TestPipeline::begin();
    watch.lost(Some(7), Loss::RingFull, 1).event(7, ProcessEvent::Exit).starts(7);
    assert!(watch.running(7).exact, "the exit came after the loss");

    let mut watch = TestPipeline::begin();
    watch.event(7, ProcessEvent::Exit).lost(Some(7), Loss::RingFull, 1).tick().starts(7);
    assert!(watch.running(7).exact, "the loss was counted after the exit, and the next process started later still");

    let mut watch = TestPipeline::begin();
    let start_ns = watch.later();
    watch.lost(Some(7), Loss::RingFull, 1).tick().process(7, start_ns);
    assert!(!watch.running(7).exact, "it ran already, only not heard of");
}

#[test]
fn losses_past_the_per_process_limit_count_for_all_processes() {
    let mut watch = TestPipeline::begin();
    for tgid in 100..100 + 4096 {
        watch.lost(Some(tgid), Loss::RingFull, 1);
    }
    watch.starts(7);
    assert!(watch.running(7).exact);
    watch.lost(Some(9000), Loss::RingFull, 1).starts(8);
    assert!(!watch.running(8).exact, "one of them is everybody's now");
    watch.tick().starts(9);
    assert!(watch.running(9).exact, "it started afterwards");
}

/// Returns the number of processes in the state of the forecasts.
fn forecast_processes(watch: &TestPipeline) -> usize {
    watch.pipeline.detectors.forecast.as_ref().map_or(0, |forecast| forecast.processes())
}

#[test]
fn a_forecast_ends_with_its_process_and_meets_no_other_of_its_number() {
    let mut watch = TestPipeline::begin();
    watch.pipeline.watch_forecasts(&[]);
    let grow = |watch: &mut TestPipeline, seconds: u64, bytes: u64| {
        for second in 0..seconds {
            watch.calls([mem_alloc(0xd000_0000 + second * bytes, bytes).process(7)]);
            watch.reading(vec![device(GPU_A, 0, [(7, 0)])]).tick();
        }
    };
    watch.runs_already(7).calls(on_gpu_a(7));
    grow(&mut watch, 40, 1 << 20);
    let outlook =
        |watch: &TestPipeline| watch.pipeline.forecasts().processes.first().map(|process| process.outlook.clone());
    assert!(outlook(&watch).is_some_and(|outlook| outlook.growth.is_some_and(|growth| growth.grows)));
    watch.event(7, ProcessEvent::Exit);
    assert_eq!(forecast_processes(&watch), 0);
    // The start time of this process is unknown, so that it could be confused with an earlier
    // process.
    watch.calls(on_gpu_a(7));
    grow(&mut watch, 2, 1 << 20);
    assert_eq!(outlook(&watch).map(|outlook| outlook.growth.is_some()), Some(false), "two points are no course");
    let since = |process: &ProcessView| process.observed_since_ns;
    assert!(since(&watch.running(7)) > since(&watch.ended(7).expect("it is shown for a while")));
    watch.event(7, ProcessEvent::Exec);
    assert_eq!(forecast_processes(&watch), 0, "another image is another course");
}

#[test]
fn forecasts_of_thousands_of_short_processes_keep_none() {
    let mut watch = TestPipeline::begin();
    watch.pipeline.watch_forecasts(&[]);
    for tgid in 0..20_000 {
        watch.starts(tgid).calls([mem_alloc(0xd0, 100).process(tgid)]);
        if tgid % 100 == 0 {
            watch.reading(vec![device(GPU_A, 100, [(tgid, 100)])]).tick();
        }
        watch.event(tgid, ProcessEvent::Exit);
    }
    assert_eq!(forecast_processes(&watch), 0);
}
