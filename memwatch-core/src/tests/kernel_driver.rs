//! Requests of processes to the kernel driver, compared with their calls and with NVML's charge.

use memwatch_common::loss::Loss;
use memwatch_common::record::{ProcessEvent, ProcessRecord, RecordKind, RingRecord};

use super::{ATTACHED_NS, GPU_A, GPU_B, SECOND_NS, TestPipeline, device, on_gpu_a, uuid};
use crate::input::{Input, MigFacts};
use crate::kernel_driver::labels::MemoryPurpose;
use crate::kernel_driver::trust::{LedgerTrust, Reason};
use crate::snapshot::{Explained, ExplainedUse, LeftOnGpu, PIECES_KEPT, RemainderView, UsedView, Viewer};
use crate::test_calls::rm::{NEWEST, Rm, client, duplicate, free, made, mapped, named, unmapped, video};
use crate::test_calls::*;
use crate::words::Tgid;

const MIB: u64 = 1 << 20;
const CLIENT: u32 = 0xc1d0_0007;
const DEVICE: u32 = 0x5c00_0002;
const SUBDEVICE: u32 = 0x5c00_0003;

/// Returns the requests that create a client with this GPU as its device.
fn begins(client_number: u32, gpu: u8) -> [Rm; 4] {
    [
        client(NEWEST, client_number),
        made(NEWEST, (client_number, client_number, DEVICE), 0x80),
        made(NEWEST, (client_number, DEVICE, SUBDEVICE), 0x2080),
        named(client_number, SUBDEVICE, [gpu; 16]),
    ]
}

/// Returns the request for memory of a context of this client.
fn context(client_number: u32, object: u32, bytes: u64) -> Rm {
    video(NEWEST, (client_number, DEVICE, object), bytes, bytes).inside("cuDevicePrimaryCtxRetain", 1)
}

impl TestPipeline {
    fn driver(&mut self, version: &str) -> &mut Self {
        self.pipeline.step(Input::KernelDriver { version: Some(version.to_owned()) });
        self
    }

    fn requests(&mut self, tgid: u32, requests: impl IntoIterator<Item = Rm>) -> &mut Self {
        for request in requests {
            let entered_ns = self.later();
            self.pipeline.step(request.process(tgid).at(entered_ns, entered_ns + 1000).input());
        }
        self
    }

    /// Adds this number of NVML readings, a second apart.
    fn charged<const N: usize>(&mut self, readings: usize, processes: [(u32, u64); N]) -> &mut Self {
        for _ in 0..readings {
            let used = processes.iter().map(|(_, bytes)| bytes).sum();
            self.reading(vec![device(GPU_A, used, processes)]).tick();
        }
        self
    }

    fn explain(&self, tgid: u32) -> Explained {
        self.pipeline.state.explain(Tgid(tgid)).expect("its requests were seen")
    }

    fn explained_on(&self, tgid: u32, gpu: Option<u8>) -> ExplainedUse {
        let on = self.explain(tgid).gpus.into_iter().find(|row| row.uuid == gpu.map(uuid));
        on.expect("it has memory there")
    }

    /// Returns the use that is shown as explained.
    fn believed(&self, tgid: u32) -> Option<ExplainedUse> {
        self.running(tgid).explained_on(Some(&uuid(GPU_A))).cloned()
    }

    fn trust(&self, tgid: u32) -> LedgerTrust {
        self.explained_on(tgid, Some(GPU_A)).trust
    }
}

/// Returns a process seen from its start whose context NVML charges as its requests say.
fn trusted() -> TestPipeline {
    let mut watch = TestPipeline::begin();
    watch.driver("580.159.04").starts(7);
    watch.requests(7, begins(CLIENT, GPU_A)).requests(7, [context(CLIENT, 0x14, 518 * MIB)]);
    watch.charged(2, [(7, 518 * MIB)]);
    watch
}

#[test]
fn rm_sums_are_trusted_after_agreeing_with_nvml_twice() {
    let mut watch = TestPipeline::begin();
    watch.driver("580.159.04").starts(7);
    watch.requests(7, begins(CLIENT, GPU_A)).requests(7, [context(CLIENT, 0x14, 518 * MIB)]);
    watch.charged(1, [(7, 518 * MIB)]);
    assert_eq!((watch.trust(7), watch.believed(7)), (LedgerTrust::Settling, None));
    watch.charged(1, [(7, 518 * MIB)]);
    let row = watch.on(7, Some(GPU_A)).expect("NVML lists it");
    assert_eq!(row.unattributed_bytes, Some(i64::try_from(518 * MIB).expect("it is small")), "that stays as it was");
    let explained = watch.believed(7).expect("it is believed");
    assert_eq!(
        (explained.trust, explained.difference_bytes, explained.older_bytes),
        (LedgerTrust::Trusted, Some(0), Some(0))
    );
    let [part] = explained.parts.as_slice() else { panic!("all of it is the context's") };
    assert_eq!((part.label, part.bytes, part.objects), (MemoryPurpose::Context, 518 * MIB, 1));
}

