//! Synthetic snapshots for the tests of the live view: a leaking PyTorch training next to other
//! processes on an H100, and a job of four ranks.

use std::collections::BTreeMap;

use memwatch_core::allocators::pytorch::Certainty;
use memwatch_core::features::forecast::view::{
    EndView, ForecastsView, GrowthView, OutlookView, ProcessForecastView, TimeRangeView,
};
use memwatch_core::features::holdings;
use memwatch_core::features::holdings::view::HoldingGrouping;
use memwatch_core::features::leak::model::Verdict;
use memwatch_core::features::leak::view::{LeakView, LeaksView};
use memwatch_core::input::Sensors;
use memwatch_core::input::holdings::{Holding, HoldingClass, Holdings};
use memwatch_core::owner::{Rank, SlurmJob};
use memwatch_core::snapshot::{
    AllocatorView, AttributionView, DeviceAttributionView, FrameView, KindView, ModuleView, OverheadView, PhaseView,
    PlaceNameView, ProcessView, RefusalView, SiteView, Snapshot, StackView, StatisticView, SumView, TensorsView,
    WhoseView,
};
use memwatch_core::words::{GpuUuid, Ordinal, Tgid};

use super::outlook::{Outlooks, ProcessObjects};
use super::state::ViewState;
use crate::render::fixture::{self, UUID_0, at};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Bytes that a line of the training allocates and keeps in each step.
const STEP: u64 = 126 * MIB;
/// Number of steps of the training. [`STEPS_PER_SECOND`] is their rate.
const STEPS: u64 = 215;
pub(crate) const STEPS_PER_SECOND: u64 = 3;

/// Returns a training that leaks in each step, and two untraced processes on the same GPU.
pub(crate) fn leaking_node() -> Snapshot {
    let mut snapshot = fixture::quiet_node();
    let gpu = &mut snapshot.gpus[0];
    let used = 28 * GIB + 922 * MIB;
    gpu.used_bytes = Some(31 * GIB - 100 * MIB);
    gpu.unwatched_processes = Some(2);
    gpu.unwatched_bytes = Some(2 * GIB);
    gpu.sensors = Sensors {
        utilization_percent: Some(97),
        temperature_celsius: Some(62),
        power_milliwatts: Some(512_300),
        power_limit_milliwatts: Some(700_000),
    };
    let process = &mut snapshot.processes[0];
    process.command = "/usr/bin/python3 train_leak.py".to_owned();
    process.user = Some("root".to_owned());
    process.start_ns = Some(at(14, 2, 12));
    process.failures.clear();
    process.overhead =
        Some(OverheadView { events: 9, total_ns: 9, ns_per_second: Some(17_000_000), stacks_left_out: 0 });
    let row = &mut process.gpus[0];
    row.used_bytes = Some(used);
    row.live_bytes = used - 543 * MIB;
    row.peak_bytes = row.live_bytes + 64 * MIB;
    row.attributed_bytes = row.live_bytes;
    row.unattributed_bytes = Some((543 * MIB).cast_signed());
    row.refusals.clear();
    row.failed_allocations = 0;
    row.kinds = BTreeMap::from([("device".into(), kind(row.live_bytes, row.peak_bytes))]);
    let (live, accounted) = (row.live_bytes, row.attributed_bytes);
    process.tensors = Some(Box::new(TensorsView {
        allocators: vec![allocator(live - 64 * MIB)],
        attribution: places(),
        ..TensorsView::default()
    }));
    let gpu = &mut snapshot.gpus[0];
    (gpu.live_bytes, gpu.attributed_bytes) = (live, accounted);
    gpu.unattributed_bytes = gpu.used_bytes.map(|used| used.cast_signed() - accounted.cast_signed());
    snapshot
}

fn kind(live_bytes: u64, peak_bytes: u64) -> KindView {
    KindView {
        live_bytes,
        peak_bytes,
        total_bytes: peak_bytes,
        allocations: 241,
        frees: 12,
        estimated: false,
        backed_bytes: None,
        backed_estimated: false,
    }
}

fn allocator(reserved: u64) -> AllocatorView {
    let allocated = reserved - 113 * MIB;
    let statistic =
        |bytes: u64| StatisticView { value: Some(bytes.cast_signed()), certainty: Certainty::Exact, reason: None };
    AllocatorView {
        device: 0,
        uuid: Some(GpuUuid::new(UUID_0)),
        allocated_bytes: Some(allocated),
        reserved_bytes: Some(reserved),
        cached_bytes: Some(reserved - allocated),
        peak_cached_bytes: reserved - allocated,
        peaks_begun_ns: None,
        preexisting_bytes: Some(0),
        known_block_bytes: allocated,
        rounding_bytes: Some(0),
        inactive_split_bytes: Some(0),
        waste_bytes: Some(0),
        cache_hits: 9,
        cache_misses: 1,
        hit_rate: Some(0.9),
        observed_by: "trace".into(),
        counted_from: "start".into(),
        readout_ns: None,
        out_of_step: 0,
        refused_readouts: 0,
        statistics: BTreeMap::from([
            ("reserved_bytes.all.peak".into(), statistic(reserved + 64 * MIB)),
            ("allocated_bytes.all.peak".into(), statistic(allocated + 190 * MIB)),
        ]),
    }
}

