//! A failure for tests: PID 7 on a GPU of 80 GiB, of which PID 7 uses 70 GiB and PID 8 uses 2 GiB.

use super::view::{CacheView, OomView};
use crate::input::{DeviceFacts, DeviceReading, Input, NvmlState, ProcessFacts, ProcessUse, Sensors};
use crate::pipeline::Pipeline;
use crate::snapshot::{
    DeviceAttributionView, FailureView, PhaseView, PlaceNameView, Snapshot, SumView, TensorsView, WhoseView,
};
use crate::words::{Framework, GpuUuid, Tgid};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;
const NOW_NS: u64 = 100_000_000_000;

pub(crate) fn snapshot() -> Snapshot {
    let mut pipeline = Pipeline::new(false);
    pipeline.step(Input::Attached { time_ns: NOW_NS });
    for tgid in [7, 8] {
        let facts = ProcessFacts { tgid, start_ns: NOW_NS, comm: format!("job{tgid}"), ..ProcessFacts::default() };
        pipeline.step(Input::Process(ProcessFacts { command: format!("python3 job{tgid}.py"), ..facts }));
    }
    let entry = |(tgid, bytes)| ProcessUse { tgid: Tgid(tgid), used_bytes: Some(bytes), mps_client: false };
    let device = DeviceFacts {
        uuid: GpuUuid::from_bytes([0xaa; 16]),
        nvml_index: 0,
        name: "NVIDIA H100".to_owned(),
        pci_bus_id: None,
        mig: None,
        total_bytes: Some(80 * GIB),
        used_bytes: Some(72 * GIB),
        processes: Some([(7, 70 * GIB), (8, 2 * GIB)].map(entry).to_vec()),
        cores: None,
        sensors: Sensors::default(),
    };
    let reading =
        DeviceReading { begin_ns: NOW_NS + 1, end_ns: NOW_NS + 2, state: NvmlState::Ok, devices: vec![device] };
    pipeline.step(Input::Devices(reading));
    pipeline.snapshot()
}

/// A failed PyTorch request of this size that the driver refused.
pub(crate) fn failure(wanted_bytes: u64) -> OomView {
    let mut failure = unasked(wanted_bytes);
    let own = failure.snapshot.processes.iter_mut().find(|process| process.tgid == Tgid(7)).expect("it runs");
    own.failures.push(FailureView {
        time_ns: failure.time_ns,
        symbol: "cuMemAlloc_v2".into(),
        requested_bytes: wanted_bytes,
        status: 2,
        uuid: failure.uuid.clone(),
        is_retried: false,
    });
    failure
}

/// A failed PyTorch request of this size without a driver call.
pub(crate) fn unasked(wanted_bytes: u64) -> OomView {
    let snapshot = snapshot();
    OomView {
        time_ns: NOW_NS + 3,
        tgid: Tgid(7),
        level: "tensor".into(),
        framework: Some(Framework::PyTorch),
        device: Some(0),
        uuid: snapshot.gpus.first().map(|gpu| gpu.uuid.clone()),
        symbol: None,
        wanted_bytes,
        whose: None,
        cache: Some(CacheView { reserved_bytes: 69 * GIB, allocated_bytes: 68 * GIB, ..CacheView::default() }),
        more: 0,
        ended_ns: None,
        is_survived: false,
        exited_ns: None,
        refused: Vec::new(),
        names: Vec::new(),
        snapshot: Box::new(snapshot),
    }
}

/// Returns an attribution to this phase and call site.
pub(crate) fn whose(phase: &'static str, line: &str) -> WhoseView {
    let name =
        |kind: &'static str, name: Option<&str>| PlaceNameView { kind: kind.into(), name: name.map(str::to_owned) };
    WhoseView {
        phase: phase.into(),
        by: "frames".into(),
        step: 0,
        site: name("line", Some(line)),
        library: None,
        module: name("none", None),
    }
}

pub(crate) fn sum(live_bytes: u64, total_bytes: u64) -> SumView {
    SumView {
        live_bytes,
        peak_bytes: live_bytes,
        at_peak_bytes: live_bytes,
        total_bytes,
        allocations: 1,
        frees: 0,
        mean_lifetime_ns: None,
        longest_lifetime_ns: None,
        sampled: None,
        sampled_live: None,
        at_least: false,
    }
}

impl OomView {
    /// Adds tensors of PID 7 by phase, with their live and total bytes, and a number of steps.
    pub(crate) fn in_phases(mut self, steps: u64, phases: &[(&'static str, u64, u64)]) -> Self {
        let phase = |(phase, live, total): &(&'static str, u64, u64)| PhaseView {
            phase: (*phase).into(),
            recomputed: false,
            captured: false,
            sum: sum(*live, *total),
        };
        let live = phases.iter().map(|(_, live, _)| *live).sum();
        let mut tensors = TensorsView::default();
        tensors.attribution.steps = Some(steps);
        tensors.attribution.devices.push(DeviceAttributionView {
            device: 0,
            uuid: self.uuid.clone(),
            allocated_bytes: live,
            allocator_peak_bytes: None,
            unplaced_bytes: 0,
            total: sum(live, live),
            phases: phases.iter().map(phase).collect(),
            modules: Vec::new(),
            sites: Vec::new(),
            ranges: Vec::new(),
            stacks: Vec::new(),
            large: Vec::new(),
        });
        let own = self.snapshot.processes.iter_mut().find(|process| process.tgid == Tgid(7)).expect("it runs");
        own.tensors = Some(Box::new(tensors));
        self
    }
}
