use super::*;
use memwatch_core::input::LibraryCoverage;
use memwatch_core::snapshot::{HiddenGpuView, HiddenView, ImportView};
use memwatch_core::words::Tgid;

use crate::render::fixture::{busy_node, clock, empty_node, quiet_node};

fn trust_line(snapshot: &Snapshot) -> String {
    let parts: Vec<_> = trust(snapshot, &clock()).into_iter().map(|part| part.text).collect();
    parts.join(" · ")
}

#[test]
fn trust_line_without_problems_is_complete() {
    assert_eq!(trust_line(&quiet_node()), "complete");
}

#[test]
fn trust_line_names_gaps_but_not_functions_the_driver_lacks() {
    assert_eq!(
        trust_line(&busy_node()),
        "12 events dropped (ring full): peak and totals of PID 2002 may be wrong · \
         1 process started before attach (14:02:11)"
    );
    assert_eq!(
        trust_line(&empty_node()),
        "complete · no NVML: no NVIDIA driver is loaded · no libcuda found yet: nothing is traced"
    );
    let mut read = quiet_node();
    read.coverage = ProbeCoverage { mechanism: ProbeCoverage::NOTHING.into(), ..ProbeCoverage::default() };
    assert_eq!(trust_line(&read), "complete · only read, nothing attached");
}

#[test]
fn losses_without_an_owner_make_every_number_doubtful() {
    let mut snapshot = quiet_node();
    snapshot.complete = false;
    assert_eq!(trust_line(&snapshot), "incomplete: any number may be wrong");
    snapshot.losses.extend([("ring_full".into(), 12), ("nested".into(), 1)]);
    assert_eq!(trust_line(&snapshot), "13 events dropped (1 nested, 12 ring full): any number may be wrong");
    snapshot.complete = true;
    assert!(trust_line(&snapshot).ends_with(": no number shown here depends on them"));
}

#[test]
fn a_library_that_was_mapped_before_its_probes_is_named() {
    let mut snapshot = quiet_node();
    snapshot.coverage.libraries[0].probes_refused = ["a", "b", "c", "d", "e"].map(str::to_owned).to_vec();
    assert!(trust_line(&snapshot).ends_with("5 functions have no probes (a, b, c and 2 more)"));
}

#[test]
fn functions_newer_than_the_driver_are_no_limit() {
    let mut snapshot = quiet_node();
    let complete = trust_line(&snapshot);
    let library = &mut snapshot.coverage.libraries[0];
    library.newer_functions = vec!["cuMulticastBindMem_v2".to_owned()];
    let second = LibraryCoverage { path: "/opt/libcuda.so.1".to_owned(), ..library.clone() };
    snapshot.coverage.libraries.push(second);
    assert_eq!(trust_line(&snapshot), complete);
}

#[test]
fn a_function_without_probes_in_two_files_is_named_once() {
    let mut snapshot = quiet_node();
    snapshot.coverage.libraries[0].probes_refused = vec!["cuMemAlloc_v2".to_owned()];
    snapshot.coverage.libraries.push(snapshot.coverage.libraries[0].clone());
    assert!(
        trust_line(&snapshot).ends_with(" · 1 function has no probes (cuMemAlloc_v2)"),
        "{}",
        trust_line(&snapshot)
    );
}

#[test]
fn trust_line_ignores_an_unused_library_beside_a_probed_one() {
    let mut snapshot = quiet_node();
    let complete = trust_line(&snapshot);
    let error = Some("damaged ELF file: symbol table".to_owned());
    let unused = LibraryCoverage { path: "/opt/old/libcuda.so.1".to_owned(), error, ..LibraryCoverage::default() };
    snapshot.coverage.libraries.push(unused);
    assert_eq!(trust_line(&snapshot), complete);
    snapshot.coverage.libraries[1].in_use = true;
    assert!(trust_line(&snapshot).ends_with("no probes on /opt/old/libcuda.so.1: damaged ELF file: symbol table"));
    snapshot.coverage.libraries[1].in_use = false;
    snapshot.coverage.libraries.remove(0);
    assert!(trust_line(&snapshot).contains("no probes on /opt/old"), "no other has probes");
}