fn sum(live_bytes: u64, peak_bytes: u64, blocks: u64) -> SumView {
    SumView {
        live_bytes,
        peak_bytes,
        at_peak_bytes: peak_bytes,
        total_bytes: peak_bytes,
        allocations: blocks + 7,
        frees: 7,
        mean_lifetime_ns: None,
        longest_lifetime_ns: None,
        sampled: None,
        sampled_live: None,
        at_least: false,
    }
}

fn site(kind: &str, line: u32, function: &str, sum: SumView) -> SiteView {
    SiteView {
        kind: kind.to_owned().into(),
        file: Some("train_leak.py".to_owned()),
        line: Some(line),
        function: Some(function.to_owned()),
        held: None,
        library_lines: Vec::new(),
        sum,
    }
}

fn places() -> AttributionView {
    let kept = STEPS * STEP;
    let phase =
        |phase: &str, sum| PhaseView { phase: phase.to_owned().into(), recomputed: false, captured: false, sum };
    let module = |name: &str, class: &str, sum| ModuleView {
        kind: "module".into(),
        model: Some("Net".to_owned()),
        name: Some(name.to_owned()),
        class: Some(class.to_owned()),
        sum,
        phases: BTreeMap::new(),
        host_duration_ns: None,
        rounding_bytes: None,
        total_rounding_bytes: None,
        nearby_split_bytes: None,
    };
    let leaking = sum(kept, kept, STEPS);
    let weights = sum(GIB + 307 * MIB, GIB + 717 * MIB, 38);
    let backward = sum(STEP, 2 * STEP, 1);
    let total = sum(kept + GIB + 307 * MIB + STEP, kept + GIB + 717 * MIB + 2 * STEP, STEPS + 39);
    let frame = |line, function: &str, module: Option<&str>| FrameView {
        file: Some("train_leak.py".to_owned()),
        line: Some(line),
        function: Some(function.to_owned()),
        module: module.map(str::to_owned),
    };
    let frames = vec![frame(10, "forward", Some("Net")), frame(31, "train_step", None), frame(40, "main", None)];
    AttributionView {
        steps: Some(STEPS),
        optimizers: BTreeMap::from([("AdamW.step".to_owned(), STEPS)]),
        ambiguous_nodes: 0,
        devices: vec![DeviceAttributionView {
            allocator_peak_bytes: None,
            device: 0,
            uuid: Some(GpuUuid::new(UUID_0)),
            allocated_bytes: total.live_bytes,
            unplaced_bytes: 0,
            total,
            phases: vec![phase("forward", leaking), phase("optimizer", weights), phase("backward", backward)],
            modules: vec![module("fc2", "Linear", leaking), module("fc1", "Linear", weights)],
            sites: vec![
                site("line", 10, "forward", leaking),
                site("line", 34, "train_step", weights),
                site("backward_of", 9, "forward", backward),
            ],
            ranges: Vec::new(),
            stacks: vec![StackView { frames, truncated: false, native: None, sum: leaking }],
            large: Vec::new(),
        }],
        refusals: vec![RefusalView { device: 0, wanted_bytes: 2 * GIB, time_ns: at(14, 3, 20), whose: whose() }],
    }
}

fn whose() -> WhoseView {
    let named = |kind: &str, name: &str| PlaceNameView { kind: kind.to_owned().into(), name: Some(name.to_owned()) };
    WhoseView {
        phase: "forward".into(),
        by: "frames".into(),
        step: 214,
        site: named("line", "train_leak.py:10 forward"),
        library: None,
        module: named("module", "Net fc2 Linear"),
    }
}

/// Returns the outlooks for [`leaking_node`]'s training: its line 10 grows, and memory runs out.
pub(crate) fn leaking_outlooks() -> Outlooks {
    let snapshot = leaking_node();
    let process = &snapshot.processes[0];
    let per_minute =
        |bytes: u64| f64::from(u32::try_from(bytes * STEPS_PER_SECOND * 60 / MIB).expect("few")) * 1_048_576.0;
    let leak = |verdict, line, function: &str, bytes| LeakView {
        verdict,
        level: "tensor".into(),
        device: Some(0),
        uuid: Some(GpuUuid::new(UUID_0)),
        kind: Some("line".into()),
        file: Some("train_leak.py".to_owned()),
        line: Some(line),
        held: None,
        function: Some(function.to_owned()),
        bytes_per_minute: per_minute(bytes),
        late_bytes_per_minute: per_minute(bytes),
        p: 0.001,
        late_p: 0.001,
        points: 60,
        steps: None,
        first_ns: at(14, 2, 12),
        last_ns: at(14, 3, 21),
        first_bytes: 0,
        last_bytes: STEPS * STEP,
        turnover_ns: None,
        ages: None,
        retainers: Vec::new(),
        read_bytes: 0,
        grows_in_number: true,
        blocks: None,
    };
    let findings = vec![leak(Verdict::Leak, 10, "forward", STEP), leak(Verdict::Steady, 34, "train_step", 0)];
    let leaks = LeaksView {
        tgid: process.tgid,
        comm: process.comm.clone(),
        command: process.command.clone(),
        observed_since_ns: process.observed_since_ns,
        windows: Some(STEPS),
        readings: None,
        too_short: 1,
        findings: findings.clone(),
        ..LeaksView::default()
    };
    let forecast = ProcessForecastView {
        tgid: process.tgid,
        comm: process.comm.clone(),
        command: process.command.clone(),
        observed_since_ns: process.observed_since_ns,
        uuid: GpuUuid::new(UUID_0),
        outlook: outlook(),
        cache: None,
        growing: findings,
    };
    let forecasts = ForecastsView { time_ns: snapshot.time_ns, gpus: Vec::new(), processes: vec![forecast] };
    let (tgid, observed_since_ns) = (process.tgid, process.observed_since_ns);
    let view = holdings::view(&held_by_training(), &[], HoldingGrouping::Name, 10);
    let held = ProcessObjects { tgid, observed_since_ns, view };
    Outlooks { leaks: vec![leaks], forecasts, holdings: vec![held] }
}

