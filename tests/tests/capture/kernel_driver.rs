//! The simulated kernel driver alone: libcuda's requests account for what NVML charges, whatever
//! form they have.

use std::path::{Path, PathBuf};

use memwatch_tests::requests::{
    self, ALLOC, CONTROL, DUP, FREE, HOST_MEMORY, LoggedRequest, MAP, PINNED_MEMORY, UNMAP_PART,
};
use memwatch_tests::scenarios::{PROLOGUE, SCENARIOS};
use memwatch_tests::test;
use memwatch_tests::{CONTEXT_BYTES, MIB, PrologueShape, SimulatedGpu, SimulatedWorkload};

/// Creates a machine that writes its requests to a journal.
fn machine() -> (SimulatedGpu, PathBuf) {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let journal = gpu.directory().join("requests");
    let path = journal.display().to_string();
    (gpu.with("GPUSIM_RM_LOG", &path), journal)
}

fn used_bytes(gpu: &SimulatedGpu, workload: &SimulatedWorkload) -> u64 {
    let entry = gpu.ledger().process(workload.tgid()).expect("the workload is in the simulator's ledger");
    entry.devices.iter().map(|device| device.used_bytes).sum()
}

/// Returns the requests of one process.
fn requests_of(journal: &Path, workload: &SimulatedWorkload) -> Vec<LoggedRequest> {
    let mut all = requests::read(journal);
    all.retain(|request| request.tgid == workload.tgid());
    all
}

fn assert_sum(gpu: &SimulatedGpu, journal: &Path, workload: &SimulatedWorkload, what: &str) {
    let live_bytes = requests::live_bytes(&requests_of(journal, workload));
    assert_eq!(live_bytes, used_bytes(gpu, workload), "{what}");
}

/// Commands that need every kind of memory. Some are refused.
const MIXED: &[&str] = &[
    "uuid 0",
    "device 0",
    "alloc a 3M",
    "alloc small 100",
    "async pooled 70M",
    "create h 4M",
    "reserve r 8M",
    "map r 4M h",
    "ctx create 0 as other",
    "alloc theirs 5M",
    "array t 100 100",
    "hostalloc pinned 5K",
    "alloc huge 900G",
    "unmap r 4M",
    "release h",
    "ctx destroy other",
    "free a",
    "asyncfree pooled",
    "sync",
];

fn assert_sums(gpu: &SimulatedGpu, journal: &Path, what: &str) {
    let mut workload = gpu.workload();
    for command in MIXED {
        workload.ask(command);
        if *command != "uuid 0" {
            assert_sum(gpu, journal, &workload, &format!("{what}: {command}"));
        }
    }
    workload.end();
}

#[test]
fn rm_video_memory_equals_the_nvml_charge_after_every_step() {
    let (gpu, journal) = machine();
    for scenario in SCENARIOS {
        let mut workload = gpu.workload();
        for line in PROLOGUE.iter().chain(scenario.steps.iter().copied().flatten()) {
            let line = line.strip_prefix('!').unwrap_or(line).replace('$', "0");
            let answer = workload.ask(&line);
            assert!(answer["error"].is_null(), "{line}: {answer}");
            // A process whose memory a checkpoint has moved off the devices still has its objects.
            if gpu.ledger().process(workload.tgid()).is_some_and(|entry| !entry.suspended) {
                assert_sum(&gpu, &journal, &workload, &format!("{}: {line}", scenario.name));
            }
        }
        workload.end();
    }
}

#[test]
fn rm_sums_match_in_every_request_layout_and_variant() {
    for (setting, variant) in [
        ("535", ""),
        ("525", ""),
        ("515", ""),
        ("nvos21", ""),
        ("heap", ""),
        ("xfer", ""),
        ("515,heap,xfer", "two"),
        ("580", "two"),
        ("580", "noplt"),
    ] {
        assert_layout(setting, variant);
    }
}

/// A watch of the whole machine counts the unknown layout as a loss.
#[test(alone)]
fn rm_sums_match_in_a_request_layout_that_memwatch_does_not_know() {
    assert_layout("odd", "");
}