#[test]
fn a_later_difference_is_shown_with_its_sign() {
    let mut watch = trusted();
    watch.charged(1, [(7, 500 * MIB)]);
    let explained = watch.believed(7).expect("it is believed");
    assert_eq!(explained.difference_bytes, Some(-(18 << 20)));
    watch.charged(1, [(7, 528 * MIB)]);
    assert_eq!(watch.explained_on(7, Some(GPU_A)).difference_bytes, Some(10 << 20));
}

#[test]
fn nvml_reading_during_an_rm_request_is_ignored() {
    let mut watch = trusted();
    let entered_ns = watch.later();
    watch.reading(vec![device(GPU_A, 600 * MIB, [(7, 582 * MIB)])]);
    let returned_ns = watch.later();
    let request = context(CLIENT, 0x15, 64 * MIB).process(7).at(entered_ns, returned_ns);
    watch.pipeline.step(request.input());
    watch.tick();
    let explained = watch.explained_on(7, Some(GPU_A));
    assert_eq!((explained.used_bytes, explained.difference_bytes), (Some(518 * MIB), Some(0)), "the one before");
    assert_eq!(explained.live_bytes, 582 * MIB);
}

#[test]
fn rm_losses_withdraw_trust_but_keep_call_numbers_exact() {
    let losses =
        [(Loss::RmRecordLost, Reason::Lost), (Loss::RmUnreadable, Reason::Lost), (Loss::RmLayout, Reason::Layout)];
    for (loss, reason) in losses {
        let mut watch = trusted();
        watch.calls(on_gpu_a(7)).calls([mem_alloc(0xd0, 100).process(7)]).lost(Some(7), loss, 1);
        let process = watch.running(7);
        assert!(process.exact && process.losses.is_empty(), "{loss:?}");
        assert_eq!(watch.believed(7), None, "{loss:?}");
        assert_eq!(watch.trust(7), LedgerTrust::Refused(reason), "{loss:?}");
        assert_eq!(watch.explained_on(7, Some(GPU_A)).live_bytes, 518 * MIB, "no other number");
    }
}

#[test]
fn a_request_that_breaks_a_rule_refuses_its_process_and_no_other() {
    let broken = [
        (Rm::new(0x2b, 56), Reason::Layout),
        (video(NEWEST, (CLIENT, DEVICE, 0x99), MIB + 1, MIB), Reason::Contradictory),
        (video(NEWEST, (CLIENT, DEVICE, 0x99), 1 << 40, 1 << 40), Reason::Contradictory),
        (video(NEWEST, (CLIENT, 0x14, 0x99), MIB, MIB), Reason::Contradictory),
        (video(NEWEST, (0xc1d0_0999, DEVICE, 0x99), MIB, MIB), Reason::NeverMade),
    ];
    for (request, reason) in broken {
        let mut watch = trusted();
        watch.starts(8).requests(8, begins(0xc1d0_0008, GPU_A)).requests(8, [context(0xc1d0_0008, 0x14, 518 * MIB)]);
        watch.requests(7, [request]).charged(3, [(7, 518 * MIB), (8, 518 * MIB)]);
        assert_eq!(
            (watch.trust(7), watch.trust(8)),
            (LedgerTrust::Refused(reason), LedgerTrust::Trusted),
            "{reason:?}"
        );
    }
}