#[test]
fn files_beyond_the_limit_are_counted() {
    let mut snapshot = quiet_node();
    snapshot.coverage.libraries_over_limit = 236;
    let sentence = "236 library files have no probes: the limit of libcuda.so files is reached";
    assert!(trust_line(&snapshot).ends_with(sentence), "{}", trust_line(&snapshot));
}

#[test]
fn a_library_that_was_mapped_before_its_probes_has_its_gap() {
    let mut snapshot = quiet_node();
    snapshot.coverage.libraries[0].gap_ns = Some(23_000_001);
    let line = trust_line(&snapshot);
    assert!(line.starts_with("complete · probes were attached 24 ms after /usr/lib/"), "{line}");
    assert!(line.ends_with("libcuda.so.580.65.06 was mapped"), "{line}");
}

#[test]
fn a_comparison_with_nvml_is_of_the_whole_gpu_or_of_the_traced_processes() {
    let mut snapshot = quiet_node();
    let compared = "attributed 40.50 GiB (98.8 %) · unattributed 512.0 MiB";
    assert_eq!(attribution(&snapshot, &snapshot.gpus[0]).as_deref(), Some(compared));
    snapshot.gpus[0].unwatched_processes = Some(2);
    snapshot.gpus[0].used_bytes = Some(70 << 30);
    let own = attribution(&snapshot, &snapshot.gpus[0]);
    assert_eq!(own, Some(format!("1 process traced: NVML used 41.00 GiB · {compared}")));
    snapshot.processes[0].gpus[0].used_bytes = None;
    snapshot.processes[0].gpus[0].unattributed_bytes = None;
    let unknown = attribution(&snapshot, &snapshot.gpus[0]);
    assert_eq!(unknown.as_deref(), Some("1 process traced: attributed 40.50 GiB"));
    snapshot.processes[0].ended_ns = Some(1);
    assert_eq!(attribution(&snapshot, &snapshot.gpus[0]), None);
}

#[test]
fn memory_outside_pytorch_is_reported_only_with_a_fresh_counter() {
    let snapshot = crate::render::fixture::training_node();
    let process = &snapshot.processes[0];
    let mut gpu = process.gpus[0].clone();
    let allocators = &process.tensors.as_deref().expect("a training").allocators;
    gpu.uuid.clone_from(&allocators[0].uuid);
    let reserved = allocators[0].reserved_bytes.expect("it is known");
    gpu.live_bytes = reserved + (128 << 20);
    let text = libraries(process, &gpu).expect("it is known");
    assert!(text.starts_with("PyTorch reserved ") && text.ends_with(", other libraries 128.0 MiB"), "{text}");
    gpu.live_bytes = reserved - 1;
    assert_eq!(libraries(process, &gpu), None, "the two numbers are of different moments");
    gpu.live_bytes = reserved + (128 << 20);
    let mut read = process.clone();
    let allocator = &mut read.tensors.as_deref_mut().expect("a training").allocators[0];
    (allocator.observed_by, allocator.readout_ns) = ("numbers".into(), Some(7));
    read.driver_changed_ns = 7;
    assert!(libraries(&read, &gpu).is_some(), "nothing has come since the counter was read");
    read.driver_changed_ns = 8;
    assert_eq!(libraries(&read, &gpu), None, "a counter of a while ago beside a fresh number");
}

#[test]
fn a_library_that_could_not_be_probed_is_bad() {
    let mut snapshot = quiet_node();
    snapshot.coverage.libraries[0].error = Some("permission denied".to_owned());
    let last = trust(&snapshot, &clock()).pop().expect("a part");
    assert_eq!(last.tone, Tone::Bad);
    assert!(last.text.starts_with("no probes on /usr/lib"), "{}", last.text);
}

