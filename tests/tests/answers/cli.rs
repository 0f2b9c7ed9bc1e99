//! The command line: exit codes, messages, output streams, and refused arguments.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use memwatch_tests::contract;
use memwatch_tests::mounts::after_mounting;
use memwatch_tests::report::ReportLine;
use memwatch_tests::test;
use memwatch_tests::{
    CONTEXT_BYTES, CommandOutcome, MIB, PrologueShape, RunningProgram, RunningWatch, SimulatedGpu, SimulatedWorkload,
};
use serde_json::Value;

/// User id of `nobody` on every distribution.
const NOBODY: u32 = 65_534;

fn holding_4_mib(gpu: &SimulatedGpu) -> SimulatedWorkload {
    let mut workload = gpu.workload();
    workload.run(&["uuid 0", "device 0", "alloc a 4M"]);
    workload
}

/// A child process that is killed when the test ends, also after a panic.
struct Stranger(Child);

impl Stranger {
    /// Starts a program without CUDA that waits for the end of its input.
    fn start(mut command: Command) -> Self {
        Self(command.stdin(Stdio::piped()).spawn().expect("the program starts"))
    }

    fn tgid_word(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        // Fails if the child has already exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test(alone)]
fn cli_invalid_arguments_exit_with_2_and_a_message() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    for (words, sentence) in [
        (["-i", "0"], "the shortest interval is 100ms"),
        (["-i", "soon"], "a time is a number with a unit"),
        (["-d", "0"], "the duration must be greater than 0"),
        (["-p", "0"], "a process id is a number from 1 on"),
        (["-p", "python"], "a process id is a number from 1 on"),
        (["-p", "-1"], "a process id is a number from 1 on"),
        (["-g", "*"], "a GPU is an index such as 0"),
        (["ps", "--no-such-option"], "--no-such-option"),
    ] {
        let outcome = gpu.run_memwatch(&words);
        outcome.assert_ended_with(2, &[sentence]);
        assert_eq!(outcome.stdout, "", "{words:?}");
    }
}

#[test(alone)]
fn cli_unknown_pid_exits_with_6() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    // Above the highest process id of every kernel.
    let nobody = i32::MAX.to_string();
    for words in [&["-p", &nobody][..], &["ps", "-p", &nobody]] {
        gpu.run_memwatch(words).assert_ended_with(6, &["there is no process 2147483647", "memwatch ps"]);
    }
}

#[test(alone)]
fn cli_process_without_cuda_exits_with_6_and_is_named() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let stranger = Stranger::start(Command::new("cat"));
    let tgid = stranger.tgid_word();
    let sentence = format!("process {tgid} (cat) has not loaded libcuda.so");
    gpu.run_memwatch(&["ps", "-p", &tgid]).assert_ended_with(6, &[&sentence]);
    let waiting = format!("{sentence}; waiting for its first CUDA call");
    let timed_out = format!("{sentence} in all this time");
    gpu.run_memwatch(&["-p", &tgid, "-d", "300ms"]).assert_ended_with(6, &[&waiting, &timed_out]);
}

/// Returns a command that runs a world-executable copy of memwatch as a user without capabilities.
fn unprivileged(gpu: &SimulatedGpu, words: &[&str]) -> Command {
    let reported = gpu.memwatch(words);
    let program = gpu.directory().join("memwatch");
    std::fs::copy(reported.get_program(), &program).expect("a copy of memwatch");
    std::fs::set_permissions(gpu.directory(), PermissionsExt::from_mode(0o755)).expect("the directory is ours");
    let mut command = Command::new(program);
    command.args(reported.get_args()).uid(NOBODY).gid(NOBODY);
    command
}

#[test(alone)]
fn cli_without_permission_exits_with_4_and_remedies() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let ways_out = ["Operation not permitted", "sudo ", "cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search+ep"];
    for words in [&["ps", "--json"][..], &["leak", "-p", "1"], &["-d", "1s"], &["--json", "-d", "1s"]] {
        let outcome = CommandOutcome::of(unprivileged(&gpu, words));
        outcome.assert_ended_with(4, &ways_out);
        assert_eq!(outcome.stdout, "");
    }
    // NVML's numbers need no permission.
    let outcome = CommandOutcome::of(unprivileged(&gpu, &["ps"]));
    outcome.assert_ended_with(0, &[]);
    let title = "Driver view only (NVML). Allocation tracing needs root: sudo memwatch ps\nGPU 0  ";
    assert!(outcome.stdout.starts_with(title), "{}", outcome.stdout);
    // 125, because the command itself could exit with any other code.
    CommandOutcome::of(unprivileged(&gpu, &["run", "--", "true"])).assert_ended_with(125, &ways_out);
    let outcome = CommandOutcome::of(unprivileged(&gpu, &["doctor", "--json"]));
    outcome.assert_ended_with(4, &[]);
    let check = check(&ReportLine::parse(&outcome.stdout), "cap_bpf");
    assert_eq!((&check["state"], &check["barrier"]), (&"missing".into(), &"permission".into()));
}

