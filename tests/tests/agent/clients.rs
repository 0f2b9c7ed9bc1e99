//! `memwatch agent` and its clients: what each user sees, what misbehaving clients and agents cost,
//! and the agent's privileges.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::time::Instant;

use memwatch_tests::agent::{TestAgent, as_user, workload_command_of, workload_of};
use memwatch_tests::harness::cannot_run;
use memwatch_tests::report::ReportLine;
use memwatch_tests::test;
use memwatch_tests::{
    CommandOutcome, MIB, PrologueShape, RunningProgram, RunningWatch, SimulatedGpu, SimulatedWorkload, TIMEOUT,
};

const ANN: u32 = 64_001;
const BOB: u32 = 64_002;
const ROOT: u32 = 0;

/// CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH.
const FOUR: u64 = 1 << 39 | 1 << 38 | 1 << 19 | 1 << 2;

fn machine() -> SimulatedGpu {
    SimulatedGpu::new(PrologueShape::Cmp).with_own_libcuda()
}

fn holding(gpu: &SimulatedGpu, uid: u32, size: &str) -> SimulatedWorkload {
    let mut workload = workload_of(gpu, uid);
    workload.run(&["uuid 0", "device 0", &format!("alloc a {size}")]);
    workload
}

fn report(outcome: &CommandOutcome) -> ReportLine {
    outcome.assert_ended_with(0, &[]);
    ReportLine::parse(&outcome.stdout)
}

fn shown(report: &ReportLine) -> Vec<u32> {
    let processes = report.json()["data"]["processes"].as_array().expect("the contract has a list");
    processes
        .iter()
        .map(|process| process["pid"].as_u64().and_then(|tgid| tgid.try_into().ok()).expect("a PID"))
        .collect()
}

/// Asks until the report has all live memory and an NVML reading that includes it. NVML readings
/// are at most a second old.
fn settled(gpu: &SimulatedGpu, agent: &TestAgent, uid: u32, live_bytes: u64) -> ReportLine {
    let begin = Instant::now();
    while begin.elapsed() < TIMEOUT {
        let report = report(&agent.ask(gpu, uid, &["ps", "--json"]));
        let gpu = report.gpu(0);
        if gpu["attributed_bytes"] == live_bytes && gpu["used_bytes"].as_u64() > Some(live_bytes) {
            return report;
        }
    }
    panic!("the agent does not come to {live_bytes} bytes")
}

#[test(alone)]
fn users_see_their_own_processes_root_sees_all_and_the_hidden_ones_add_up() {
    let gpu = machine();
    let agent = TestAgent::start(&gpu);
    let (anns, bobs, roots) = (holding(&gpu, ANN, "4M"), holding(&gpu, BOB, "8M"), holding(&gpu, ROOT, "16M"));
    let everything = settled(&gpu, &agent, ROOT, 28 * MIB);
    for workload in [&anns, &bobs, &roots] {
        assert!(shown(&everything).contains(&workload.tgid()));
    }
    assert!(everything.json()["data"]["hidden"].is_null());
    assert_eq!(everything.json()["from_agent"], true);

    let anns_view = settled(&gpu, &agent, ANN, 28 * MIB);
    assert_eq!(shown(&anns_view), [anns.tgid()]);
    let own = anns_view.process(anns.tgid()).expect("it is Ann's").only_gpu().number("driver_allocated_bytes");
    let hidden = &anns_view.json()["data"]["hidden"];
    assert_eq!(
        (own, &hidden["processes"], &hidden["gpus"][0]["driver_allocated_bytes"]),
        (4 * MIB, &2.into(), &(24 * MIB).into())
    );
    let text = anns_view.json().to_string();
    for secret in [bobs.tgid_word(), gpu.libcuda().display().to_string()] {
        assert!(!text.contains(&format!("\"{secret}")) && !text.contains(&format!(":{secret},")), "{secret} in {text}");
    }
    let table = agent.ask(&gpu, ANN, &["ps"]);
    table.assert_ended_with(0, &[]);
    assert!(
        table.stdout.contains("from the agent") && table.stdout.contains("2 processes of other users use"),
        "{}",
        table.stdout
    );
    // A user without processes sees the machine but no process.
    assert_eq!(shown(&settled(&gpu, &agent, 64_003, 28 * MIB)), Vec::<u32>::new());
}

