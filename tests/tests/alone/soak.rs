//! Many calls of many processes, wave after wave: every process ends at the simulator's numbers, nothing is lost, and memwatch does not
//! grow.
//!
//! `MEMWATCH_SOAK_PROCESSES` and `MEMWATCH_SOAK_PAIRS` (allocations and frees of each) make it longer: 500 and 20000 are 20 million calls.

use memwatch_tests::oracle::{Agreement, assert_agrees};
use memwatch_tests::{Gpu, MIB, Shape, Workload};

/// Processes that run at once: more than there are processors, fewer than the simulator's books have room for.
const WAVE: usize = 25;

fn number(variable: &str, otherwise: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Resident memory of a process in bytes.
fn resident_bytes(tgid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{tgid}/status")).expect("the process is alive");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a resident size");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of KiB") << 10
}

/// One process of every third kind: linear, stream-ordered and virtual memory; each keeps something.
fn start(gpu: &Gpu, number: usize, pairs: usize) -> Workload {
    let function = ["cuMemAlloc", "cuMemAllocAsync", "cuMemCreate"][number % 3];
    let mut workload = gpu.workload();
    workload.run(&["uuid 0", "device 0", "alloc kept 2M", "async pooled 4M", "create physical 2M"]);
    workload.tell(&format!("loop {function} {pairs} 2M"));
    workload
}

#[test]
fn processes_without_number_end_at_the_simulators_numbers_and_memwatch_does_not_grow() {
    let Some(gpu) = Gpu::new(Shape::Push) else { return };
    let (processes, pairs) = (number("MEMWATCH_SOAK_PROCESSES", 50), number("MEMWATCH_SOAK_PAIRS", 4000));
    let mut watch = gpu.watch(&[]);
    let mut first_bytes = None;
    for wave in 0..processes.div_ceil(WAVE) {
        let members = (wave * WAVE..processes.min((wave + 1) * WAVE)).map(|number| start(&gpu, number, pairs));
        let mut members: Vec<Workload> = members.collect();
        for workload in &mut members {
            assert_eq!(workload.answer()["result"], 0);
        }
        for workload in &members {
            let report = assert_agrees(&gpu, &mut watch, workload, Agreement::CallsOnly);
            let on_gpu = report.process(workload.tgid()).expect("it is reported").only_gpu();
            assert_eq!(on_gpu.number("live_bytes"), 8 * MIB);
            let calls = u64::try_from(pairs).expect("a number of calls");
            assert_eq!((on_gpu.number("allocations"), on_gpu.number("frees")), (calls + 3, calls));
        }
        drop(members);
        let now_bytes = resident_bytes(watch.tgid());
        eprintln!("wave {wave}: {} calls, memwatch has {} MiB", 2 * pairs * WAVE * (wave + 1), now_bytes >> 20);
        let first_bytes = *first_bytes.get_or_insert(now_bytes);
        assert!(now_bytes < first_bytes + first_bytes / 2 + 16 * MIB, "it grows: {first_bytes} to {now_bytes}");
    }
}
