//! The agent's page in a real browser.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use jiff::Timestamp;
use memwatch_tests::agent::{TestAgent, workload_of};
use memwatch_tests::certificates::self_signed;
use memwatch_tests::harness::cannot_run;
use memwatch_tests::http;
use memwatch_tests::report::ReportLine;
use memwatch_tests::test;
use memwatch_tests::{
    MIB, PrologueShape, RunningProgram, SimulatedGpu, SimulatedWorkload, TorchAllocator, TorchJob, until,
};
use serde_json::Value;

const ANN: u32 = 64_001;
const ROOT: u32 = 0;
/// A program name that a hostile user may choose. It is a file name and so has no slash.
const HOSTILE: &str = "<img src=x onerror=alert(1)>";

/// An agent that serves HTTP on a free port.
fn serving(gpu: &SimulatedGpu) -> TestAgent {
    let mut command = gpu.memwatch(&[]);
    command.env("MEMWATCH_LISTEN", http::free_port().to_string());
    command.env("MEMWATCH_HISTORY", gpu.directory().join("history"));
    TestAgent::by(gpu, command)
}

/// Returns the link that the agent gives this user.
fn link(agent: &TestAgent, gpu: &SimulatedGpu, uid: u32) -> String {
    let outcome = agent.ask(gpu, uid, &["web", "--no-open"]);
    outcome.assert_ended_with(0, &[]);
    outcome.stdout.trim().to_owned()
}

/// Opens a link. Returns the address and the path of the page; the path ends with a slash.
fn opened(link: &str) -> (SocketAddr, String) {
    let (address, path) = link.strip_prefix("http://").and_then(|url| url.split_once('/')).expect("an address");
    let address = address.parse().expect("an address");
    let answer = http::get(address, &format!("/{path}"), "").expect("it answers");
    assert_eq!(answer.status, 303, "{answer:?}");
    let place = answer.head.lines().find_map(|line| line.strip_prefix("location: ")).expect("a place");
    (address, place.to_owned())
}

/// Returns the folder of the browser driver's modules and the browser's path. Ignores the test if one
/// of them is missing.
fn browser() -> (PathBuf, PathBuf) {
    let modules = std::env::var_os("PROFILE_READERS").map(|folder| Path::new(&folder).join("node_modules"));
    let chromium = ["/usr/bin/chromium", "/usr/bin/chromium-browser"].map(PathBuf::from).into_iter();
    let chromium = chromium.into_iter().find(|path| path.exists());
    let modules = modules.filter(|modules| modules.join("playwright-core").is_dir());
    modules.zip(chromium).unwrap_or_else(|| {
        cannot_run(
            "no Chromium (Debian: apt-get install chromium) or no playwright-core (cargo xtask test installs it)",
        )
    })
}

/// Returns the command that opens a link in a browser and waits until a process's row has this
/// text.
fn reader((modules, chromium): (PathBuf, PathBuf), link: &str, (process, text): (&SimulatedWorkload, &str)) -> Command {
    let mut script = Command::new("node");
    script.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("readers/open_page.mjs")).arg(modules).arg(chromium);
    script.arg(link).arg(process.tgid_word()).arg(text);
    script
}

/// Reads the next step of the script and asserts its name.
fn step(script: &mut RunningProgram, name: &str) -> Value {
    let line = script.next_line().unwrap_or_else(|| panic!("the script has ended before {name}"));
    let step: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{name}: {line}"));
    assert_eq!(step["step"], name, "{step}");
    step
}

fn numbers(list: &Value) -> Vec<u32> {
    let texts = list.as_array().unwrap_or_else(|| panic!("no list: {list}"));
    texts.iter().map(|text| text.as_str().and_then(|text| text.parse().ok()).expect("a PID")).collect()
}