#[test(alone)]
fn a_pid_shows_its_children_and_anothers_is_refused_with_4() {
    let gpu = machine();
    let agent = TestAgent::start(&gpu);
    let direct = workload_command_of(&gpu, ANN);
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "\"$0\"; true"])
        .arg(direct.get_program())
        .envs(direct.get_envs().filter_map(|(name, value)| Some((name, value?))));
    std::os::unix::process::CommandExt::uid(&mut shell, ANN);
    let mut family = SimulatedWorkload::start(shell);
    family.run(&["uuid 0", "device 0", "alloc a 4M"]);
    let bobs = holding(&gpu, BOB, "8M");
    settled(&gpu, &agent, ANN, 12 * MIB);

    let outcome = agent.ask(&gpu, ANN, &["ps", "--json", "--pid", &family.tgid_word()]);
    let child = shown(&ReportLine::parse(&outcome.stdout));
    assert!(child.len() == 1 && child[0] != family.tgid(), "{outcome:?}");
    // The shell itself does not use a GPU.
    outcome.assert_ended_with(6, &["(sh) has not used a GPU"]);
    let child = child[0].to_string();
    let named = report(&agent.ask(&gpu, ANN, &["ps", "--json", "--pid", &child]));
    assert_eq!(named.json()["data"]["processes"][0]["target"], true);

    let refusal = agent.ask(&gpu, ANN, &["ps", "--pid", &bobs.tgid_word()]);
    refusal.assert_ended_with(4, &["belongs to another user", "sudo memwatch --pid", "usermod -aG memwatch"]);
    assert_eq!(refusal.stdout, "");
    report(&agent.ask(&gpu, ROOT, &["ps", "--json", "--pid", &bobs.tgid_word()]));
    agent.ask(&gpu, ANN, &["ps", "--pid", &i32::MAX.to_string()]).assert_ended_with(6, &["there is no process"]);
}

#[test(alone)]
fn peaks_begin_again_for_the_owner_of_a_process_and_say_since_when() {
    let gpu = machine();
    let agent = TestAgent::start(&gpu);
    let mut anns = workload_of(&gpu, ANN);
    anns.run(&["uuid 0", "device 0", "alloc a 8M", "free a", "alloc b 4M"]);
    let peak = |report: &ReportLine| {
        let process = report.process(anns.tgid()).expect("it is Ann's");
        (process.only_gpu().number("peak_bytes"), process.0["peaks_since"].is_string())
    };
    assert_eq!(peak(&settled(&gpu, &agent, ANN, 4 * MIB)), (8 * MIB, false));
    let tgid = anns.tgid_word();
    let words = ["stats", "--reset-peaks", "--pid", &tgid];
    agent.ask(&gpu, BOB, &words).assert_ended_with(4, &["belongs to another user"]);
    assert_eq!(peak(&settled(&gpu, &agent, ANN, 4 * MIB)), (8 * MIB, false));
    let reset = agent.ask(&gpu, ANN, &words);
    reset.assert_ended_with(0, &[]);
    let sentence = "peaks reset; peak was 8.0 MiB on GPU 0, now 4.0 MiB";
    assert!(reset.stdout.contains(sentence), "{}", reset.stdout);
    let left = agent.ask(&gpu, ROOT, &[&words[..], &["--json"]].concat());
    assert_eq!(peak(&report(&left)), (4 * MIB, true));
    let table = agent.ask(&gpu, ANN, &["ps"]);
    assert!(table.stdout.contains("peaks since the reset at"), "{}", table.stdout);
}

#[test(alone)]
fn reset_peaks_without_an_agent_is_refused_with_alternatives() {
    let gpu = machine();
    let anns = holding(&gpu, ANN, "4M");
    let (nowhere, tgid) = (gpu.directory().join("nobody.sock").display().to_string(), anns.tgid_word());
    for options in [&["--no-agent"][..], &["--agent", &nowhere]] {
        let words = [options, &["stats", "--reset-peaks", "--pid", &tgid]].concat();
        let outcome = gpu.run_memwatch(&words);
        outcome.assert_ended_with(1, &["no peaks to reset", "memwatch PID, then r", "--reset-peaks", "memwatch agent"]);
        assert_eq!(outcome.stdout, "");
    }
}