#[test(alone)]
fn cli_without_btf_exits_with_5() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    for without in ["mount --bind /dev/null /sys/kernel/btf/vmlinux", "mount -t tmpfs none /sys/kernel/btf"] {
        for (words, sentences) in [(&["ps"][..], &["BTF", "CONFIG_DEBUG_INFO_BTF=y"][..]), (&["doctor", "--json"], &[])]
        {
            let command = after_mounting(without, &[], &gpu.memwatch(words));
            CommandOutcome::of(command).assert_ended_with(5, sentences);
        }
    }
}

#[test(alone)]
fn missing_nvml_library_leaves_live_bytes_exact_and_is_reported() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let other = gpu.directory().join("libnvidia-ml.so.1");
    std::fs::copy(gpu.libcuda(), &other).expect("a library that is no NVML");
    let name = other.display().to_string();
    let gpu = gpu.with_nvml(other);
    let mut workload = gpu.workload();
    workload.ask("tgid");
    let mut watch = gpu.watch(&["--pid", &workload.tgid_word()]);
    workload.run(&["uuid 0", "device 0", "alloc a 4M"]);
    let report = watch.settled();
    assert_eq!(report.json()["coverage"]["nvml"], "unavailable");
    let reason = report.json()["coverage"]["nvml_reason"].as_str().expect("a reason");
    assert!(reason.contains(&name), "{reason}");
    let on_gpu = report.process(workload.tgid()).expect("the target").only_gpu();
    assert_eq!(on_gpu.number("driver_allocated_bytes"), 4 * MIB);
    assert!(on_gpu.0["used_bytes"].is_null() && on_gpu.0["unattributed_bytes"].is_null());
    let table = gpu.run_memwatch(&["ps", "--pid", &workload.tgid_word()]);
    table.assert_ended_with(0, &[]);
    assert!(table.stdout.contains(&format!("no NVML: {name}")), "{}", table.stdout);
}

#[test(alone)]
fn a_library_that_is_named_and_not_there_is_1_with_its_option() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let text = gpu.directory().join("notes.txt");
    std::fs::write(&text, "no library").expect("the directory is ours");
    let text = text.display().to_string();
    for (file, why) in
        [("/nonexistent", "No such file or directory"), ("/dev", "not a file"), (&text, "not an ELF file")]
    {
        for option in ["--nvml-lib", "--libcuda"] {
            let sentence = format!("{option} {file}: {why}");
            for words in [&["ps"][..], &["-d", "1s", "--json"], &["agent", "--socket", "/nonexistent/socket"]] {
                let mut command = Command::new(gpu.memwatch(&[]).get_program());
                command.args([option, file]).args(words);
                let outcome = CommandOutcome::of(command);
                outcome.assert_ended_with(1, &[&sentence, &format!("Without {option}, ")]);
                assert_eq!(outcome.stdout, "");
            }
            let mut command = Command::new(gpu.memwatch(&[]).get_program());
            command.args([option, file, "run", "--", "true"]);
            CommandOutcome::of(command).assert_ended_with(125, &[&sentence]);
        }
    }
}

/// What a report shows when NVML refuses one query.
struct NvmlRefusal {
    of: &'static str,
    nvml: &'static str,
    gpu_used: bool,
    process_used: bool,
}