#[test(alone)]
fn web_page_shows_live_changes_and_escapes_a_hostile_name() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp).with_own_libcuda();
    let (modules, chromium) = browser();
    let agent = serving(&gpu);
    let mut job = gpu.workload();
    job.run(&["device 0", "alloc held 64M"]);
    let program = gpu.directory().join(HOSTILE);
    fs::copy(gpu.workload_program(), &program).expect("a copy of the program");
    let mut command = Command::new(&program);
    gpu.apply(&mut command);
    let mut hostile = SimulatedWorkload::start(command);
    hostile.run(&["device 0", "alloc held 16M"]);
    let mut script =
        RunningProgram::start(reader((modules, chromium), &link(&agent, &gpu, ROOT), (&hostile, "48.0 MiB")));

    let both = [job.tgid(), hostile.tgid()];
    let has_both = |list: &Value| both.iter().all(|tgid| numbers(list).contains(tgid));
    let opened = step(&mut script, "open");
    assert_eq!((&opened["status"], &opened["gpus"], &opened["plots"]), (&200.into(), &1.into(), &1.into()), "{opened}");
    assert!(has_both(&opened["pids"]) && !opened["url"].as_str().expect("a text").contains("/open/"), "{opened}");
    hostile.run(&["alloc more 32M"]);
    let changed = step(&mut script, "changed");
    assert!(changed["text"].as_str().is_some_and(|text| text.contains(HOSTILE)), "{changed}");
    let sorted = step(&mut script, "sorted");
    assert!(numbers(&sorted["ascending"]).is_sorted(), "{sorted}");
    assert!(numbers(&sorted["descending"]).into_iter().rev().is_sorted(), "{sorted}");
    let filtered = step(&mut script, "filtered");
    assert_eq!(numbers(&filtered["filtered"]), [hostile.tgid()]);
    assert!(has_both(&filtered["all"]), "{filtered}");
    let process = step(&mut script, "process");
    let panel = process["panel"].as_str().expect("a text");
    assert!(panel.contains("48.0 MiB") && panel.contains("device") && panel.contains(HOSTILE), "{panel}");
    assert_eq!((&process["closed"], &process["images"]), (&true.into(), &0.into()), "{process}");
    assert_eq!(step(&mut script, "narrow")["overflows"], false);
    let plain = step(&mut script, "without scripts");
    let text = plain["text"].as_str().expect("a text");
    assert!(both.iter().all(|tgid| text.contains(&tgid.to_string())) && text.contains(HOSTILE), "{text}");
    assert_eq!((&plain["status"], &plain["images"]), (&200.into(), &0.into()), "{plain}");
    let wrong = step(&mut script, "wrong");
    assert_eq!(wrong["wrong"].as_array().map(Vec::len), Some(0), "{wrong}");
    let again = step(&mut script, "again");
    assert_eq!(again["status"], 403);
    assert!(again["text"].as_str().is_some_and(|text| text.contains("memwatch web")), "{again}");
    assert_eq!(script.end(), 0);
}

#[test(alone)]
fn a_browser_shows_the_page_through_tls_as_it_changes() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp).with_own_libcuda();
    let browser = browser();
    let ours = self_signed(gpu.directory(), "ours");
    let mut command = gpu.memwatch(&[]);
    command.env("MEMWATCH_LISTEN", http::free_port().to_string());
    command.env("MEMWATCH_TLS_CERT", &ours.certificate).env("MEMWATCH_TLS_KEY", &ours.key);
    let agent = TestAgent::by(&gpu, command);
    let mut job = gpu.workload();
    job.run(&["device 0", "alloc held 16M"]);
    let link = link(&agent, &gpu, ROOT);
    assert!(link.starts_with("https://"), "{link}");
    let mut script = reader(browser, &link, (&job, "48.0 MiB"));
    script.arg("short");
    let mut script = RunningProgram::start(script);
    let opened = step(&mut script, "open");
    assert_eq!((&opened["status"], &opened["gpus"], &opened["plots"]), (&200.into(), &1.into(), &1.into()), "{opened}");
    assert!(opened["url"].as_str().is_some_and(|url| url.starts_with("https://")), "{opened}");
    job.run(&["alloc more 32M"]);
    step(&mut script, "changed");
    assert_eq!(step(&mut script, "wrong")["wrong"].as_array().map(Vec::len), Some(0));
    assert_eq!(script.end(), 0);
}

#[test(alone)]
fn web_page_shows_a_user_their_own_processes_and_needs_a_listening_agent() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp).with_own_libcuda();
    let silent = TestAgent::start(&gpu);
    silent.ask(&gpu, ANN, &["web"]).assert_ended_with(1, &["it serves no HTTP", "--listen 127.0.0.1:9747"]);
    drop(silent);
    let agent = serving(&gpu);
    let mut own = workload_of(&gpu, ANN);
    own.run(&["device 0", "alloc held 4M"]);
    let mut other = gpu.workload();
    other.run(&["device 0", "alloc held 8M"]);
    let shown = |uid| {
        let (address, place) = opened(&link(&agent, &gpu, uid));
        let answer = http::get(address, &format!("{place}snapshot.json"), "").expect("it answers");
        assert_eq!(answer.status, 200, "{answer:?}");
        ReportLine::parse(&answer.body)
    };
    let holds = |report: &ReportLine, tgid| {
        report.process(tgid).map(|process| process.only_gpu().number("driver_allocated_bytes"))
    };
    until("root sees both", || {
        let all = shown(ROOT);
        (holds(&all, own.tgid()) == Some(4 * MIB) && holds(&all, other.tgid()) == Some(8 * MIB)).then_some(())
    });
    let hers = shown(ANN);
    assert_eq!((holds(&hers, own.tgid()), hers.process(other.tgid()).is_none()), (Some(4 * MIB), true));
    assert!(hers.json()["data"]["hidden"]["processes"].as_u64() >= Some(1), "{hers:#?}");
}

