//! The whole pipeline on short stories: inputs in, snapshot out.

use memwatch_common::loss::Loss;
use memwatch_common::record::{ProcessEvent, ProcessRecord, RecordKind, RingRecord};

use crate::decode::TensorEvent;
use crate::input::held_names::{HeldGroup, HeldNames};
use crate::input::holdings::HoldingClass;
use crate::input::{DeviceFacts, DeviceReading, Input, NvmlState, ProcessFacts, ProcessUse, Sensors};
use crate::pipeline::Pipeline;
use crate::snapshot::{GpuView, ProcessGpuView, ProcessView, Snapshot};
use crate::state::event::{Detector, Event};
use crate::test_calls::*;
use crate::words::{GpuUuid, Ordinal, Tgid};

mod churn;
mod excerpt;
mod growth;
mod kernel_driver;
mod levels;
mod lifetime;
mod peaks;
mod profile;
mod properties;
mod refused;
mod resumed;
mod room;
mod state;
mod switching;
mod tensors;
mod timeline;
mod viewer;
mod window;
mod workloads;

const SECOND_NS: u64 = 1_000_000_000;

/// Passes an event of a caching allocator to the log of failures alone.
fn show(pipeline: &mut Pipeline, event: &TensorEvent) {
    if let Some(ooms) = &mut pipeline.detectors.ooms {
        ooms.on(&Event::Tensor(event), &pipeline.state);
    }
}

/// A reading of process 7 with this much memory in a list, in blocks of 1 MiB.
fn names(time_ns: u64, bytes: u64) -> HeldNames {
    let group = HeldGroup {
        ordinal: Ordinal(0),
        class: HoldingClass::Tensor,
        is_kv_cache: false,
        name: Some("kept[*]".to_owned()),
        kept_by: None,
        dtype: None,
        bytes,
        blocks: bytes >> 20,
    };
    HeldNames { tgid: Tgid(7), time_ns, groups: vec![group], ..HeldNames::default() }
}

const ATTACHED_NS: u64 = 100 * SECOND_NS;
/// Byte that is repeated sixteen times in a GPU's UUID.
const GPU_A: u8 = 0xaa;
const GPU_B: u8 = 0xbb;

fn uuid(gpu: u8) -> GpuUuid {
    GpuUuid::from_bytes([gpu; 16])
}

/// An attached pipeline. Each input comes a millisecond after the previous one unless it sets its
/// time.
struct TestPipeline {
    pipeline: Pipeline,
    now_ns: u64,
}

impl TestPipeline {
    fn begin() -> Self {
        Self::of(Pipeline::new(false))
    }

    fn of(mut pipeline: Pipeline) -> Self {
        pipeline.step(Input::Attached { time_ns: ATTACHED_NS });
        Self { pipeline, now_ns: ATTACHED_NS }
    }

    fn later(&mut self) -> u64 {
        self.now_ns += 1_000_000;
        self.now_ns
    }

    /// Adds a process that started before memwatch.
    fn runs_already(&mut self, tgid: u32) -> &mut Self {
        self.process(tgid, ATTACHED_NS - 50 * SECOND_NS)
    }

    /// Adds a process seen from its start.
    fn starts(&mut self, tgid: u32) -> &mut Self {
        let start_ns = self.later();
        self.process(tgid, start_ns)
    }

    fn process(&mut self, tgid: u32, start_ns: u64) -> &mut Self {
        let comm = format!("job{tgid}");
        self.pipeline.step(Input::Process(ProcessFacts { tgid, start_ns, comm, ..ProcessFacts::default() }));
        self
    }

    fn calls(&mut self, calls: impl IntoIterator<Item = TestCall>) -> &mut Self {
        for call in calls {
            let entered_ns = self.later();
            self.pipeline.step(call.at(entered_ns, entered_ns + 1000).input());
        }
        self
    }

    fn event(&mut self, tgid: u32, event: ProcessEvent) -> &mut Self {
        let (kind, time_ns) = (RecordKind::Process as u8, self.later());
        let record = ProcessRecord { kind, event: event as u8, tgid, time_ns, ..ProcessRecord::default() };
        self.pipeline.step(Input::Record(RingRecord::Process(record)));
        self
    }