#[test]
fn rm_older_bytes_are_trusted_once_another_process_proved_the_sums() {
    let mut watch = TestPipeline::begin();
    watch.driver("580.159.04").runs_already(9);
    watch.requests(9, [context(0xc1d0_0009, 0x20, 2 * MIB)]).charged(3, [(9, 900 * MIB)]);
    let older = watch.explained_on(9, Some(GPU_A));
    assert_eq!((older.older_bytes, older.difference_bytes), (Some(898 * MIB), Some(0)));
    assert_eq!(older.trust, LedgerTrust::Settling, "any number would fit");
    watch.starts(7).requests(7, begins(CLIENT, GPU_A)).requests(7, [context(CLIENT, 0x14, 518 * MIB)]);
    watch.charged(2, [(7, 518 * MIB), (9, 900 * MIB)]);
    assert_eq!((watch.trust(7), watch.trust(9)), (LedgerTrust::Trusted, LedgerTrust::Trusted));
    watch.requests(9, [free(0xc1d0_0009, 0x77)]).charged(1, [(7, 518 * MIB), (9, 800 * MIB)]);
    let older = watch.explained_on(9, Some(GPU_A));
    assert_eq!((older.older_bytes, older.trust), (Some(798 * MIB), LedgerTrust::Settling), "some of that was freed");
}

#[test]
fn requests_of_a_forked_child_are_its_parents_and_end_with_it() {
    let mut watch = trusted();
    watch.requests(70, [context(CLIENT, 0x15, 2 * MIB)]);
    assert_eq!(watch.explained_on(7, Some(GPU_A)).live_bytes, 520 * MIB);
    watch.event(7, ProcessEvent::Exit);
    assert_eq!(watch.pipeline.state.explain(Tgid(7)), None);
    let ended = watch.ended(7).and_then(|ended| ended.explained_on(Some(&uuid(GPU_A))).cloned());
    assert_eq!(ended.map(|explained| explained.live_bytes), Some(520 * MIB), "what it had last");
}

#[test]
fn an_exec_leaves_nothing_of_the_image_before() {
    let mut watch = trusted();
    watch.event(7, ProcessEvent::Exec);
    assert_eq!(watch.pipeline.state.explain(Tgid(7)), None);
    watch.requests(7, begins(CLIENT, GPU_A)).requests(7, [context(CLIENT, 0x14, 2 * MIB)]);
    assert_eq!(watch.explained_on(7, Some(GPU_A)).live_bytes, 2 * MIB);
}

#[test]
fn memory_is_on_the_gpu_that_its_own_requests_name() {
    let mut watch = TestPipeline::begin();
    watch.driver("580.159.04").starts(7);
    let (one, other) = (CLIENT, CLIENT + 1);
    watch.requests(7, begins(one, GPU_A)).requests(7, [context(one, 0x14, 2 * MIB)]);
    watch.requests(7, begins(other, GPU_B)).requests(7, [context(other, 0x14, 4 * MIB)]);
    watch.reading(vec![device(GPU_A, 2 * MIB, [(7, 2 * MIB)]), device(GPU_B, 4 * MIB, [(7, 4 * MIB)])]).tick();
    let bytes = |watch: &TestPipeline, gpu| watch.explained_on(7, Some(gpu)).live_bytes;
    assert_eq!((bytes(&watch, GPU_A), bytes(&watch, GPU_B)), (2 * MIB, 4 * MIB));
    assert_eq!(watch.explained_on(7, Some(GPU_B)).difference_bytes, Some(0));

    watch.requests(7, [named(other, SUBDEVICE, [GPU_A; 16])]);
    let nowhere = watch.explained_on(7, None);
    assert_eq!(nowhere.live_bytes, 4 * MIB, "two names that differ name none");
}

#[test]
fn memory_in_a_mig_instance_is_that_instances() {
    let mut watch = TestPipeline::begin();
    watch.driver("580.159.04").starts(7).requests(7, begins(CLIENT, GPU_A));
    let instance = |gpu: u8, number| {
        let (parent_uuid, profile) = (uuid(GPU_A), Some("1g.10gb".to_owned()));
        let (gpu_instance_id, compute_instance_id) = (Some(number), Some(0));
        let mig = Some(MigFacts { parent_uuid, index: number, profile, gpu_instance_id, compute_instance_id });
        crate::input::DeviceFacts { mig, ..device(gpu, MIB, [(7, MIB)]) }
    };
    let subscribed = made(NEWEST, (CLIENT, SUBDEVICE, 0x5c00_0004), 0xc637).param(8, 9);
    watch.requests(7, [subscribed, context(CLIENT, 0x14, 2 * MIB)]);
    watch.reading(vec![instance(0x11, 7), instance(0x12, 9)]);
    assert_eq!(watch.explained_on(7, Some(0x12)).live_bytes, 2 * MIB);
    assert_eq!(watch.explained_on(7, Some(0x11)).live_bytes, 0);
}