#[test]
fn a_refused_allocation_is_reported_with_its_size() {
    let snapshot = busy_node();
    let reported = failure(&snapshot, &snapshot.processes[0].failures[1], &clock()).text;
    assert_eq!(reported, "out of memory: cuMemAlloc_v2 requested 40.00 GiB on GPU 0 at 14:03:20");
}

#[test]
fn managed_memory_is_listed_separately_and_estimates_are_marked() {
    let mut snapshot = busy_node();
    let gpu = &mut snapshot.processes[0].gpus[0];
    assert_eq!(kinds(gpu), "device 38.00 GiB, pool 2.50 GiB + managed 3.00 GiB");
    gpu.kinds.get_mut("pool").expect("a pool").estimated = true;
    assert!(kinds(gpu).contains("pool ~2.50 GiB"));
    assert_eq!(kinds(&snapshot.processes[2].gpus[0]), "-");
}

#[test]
fn a_process_without_command_line_has_its_name() {
    let mut process = busy_node().processes.remove(0);
    process.command.clear();
    assert_eq!(command(&process), "[python3]");
    process.comm.clear();
    assert_eq!(command(&process), "(name not known)");
}

#[test]
fn a_short_command_has_no_folders_before_the_programs_name() {
    let mut process = busy_node().processes.remove(0);
    for (command, short) in [
        ("/opt/venv/bin/python /srv/train.py --a/b", "python /srv/train.py --a/b"),
        ("./render", "render"),
        ("python3", "python3"),
        ("/odd/ x", "/odd/ x"),
    ] {
        command.clone_into(&mut process.command);
        assert_eq!(short_command(&process), short);
    }
}

#[test]
fn remarks_report_of_the_end_losses_and_older_memory() {
    let snapshot = busy_node();
    let reported = |index: usize| -> Vec<_> {
        remarks(&snapshot, &snapshot.processes[index], &clock()).into_iter().map(|remark| remark.text).collect()
    };
    assert_eq!(reported(0), [""; 0]);
    assert_eq!(
        reported(1),
        ["peak and totals may be wrong: 12 events dropped (ring full)", "3 frees of memory allocated before attach"]
    );
    assert_eq!(reported(2), ["ended 14:03:05, peak 12.30 GiB on GPU 1", "17 allocations not freed by the program"]);
}

#[test]
fn memory_held_beside_live_bytes_is_reported() {
    let mut process = quiet_node().processes.remove(0);
    assert_eq!(holdings(&process), [], "its pools hold just what is used");
    let pool = process.gpus[0].kinds.get_mut("pool").expect("a pool");
    (pool.backed_bytes, pool.backed_estimated) = (Some(3 << 30), true);
    process.gpus[0].checkpointed_bytes = Some(4 << 20);
    process.imports = vec![ImportView { from_tgid: Tgid(77), aliases: 2, bytes: 3 << 30, orphaned_bytes: 1 << 30 }];
    let texts: Vec<String> = holdings(&process).into_iter().map(|sentence| sentence.text).collect();
    assert_eq!(
        texts,
        [
            "checkpointed: 4.0 MiB moved from the GPU to host memory",
            "pools reserve about 3.00 GiB, 512.0 MiB of it unused",
            "shares 3.00 GiB of PID 77, 1.00 GiB of it already freed by the owner",
        ]
    );
}

#[test]
fn totals_taken_from_the_kernel_say_so() {
    let mut process = busy_node().processes.remove(1);
    process.anchored_ns = quiet_node().processes[0].start_ns;
    assert!(doubts(&process, &clock())[0].text.ends_with("; allocated bytes read back from the kernel at 14:02:30"));
}