    fn reading(&mut self, devices: Vec<DeviceFacts>) -> &mut Self {
        let (begin_ns, end_ns) = (self.later(), self.later());
        self.pipeline.step(Input::Devices(DeviceReading { begin_ns, end_ns, state: NvmlState::Ok, devices }));
        self
    }

    fn lost(&mut self, tgid: Option<u32>, loss: Loss, count: u64) -> &mut Self {
        self.pipeline.step(Input::Lost { tgid: tgid.map(Tgid), loss, count });
        self
    }

    fn tick(&mut self) -> &mut Self {
        self.now_ns += SECOND_NS;
        self.pipeline.step(Input::Tick { time_ns: self.now_ns });
        self
    }

    fn ticks(&mut self, seconds: usize) -> &mut Self {
        (0..seconds).for_each(|_| {
            self.tick();
        });
        self
    }

    fn snapshot(&self) -> Snapshot {
        self.pipeline.snapshot()
    }

    /// Returns the running process with this id.
    fn running(&self, tgid: u32) -> ProcessView {
        let all = self.snapshot().processes.into_iter();
        all.filter(|process| process.ended_ns.is_none()).find(|process| process.tgid == Tgid(tgid)).expect("it runs")
    }

    fn ended(&self, tgid: u32) -> Option<ProcessView> {
        let all = self.snapshot().processes.into_iter();
        all.filter(|process| process.ended_ns.is_some()).find(|process| process.tgid == Tgid(tgid))
    }

    fn gpu(&self, gpu: u8) -> GpuView {
        self.snapshot().gpus.into_iter().find(|view| view.uuid == uuid(gpu)).expect("NVML lists it")
    }

    /// Returns the process's row for this GPU, if it has one.
    fn on(&self, tgid: u32, gpu: Option<u8>) -> Option<ProcessGpuView> {
        self.running(tgid).gpus.into_iter().find(|view| view.uuid == gpu.map(uuid))
    }
}

/// Returns a device in a reading, with the bytes of each process on it.
fn device<const N: usize>(gpu: u8, used_bytes: u64, processes: [(u32, u64); N]) -> DeviceFacts {
    let entry = |(tgid, bytes)| ProcessUse { tgid: Tgid(tgid), used_bytes: Some(bytes), mps_client: false };
    DeviceFacts {
        uuid: uuid(gpu),
        nvml_index: u32::from(gpu == GPU_B),
        name: "NVIDIA H100".to_owned(),
        pci_bus_id: None,
        mig: None,
        total_bytes: Some(80 << 30),
        used_bytes: Some(used_bytes),
        processes: Some(processes.map(entry).to_vec()),
        cores: None,
        sensors: Sensors::default(),
    }
}

/// Returns the runtime's first calls in a process that sees GPU A as its device 0.
fn on_gpu_a(tgid: u32) -> [TestCall; 3] {
    [device_get_uuid(0, GPU_A), primary_ctx_retain(0xc0, 0), ctx_set_current(0xc0)].map(|call| call.process(tgid))
}

#[test]
fn late_attach_reports_older_memory_from_nvml_and_deducts_its_frees() {
    let mut watch = TestPipeline::begin();
    watch.runs_already(7).calls([mem_alloc(0xd1, 300).process(7)]);
    watch.reading(vec![device(GPU_A, 2000, [(7, 1500)])]);
    let on_it = watch.on(7, Some(GPU_A)).expect("NVML lists it");
    assert_eq!((on_it.used_bytes, on_it.live_bytes, on_it.unattributed_bytes), (Some(1500), 300, Some(1200)));
    assert_eq!((on_it.preexisting_bytes, on_it.preexisting_includes_context), (Some(1200), true));

    watch.calls([mem_free(0xe0).process(7)]).reading(vec![device(GPU_A, 1600, [(7, 1100)])]);
    let on_it = watch.on(7, Some(GPU_A)).expect("NVML lists it");
    assert_eq!((on_it.preexisting_bytes, on_it.unattributed_bytes), (Some(800), Some(800)));
    assert_eq!(watch.running(7).unknown_frees, 1);

    watch.calls([mem_alloc(0xd2, 500).process(7)]).reading(vec![device(GPU_A, 2100, [(7, 1600)])]);
    let on_it = watch.on(7, Some(GPU_A)).expect("NVML lists it");
    assert_eq!((on_it.preexisting_bytes, on_it.live_bytes), (Some(800), 800), "new memory is not older");
    assert!(!watch.running(7).from_start && watch.running(7).exact);
}

