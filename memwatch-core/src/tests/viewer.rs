//! What one user of a machine sees of the other users.

use super::*;
use crate::input::{LibraryCoverage, ProbeCoverage};
use crate::kernel_driver::labels::{MemoryPurpose, Sure};
use crate::kernel_driver::trust::LedgerTrust;
use crate::kernel_driver::view::{
    ColumnsView, Explained, ExplainedHost, ExplainedUse, LeftBehindView, PartView, PieceView,
};
use crate::owner::{CgroupMemory, Owner, Pod, Promise};
use crate::snapshot::{ImportView, Viewer};

const ANN: u32 = 1000;
const BOB: u32 = 1001;

/// Returns a snapshot with Ann's process 7 (300 bytes), Bob's 8 (500 bytes) and 9 (50 bytes, owner
/// unknown). NVML reports 100 bytes more for each.
fn shared_gpu() -> Snapshot {
    let mut watch = TestPipeline::begin();
    for (tgid, bytes) in [(7, 300), (8, 500), (9, 50)] {
        watch.starts(tgid).calls(on_gpu_a(tgid)).calls([mem_alloc(0xd1, bytes).process(tgid)]);
    }
    watch.reading(vec![device(GPU_A, 1200, [(7, 400), (8, 600), (9, 150)])]).tick();
    let mut snapshot = watch.snapshot();
    for (process, uid) in snapshot.processes.iter_mut().zip([Some(ANN), Some(BOB), None]) {
        process.uid = uid;
    }
    snapshot
}

fn tgids(snapshot: &Snapshot) -> Vec<u32> {
    snapshot.processes.iter().map(|process| process.tgid.0).collect()
}

#[test]
fn viewer_of_everything_sees_the_whole_snapshot() {
    let all = shared_gpu();
    assert_eq!(all.observed_by(Viewer::Everything), all);
    assert_eq!(all.hidden, None);
}

#[test]
fn a_user_sees_only_own_processes_and_the_hidden_ones_add_up() {
    let all = shared_gpu();
    let seen = all.observed_by(Viewer::User(ANN));
    assert_eq!(tgids(&seen), [7]);
    assert_eq!(seen.gpus, all.gpus);
    let hidden = seen.hidden.expect("there are others");
    let [on_gpu] = hidden.gpus.as_slice() else { panic!("one GPU: {hidden:?}") };
    assert_eq!((hidden.processes, on_gpu.processes), (2, 2));
    assert_eq!((on_gpu.used_bytes, on_gpu.live_bytes, on_gpu.attributed_bytes), (Some(750), 550, 550));
    assert_eq!(seen.processes[0].gpus[0].live_bytes + on_gpu.live_bytes, seen.gpus[0].live_bytes);
    let nothing = all.observed_by(Viewer::User(4242));
    assert_eq!((tgids(&nothing), nothing.hidden.map(|hidden| hidden.processes)), (vec![], Some(3)));
}

#[test]
fn hidden_processes_have_unknown_used_bytes_and_exclude_ended_ones() {
    let mut all = shared_gpu();
    for process in &mut all.processes[1..] {
        process.gpus[0].used_bytes = None;
    }
    let hidden = all.observed_by(Viewer::User(ANN)).hidden.expect("there are others");
    assert_eq!(hidden.gpus[0].used_bytes, None);
    all.processes[1].ended_ns = Some(all.time_ns);
    let hidden = all.observed_by(Viewer::User(ANN)).hidden.expect("there is another");
    assert_eq!((hidden.processes, hidden.gpus[0].live_bytes), (1, 50));
}

#[test]
fn workloads_of_others_and_those_shared_with_them_are_not_seen() {
    let mut all = shared_gpu();
    let mine = |uids: &[Option<u32>]| {
        let mut snapshot = all.clone();
        snapshot.workloads[0].uids = uids.iter().copied().collect();
        !snapshot.observed_by(Viewer::User(ANN)).workloads.is_empty()
    };
    assert!(mine(&[Some(ANN)]));
    for uids in [&[][..], &[None], &[Some(BOB)], &[Some(ANN), Some(BOB)], &[Some(ANN), None]] {
        assert!(!mine(uids), "{uids:?}");
    }
    all.workloads.clear();
    assert_eq!(all.observed_by(Viewer::User(ANN)).workloads, []);
}

#[test]
fn a_workload_remembers_the_users_of_its_processes() {
    let mut watch = TestPipeline::begin();
    for (tgid, uid) in [(7, Some(ANN)), (8, Some(BOB)), (9, None)] {
        let start_ns = watch.later();
        watch.pipeline.step(Input::Process(ProcessFacts { tgid, start_ns, uid, ..ProcessFacts::default() }));
    }
    watch.event(8, ProcessEvent::Exit).tick();
    let snapshot = watch.snapshot();
    let [only] = snapshot.workloads.as_slice() else { panic!("{:#?}", snapshot.workloads) };
    assert_eq!(only.uids, [Some(ANN), Some(BOB), None].into());
}