#[test(alone)]
fn web_timeline_begins_with_the_history_of_the_previous_agent() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp).with_own_libcuda();
    let mut job = gpu.workload();
    job.run(&["device 0", "alloc held 64M"]);
    let trail = |agent: &TestAgent| -> Value {
        let (address, place) = opened(&link(agent, &gpu, ROOT));
        let text = http::event(address, &format!("{place}events"), "trail").expect("the page has a timeline");
        serde_json::from_str(&text).expect("it is JSON")
    };
    // Returns the times at which memory was read, and the used bytes at those times.
    let used = |trail: &Value| -> Vec<(f64, u64)> {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let times = list(&trail["times"]).into_iter().filter_map(|time| time.as_f64());
        let bytes = list(&trail["gpus"][0]["used_bytes"]);
        times.zip(bytes).filter_map(|(time, bytes)| Some((time, bytes.as_u64()?))).collect()
    };
    let mut agent = serving(&gpu);
    let (_, had) = until("it has looked", || used(&trail(&agent)).last().copied());
    agent.signal(libc::SIGTERM);
    assert_eq!(agent.end(), 0);
    drop(agent);
    let ended = Timestamp::now().as_duration().as_secs_f64();
    job.run(&["alloc more 32M"]);
    let agent = serving(&gpu);
    until("it goes on from before", || {
        let used = used(&trail(&agent));
        let is_later = |time: f64, bytes: u64| time > ended && bytes == had + 32 * MIB;
        let has_before = used.first().is_some_and(|(time, bytes)| *time < ended && *bytes == had);
        (has_before && used.last().is_some_and(|(time, bytes)| is_later(*time, *bytes))).then_some(())
    });
}

/// Returns PyTorch's numbers for the job's first device at its next checkpoint, where the job
/// stops.
fn next(job: &mut TorchJob) -> Option<Value> {
    job.next_checkpoint().map(|checkpoint| checkpoint["devices"][0].clone())
}

#[test(alone)]
fn agent_reads_pytorch_counters_without_a_probe() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = gpu.torch("2.15", TorchAllocator::Native, &["transformer.py", "--steps", "3"]);
    let agent = serving(&gpu);
    let mut last = None;
    while let Some(device) = next(&mut job) {
        last = Some(device);
        if last.as_ref().is_some_and(|device| device["memory_allocated"].as_u64() > Some(0)) {
            break;
        }
    }
    let stated = last.expect("a checkpoint");
    let bytes = |key: &str| stated[key].as_u64().expect("a number");
    let gpu_of = |report: &ReportLine| report.process(job.tgid()).map(|process| process.0["tensor"]["gpus"][0].clone());
    let read = until("the agent has read it", || {
        let report = ReportLine::parse(&agent.ask(&gpu, ROOT, &["ps", "--json"]).stdout);
        gpu_of(&report).filter(|read| read["allocated_bytes"].as_u64() == Some(bytes("memory_allocated")))
    });
    let number = |key: &str| read[key].as_u64().unwrap_or_else(|| panic!("no {key} in {read}"));
    let statistic = |key: &str| stated["memory_stats"][key].as_u64().expect("a number");
    assert_eq!(number("reserved_bytes"), bytes("memory_reserved"));
    assert_eq!(number("active_bytes"), statistic("active_bytes.all.current"));
    assert_eq!(number("inactive_split_bytes"), statistic("inactive_split_bytes.all.current"));
    assert_eq!((number("retries"), number("ooms")), (statistic("num_alloc_retries"), statistic("num_ooms")));
    assert_eq!(read["observed_by"], "numbers", "nothing of it is traced: {read}");
    until("its history has it, too", || {
        let past = agent.ask(&gpu, ROOT, &["stats", "--since", "1h", "--json"]);
        // Before the history's next sample, the command knows no PyTorch and exits with 6.
        let process = ReportLine::parse(&past.stdout).json()["data"]["processes"][0].clone();
        (process["devices"][0]["statistics"]["allocated_bytes.all.current"] == stated["memory_allocated"]).then_some(())
    });
}