#[test(alone)]
fn nvml_refusals_give_null_fields_and_exact_live_bytes() {
    for refusal in [
        NvmlRefusal { of: "processes", nvml: "ok", gpu_used: true, process_used: false },
        NvmlRefusal { of: "memory_info", nvml: "ok", gpu_used: false, process_used: true },
        NvmlRefusal { of: "init", nvml: "unavailable", gpu_used: false, process_used: false },
    ] {
        let gpu = SimulatedGpu::new(PrologueShape::Cmp).with("GPUSIM_NVML_FAIL", &refusal.of);
        let mut workload = gpu.workload();
        workload.ask("tgid");
        let mut watch = gpu.watch(&["--pid", &workload.tgid_word()]);
        watch.settled();
        workload.run(&["uuid 0", "device 0", "alloc a 4M"]);
        let report = watch.settled();
        assert_eq!(report.json()["coverage"]["nvml"], refusal.nvml, "{}", refusal.of);
        assert_eq!(report.gpu(0)["used_bytes"].is_u64(), refusal.gpu_used, "{}: {report:#?}", refusal.of);
        let on_gpu = report.process(workload.tgid()).expect("the target").only_gpu();
        assert_eq!(on_gpu.number("driver_allocated_bytes"), 4 * MIB, "{}", refusal.of);
        let used = refusal.process_used.then_some(4 * MIB + CONTEXT_BYTES);
        assert_eq!(on_gpu.0["used_bytes"].as_u64(), used, "{}: {report:#?}", refusal.of);
    }
}

#[test(alone)]
fn a_driver_that_does_not_answer_stops_no_report() {
    let delayed = |gpu: SimulatedGpu| gpu.with("GPUSIM_NVML_DELAY_MS", &600_000);
    let gpu = delayed(SimulatedGpu::new(PrologueShape::Cmp));
    let mut workload = holding_4_mib(&gpu);
    let tgid = workload.tgid();
    let mut watch = gpu.watch(&["--pid", &workload.tgid_word()]);
    for (command, live_bytes) in [("alloc b 6M", 6 * MIB), ("alloc c 8M", 14 * MIB), ("free b", 8 * MIB)] {
        workload.run(&[command]);
        let report = watch.until(|report| {
            report.process(tgid).is_some_and(|process| process.0["gpus"][0]["driver_allocated_bytes"] == live_bytes)
        });
        let on_gpu = report.process(tgid).expect("the target").only_gpu();
        assert!(on_gpu.0["used_bytes"].is_null() && on_gpu.0["preexisting_bytes"].is_null(), "{report:#?}");
        assert_eq!(report.json()["data"]["gpus"], Value::Array(Vec::new()));
    }
    let once = gpu.run_memwatch(&["ps", "--json", "--pid", &workload.tgid_word()]);
    once.assert_ended_with(0, &[]);
    assert_eq!(ReportLine::parse(&once.stdout).json()["coverage"]["nvml"], "starting");
}

#[test(alone)]
fn gpus_are_chosen_by_index_and_an_unknown_one_is_6() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp).with("GPUSIM_DEVICES", &2);
    let mut workload = gpu.workload();
    workload.run(&["uuid 0", "uuid 1", "device 0", "alloc a 4M", "device 1", "alloc b 6M"]);
    let words = ["ps", "--json", "--pid", &workload.tgid_word(), "-g"];
    let uuid = gpu.ledger().uuid(1).expect("the second GPU");
    for word in ["1", &uuid, &uuid[..6]] {
        let outcome = gpu.run_memwatch(&[&words[..], &[word]].concat());
        outcome.assert_ended_with(0, &[]);
        let report = ReportLine::parse(&outcome.stdout);
        assert_eq!(report.json()["data"]["gpus"].as_array().map(Vec::len), Some(1), "{report:#?}");
        assert_eq!(report.gpu(0)["nvml_index"], 1);
        let on_gpu = report.process(workload.tgid()).expect("the target").only_gpu();
        assert_eq!(on_gpu.0["uuid"], uuid.as_str());
        assert_eq!(on_gpu.number("used_bytes"), 6 * MIB + CONTEXT_BYTES);
    }
    let unknown = gpu.run_memwatch(&[&words[..], &["7"]].concat());
    unknown.assert_ended_with(6, &["there is no GPU 7; this machine has 0 (GPU-", &uuid]);
    assert_eq!(unknown.stdout, "");
}

#[test(alone)]
fn json_keeps_its_contract() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut workload = holding_4_mib(&gpu);
    let once = gpu.run_memwatch(&["ps", "--json", "--pid", &workload.tgid_word()]);
    once.assert_ended_with(0, &[]);
    assert_eq!(once.stdout.matches('\n').count(), 1, "{}", once.stdout);
    let report = ReportLine::parse(&once.stdout);
    assert_eq!(report.json()["schema"], "memwatch.ps/3");
    contract::assert_kept(&report);
    let mut watch = gpu.watch(&["--pid", &workload.tgid_word()]);
    workload.run(&["alloc b 2M", "async c 2M"]);
    let report = watch.settled();
    assert_eq!(report.json()["schema"], "memwatch.watch/3");
    contract::assert_kept_with_kinds(&report);
}

