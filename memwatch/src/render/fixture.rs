//! Synthetic snapshots for the tests of the output formats.

mod places;
mod stats;

use std::collections::BTreeMap;

use memwatch_core::input::{KernelCalls, LibraryCoverage, MigFacts, NvmlState, ProbeCoverage, Sensors};
use memwatch_core::owner::{Ancestor, Container, Owner, Pod, SlurmJob};
use memwatch_core::snapshot::{
    ContextLimits, FailureView, GpuView, HostView, KindView, ProcessGpuView, ProcessView, Snapshot,
};
use memwatch_core::words::{GpuUuid, Tgid};

use super::wall_clock::WallClock;

pub(crate) use self::places::training_node;

/// UUID of the first GPU.
pub(crate) const UUID_0: &str = "GPU-8f3c2a10-71d2-4a0e-9c55-0d1e6b7f2a34";
/// UUID of the second GPU.
pub(crate) const UUID_1: &str = "GPU-c41b77e9-02aa-4f6b-8d13-5e9f00c2d871";
/// The first MIG instance of [`divided_node`], on the second GPU.
pub(crate) const INSTANCE_0: &str = "MIG-30aa41c8-5b1e-5d62-a1f7-6ffb2c0d9e11";
/// The second MIG instance of [`divided_node`].
pub(crate) const INSTANCE_1: &str = "MIG-57cbf02d-9a30-5c44-8e0a-1b1a7d6c3f02";
const SECOND_NS: u64 = 1_000_000_000;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Returns the machine's clock. It booted at 13:00:00 UTC.
pub(crate) fn clock() -> WallClock {
    WallClock::utc(1_795_266_000 * i128::from(SECOND_NS))
}

/// Returns `hour:minute:second` of the boot day as `CLOCK_BOOTTIME`.
pub(crate) fn at(hour: u64, minute: u64, second: u64) -> u64 {
    ((hour - 13) * 3600 + minute * 60 + second) * SECOND_NS
}

/// Returns a machine with two GPUs and three processes: a training, traced from its start, with
/// failed allocations; an inexact server with a hostile command line that was running on both GPUs
/// before the attach; and a process that has ended.
pub(crate) fn busy_node() -> Snapshot {
    Snapshot {
        time_ns: at(14, 3, 21),
        complete: false,
        losses: BTreeMap::from([("ring_full".into(), 12)]),
        coverage: ProbeCoverage {
            libraries: vec![LibraryCoverage {
                path: "/usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06".to_owned(),
                build_id: Some("5f0c".to_owned()),
                probes_attached: 78,
                probes_moved: 31,
                probes_refused: Vec::new(),
                newer_functions: vec!["cuMemBatchDecompressAsync".to_owned()],
                in_use: true,
                error: None,
                gap_ns: None,
                kernel_calls: Some(KernelCalls::Probed { stubs: 1 }),
            }],
            libraries_over_limit: 0,
            mechanism: "uprobe_multi".into(),
            discovery: "mapping_records".into(),
            moves: "tracepoint".into(),
        },
        nvml: NvmlState::Ok,
        attached_ns: at(14, 2, 11),
        gpus: vec![gpu(0, UUID_0, 78 * GIB, 72 * GIB), gpu(1, UUID_1, 21 * GIB, 20 * GIB)],
        processes: vec![training(), server(), ended()],
        workloads: Vec::new(),
        promised: Vec::new(),
        cgroup_memory: Vec::new(),
        hidden: None,
        from_agent: false,
    }
}

/// Returns [`busy_node`] with owners: the training in a Docker container that a shell started, the
/// server in a pod, and the third process in a Slurm job.
pub(crate) fn owned_node() -> Snapshot {
    let mut snapshot = busy_node();
    let [training, server, render] = snapshot.processes.as_mut_slice() else { panic!("three processes") };
    training.owner.container =
        Some(Container { id: "17db96a24ae1e9dd".to_owned(), name: Some("train".to_owned()), ..Container::default() });
    training.owner.cgroup = Some("/docker/17db96a24ae1e9dd".to_owned());
    training.ancestors = vec![Ancestor { tgid: Tgid(50), comm: "launch.sh".to_owned() }];
    training.command = "/usr/bin/python3 -u train.py --seed 1".to_owned();
    server.owner.pod = Some(Pod {
        uid: "8712f785-1a3e-41ec".to_owned(),
        namespace: Some("ml".to_owned()),
        name: Some("serve-0".to_owned()),
        container: Some("vllm".to_owned()),
        ..Pod::default()
    });
    server.uid = Some(1001);
    render.owner.slurm =
        Some(SlurmJob { job_id: Some("42".to_owned()), step: Some("0".to_owned()), ..SlurmJob::default() });
    snapshot
}