fn assert_layout(setting: &str, variant: &str) {
    let (gpu, journal) = machine();
    let gpu = gpu.with("GPUSIM_RM", &setting).with_variant(variant);
    assert_sums(&gpu, &journal, &format!("{setting} {variant}"));
    let made: Vec<LoggedRequest> =
        requests::read(&journal).into_iter().filter(LoggedRequest::is_video_memory).collect();
    let bytes = match setting {
        "515" | "525" => 40,
        "nvos21" => 32,
        "odd" => 56,
        _ if setting.contains("heap") => 184,
        _ => 48,
    };
    assert!(made.len() > 17 && made.iter().all(|request| request.bytes == bytes), "{setting}: {made:?}");
    assert!(made.iter().all(|request| request.is_wrapped == setting.contains("xfer")), "{setting}: {made:?}");
}

#[test]
fn a_context_of_any_size_adds_up_to_it() {
    for mebibytes in [0, 1, 77, 100, 518, 1000] {
        let (gpu, journal) = machine();
        let gpu = gpu.with("GPUSIM_CONTEXT_MB", &mebibytes);
        let mut workload = gpu.workload();
        workload.run(&["device 0"]);
        assert_eq!(used_bytes(&gpu, &workload), mebibytes * MIB);
        assert_sum(&gpu, &journal, &workload, "a context");
        workload.run(&["reset 0"]);
        assert_eq!(used_bytes(&gpu, &workload), 0);
        assert_sum(&gpu, &journal, &workload, "none");
    }
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../memwatch-core/src/kernel_driver/tests/golden")
}

/// Returns class, requested bytes and granted bytes of the memory of a real context, from the log
/// of an H100.
fn memory_of_a_real_context() -> Vec<(u32, u64, u64)> {
    let text = std::fs::read_to_string(golden().join("steps.tsv")).expect("the log is in the repository");
    let rows = text.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    let context =
        rows.skip_while(|row| row[4] != "cuInit" || row[3] != "MARK").take_while(|row| row[4] != "ctx_retain");
    let memory = context.filter(|row| matches!(row[7], "40" | "3e" | "71"));
    let number = |text: &str| text.parse::<u64>().expect("a size");
    let class = |text| u32::from_str_radix(text, 16).expect("a class");
    memory.map(|row| (class(row[7]), number(row[11]), number(row[12]))).collect()
}

#[test]
fn a_context_is_made_of_the_objects_of_a_real_one_in_their_order() {
    let (gpu, journal) = machine();
    let mut workload = gpu.workload();
    workload.run(&["init"]);
    let before = requests_of(&journal, &workload);
    assert!(before.iter().any(|request| request.number == CONTROL && request.class == 0x2080_014a), "{before:?}");
    workload.run(&["device 0"]);
    let all = requests_of(&journal, &workload);
    let made = all[before.len()..].iter().filter(|request| matches!(request.class, 0x40 | HOST_MEMORY | PINNED_MEMORY));
    let memory: Vec<_> = made.map(|request| (request.class, request.asked_bytes, request.granted_bytes)).collect();
    assert_eq!(memory, memory_of_a_real_context());
    assert_eq!(memory.iter().filter(|(class, ..)| *class == 0x40).map(|(.., bytes)| bytes).sum::<u64>(), CONTEXT_BYTES);
}

#[test]
fn refused_memory_has_the_status_of_the_real_driver_and_its_asked_size() {
    let (gpu, journal) = machine();
    let mut workload = gpu.workload();
    workload.run(&["device 0"]);
    assert_eq!(workload.ask("alloc huge 900G")["result"], 2);
    let last = requests_of(&journal, &workload).pop().expect("a request");
    assert_eq!((last.answer, last.status, last.is_granted()), (0, 0x51, false));
    assert_eq!((last.asked_bytes, last.granted_bytes), (900 << 30, 900 << 30));
}

#[test]
fn a_request_fails_on_purpose_by_its_status_or_by_the_answer() {
    for (setting, answer, status) in [("status51:19", 0, 0x51), ("rax:19", -1, 0x51)] {
        let (gpu, journal) = machine();
        let gpu = gpu.with("GPUSIM_RM_FAIL", &setting);
        let mut workload = gpu.workload();
        workload.run(&["device 0", "alloc a 2M"]);
        assert_eq!(workload.ask("alloc b 2M")["result"], 2, "{setting}");
        workload.run(&["alloc c 2M"]);
        let all = requests_of(&journal, &workload);
        let failed: Vec<_> = all.iter().filter(|request| !request.is_granted()).collect();
        assert_eq!(
            failed.iter().map(|request| (request.answer, request.status)).collect::<Vec<_>>(),
            [(answer, status)]
        );
        assert_sum(&gpu, &journal, &workload, setting);
    }
}