const HOSTILE_NAME: &[u8] = b"\x1b[31m\x07\nevil";
const HOSTILE_ARGUMENT: &[u8] = b"\x1b]0;owned\x07\r\n\xff\x1b[2J\xc2\x9b31m\xe2\x80\xae";

/// Asserts that a text has no control characters except newlines, and no character that reverses
/// the direction of text.
fn assert_harmless(text: &str, outcome: &CommandOutcome) {
    let harmful = |letter: char| (letter.is_control() && letter != '\n') || letter == '\u{202e}';
    assert!(!text.contains(harmful), "{outcome:#?}");
}

#[test(alone)]
fn names_of_others_reach_no_terminal_unescaped() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let hostile = |program: &OsStr| {
        let link = gpu.directory().join(OsStr::from_bytes(HOSTILE_NAME));
        let _ = std::fs::remove_file(&link);
        symlink(program, &link).expect("a link with a strange name");
        let mut command = Command::new(link);
        gpu.apply(&mut command);
        command.arg0(OsStr::from_bytes(HOSTILE_ARGUMENT));
        command
    };
    let mut workload = SimulatedWorkload::start(hostile(gpu.workload_program().as_os_str()));
    workload.run(&["uuid 0", "device 0", "alloc a 4M"]);
    let tgid = workload.tgid_word();
    let table = gpu.run_memwatch(&["ps", "--color=never", "--pid", &tgid]);
    table.assert_ended_with(0, &[]);
    assert!(table.stdout.contains(&tgid) && table.stdout.contains("owned"), "{}", table.stdout);
    assert_harmless(&table.stdout, &table);
    assert_harmless(&table.stderr, &table);
    let json = gpu.run_memwatch(&["ps", "--json", "--pid", &tgid]);
    assert!(!json.stdout.trim_end().contains(|letter: char| letter.is_ascii_control()), "{json:#?}");
    let report = ReportLine::parse(&json.stdout);
    let process = report.process(workload.tgid()).expect("the target").0;
    assert_eq!(process["comm"], "\x1b[31m\x07\nevil");
    assert_eq!(process["command"], String::from_utf8_lossy(HOSTILE_ARGUMENT).as_ref());
    let stranger = Stranger::start(hostile(OsStr::new("/bin/cat")));
    let refused = gpu.run_memwatch(&["ps", "--pid", &stranger.tgid_word()]);
    refused.assert_ended_with(6, &["has not loaded libcuda.so"]);
    assert_harmless(&refused.stderr, &refused);
    assert_harmless(&refused.stdout, &refused);
}

#[test(alone)]
fn a_reader_that_leaves_early_ends_the_watch_quietly() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let workload = holding_4_mib(&gpu);
    for json in [&[][..], &["--json"]] {
        let mut command = gpu.memwatch(&["--pid", &workload.tgid_word(), "--interval", "100ms"]);
        command.args(json).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("memwatch starts");
        let mut output = BufReader::new(child.stdout.take().expect("standard output is piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("a first line");
        drop(output);
        let mut reported = String::new();
        let _ = child.stderr.take().expect("standard error is piped").read_to_string(&mut reported);
        let status = child.wait().expect("memwatch is ours");
        assert_eq!((status.code(), reported.as_str()), (Some(0), ""), "{json:?}");
    }
}

#[test(alone)]
fn watch_overloaded_with_calls_still_reports_and_ends() {
    let gpu = SimulatedGpu::new(PrologueShape::Push);
    let mut workload = holding_4_mib(&gpu);
    // Runs until it is killed with the test.
    workload.report("churn 8 1000000000 2M");
    let words = ["--pid", &workload.tgid_word(), "--interval", "100ms", "--ring-bytes", "1M"];
    let mut watch = RunningProgram::start(gpu.memwatch(&words));
    for _ in 0..3 {
        watch.until_line_with("UNATTRIBUTED");
    }
    watch.signal(libc::SIGINT);
    assert_eq!(watch.end(), 0);
}

#[test(alone)]
fn a_signal_ends_a_watch_with_0_and_the_next_one_works() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let workload = holding_4_mib(&gpu);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let mut watch = RunningProgram::start(gpu.memwatch(&["--pid", &workload.tgid_word(), "--interval", "100ms"]));
        watch.until_line_with("complete");
        watch.signal(signal);
        assert_eq!(watch.end(), 0, "after signal {signal}");
    }
    let once = gpu.run_memwatch(&["ps", "--pid", &workload.tgid_word()]);
    once.assert_ended_with(0, &[]);
    assert!(once.stdout.contains("complete"), "{}", once.stdout);
}