#[test]
fn promises_control_groups_imports_and_paths_of_others_are_not_seen() {
    let mut all = shared_gpu();
    let pod = |name: &str| Pod { namespace: Some("ml".to_owned()), name: Some(name.to_owned()), ..Pod::default() };
    for (process, name) in all.processes.iter_mut().zip(["a", "b", "c"]) {
        process.owner = Owner { cgroup: Some(format!("/pods/{name}/main")), pod: Some(pod(name)), ..Owner::default() };
        let import = |from_tgid| ImportView { from_tgid: Tgid(from_tgid), aliases: 1, bytes: 5, orphaned_bytes: 0 };
        process.imports = vec![import(7), import(8)];
    }
    all.promised =
        ["a", "b"].map(|pod| Promise { namespace: "ml".into(), pod: pod.into(), ..Promise::default() }).into();
    let memory = |cgroup: &str| CgroupMemory { cgroup: cgroup.into(), region: "r".into(), current_bytes: 1 };
    all.cgroup_memory = ["/", "/pods", "/pods/a", "/pods/a/main", "/pods/b", "/pods/ab"].map(memory).into();
    let library =
        |path: &str| LibraryCoverage { path: path.into(), error: Some("why".into()), ..LibraryCoverage::default() };
    let paths = ["/usr/lib64/libcuda.so.1", "/home/bob/secret/libcuda.so.1", "/usr/lib/../../home/bob/libcuda.so.1"];
    all.coverage = ProbeCoverage { libraries: paths.map(library).into(), ..ProbeCoverage::default() };

    let seen = all.observed_by(Viewer::User(ANN));
    assert_eq!(seen.processes[0].imports.iter().map(|import| import.from_tgid.0).collect::<Vec<_>>(), [7]);
    assert_eq!(seen.promised.iter().map(|promise| promise.pod.as_str()).collect::<Vec<_>>(), ["a"]);
    let groups: Vec<_> = seen.cgroup_memory.iter().map(|memory| memory.cgroup.as_str()).collect();
    assert_eq!(groups, ["/pods/a", "/pods/a/main"]);
    assert_eq!(seen.coverage.libraries[0], all.coverage.libraries[0]);
    assert!(seen.coverage.libraries[1..].iter().all(|library| !format!("{library:?}").contains("bob")), "{seen:#?}");
    assert!(seen.coverage.libraries[1..].iter().all(|library| library.error.as_deref() != Some("why")));
    assert_eq!(seen.coverage.libraries.len(), 3);
}

#[test]
fn inherited_memory_is_shown_without_its_former_owner() {
    let part = |label, left_by: Option<u32>| PartView {
        label,
        owner: Some(format!("program of {left_by:?}")),
        function: None,
        bytes: 5,
        objects: 1,
        sure: Sure::High,
        bytes_per_thread: None,
        left_by: left_by.map(Tgid),
    };
    let piece = |label| PieceView {
        label,
        owner: Some("program".to_owned()),
        function: None,
        objects: 1,
        asked_bytes: None,
        granted_bytes: 5,
        used: None,
        address: None,
    };
    let mut all = shared_gpu();
    let parts = [Some(7), Some(8), Some(70), None].map(|left_by| part(MemoryPurpose::Inherited, left_by));
    let on_gpu = ExplainedUse {
        uuid: None,
        trust: LedgerTrust::Trusted,
        used_bytes: None,
        live_bytes: 25,
        older_bytes: None,
        difference_bytes: None,
        parts: [part(MemoryPurpose::Requested, None)].into_iter().chain(parts).collect(),
        columns: ColumnsView::default(),
        pieces: vec![piece(MemoryPurpose::Inherited), piece(MemoryPurpose::Requested)],
    };
    all.processes[0].explained = Some(Box::new(Explained {
        gpus: vec![on_gpu],
        host: ExplainedHost::default(),
        imported: 0,
        refused: Vec::new(),
        refused_count: 0,
        reused: 0,
        version: None,
    }));
    all.processes[0].left_behind =
        Some(Box::new(LeftBehindView { gpus: Vec::new(), forked: [8, 70].map(Tgid).to_vec() }));

    let seen = all.observed_by(Viewer::User(ANN)).processes.swap_remove(0);
    let on_gpu = &seen.explained.expect("it was explained").gpus[0];
    let origins: Vec<_> =
        on_gpu.parts.iter().map(|part| (part.owner.is_some(), part.left_by.map(|tgid| tgid.0))).collect();
    assert_eq!(origins, [(true, None), (true, Some(7)), (false, None), (false, None), (false, None)]);
    assert_eq!(on_gpu.pieces.iter().map(|piece| piece.owner.is_some()).collect::<Vec<_>>(), [false, true]);
    assert_eq!(seen.left_behind.expect("it left something").forked, [Tgid(70)], "her own children stay");
    let own = all.observed_by(Viewer::Everything).processes.swap_remove(0);
    assert!(own.explained.expect("it was explained").gpus[0].parts.iter().all(|part| part.owner.is_some()));
}

#[test]
fn process_belongs_to_its_current_user() {
    let mut watch = TestPipeline::begin();
    watch.starts(7).calls(on_gpu_a(7)).calls([mem_alloc(0xd1, 300).process(7)]);
    for uid in [ANN, BOB] {
        let known = watch.pipeline.state.facts(Tgid(7)).expect("it is known").clone();
        watch.pipeline.step(Input::Process(ProcessFacts { uid: Some(uid), ..known }));
    }
    watch.reading(vec![device(GPU_A, 1200, [(7, 400)])]).tick();
    let all = watch.snapshot();
    assert_eq!(
        (tgids(&all.observed_by(Viewer::User(ANN))), tgids(&all.observed_by(Viewer::User(BOB)))),
        (vec![], vec![7])
    );
    let only = &all.observed_by(Viewer::User(BOB)).processes[0];
    assert_eq!((only.gpus[0].live_bytes, only.from_start), (300, true), "what it holds is as before");
}