#[test]
fn a_programs_own_call_of_ioctl_goes_to_the_kernel() {
    let (gpu, journal) = machine();
    let mut workload = gpu.workload();
    workload.run(&["device 0"]);
    let before = requests_of(&journal, &workload);
    assert_eq!(workload.ask("ioctl 1234")["readable"], 1234);
    assert_eq!(requests_of(&journal, &workload), before);
}

#[test]
fn calls_that_change_no_memory_make_no_request() {
    let (gpu, journal) = machine();
    let mut workload = gpu.workload();
    workload.run(&["device 0", "alloc kept 100", "stream s"]);
    let before = requests_of(&journal, &workload);
    workload.run(&["loop cuCtxGetDevice 100", "loop cuCtxSetCurrent 100", "loop cuMemAlloc 100 100", "meminfo"]);
    workload.run(&["managed m 64M", "free m", "kernel 4096", "streamdestroy s", "sync"]);
    assert_eq!(requests_of(&journal, &workload), before);
}

#[test]
fn a_process_that_ends_frees_nothing_itself() {
    let (gpu, journal) = machine();
    let mut workload = gpu.workload();
    workload.run(&["device 0", "alloc a 6M", "hostalloc h 1M", "async p 4M"]);
    let before = requests_of(&journal, &workload);
    workload.end();
    assert_eq!(requests_of(&journal, &workload), before);
    assert!(gpu.ledger().process(workload.tgid()).is_none());
}

#[test]
fn imports_are_duplicates_that_charge_nothing() {
    let (gpu, journal) = machine();
    let mut exporter = gpu.workload();
    exporter.run(&["device 0", "alloc a 6M", "create h 4M"]);
    let handle = exporter.ask("ipcget a")["handle"].as_str().expect("a handle").to_owned();
    let file = exporter.ask("export f h")["f"].as_u64().expect("a file");
    let mut importer = gpu.workload();
    importer.run(&["device 0", &format!("ipcopen b {handle}")]);
    importer.run(&[&format!("takefd g {} {file}", exporter.tgid()), "import i g"]);
    assert_eq!(used_bytes(&gpu, &importer), CONTEXT_BYTES);
    assert_sum(&gpu, &journal, &importer, "an importer");
    let theirs = requests_of(&journal, &exporter);
    let made: Vec<_> =
        theirs.iter().filter(|request| request.is_video_memory()).map(|made| (made.client, made.object)).collect();
    let all = requests_of(&journal, &importer);
    let sources: Vec<_> = all.iter().filter(|request| request.number == DUP).map(|request| request.source).collect();
    assert_eq!(sources, made[17..], "the exporter's two objects");
    importer.run(&["ipcclose b", "release i"]);
    let all = requests_of(&journal, &importer);
    assert_eq!(all.iter().filter(|request| request.number == FREE && request.object != 0).count(), 4, "{all:?}");
}

#[test]
fn memory_freed_by_its_exporter_is_charged_to_the_first_importer() {
    let (gpu, _) = machine();
    let mut exporter = gpu.workload();
    exporter.run(&["device 0", "alloc a 6M", "create h 4M"]);
    let handle = exporter.ask("ipcget a")["handle"].as_str().expect("a handle").to_owned();
    let file = exporter.ask("export f h")["f"].as_u64().expect("a file");
    let take = format!("takefd g {} {file}", exporter.tgid());
    let [mut first, mut second] = [(); 2].map(|()| gpu.workload());
    for importer in [&mut first, &mut second] {
        importer.run(&["device 0", &format!("ipcopen b {handle}"), &take, "import i g"]);
    }
    let used = |one: &SimulatedWorkload, other: &SimulatedWorkload| [used_bytes(&gpu, one), used_bytes(&gpu, other)];
    assert_eq!(used(&first, &second), [CONTEXT_BYTES; 2]);
    exporter.run(&["free a"]);
    assert_eq!(used(&first, &second), [CONTEXT_BYTES + 6 * MIB, CONTEXT_BYTES]);
    first.run(&["ipcclose b"]);
    assert_eq!(used(&first, &second), [CONTEXT_BYTES, CONTEXT_BYTES + 6 * MIB]);
    exporter.report("kill");
    exporter.wait();
    second.run(&["meminfo"]);
    assert_eq!(used(&first, &second), [CONTEXT_BYTES + 4 * MIB, CONTEXT_BYTES + 6 * MIB]);
    first.report("kill");
    first.wait();
    second.run(&["meminfo"]);
    assert_eq!(used_bytes(&gpu, &second), CONTEXT_BYTES + 10 * MIB);
    second.run(&["ipcclose b", "release i"]);
    assert_eq!(used_bytes(&gpu, &second), CONTEXT_BYTES);
}