#[test]
fn preexisting_bytes_are_unknown_before_the_first_nvml_reading() {
    let mut watch = TestPipeline::begin();
    watch.runs_already(7).calls([mem_alloc(0xd1, 300).process(7)]);
    let row = watch.on(7, None).expect("it has allocated");
    assert_eq!((row.preexisting_bytes, row.used_bytes, row.unattributed_bytes), (None, None, None));
}

#[test]
fn a_reading_begun_before_the_attach_is_shown_but_teaches_nothing() {
    let mut watch = TestPipeline::begin();
    let devices = vec![device(GPU_A, 2000, [(7, 1500)])];
    let (begin_ns, end_ns) = (ATTACHED_NS - 1, ATTACHED_NS + 1);
    watch.runs_already(7).pipeline.step(Input::Devices(DeviceReading {
        begin_ns,
        end_ns,
        state: NvmlState::Ok,
        devices,
    }));
    let row = watch.on(7, Some(GPU_A)).expect("NVML lists it");
    assert_eq!((row.used_bytes, row.preexisting_bytes), (Some(1500), None));
}

#[test]
fn a_busy_process_has_a_baseline_if_it_only_pauses_for_the_reading() {
    let mut watch = TestPipeline::begin();
    watch.runs_already(7).calls([mem_alloc(0xd1, 300).process(7)]);
    let (begin_ns, end_ns) = (watch.later(), watch.later());
    // The reading arrives after events that are later than it.
    watch.calls([mem_alloc(0xd2, 50).process(7), mem_free(0xd1).process(7)]);
    let devices = vec![device(GPU_A, 2000, [(7, 1500)])];
    watch.pipeline.step(Input::Devices(DeviceReading { begin_ns, end_ns, state: NvmlState::Ok, devices }));
    let row = watch.on(7, Some(GPU_A)).expect("NVML lists it");
    assert_eq!((row.preexisting_bytes, row.live_bytes), (Some(1200), 50));
}

#[test]
fn call_during_an_nvml_reading_voids_the_comparison_not_the_numbers() {
    let mut watch = TestPipeline::begin();
    watch.runs_already(7);
    let begin_ns = watch.later();
    watch.calls([mem_alloc(0xd1, 300).process(7)]);
    let end_ns = watch.later();
    let devices = vec![device(GPU_A, 2000, [(7, 1500)])];
    watch.pipeline.step(Input::Devices(DeviceReading { begin_ns, end_ns, state: NvmlState::Ok, devices }));
    let row = watch.on(7, Some(GPU_A)).expect("NVML lists it");
    assert_eq!((row.preexisting_bytes, row.live_bytes, row.used_bytes), (None, 300, Some(1500)));
}

#[test]
fn a_process_that_nvml_does_not_list_at_first_held_nothing_before() {
    let mut watch = TestPipeline::begin();
    watch.runs_already(7).reading(vec![device(GPU_A, 0, [])]);
    watch.calls(on_gpu_a(7)).calls([mem_alloc(0xd0, 100).process(7)]).reading(vec![device(GPU_A, 600, [(7, 600)])]);
    let row = watch.on(7, Some(GPU_A)).expect("it has allocated");
    assert_eq!((row.preexisting_bytes, row.unattributed_bytes), (Some(0), Some(500)));
}

#[test]
fn a_process_seen_from_its_start_teaches_the_size_of_a_context() {
    let mut watch = TestPipeline::begin();
    watch.runs_already(7).reading(vec![device(GPU_A, 1500, [(7, 1500)])]);
    watch.starts(8).calls(on_gpu_a(8)).calls([mem_alloc(0xd0, 100).process(8)]);
    watch.reading(vec![device(GPU_A, 2118, [(7, 1500), (8, 618)])]);
    assert_eq!(watch.gpu(GPU_A).context_bytes, Some(518));
    let (old, new) = (watch.on(7, Some(GPU_A)).expect("listed"), watch.on(8, Some(GPU_A)).expect("listed"));
    assert_eq!((old.preexisting_bytes, old.preexisting_includes_context), (Some(982), false));
    assert_eq!((new.preexisting_bytes, new.preexisting_includes_context), (Some(0), false));
}