#[test]
fn rm_columns_split_granted_bytes_into_requested_slack_and_rounding() {
    let mut watch = trusted();
    let slab = video(NEWEST, (CLIENT, DEVICE, 0x20), 2 * MIB - 4096, 2 * MIB).inside("cuMemAlloc_v2", 5);
    let physical = video(NEWEST, (CLIENT, DEVICE, 0x21), 4 * MIB, 4 * MIB).inside("cuMemCreate", 6);
    let unmapped_pool = video(NEWEST, (CLIENT, DEVICE, 0x22), 32 * MIB, 32 * MIB).inside("cuMemAllocAsync", 7);
    watch.requests(7, [slab, mapped((CLIENT, 0x20), 0x7000_0000, 2 * MIB), physical, unmapped_pool]);
    let requests = [mem_alloc(0x7000_0000, 4096), mem_alloc(0x7000_1000, MIB), mem_alloc(0x9000_0000, 77)];
    watch.calls(on_gpu_a(7)).calls(requests.map(|call| call.process(7)));
    let columns = |watch: &TestPipeline| watch.explained_on(7, Some(GPU_A)).columns;
    let all = columns(&watch);
    assert_eq!((all.requested_bytes, all.rounding_bytes), (4096 + MIB + 4 * MIB, 4096));
    assert_eq!(all.slack_bytes, 2 * MIB - 4096 - 4096 - MIB);
    assert_eq!((all.unplaced_bytes, all.driver_bytes), (32 * MIB, 518 * MIB));
    let pieces = watch.explained_on(7, Some(GPU_A)).pieces;
    let rows: Vec<_> = pieces.iter().map(|piece| (piece.granted_bytes / MIB, piece.used, piece.address)).collect();
    let used = |requested_bytes, slack_bytes, rounding_bytes| UsedView { requested_bytes, slack_bytes, rounding_bytes };
    let slab = used(4096 + MIB, MIB - 3 * 4096 + 4096, 4096);
    let rows_expected =
        [(518, None, None), (32, None, None), (4, Some(used(4 * MIB, 0, 0)), None), (2, Some(slab), Some(0x7000_0000))];
    assert_eq!(rows, rows_expected);
    watch.requests(7, [unmapped(34, 0x7000_0000, 0)]);
    assert_eq!(columns(&watch).unplaced_bytes, 34 * MIB);
}

#[test]
fn rm_equal_objects_share_a_row_and_only_the_largest_rows_are_kept() {
    let mut watch = trusted();
    let object = |number, mib: u64| video(NEWEST, (CLIENT, DEVICE, number), mib * MIB, mib * MIB);
    let alike = (0x100..0x110).map(|number| object(number, 8));
    let all_sizes = (1..=80).map(|mib| object(0x200 + u32::try_from(mib).expect("few"), mib));
    watch.requests(7, alike.chain(all_sizes).map(|rm| rm.inside("cuMemAlloc_v2", 5)));
    let pieces = watch.explained_on(7, Some(GPU_A)).pieces;
    assert_eq!(pieces.len(), PIECES_KEPT);
    let row = |mib: u64| pieces.iter().find(|piece| piece.granted_bytes == mib * MIB).map(|piece| piece.objects);
    assert_eq!((row(518), row(8), row(80), row(1)), (Some(1), Some(17), Some(1), None));
}

#[test]
fn rm_mapping_uses_the_layout_that_matches_unless_both_do() {
    let columns = |rm: Rm| {
        let mut watch = trusted();
        let object = |object| video(NEWEST, (CLIENT, DEVICE, object), 2 * MIB, 2 * MIB).inside("cuMemAlloc_v2", 5);
        watch.requests(7, [object(0x20), object(0x21), rm]);
        watch.calls(on_gpu_a(7)).calls([mem_alloc(0x7000_0000, 4096).process(7)]);
        let columns = watch.explained_on(7, Some(GPU_A)).columns;
        (columns.requested_bytes, columns.unplaced_bytes)
    };
    let older = || Rm::new(33, 0).long(0, 0x7000_0000).long(8, 2 * MIB).word(24, CLIENT).word(28, 0x20);
    assert_eq!(columns(mapped((CLIENT, 0x20), 0x7000_0000, 2 * MIB)), (4096, 2 * MIB));
    assert_eq!(columns(older()), (4096, 2 * MIB));
    assert_eq!(columns(older().word(32, CLIENT).word(36, 0x999)), (4096, 2 * MIB));
    assert_eq!(columns(older().word(32, CLIENT).word(36, 0x21)), (0, 4 * MIB), "both could be meant");
    assert_eq!(columns(mapped((CLIENT, 0x999), 0x7000_0000, 2 * MIB)), (0, 4 * MIB));
}