#[test(alone)]
fn a_watch_on_a_process_ends_with_it() {
    let gpu = machine();
    let agent = TestAgent::start(&gpu);
    let anns = holding(&gpu, ANN, "4M");
    let mut watch = RunningWatch::start(agent.client(&gpu, ANN, &["--pid", &anns.tgid_word()]));
    let tgid = anns.tgid();
    watch.until(|report| {
        report.process(tgid).is_some_and(|process| process.only_gpu().number("driver_allocated_bytes") == 4 * MIB)
    });
    drop(anns);
    let (last, code) = watch.finish();
    assert_eq!(code, 0);
    assert!(last.process(tgid).is_none_or(|process| process.has_ended()));
}

#[test(alone)]
fn agent_serves_others_beside_slow_mute_or_babbling_clients() {
    let gpu = machine();
    let agent = TestAgent::start(&gpu);
    let workload = holding(&gpu, ANN, "4M");
    let connect = || UnixStream::connect(agent.socket()).expect("the agent listens");
    let frame = |text: &str| [&u32::try_from(text.len()).expect("short").to_be_bytes(), text.as_bytes()].concat();
    let hello = frame(r#"{"hello":{"protocol":{"major":2,"minor":0},"program":"slow"}}"#);
    let slow = [hello.clone(), frame(r#"{"follow":{"every_ms":100}}"#)].concat();
    let mut bad: Vec<UnixStream> = Vec::new();
    for words in [&slow[..], &slow, b"", b"GET / HTTP/1.1\r\n\r\n", &[0xff; 64], &hello, &hello[..7]] {
        let mut stream = connect();
        stream.write_all(words).expect("the socket takes so little at once");
        bad.push(stream);
    }
    // A client with another protocol version is refused in the agent's own version.
    let mut stream = connect();
    stream.write_all(&frame(r#"{"hello":{"protocol":{"major":3,"minor":0},"program":"2.0"}}"#)).expect("it is short");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers and hangs up");
    assert!(answer.contains("refused") && answer.contains("use the same version of both"), "{answer}");
    for _ in 0..5 {
        let report = settled(&gpu, &agent, ANN, 4 * MIB);
        assert_eq!(shown(&report), [workload.tgid()]);
        assert!(report.is_complete());
    }
    agent.until_reported("WATCHDOG=1");
}

#[test(alone)]
fn killed_agent_is_replaced_and_the_watch_continues() {
    let gpu = machine();
    let mut agent = TestAgent::start(&gpu);
    let second = CommandOutcome::of({
        let mut command = gpu.memwatch(&["agent", "--socket"]);
        command.arg(agent.socket());
        command
    });
    second.assert_ended_with(1, &["another agent is running", "memwatch.sock"]);
    let workload = holding(&gpu, ANN, "4M");
    let mut watch = RunningWatch::start(agent.client(&gpu, ANN, &[]));
    let first = watch.until(|report| report.process(workload.tgid()).is_some()).json()["attached_time"].clone();
    agent.signal(libc::SIGKILL);
    assert_eq!(agent.end(), -1);
    assert!(agent.socket().exists(), "a killed agent leaves its socket");
    let mut agent = TestAgent::start(&gpu);
    let report =
        watch.until(|report| report.json()["attached_time"] != first && report.process(workload.tgid()).is_some());
    assert_eq!(report.json()["from_agent"], true);
    drop(watch);
    agent.signal(libc::SIGHUP);
    agent.until_reported("WATCHDOG=1");
    agent.signal(libc::SIGTERM);
    agent.until_reported("STOPPING=1");
    assert_eq!(agent.end(), 0);
    assert!(!agent.socket().exists());
}

#[test(alone)]
fn agent_notifies_systemd_of_readiness_status_and_watchdog() {
    let gpu = machine();
    let agent = TestAgent::start(&gpu);
    assert!(agent.until_reported("STATUS=0 processes").contains("client"));
    let _workload = holding(&gpu, ANN, "4M");
    agent.until_reported("STATUS=1 process on 1 GPU, 0 clients");
    for _ in 0..3 {
        agent.until_reported("WATCHDOG=1");
    }
}

/// Returns the capabilities in one line of a `/proc/PID/status` file.
fn capabilities(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("proc(5)");
    u64::from_str_radix(line.trim(), 16).expect("a hexadecimal number")
}

fn assert_keeps_only_four(agent: &TestAgent) {
    let threads = fs::read_dir(format!("/proc/{}/task", agent.tgid())).expect("it runs");
    let mut count = 0;
    for thread in threads {
        let status = fs::read_to_string(thread.expect("proc(5)").path().join("status")).expect("it runs");
        let of = |name| capabilities(&status, name);
        assert_eq!((of("CapPrm:"), of("CapEff:"), of("CapInh:"), of("CapAmb:")), (FOUR, FOUR, 0, 0), "{status}");
        assert!(status.contains("NoNewPrivs:\t1"), "{status}");
        count += 1;
    }
    assert!(count > 2, "the threads of NVML and of the search for libraries, too");
}

#[test(alone)]
fn agent_threads_keep_four_capabilities_and_find_later_libraries() {
    let gpu = machine();
    let agent = TestAgent::start(&gpu);
    assert_keeps_only_four(&agent);
    let status = fs::read_to_string(format!("/proc/{}/status", agent.tgid())).expect("it runs");
    assert_eq!(capabilities(&status, "CapBnd:"), FOUR);
    // A library that is given to no option, in a folder that only Bob can enter.
    let closed = gpu.directory().join("closed");
    fs::create_dir(&closed).expect("a folder");
    gpu.copy_libcuda(&closed);
    chown(&closed, Some(BOB), Some(BOB)).expect("we are root");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).expect("we are root");
    let mut command = workload_command_of(&gpu, BOB);
    command.env("LD_LIBRARY_PATH", &closed);
    let mut bobs = SimulatedWorkload::start(command);
    let begin = Instant::now();
    let probed =
        |report: &ReportLine| report.json()["coverage"]["libraries"].as_array().is_some_and(|list| list.len() == 2);
    while !probed(&report(&agent.ask(&gpu, ROOT, &["ps", "--json"]))) {
        assert!(begin.elapsed() < TIMEOUT, "the second library is not found");
    }
    bobs.run(&["uuid 0", "device 0", "alloc a 8M"]);
    let report = settled(&gpu, &agent, ROOT, 8 * MIB);
    assert_eq!(report.json()["coverage"]["discovery"], "mapping_records");
    let on_gpu = report.process(bobs.tgid()).expect("it is found").only_gpu();
    assert_eq!(on_gpu.number("driver_allocated_bytes"), 8 * MIB);
    assert!(on_gpu.number("used_bytes") > 8 * MIB, "NVML answers");
}

#[test(alone)]
fn a_user_with_the_four_capabilities_runs_the_agent() {
    let gpu = machine();
    let four = "+bpf,+perfmon,+sys_ptrace,+dac_read_search";
    let uid = ANN.to_string();
    let runs = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
    let mut setpriv = Command::new("setpriv");
    setpriv.args(["--reuid", &uid, "--regid", &uid, "--clear-groups", "--inh-caps", four, "--ambient-caps", four]);
    if !runs(Command::new("setpriv").args(["--inh-caps", four, "--ambient-caps", four, "true"])) {
        cannot_run("no setpriv (util-linux 2.36 or later) that knows these capabilities");
    }
    // The simulator's ledger, which this user could not create.
    drop(workload_command_of(&gpu, ANN));
    let run = gpu.directory().join("run");
    fs::create_dir(&run).expect("a folder");
    chown(&run, Some(ANN), Some(ANN)).expect("we are root");
    let agents = as_user(&gpu, ROOT, &[]);
    setpriv.arg(agents.get_program()).args(agents.get_args());
    setpriv.envs(agents.get_envs().filter_map(|(name, value)| Some((name, value?)))).env_remove("LD_LIBRARY_PATH");
    let mut agent = TestAgent::by(&gpu, setpriv);
    assert_keeps_only_four(&agent);
    let (anns, bobs) = (holding(&gpu, ANN, "4M"), holding(&gpu, BOB, "8M"));
    let report = settled(&gpu, &agent, ROOT, 12 * MIB);
    assert!(report.process(anns.tgid()).is_some() && report.process(bobs.tgid()).is_some());
    assert_eq!(
        shown(&settled(&gpu, &agent, ANN, 12 * MIB)),
        [anns.tgid()],
        "it runs the agent and is a user all the same"
    );
    agent.signal(libc::SIGINT);
    assert_eq!(agent.end(), 0);
}

#[test(alone)]
fn without_an_agent_a_user_is_refused_with_4_and_the_exact_ways_out() {
    let gpu = machine();
    let mut command = as_user(&gpu, ANN, &[]);
    // Without the library options, which request a separate watch, and with a socket on which no
    // agent listens.
    let program = command.get_program().to_owned();
    let ways_out = |program: &str| {
        [
            format!("sudo {program} …"),
            format!("sudo setcap cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search+ep {program}"),
            "sudo systemctl start memwatch-agent".to_owned(),
            format!("sudo {program} agent"),
        ]
    };
    let reported = ways_out(&program.to_string_lossy());
    let reported: Vec<&str> = reported.iter().map(String::as_str).collect();
    command.args(["-d", "1s"]);
    let outcome = CommandOutcome::of(command);
    outcome.assert_ended_with(4, &reported);
    assert_eq!(outcome.stdout, "");
    let elsewhere = gpu.directory().join("nowhere");
    let mut command = as_user(&gpu, ANN, &["-d", "1s", "--agent"]);
    command.arg(&elsewhere);
    CommandOutcome::of(command).assert_ended_with(1, &["no agent listens on", "nowhere"]);
    drop(UnixListener::bind(&elsewhere).expect("a socket"));
    fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o666)).expect("it is ours");
    let mut command = as_user(&gpu, ANN, &["-d", "1s", "--agent"]);
    command.arg(&elsewhere);
    let mut sentences = reported.clone();
    sentences.push("nothing is listening");
    CommandOutcome::of(command).assert_ended_with(4, &sentences);
    let mut agent = as_user(&gpu, ANN, &["agent", "--socket"]);
    agent.arg(gpu.directory().join("closed/to/ann"));
    let refusal = CommandOutcome::of(agent);
    assert!(refusal.code == 1 || refusal.code == 4, "{refusal:?}");
}

#[test(alone)]
fn unusable_agent_is_replaced_by_an_own_watch_where_permitted() {
    let gpu = machine();
    let workload = holding(&gpu, ANN, "4M");
    let agent = TestAgent::start(&gpu);
    agent.signal(libc::SIGSTOP);
    agent.ask(&gpu, ANN, &["-d", "1s"]).assert_ended_with(4, &["cannot be used: it has not answered in 5 s", "sudo "]);
    let own = agent.ask(&gpu, ROOT, &["ps", "--json"]);
    own.assert_ended_with(0, &["cannot be used: it has not answered in 5 s"]);
    let own = ReportLine::parse(&own.stdout);
    assert_eq!(own.json()["from_agent"], false);
    assert!(own.process(workload.tgid()).is_some(), "{:#}", own.json());
    agent.signal(libc::SIGCONT);
    drop(agent);

    let path = gpu.directory().join("later");
    let listener = UnixListener::bind(&path).expect("a socket");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("it is ours");
    let later = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let text = br#"{"welcome":{"protocol":{"major":3,"minor":0},"program":"3.0.0","viewer":"everything"}}"#;
        stream.write_all(&u32::try_from(text.len()).expect("short").to_be_bytes()).expect("it reads");
        stream.write_all(text).expect("it reads");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let mut command = as_user(&gpu, ANN, &["-d", "1s", "--agent"]);
    command.arg(&path);
    CommandOutcome::of(command)
        .assert_ended_with(4, &["it is memwatch 3.0.0 and speaks protocol 3", "use the same version of both"]);
    later.join().expect("it was asked");
}

#[test(alone)]
fn own_watch_runs_beside_an_agent_on_request() {
    let gpu = machine();
    let agent = TestAgent::start(&gpu);
    for (words, from_agent) in [(&["ps", "--json"][..], true), (&["ps", "--json", "--no-agent"], false)] {
        assert_eq!(report(&agent.ask(&gpu, ROOT, words)).json()["from_agent"], from_agent);
    }
    let mut by_variable = as_user(&gpu, ANN, &["ps", "--json"]);
    by_variable.env("MEMWATCH_AGENT", agent.socket());
    assert_eq!(report(&CommandOutcome::of(by_variable)).json()["from_agent"], true);
    // `run` does not use the agent: it watches from the first allocation.
    let run = RunningProgram::start(gpu.memwatch_run(&["--json"], &Command::new("true"))).end();
    assert_eq!(run, 0);
}