fn check(report: &ReportLine, id: &str) -> Value {
    let checks = report.json()["data"]["checks"].as_array().expect("checks");
    checks.iter().find(|check| check["id"] == id).unwrap_or_else(|| panic!("no check {id} in {report:#?}")).clone()
}

#[test(alone)]
fn the_doctor_names_the_probed_instruction_of_every_function() {
    for (shape, offset_bytes, instruction) in [(PrologueShape::Cmp, 10, "je"), (PrologueShape::Push, 0, "push")] {
        let gpu = SimulatedGpu::new(shape);
        let text = gpu.run_memwatch(&["doctor"]);
        text.assert_ended_with(0, &[]);
        assert!(
            text.stdout.contains("ready: ") && text.stdout.contains(&format!("functions at {instruction}")),
            "{text:#?}"
        );
        assert!(text.stdout.contains("requests to the kernel driver: probed at 1 stub"), "{text:#?}");
        let json = gpu.run_memwatch(&["doctor", "--json"]);
        json.assert_ended_with(0, &[]);
        let report = ReportLine::parse(&json.stdout);
        assert_eq!(report.json()["schema"], "memwatch.doctor/1");
        contract::assert_envelope(&report);
        for check in report.json()["data"]["checks"].as_array().expect("checks") {
            assert!(check["id"].is_string() && check["state"].is_string() && check["fact"].is_string(), "{check}");
        }
        for id in ["btf", "cap_bpf", "kernel_half", "test_call", "nvml"] {
            assert_eq!(check(&report, id)["state"], "ok", "{id}");
        }
        assert_sites(&gpu, &report, offset_bytes, instruction);
    }
}

fn assert_sites(gpu: &SimulatedGpu, report: &ReportLine, offset_bytes: u64, instruction: &str) {
    let libraries = report.json()["data"]["libraries"].as_array().expect("libraries");
    let path = std::fs::canonicalize(gpu.libcuda()).expect("the library is there");
    let library = libraries.iter().find(|library| library["path"].as_str() == path.to_str());
    let library = library.unwrap_or_else(|| panic!("{} is not named: {report:#?}", path.display()));
    let functions = library["functions"].as_array().expect("functions");
    assert!(functions.len() >= 40, "{library:#}");
    assert_eq!(library["missing"], Value::Array(Vec::new()));
    for function in functions {
        assert_eq!(function["offset_bytes"], offset_bytes, "{function}");
        assert!(function["instruction"].as_str().is_some_and(|text| text.starts_with(instruction)), "{function}");
        assert_eq!(function["single_stepped"], false, "{function}");
    }
}

#[test(alone)]
fn a_watch_on_a_process_ends_with_it_and_a_summary() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut workload = gpu.workload();
    workload.ask("tgid");
    let mut watch = RunningProgram::start(gpu.memwatch(&["--pid", &workload.tgid_word(), "--interval", "100ms"]));
    watch.until_line_with("complete");
    workload.run(&["uuid 0", "device 0", "alloc a 4M"]);
    watch.until_line_with("device 4.0 MiB");
    workload.end();
    watch.until_line_with("peak        4.0 MiB on GPU 0");
    watch.until_line_with("1 allocation not freed by the program");
    assert_eq!(watch.end(), 0);
    let watched = RunningWatch::start(gpu.memwatch(&["--duration", "300ms"]));
    assert_eq!(watched.finish().1, 0);
}

#[test(alone)]
fn a_watch_without_tensors_has_no_thread_that_looks_for_pytorch() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let workload = holding_4_mib(&gpu);
    let looks = |options: &[&str]| {
        let mut watch = gpu.watch(&[&["--pid", &workload.tgid_word()], options].concat());
        // memwatch has searched the process by now; the searching thread lives for some seconds.
        watch.settled();
        let threads = std::fs::read_dir(format!("/proc/{}/task", watch.tgid())).expect("memwatch runs");
        let name = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        threads.flatten().any(|thread| name(thread).trim() == "pytorch")
    };
    assert!(looks(&[]), "by default a named process is watched for tensors");
    assert!(!looks(&["--tensors=off"]));
}