#[test]
fn the_trust_line_of_an_agent_says_so_and_what_it_hides() {
    let mut snapshot = quiet_node();
    snapshot.from_agent = true;
    assert!(trust_line(&snapshot).starts_with("complete · from the agent"), "{}", trust_line(&snapshot));
    let gpu = |used_bytes, live_bytes| HiddenGpuView { used_bytes, live_bytes, ..HiddenGpuView::default() };
    snapshot.hidden = Some(HiddenView { processes: 2, gpus: vec![gpu(Some(3 << 30), 1 << 30), gpu(None, 1 << 30)] });
    let shown = trust_line(&snapshot);
    assert!(shown.contains("from the agent · 2 processes of other users use 4.00 GiB"), "{shown}");
    snapshot.hidden = Some(HiddenView::default());
    assert!(!trust_line(&snapshot).contains("others"));
}

#[test]
fn buffers_are_summed_up_by_use_over_all_devices_and_older_ones_are_named() {
    use memwatch_core::snapshot::{DeviceBuffersView, UsageView};
    use memwatch_core::words::Framework;

    let device = |device, usages: &[(BufferUsage, u64)]| DeviceBuffersView {
        device,
        uuid: None,
        buffers: None,
        bytes_in_use: None,
        peak_bytes_in_use: None,
        num_buffers: None,
        known_buffers: 0,
        known_bytes: 0,
        known_peak_bytes: 0,
        usages: usages.iter().map(|&(usage, bytes)| UsageView { usage, buffers: 1, bytes }).collect(),
        num_tensors: None,
        tensors: Vec::new(),
    };
    let (weights, other) = (BufferUsage::Weights, BufferUsage::Other);
    let known = vec![device(0, &[(weights, 4 << 20)]), device(1, &[(weights, 1 << 20), (other, 2 << 20)])];
    let of = |devices: &[DeviceBuffersView], older_unknown: bool| {
        let (framework, devices) = (Framework::Ggml, devices.to_vec());
        let exact = !older_unknown;
        buffers(&BuffersView { framework, exact, older_unknown, scratch_traced: true, out_of_step: 0, devices })
    };
    let sums = "ggml's buffers: weights 5.0 MiB, other 2.0 MiB";
    assert_eq!(of(&known, false).as_deref(), Some(sums));
    let older = older_buffers(Framework::Ggml);
    assert_eq!(older, "buffers from before the attach are not known: ggml keeps no list of them");
    assert_eq!(of(&known, true), Some(format!("{sums}; {older}")));
    assert_eq!((of(&[], true), of(&[], false)), (Some(older), None));
}

#[test]
fn pools_are_summed_up_by_framework_without_what_others_divide() {
    use memwatch_core::decode::PoolKind;

    let pool = |kind: PoolKind, bytes_in_use, divided_bytes| PoolView {
        framework: kind.framework(),
        kind,
        device: Some(0),
        uuid: None,
        device_by: "segment".into(),
        bytes_in_use,
        peak_bytes_in_use: None,
        num_allocs: None,
        pool_bytes: Some(8 << 20),
        block_bytes: None,
        known_blocks: 1,
        known_bytes: 3 << 20,
        divided_bytes,
        exact: false,
        older_unknown: false,
        out_of_step: 0,
    };
    let of = |list: Vec<PoolView>| pools(&PoolsView { frameworks: Vec::new(), pools: list });
    let nested = vec![
        pool(PoolKind::Pool, Some(5 << 20), 2 << 20),
        pool(PoolKind::FixedSize, Some(1 << 20), 0),
        pool(PoolKind::MemoryPool, Some(1 << 20), 0),
    ];
    let expected =
        ["rmm's pools have 14.0 MiB, 4.0 MiB of it in use", "cupy's pools have 8.0 MiB, 1.0 MiB of it in use"];
    assert_eq!(of(nested), expected);
    assert_eq!(of(vec![pool(PoolKind::Pool, None, 0)]), ["rmm's pools have 8.0 MiB, at least 3.0 MiB of it in use"]);
    let unknown = PoolView { pool_bytes: None, ..pool(PoolKind::Arena, Some(1 << 20), 0) };
    assert_eq!(of(vec![unknown]), ["rmm's pools are of unknown size, 1.0 MiB of it in use"]);
    assert_eq!(of(Vec::new()), [""; 0]);
}