#[test]
fn every_piece_of_video_memory_is_mapped_whole() {
    let (gpu, journal) = machine();
    let mut workload = gpu.workload();
    workload.run(&["device 0", "alloc a 3M", "alloc b 100", "async p 40M", "array t 100 100"]);
    let all = requests_of(&journal, &workload);
    for made in all.iter().filter(|request| request.is_video_memory() && request.is_granted()) {
        let is_of_it =
            |map: &&LoggedRequest| map.number == MAP && (map.client, map.object) == (made.client, made.object);
        assert_eq!(all.iter().find(is_of_it).map(|map| map.length), Some(made.granted_bytes), "{made:?}");
    }
}

#[test]
fn pool_allocations_are_within_the_video_memory_objects_of_the_pool() {
    let (gpu, journal) = machine();
    let mut workload = gpu.workload();
    workload.run(&["device 0"]);
    let mut wanted = Vec::new();
    for (command, name, bytes) in [
        ("async a 20M", "a", 20 * MIB),
        ("async b 40M", "b", 40 * MIB),
        ("async c 100", "c", 100),
        ("asyncfree a", "", 0),
        ("sync", "", 0),
        ("async d 10M", "d", 10 * MIB),
    ] {
        let answer = workload.ask(command);
        assert_eq!(answer["result"], 0, "{answer}");
        if let Some(address) = answer[name].as_u64() {
            wanted.push((name, address, bytes));
        }
    }
    let mut pieces: Vec<(u64, u64)> = Vec::new();
    for request in requests_of(&journal, &workload) {
        match request.number {
            MAP => pieces.push((request.address, request.length)),
            UNMAP_PART => pieces.retain(|(address, _)| *address != request.address),
            _ => {}
        }
    }
    pieces.sort_unstable();
    for (name, address, bytes) in wanted.iter().filter(|(name, ..)| *name != "a") {
        let overlaps = pieces
            .iter()
            .map(|(start, length)| (start + length).min(address + bytes).saturating_sub((*start).max(*address)));
        assert_eq!(overlaps.sum::<u64>(), *bytes, "{name} at {address:x}: {pieces:x?}");
    }
}

#[test]
fn with_extras_kernels_streams_and_stacks_take_what_they_take_on_an_h100() {
    let (gpu, journal) = machine();
    let gpu = gpu.with("GPUSIM_RM_EXTRAS", &1);
    let mut workload = gpu.workload();
    let mut expected = CONTEXT_BYTES;
    for (command, more) in [
        ("device 0", 0),
        ("kernel 0", 2 * MIB),
        ("stream first", 70 * MIB),
        ("stream second", 0),
        // 414 MiB are freed and 504 MiB allocated under the same handle, plus the code of the
        // kernel.
        ("kernel 1952", 92 * MIB),
        ("kernel 1024", 2 * MIB),
    ] {
        workload.run(&[command]);
        expected += more;
        assert_eq!(used_bytes(&gpu, &workload), expected, "{command}");
        assert_sum(&gpu, &journal, &workload, command);
    }
    let all = requests_of(&journal, &workload);
    let at = all.iter().position(|request| request.asked_bytes == 527_695_872).expect("local memory for 1952 bytes");
    assert_eq!((all[at - 1].number, all[at - 1].object), (FREE, all[at].object));
    // A stack of 64 KiB per thread, as `cuCtxSetLimit(CU_LIMIT_STACK_SIZE)` requests: 16.5 GiB of
    // local memory instead of 504 MiB.
    workload.run(&["call cuCtxSetLimit 0 64K"]);
    assert_eq!(used_bytes(&gpu, &workload), expected - 504 * MIB + 132 * 2048 * 65536);
    assert_sum(&gpu, &journal, &workload, "a stack");
    workload.run(&["reset 0"]);
    assert_eq!(used_bytes(&gpu, &workload), 0);
}