#[test]
fn device_is_matched_to_the_gpu_uuid_the_program_queried() {
    let mut watch = TestPipeline::begin();
    watch.starts(7).calls([device_get_uuid(0, GPU_B).process(7), primary_ctx_retain(0xc0, 0).process(7)]);
    watch.calls([ctx_set_current(0xc0).process(7), mem_alloc(0xd0, 100).process(7)]);
    watch.reading(vec![device(GPU_A, 0, []), device(GPU_B, 600, [(7, 600)])]);
    assert_eq!(watch.on(7, Some(GPU_B)).map(|row| row.live_bytes), Some(100), "not the NVML index");
    assert_eq!((watch.gpu(GPU_A).live_bytes, watch.gpu(GPU_B).live_bytes), (0, 100));
}

#[test]
fn an_unknown_device_is_the_machines_only_gpu() {
    let mut watch = TestPipeline::begin();
    watch.runs_already(7).calls([mem_alloc(0xd0, 100).process(7)]).reading(vec![device(GPU_A, 600, [])]);
    assert_eq!(watch.on(7, Some(GPU_A)).map(|row| row.live_bytes), Some(100));
}

#[test]
fn an_unknown_device_is_the_one_gpu_that_lists_the_process() {
    let mut watch = TestPipeline::begin();
    watch.runs_already(7).calls([mem_alloc(0xd0, 100).process(7)]);
    watch.reading(vec![device(GPU_A, 9, [(8, 9)]), device(GPU_B, 600, [(7, 600)])]);
    assert_eq!(watch.on(7, Some(GPU_B)).map(|row| row.live_bytes), Some(100));
    assert_eq!(watch.running(7).gpus.len(), 1);
}

#[test]
fn device_without_a_known_uuid_is_listed_last() {
    let mut watch = TestPipeline::begin();
    watch.runs_already(7).calls([mem_alloc(0xd0, 100).process(7)]);
    watch.reading(vec![device(GPU_A, 600, [(7, 600)]), device(GPU_B, 700, [(7, 700)])]);
    let rows = watch.running(7).gpus;
    let shown: Vec<_> = rows.iter().map(|row| (row.uuid.clone(), row.live_bytes, row.used_bytes)).collect();
    assert_eq!(shown, [(Some(uuid(GPU_A)), 0, Some(600)), (Some(uuid(GPU_B)), 0, Some(700)), (None, 100, None)]);
    assert!(rows.iter().all(|row| row.preexisting_bytes.is_none()), "100 of either may be new");
}

#[test]
fn two_processes_on_one_gpu_are_added_up_there_and_apart_in_their_rows() {
    let mut watch = TestPipeline::begin();
    watch.starts(7).calls(on_gpu_a(7)).starts(8).calls(on_gpu_a(8));
    watch.calls([mem_alloc(0xd0, 100).process(7), mem_alloc(0xd0, 30).process(8), mem_free(0xd0).process(7)]);
    watch.calls([mem_alloc(0xd0, 5).process(7)]);
    watch.reading(vec![device(GPU_A, 1100, [(7, 505), (8, 530)])]);
    let row = |tgid| watch.on(tgid, Some(GPU_A)).map(|row| (row.live_bytes, row.peak_bytes, row.unattributed_bytes));
    assert_eq!((row(7), row(8)), (Some((5, 100, Some(500))), Some((30, 30, Some(500)))));
    let gpu = watch.gpu(GPU_A);
    assert_eq!((gpu.live_bytes, gpu.unattributed_bytes, gpu.unwatched_processes), (35, Some(1065), Some(0)));
}