/// Returns a machine with one exact process on one GPU.
pub(crate) fn quiet_node() -> Snapshot {
    let mut snapshot = busy_node();
    snapshot.complete = true;
    snapshot.losses.clear();
    snapshot.coverage.libraries[0].newer_functions.clear();
    snapshot.gpus.truncate(1);
    snapshot.gpus[0].used_bytes = Some(41 * GIB);
    snapshot.gpus[0].live_bytes = 40 * GIB + 512 * MIB;
    snapshot.gpus[0].attributed_bytes = snapshot.gpus[0].live_bytes;
    snapshot.gpus[0].unattributed_bytes = Some((512 * MIB).cast_signed());
    snapshot.gpus[0].unwatched_processes = Some(0);
    snapshot.processes.truncate(1);
    snapshot.processes[0].target = true;
    snapshot
}

/// Returns a machine with one undivided GPU and two MIG instances of another. The training uses one
/// instance.
pub(crate) fn divided_node() -> Snapshot {
    let mut snapshot = quiet_node();
    let instance = |index: u32, uuid: &str| GpuView {
        name: "NVIDIA H100 80GB HBM3 MIG 1g.10gb".to_owned(),
        mig: Some(MigFacts {
            parent_uuid: GpuUuid::new(UUID_1),
            index,
            profile: Some("1g.10gb".to_owned()),
            gpu_instance_id: Some(index + 7),
            compute_instance_id: Some(0),
        }),
        total_bytes: Some(10 * GIB),
        ..gpu(1, uuid, GIB, GIB)
    };
    snapshot.gpus.extend([instance(0, INSTANCE_0), instance(1, INSTANCE_1)]);
    let process = &mut snapshot.processes[0];
    process.mps_client = true;
    process.gpus[0].uuid = Some(GpuUuid::new(INSTANCE_1));
    process.failures.iter_mut().for_each(|failure| failure.uuid = Some(GpuUuid::new(INSTANCE_1)));
    snapshot
}

/// Returns a machine without a GPU, NVML or libcuda.
pub(crate) fn empty_node() -> Snapshot {
    let mut snapshot = busy_node();
    snapshot.complete = true;
    snapshot.losses.clear();
    snapshot.coverage.libraries.clear();
    snapshot.nvml = NvmlState::Unavailable("no NVIDIA driver is loaded".to_owned());
    snapshot.gpus.clear();
    snapshot.processes.clear();
    snapshot
}

/// Returns a machine with the given number of processes on the first GPU.
pub(crate) fn crowded_node(processes: u32) -> Snapshot {
    let mut snapshot = busy_node();
    let one = |number| ProcessView { tgid: Tgid(100_000 + number), ..training() };
    snapshot.processes = (0..processes).map(one).collect();
    snapshot
}

fn gpu(nvml_index: u32, uuid: &str, used_bytes: u64, live_bytes: u64) -> GpuView {
    GpuView {
        uuid: GpuUuid::new(uuid),
        nvml_index,
        name: "NVIDIA H100 80GB HBM3".to_owned(),
        pci_bus_id: Some(format!("00000000:{:02X}:00.0", 0x1b + nvml_index)),
        mig: None,
        total_bytes: Some(80 * GIB - 401 * MIB),
        used_bytes: Some(used_bytes),
        live_bytes,
        attributed_bytes: live_bytes,
        unattributed_bytes: Some(used_bytes.cast_signed() - live_bytes.cast_signed()),
        remainder: None,
        context_bytes: Some(512 * MIB),
        sampled_ns: at(14, 3, 20),
        unwatched_processes: Some(u64::from(nvml_index)),
        unwatched_bytes: Some(u64::from(nvml_index) * 512 * MIB),
        sensors: Sensors::default(),
        seconds_to_full: None,
    }
}

fn kind(live_bytes: u64, peak_bytes: u64) -> KindView {
    KindView {
        live_bytes,
        peak_bytes,
        total_bytes: peak_bytes * 3,
        allocations: 30,
        frees: 20,
        estimated: false,
        backed_bytes: None,
        backed_estimated: false,
    }
}

fn process(tgid: u32, command: &str, user: &str) -> ProcessView {
    ProcessView {
        tgid: Tgid(tgid),
        start_ns: Some(at(13, 30, 0)),
        comm: "python3".to_owned(),
        command: command.to_owned(),
        user: Some(user.to_owned()),
        uid: Some(1000),
        inner_tgid: None,
        ancestors: Vec::new(),
        frameworks: Vec::new(),
        owner: Owner::default(),
        target: false,
        mps_client: false,
        observed_since_ns: at(14, 2, 11),
        from_start: false,
        driver_changed_ns: 0,
        main_thread_ended: false,
        exact: true,
        losses: BTreeMap::new(),
        peaks_begun_ns: None,
        overhead: None,
        level: None,
        anchored_ns: None,
        ended_ns: None,
        gpus: Vec::new(),
        host: HostView::default(),
        checkpointed: false,
        imports: Vec::new(),
        aliases: 0,
        reservation_bytes: 0,
        modules: 0,
        context_limits: ContextLimits::default(),
        unknown_frees: 0,
        implicit_frees: 0,
        failures: Vec::new(),
        allocations_per_second: Some(0.0),
        frees_per_second: Some(0.0),
        tensors: None,
        explained: None,
        left_behind: None,
        kv_cache: None,
    }
}