#[test]
fn rm_repeatedly_duplicated_memory_is_inherited_by_the_last_holder() {
    let mut watch = trusted();
    let other = 0xc1d0_0008;
    watch.starts(8).requests(8, begins(other, GPU_A));
    for object in 0x100..0x300 {
        watch.requests(8, [duplicate((other, DEVICE, object), (CLIENT, 0x14)), free(other, object)]);
    }
    watch.requests(8, [duplicate((other, DEVICE, 0x30), (CLIENT, 0x14))]).event(7, ProcessEvent::Exit);
    assert_eq!((watch.explained_on(8, Some(GPU_A)).live_bytes, watch.explain(8).imported), (518 * MIB, 0));
}

#[test]
fn an_object_under_the_name_of_one_that_lives_takes_its_place() {
    let mut watch = trusted();
    watch.requests(7, [context(CLIENT, 0x14, 2 * MIB)]);
    let explained = watch.explain(7);
    assert_eq!((explained.gpus[0].live_bytes, explained.reused), (2 * MIB, 1));
    watch.requests(7, [client(NEWEST, CLIENT)]);
    assert_eq!((watch.explain(7).gpus[0].live_bytes, watch.explain(7).reused), (0, 2));
}

#[test]
fn gpu_memory_charged_to_no_process_is_the_remainder_row() {
    let mut watch = trusted();
    watch.reading(vec![device(GPU_A, 530 * MIB, [(7, 518 * MIB)])]);
    let remainder = |watch: &TestPipeline| watch.pipeline.snapshot().gpus[0].remainder;
    assert_eq!(remainder(&watch), Some(RemainderView { bytes: 12 << 20, has_managed: false }));
    watch.calls(on_gpu_a(7)).calls([mem_alloc_managed(0xe0, 100).process(7)]);
    assert!(remainder(&watch).is_some_and(|rest| rest.has_managed));
    let unlisted = crate::input::DeviceFacts { processes: None, ..device(GPU_A, 1, []) };
    watch.reading(vec![unlisted]);
    assert_eq!(remainder(&watch), None, "what is not known is not 0");
}

#[test]
fn rm_importer_is_charged_once_the_exporter_has_ended() {
    let mut watch = trusted();
    let other = 0xc1d0_0008;
    watch.starts(8).requests(8, begins(other, GPU_A)).requests(8, [context(other, 0x14, 2 * MIB)]);
    watch.requests(8, [duplicate((other, DEVICE, 0x30), (CLIENT, 0x14))]);
    watch.charged(2, [(7, 518 * MIB), (8, 2 * MIB)]);
    assert_eq!((watch.explain(8).imported, watch.trust(8)), (1, LedgerTrust::Trusted));
    watch.event(7, ProcessEvent::Exit).charged(1, [(8, 520 * MIB)]);
    let heir = watch.explained_on(8, Some(GPU_A));
    assert_eq!((heir.live_bytes, heir.difference_bytes), (520 * MIB, Some(0)));
    assert!(watch.now_ns > ATTACHED_NS + SECOND_NS);
}

/// Returns a process that has exited and left forked children, one of which has called exec.
fn left_by_its_end() -> TestPipeline {
    let mut watch = trusted();
    for child in [8, 9] {
        let (kind, time_ns) = (RecordKind::Process as u8, watch.later());
        let event = ProcessEvent::Fork as u8;
        let record = ProcessRecord { kind, event, tgid: child, parent_tgid: 7, time_ns, ..ProcessRecord::default() };
        watch.pipeline.step(Input::Record(RingRecord::Process(record)));
    }
    watch.event(8, ProcessEvent::Exec).event(7, ProcessEvent::Exit);
    watch
}

#[test]
fn nvml_charge_of_an_ended_process_is_attributed_to_its_forked_child() {
    let mut watch = left_by_its_end();
    watch.charged(1, [(7, 518 * MIB)]);
    assert_eq!(watch.ended(7).and_then(|ended| ended.left_behind), None, "its files may not be closed yet");
    watch.charged(30, [(7, 518 * MIB)]);
    let ended = watch.ended(7).expect("it is remembered as long as it is charged");
    let left = ended.left_behind.expect("it is charged");
    assert_eq!(left.forked, [Tgid(9)], "the other is another program");
    assert_eq!(left.gpus, [LeftOnGpu { uuid: uuid(GPU_A), used_bytes: 518 * MIB }]);
    let on_gpu = &ended.gpus[0];
    let numbers = (on_gpu.used_bytes, on_gpu.attributed_bytes, on_gpu.unattributed_bytes);
    assert_eq!(numbers, (Some(518 * MIB), 518 * MIB, Some(0)), "its row has what is left of it");
    let explained = ended.explained.expect("what it had last");
    assert_eq!(explained.gpus[0].live_bytes, 518 * MIB);
    watch.charged(1, []).ticks(1);
    assert_eq!(watch.ended(7), None);
}