#[test]
fn one_process_on_two_gpus_has_an_exact_peak_on_each() {
    let mut watch = TestPipeline::begin();
    watch
        .starts(7)
        .calls(on_gpu_a(7))
        .calls([device_get_uuid(1, GPU_B).process(7), primary_ctx_retain(0xc1, 1).process(7)]);
    watch.calls(
        [
            mem_alloc(0xd0, 100),
            mem_free(0xd0),
            ctx_set_current(0xc1),
            mem_alloc(0xd1, 70),
            mem_alloc(0xd2, 1),
            mem_free(0xd1),
        ]
        .map(|call| call.process(7)),
    );
    watch.calls([mem_create(0x40, 7, (1, 0)).process(7)]);
    watch.reading(vec![device(GPU_A, 600, [(7, 600)]), device(GPU_B, 700, [(7, 700)])]);
    let row = |gpu| watch.on(7, Some(gpu)).map(|row| (row.live_bytes, row.peak_bytes));
    assert_eq!((row(GPU_A), row(GPU_B)), (Some((7, 100)), Some((1, 71))));
    assert_eq!((watch.gpu(GPU_A).context_bytes, watch.gpu(GPU_B).context_bytes), (Some(593), Some(699)));
}

#[test]
fn two_names_of_one_gpu_have_one_row_with_the_process_own_peak() {
    let mut watch = TestPipeline::begin();
    watch.runs_already(7).calls([mem_alloc(0xd0, 100).process(7), mem_free(0xd0).process(7)]);
    watch.calls(on_gpu_a(7)).calls([mem_alloc(0xd1, 30).process(7)]).reading(vec![device(GPU_A, 600, [(7, 600)])]);
    let row = watch.on(7, Some(GPU_A)).expect("it has allocated");
    assert_eq!(
        (row.live_bytes, row.peak_bytes, row.allocations),
        (30, 100, 2),
        "not 130: the names never peaked together"
    );
    assert_eq!(watch.running(7).gpus.len(), 1);
}

#[test]
fn kinds_are_named_and_those_never_seen_left_out() {
    let mut watch = TestPipeline::begin();
    watch.starts(7).calls(on_gpu_a(7)).calls(
        [mem_alloc_managed(0xd0, 1), mem_alloc_async(0xd1, 2), array_create(0xa0, 4), mem_host_alloc(0xd2, 8)]
            .map(|call| call.process(7)),
    );
    watch.calls([mem_host_register(0xd3, 16).process(7), mem_create(0x40, 32, (ON_HOST, 0)).process(7)]);
    watch.reading(vec![device(GPU_A, 600, [(7, 600)])]);
    let row = watch.on(7, Some(GPU_A)).expect("it has allocated");
    let kinds: Vec<_> = row.kinds.iter().map(|(name, kind)| (name.as_ref(), kind.live_bytes, kind.estimated)).collect();
    assert_eq!(kinds, [("array", 4, true), ("managed", 1, false), ("pool", 2, false)]);
    assert_eq!(row.live_bytes, 6, "managed pages may be anywhere");
    let host = watch.running(7).host;
    assert_eq!((host.pinned_live_bytes, host.registered_live_bytes, host.physical_live_bytes), (8, 16, 32));
}

#[test]
fn a_refused_allocation_is_shown_with_the_gpu_it_asked_on() {
    let mut watch = TestPipeline::begin();
    watch.starts(7).calls(on_gpu_a(7)).calls([mem_alloc(0, 90 << 30).process(7).failing(OUT_OF_MEMORY)]);
    watch.calls([mem_host_alloc(0, 5).process(7).failing(OUT_OF_MEMORY)]);
    watch.reading(vec![device(GPU_A, 600, [(7, 600)]), device(GPU_B, 0, [])]);
    let shown: Vec<_> = watch.running(7).failures.into_iter().map(|kept| (kept.requested_bytes, kept.uuid)).collect();
    assert_eq!(shown, [(90 << 30, Some(uuid(GPU_A))), (5, None)]);
    assert_eq!(watch.on(7, Some(GPU_A)).map(|row| row.failed_allocations), Some(1));
}

#[test]
fn memory_probe_statuses_are_not_failed_allocations() {
    let mut watch = TestPipeline::begin();
    watch.starts(7).calls(on_gpu_a(7)).calls([201, 800, 801].map(|status| mem_alloc(0, 1).process(7).failing(status)));
    watch.calls([mem_create(0, 2 << 20, (ON_DEVICE, 0)).process(7).failing(800)]);
    watch.reading(vec![device(GPU_A, 600, [(7, 600)])]);
    assert_eq!(watch.on(7, Some(GPU_A)).map(|row| row.failed_allocations), Some(0));
    assert_eq!(watch.running(7).failures.len(), 0);
}