#[test]
fn missing_kernel_driver_gives_the_same_numbers_and_no_requests() {
    let (gpu, journal) = machine();
    let (plain, _) = machine();
    let plain = plain.with("GPUSIM_RM", &"off").with("GPUSIM_RM_LOG", &journal.display());
    let (mut asking, mut silent) = (gpu.workload(), plain.workload());
    for command in MIXED {
        assert_eq!(asking.ask(command)["result"], silent.ask(command)["result"], "{command}");
        let of = |gpu: &SimulatedGpu, workload: &SimulatedWorkload| {
            gpu.ledger().process(workload.tgid()).expect("it is there").devices
        };
        assert_eq!(of(&gpu, &asking), of(&plain, &silent), "{command}");
    }
    assert!(!requests_of(&journal, &asking).is_empty() && requests_of(&journal, &silent).is_empty());
}

/// Two readings of NVML that were taken during an allocation. The bytes are what the reading lacks.
const IN_FLIGHT: &[(&str, &str, u64)] = &[("cupy.tsv", "s2", 8 * MIB), ("gpt2async.tsv", "s5", 32 * MIB)];

fn replay(log: &Path) -> usize {
    let (gpu, journal) = machine();
    let name = log.file_name().and_then(|name| name.to_str()).expect("a plain name");
    let mut workload = gpu.workload();
    workload.run(&[&format!("replay {}", log.display())]);
    let mut marks = 0;
    loop {
        let answer = workload.ask("mark");
        assert!(answer["error"].is_null(), "{name}: {answer}");
        let Some(mark) = answer["mark"].as_str() else { break };
        if mark == "after_exit" {
            break;
        }
        let ahead = IN_FLIGHT.iter().find(|(log, at, _)| (*log, *at) == (name, mark)).map_or(0, |(.., bytes)| *bytes);
        let charged = answer["used_bytes"].as_u64().expect("a number") + ahead;
        assert_eq!(used_bytes(&gpu, &workload), charged, "{name}: {mark}");
        assert_eq!(requests::live_bytes(&requests_of(&journal, &workload)), charged, "{name}: {mark}");
        marks += 1;
    }
    marks
}

#[test]
fn the_logs_of_a_real_driver_replayed_give_nvmls_bytes_at_every_mark() {
    let logs = std::fs::read_dir(golden()).expect("the logs are in the repository");
    let mut paths: Vec<PathBuf> = logs.map(|log| log.expect("a log").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "tsv"));
    assert_eq!(paths.iter().map(|log| replay(log)).sum::<usize>(), 116);
}

#[test]
fn mig_memory_is_charged_to_the_subscribed_instance() {
    let (gpu, journal) = machine();
    let second = "MIG-a1677075-7369-4d00-8000-000000000001";
    let gpu = gpu.with("GPUSIM_MIG", &1).with("GPUSIM_DEVICES", &2).with("CUDA_VISIBLE_DEVICES", &second);
    let mut workload = gpu.workload();
    workload.run(&["device 0", "alloc a 4M"]);
    assert_sum(&gpu, &journal, &workload, "an instance");
    let entry = gpu.ledger().process(workload.tgid()).expect("the workload is in the simulator's ledger");
    assert_eq!([entry.devices[0].used_bytes, entry.devices[1].used_bytes], [0, CONTEXT_BYTES + 4 * MIB]);
    let all = requests_of(&journal, &workload);
    let object = |class| all.iter().find(|request| request.class == class).expect("it is made").clone();
    let (subdevice, instance, part) = (object(0x2080), object(0xc637), object(0xc638));
    assert_eq!((instance.parent, part.parent), (subdevice.object, instance.object));
}

#[test]
fn rm_memory_on_two_devices_has_the_right_parent_device() {
    let (gpu, journal) = machine();
    let gpu = gpu.with("GPUSIM_DEVICES", &2);
    let mut workload = gpu.workload();
    workload.run(&["device 0", "alloc a 4M", "device 1", "alloc b 6M"]);
    assert_sum(&gpu, &journal, &workload, "two devices");
    let all = requests_of(&journal, &workload);
    let devices: Vec<_> = all.iter().filter(|request| request.number == ALLOC && request.class == 0x80).collect();
    let under = |device: &LoggedRequest| {
        let made = all.iter().filter(|request| request.is_video_memory() && request.parent == device.object);
        made.map(|request| request.granted_bytes).sum::<u64>() - CONTEXT_BYTES
    };
    assert_eq!(devices.iter().map(|device| under(device)).collect::<Vec<_>>(), [4 * MIB, 6 * MIB]);
}