#[test]
fn left_behind_memory_is_reported_when_it_is_first_seen_and_when_it_is_gone() {
    let mut watch = left_by_its_end();
    watch.pipeline.watch_left_behind();
    watch.charged(1, [(7, 518 * MIB)]);
    assert_eq!(watch.pipeline.take_left_behind_changes(), [], "its files may not be closed yet");
    watch.charged(30, [(7, 518 * MIB)]);
    let [seen] = &watch.pipeline.take_left_behind_changes()[..] else { panic!("it is reported once") };
    assert_eq!((seen.process.tgid, seen.is_gone, seen.is_exit_seen), (Tgid(7), false, true));
    let [gpu] = &seen.gpus[..] else { panic!("it has memory on one GPU") };
    assert_eq!((&gpu.uuid, &*gpu.number, gpu.used_bytes), (&uuid(GPU_A), "0", 518 * MIB));
    assert_eq!((&seen.forked[..], seen.since_ns), (&[Tgid(9)][..], seen.time_ns));
    watch.charged(1, [(7, 100 * MIB)]);
    // A GPU that gives no list says nothing.
    let mut silent = device(GPU_A, 100 * MIB, []);
    silent.processes = None;
    watch.reading(vec![silent]).tick();
    assert_eq!(watch.pipeline.take_left_behind_changes(), []);
    watch.charged(2, []);
    let [gone] = &watch.pipeline.take_left_behind_changes()[..] else { panic!("it is reported once") };
    assert_eq!((gone.is_gone, gone.gpus[0].used_bytes, gone.since_ns), (true, 100 * MIB, seen.since_ns));
    assert!(gone.time_ns > seen.time_ns);
}

#[test]
fn left_behind_memory_of_a_reused_pid_is_gone() {
    let mut watch = left_by_its_end();
    watch.pipeline.watch_left_behind();
    watch.charged(30, [(7, 518 * MIB)]);
    watch.starts(7).charged(1, [(7, 20 * MIB)]);
    let changes = watch.pipeline.take_left_behind_changes();
    assert_eq!(changes.iter().map(|change| change.is_gone).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn left_behind_memory_is_shown_to_its_user_without_processes_of_others() {
    let mut watch = left_by_its_end();
    watch.pipeline.watch_left_behind();
    watch.charged(30, [(7, 518 * MIB)]);
    let mut seen = watch.pipeline.take_left_behind_changes().remove(0);
    assert_eq!(seen.observed_by(Viewer::User(1000)), None, "its user is not known");
    seen.process.uid = Some(1000);
    assert_eq!(seen.observed_by(Viewer::User(1001)), None);
    assert_eq!(seen.observed_by(Viewer::User(1000)).expect("it is the user's").forked, []);
    assert_eq!(seen.observed_by(Viewer::Everything).expect("all is shown").forked, [Tgid(9)]);
}

#[test]
fn main_thread_end_is_reported_while_other_threads_run() {
    let mut watch = trusted();
    let is_reported =
        |watch: &TestPipeline| watch.pipeline.state.process(Tgid(7)).expect("it is there").main_thread_ended;
    assert!(!is_reported(&watch));
    for tid in [8, 7] {
        let (kind, event, time_ns) = (RecordKind::Process as u8, ProcessEvent::ThreadEnd as u8, watch.later());
        let record = ProcessRecord { kind, event, tgid: 7, parent_tgid: tid, time_ns, ..ProcessRecord::default() };
        watch.pipeline.step(Input::Record(RingRecord::Process(record)));
        assert_eq!(is_reported(&watch), tid == 7);
    }
    watch.event(7, ProcessEvent::Exit).charged(30, [(7, 518 * MIB)]);
    assert!(!watch.ended(7).expect("it is charged").main_thread_ended, "all of it has ended");
}

#[test]
fn reused_pid_is_not_reported_as_left_behind() {
    let mut watch = left_by_its_end();
    watch.ticks(3).starts(7).charged(1, [(7, 518 * MIB)]);
    assert_eq!(watch.ended(7).and_then(|ended| ended.left_behind), None);
}