#[test]
fn call_rates_are_per_second_between_ticks() {
    let mut watch = TestPipeline::begin();
    watch.starts(7).calls(on_gpu_a(7)).tick();
    assert_eq!(watch.running(7).allocations_per_second, None);
    watch.calls([mem_alloc(0xd0, 1), mem_alloc(0xd1, 1), mem_free(0xd0)].map(|call| call.process(7)));
    watch.now_ns -= 3_000_000;
    watch.tick();
    for _ in 0..2 {
        let seen = watch.running(7);
        assert_eq!((seen.allocations_per_second, seen.frees_per_second), (Some(2.0), Some(1.0)));
    }
    watch.tick();
    assert_eq!(watch.running(7).allocations_per_second, Some(0.0));
}

#[test]
fn unwatched_processes_on_a_gpu_are_counted_without_ended_ones() {
    let mut watch = TestPipeline::begin();
    watch.runs_already(7).starts(8).event(8, ProcessEvent::Exit).reading(vec![device(
        GPU_A,
        9,
        [(7, 1), (8, 2), (9, 3), (10, 3)],
    )]);
    let gpu = watch.gpu(GPU_A);
    assert_eq!((gpu.unwatched_processes, gpu.unwatched_bytes), (Some(2), Some(6)));
    let sensors = Sensors { utilization_percent: Some(97), ..Sensors::default() };
    let mut silent = DeviceFacts { sensors, ..device(GPU_A, 9, [(9, 3), (10, 3)]) };
    silent.processes.as_mut().expect("a list")[1].used_bytes = None;
    watch.reading(vec![silent]);
    let gpu = watch.gpu(GPU_A);
    assert_eq!((gpu.unwatched_processes, gpu.unwatched_bytes), (Some(2), None), "one of them has no number");
    assert_eq!(gpu.sensors, sensors);
    let unlisted = DeviceFacts { processes: None, ..device(GPU_A, 9, []) };
    watch.reading(vec![unlisted]);
    assert_eq!(watch.gpu(GPU_A).unwatched_processes, None, "no list says nothing");
}

#[test]
fn missing_nvml_leaves_used_bytes_unknown_and_the_ledger_intact() {
    let mut watch = TestPipeline::begin();
    watch.starts(7).calls(on_gpu_a(7)).calls([mem_alloc(0xd0, 100).process(7)]);
    let state = NvmlState::Unavailable("no driver is loaded".to_owned());
    let (begin_ns, end_ns) = (watch.later(), watch.later());
    let reading = DeviceReading { begin_ns, end_ns, state: state.clone(), devices: Vec::new() };
    watch.pipeline.step(Input::Devices(reading));
    let row = watch.on(7, Some(GPU_A)).expect("the program asked for its UUID");
    assert_eq!((row.live_bytes, row.used_bytes, row.unattributed_bytes), (100, None, None));
    assert_eq!((watch.snapshot().nvml, watch.snapshot().gpus), (state, vec![]));
}

#[test]
fn nvml_without_bytes_of_a_process_leaves_them_unknown() {
    let mut watch = TestPipeline::begin();
    let mut facts = device(GPU_A, 600, [(7, 0)]);
    facts.processes = Some(vec![ProcessUse { tgid: Tgid(7), used_bytes: None, mps_client: false }]);
    watch.runs_already(7).reading(vec![facts]);
    let row = watch.on(7, Some(GPU_A)).expect("NVML lists it");
    assert_eq!((row.used_bytes, row.unattributed_bytes, row.preexisting_bytes), (None, None, None));
}

#[test]
fn less_used_than_live_is_shown_as_it_is() {
    let mut watch = TestPipeline::begin();
    watch.starts(7).calls(on_gpu_a(7)).calls([mem_alloc(0xd0, 100).process(7)]);
    watch.reading(vec![device(GPU_A, 60, [(7, 60)])]);
    assert_eq!(watch.on(7, Some(GPU_A)).and_then(|row| row.unattributed_bytes), Some(-40));
    assert_eq!(watch.gpu(GPU_A).unattributed_bytes, Some(0), "what is not confirmed is in no sum");
    assert_eq!(watch.gpu(GPU_A).context_bytes, None, "a negative remainder is no context");
}