fn training() -> ProcessView {
    ProcessView {
        start_ns: Some(at(14, 2, 30)),
        observed_since_ns: at(14, 2, 30),
        from_start: true,
        gpus: vec![ProcessGpuView {
            uuid: Some(GpuUuid::new(UUID_0)),
            used_bytes: Some(41 * GIB),
            live_bytes: 40 * GIB + 512 * MIB,
            checkpointed_bytes: None,
            peak_bytes: 44 * GIB,
            preexisting_bytes: Some(0),
            preexisting_includes_context: false,
            attributed_bytes: 40 * GIB + 512 * MIB,
            unconfirmed_bytes: 0,
            unattributed_bytes: Some((512 * MIB).cast_signed()),
            allocations: 1_234_567,
            frees: 1_234_001,
            failed_allocations: 2,
            refusals: BTreeMap::from([(2, 2)]),
            last_oom_ns: Some(at(14, 3, 20)),
            ooms: 2,
            retries: 0,
            kinds: BTreeMap::from([
                ("device".into(), kind(38 * GIB, 40 * GIB)),
                (
                    "pool".into(),
                    KindView { backed_bytes: Some(2 * GIB + 512 * MIB), ..kind(2 * GIB + 512 * MIB, 4 * GIB) },
                ),
                ("managed".into(), kind(3 * GIB, 3 * GIB)),
            ]),
        }],
        host: HostView { pinned_live_bytes: 2 * GIB, pinned_peak_bytes: 3 * GIB, ..HostView::default() },
        failures: vec![failure(at(14, 3, 12), 38 * GIB), failure(at(14, 3, 20), 40 * GIB)],
        allocations_per_second: Some(1812.4),
        frees_per_second: Some(1803.0),
        ..process(1234, "python3 train.py --model llama-8b", "alice")
    }
}

fn failure(time_ns: u64, requested_bytes: u64) -> FailureView {
    let uuid = Some(GpuUuid::new(UUID_0));
    FailureView { time_ns, symbol: "cuMemAlloc_v2".into(), requested_bytes, status: 2, uuid, is_retried: false }
}

fn server() -> ProcessView {
    let on = |uuid, used_bytes, live_bytes, before| ProcessGpuView {
        uuid: Some(GpuUuid::new(uuid)),
        used_bytes: Some(used_bytes),
        live_bytes,
        checkpointed_bytes: None,
        peak_bytes: live_bytes,
        preexisting_bytes: Some(before),
        preexisting_includes_context: before > 0,
        attributed_bytes: live_bytes,
        unconfirmed_bytes: 0,
        unattributed_bytes: Some(used_bytes.cast_signed() - live_bytes.cast_signed()),
        allocations: 310,
        frees: 12,
        failed_allocations: 0,
        refusals: BTreeMap::new(),
        last_oom_ns: None,
        ooms: 0,
        retries: 0,
        kinds: BTreeMap::from([("physical".into(), kind(live_bytes, live_bytes))]),
    };
    ProcessView {
        exact: false,
        losses: BTreeMap::from([("ring_full".into(), 12)]),
        gpus: vec![on(UUID_0, 36 * GIB, 31 * GIB + 512 * MIB, 4 * GIB), on(UUID_1, 20 * GIB, 20 * GIB, 0)],
        unknown_frees: 3,
        allocations_per_second: Some(4.2),
        frees_per_second: None,
        ..process(2002, "vllm serve \x1b[2J日本", "bob")
    }
}

fn ended() -> ProcessView {
    ProcessView {
        ended_ns: Some(at(14, 3, 5)),
        user: None,
        implicit_frees: 17,
        gpus: vec![ProcessGpuView {
            uuid: Some(GpuUuid::new(UUID_1)),
            used_bytes: None,
            live_bytes: 0,
            checkpointed_bytes: None,
            peak_bytes: 12 * GIB + 307 * MIB,
            preexisting_bytes: None,
            preexisting_includes_context: false,
            attributed_bytes: 0,
            unconfirmed_bytes: 0,
            unattributed_bytes: None,
            allocations: 20,
            frees: 3,
            failed_allocations: 0,
            refusals: BTreeMap::new(),
            last_oom_ns: None,
            ooms: 0,
            retries: 0,
            kinds: BTreeMap::from([("array".into(), KindView { estimated: true, ..kind(0, 12 * GIB + 307 * MIB) })]),
        }],
        ..process(4321, "./render", "nobody")
    }
}