/// Live objects read from the training: a growing list, and a model with its parameters and
/// optimiser state.
fn held_by_training() -> Holdings {
    let row = |number: u64, class, name: &str, bytes| Holding {
        class,
        name: Some(name.to_owned()),
        shape: Some(vec![4096, bytes / 16384]),
        dtype: Some("float32".to_owned()),
        ..Holding::unknown(Ordinal(0), number << 30, bytes)
    };
    let kept =
        (0..STEPS).map(|step| row(step, HoldingClass::Tensor, &format!("train_leak.py:main: history[{step}]"), STEP));
    let model = [
        row(900, HoldingClass::Parameter, "fc1.weight", 64 * MIB),
        row(901, HoldingClass::Parameter, "fc2.weight", 64 * MIB),
        row(902, HoldingClass::OptimizerState, "exp_avg of fc1.weight", 64 * MIB),
    ];
    Holdings { time_ns: at(14, 3, 15), rows: kept.chain(model).collect(), ..Holdings::default() }
}

fn outlook() -> OutlookView {
    let range = TimeRangeView { earliest_seconds: 80.0, latest_seconds: 162.0, confidence: 0.7 };
    let end = EndView { seconds: 120.0, reach: 1.7, range: Some(range) };
    let growth = GrowthView {
        grows: true,
        windows: 60,
        span_seconds: 69.0,
        bytes_per_second: 400e6,
        low_bytes_per_second: 390e6,
        high_bytes_per_second: 410e6,
        p: 0.001,
    };
    OutlookView { level: "high".into(), needed_bytes: 29 * GIB, growth: Some(growth), end: Some(end) }
}

/// Returns a job of four ranks, two on each of two GPUs, and a process without a workload.
pub(crate) fn ranked_node() -> Snapshot {
    let mut snapshot = fixture::busy_node();
    let training = snapshot.processes[0].clone();
    let other = ProcessView { tgid: Tgid(999), command: "python3 alone.py".to_owned(), ..training.clone() };
    let of_rank = |rank: u32| {
        let mut process = ProcessView { tgid: Tgid(4100 + 3 - rank), ..training.clone() };
        process.owner.slurm = Some(SlurmJob { job_id: Some("4242".to_owned()), ..SlurmJob::default() });
        process.owner.rank = Some(Rank { rank: Some(rank), local_rank: Some(rank), world_size: Some(4) });
        process.gpus[0].uuid = Some(snapshot.gpus[(rank % 2) as usize].uuid.clone());
        process.gpus[0].used_bytes = Some(8 * GIB + u64::from(rank) * GIB);
        process
    };
    snapshot.processes = (0..4).map(of_rank).chain([other]).collect();
    snapshot
}

/// Returns a state that has seen 40 seconds of snapshots with growing memory and advancing steps.
pub(crate) fn watched(opens_alone: bool, snapshot: &Snapshot) -> ViewState {
    let mut state = ViewState::new(opens_alone);
    let mut past = snapshot.clone();
    for second in 0..=40 {
        let to_go = 40 - second;
        past.time_ns = snapshot.time_ns - to_go * 1_000_000_000;
        for (process, own) in past.processes.iter_mut().zip(&snapshot.processes) {
            for (gpu, own) in process.gpus.iter_mut().zip(&own.gpus) {
                gpu.used_bytes = own.used_bytes.map(|used| used - used / 50 * to_go);
            }
            if let Some(tensors) = &mut process.tensors {
                tensors.attribution.steps = tensors.attribution.steps.map(|_| STEPS - STEPS_PER_SECOND * to_go);
            }
        }
        for (gpu, own) in past.gpus.iter_mut().zip(&snapshot.gpus) {
            gpu.used_bytes = own.used_bytes.map(|used| used - used / 60 * to_go);
        }
        state.histories.take(&past);
    }
    state.follow(snapshot);
    state
}
