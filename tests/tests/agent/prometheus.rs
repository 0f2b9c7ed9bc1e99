//! A real Prometheus scrapes real agents, and the shipped alerts fire.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::process::{Command, Output, Stdio};

use memwatch_tests::groups::TestControlGroup;
use memwatch_tests::http::{self, HttpAnswer};
use memwatch_tests::ledger::Balance;
use memwatch_tests::network::Network;
use memwatch_tests::prometheus::{Prometheus, hurried_rules, promtool, shipped, shipped_queries};
use memwatch_tests::readers::python_reader;
use memwatch_tests::test;
use memwatch_tests::{
    CommandOutcome, MIB, PrologueShape, RunningProgram, SimulatedGpu, SimulatedWorkload, TorchAllocator, until,
};

const OPEN_METRICS: &str = "Accept: application/openmetrics-text; version=1.0.0\r\n";

/// Shipped limit of pairs of workload and GPU with their own series.
const OWN_SERIES: usize = 200;

/// An agent and its metrics address.
struct ScrapedAgent {
    program: RunningProgram,
    address: SocketAddr,
}

impl ScrapedAgent {
    /// Starts an agent, in its own network if one is given, and waits until it is ready.
    fn start(gpu: &SimulatedGpu, network: Option<&Network>) -> Self {
        let address = match network {
            Some(network) => SocketAddr::from((network.address(), 9747)),
            None => http::free_port(),
        };
        let socket = gpu.directory().join("memwatch.sock");
        // Arguments for listening in the agent's own network.
        let words =
            ["agent", "--insecure=metrics", "--listen", &address.to_string(), "--socket", &socket.to_string_lossy()];
        let command = gpu.memwatch(&words);
        let command = network.map_or(command, |network| network.inside(&gpu.memwatch(&words)));
        let agent = Self { program: RunningProgram::start(command), address };
        until("the agent is ready", || http::get(address, "/readyz", "").filter(|answer| answer.status == 200));
        agent
    }

    fn metrics(&self, accept: &str) -> HttpAnswer {
        let answer = http::get(self.address, "/metrics", accept).expect("the agent answers");
        assert_eq!(answer.status, 200, "{answer:?}");
        answer
    }

    /// Returns a selector of this agent's series.
    fn selector(&self, name: &str, labels: &str) -> String {
        format!("{name}{{instance=\"{}\"{labels}}}", self.address)
    }
}

/// Removes one function from the driver's library, which makes it look like a version before 13.1.
fn without_newest_function(gpu: &SimulatedGpu) {
    let mut bytes = fs::read(gpu.libcuda()).expect("it is a copy of ours");
    let name = b"\0cuMulticastBindMem_v2\0";
    let at = bytes.windows(name.len()).position(|window| window == name).expect("the simulator exports it");
    bytes[at + 1..at + 3].copy_from_slice(b"no");
    fs::write(gpu.libcuda(), bytes).expect("it is a copy of ours");
}

/// Runs a program with this text on standard input.
fn fed(mut command: Command, text: &str) -> Output {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    child.stdin.take().expect("it is piped").write_all(text.as_bytes()).expect("the program reads");
    child.wait_with_output().expect("the program ends")
}

fn assert_accepted(output: &Output) {
    assert!(output.status.success() && output.stderr.is_empty(), "{output:#?}");
}

/// Starts a job in its own control group on a simulated machine.
fn job(gpu: &SimulatedGpu, unit: &str) -> (SimulatedWorkload, TestControlGroup) {
    let group = TestControlGroup::new(&format!("/memwatch-jobs-{}.slice/{unit}", std::process::id()));
    let mut job = gpu.workload();
    group.take(job.tgid());
    job.run(&["device 0"]);
    (job, group)
}

#[test(alone)]
fn the_shipped_rules_fire_when_they_should_and_only_then() {
    let mut rules = promtool(&["check", "rules", "rules.yaml"]);
    assert!(rules.output().expect("promtool runs").status.success());
    let mut tests = promtool(&["test", "rules", "rules_test.yaml"]);
    let output = tests.output().expect("promtool runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let mut configuration = promtool(&["check", "config", "prometheus.yaml"]);
    assert!(configuration.output().expect("promtool runs").status.success());
    let text = fs::read_to_string(shipped().join("rules_test.yaml")).expect("it is in the tree");
    for line in hurried_rules().lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(text.contains(&format!("alertname: {line}\n")), "{line} has no test");
    }
}

#[test(alone)]
fn agent_prints_its_address_and_counts_no_functions_an_old_driver_lacks() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp).with_own_libcuda();
    without_newest_function(&gpu);
    let mut job = gpu.workload();
    job.run(&["device 0", "alloc a 4M"]);
    let socket = gpu.directory().join("memwatch.sock");
    let words = ["agent", "--listen", "127.0.0.1:0", "--socket", &socket.to_string_lossy()];
    let mut agent = RunningProgram::start_with_errors(gpu.memwatch(&words));
    let line = agent.until_line_with("serving metrics on http://");
    let address = line.lines().last().and_then(|line| line.split("http://").nth(1)?.strip_suffix("/metrics"));
    let address: SocketAddr = address.and_then(|address| address.parse().ok()).unwrap_or_else(|| panic!("{line}"));
    let metrics = || http::get(address, "/metrics", "").filter(|answer| answer.status == 200);
    until("the library has its probes", || metrics().filter(|answer| answer.body.contains("probes_attached{library=")));
    let body = metrics().expect("it answers").body;
    for reason in ["function_refused", "library_refused"] {
        assert!(body.contains(&format!("probe_failures_total{{reason=\"{reason}\"}} 0\n")), "{body}");
    }
}

#[test(alone)]
fn two_agents_are_scraped_and_the_shipped_alerts_fire() {
    let machines = [SimulatedGpu::new(PrologueShape::Cmp), SimulatedGpu::new(PrologueShape::Push)];
    let [first, second] = machines;
    let first = first.with("GPUSIM_TOTAL_MB", &81_560);
    let second = second.with("GPUSIM_TOTAL_MB", &40_000).with("GPUSIM_DEVICES", &2);
    let rules = hurried_rules();
    let [one, two] = [Network::new(0), Network::new(1)];
    let agents = [ScrapedAgent::start(&first, Some(&one)), ScrapedAgent::start(&second, Some(&two))];
    let (mut training, _group) = job(&first, "training.service");
    let (mut leak, _other_group) = job(&second, "leak.service");
    training.run(&["alloc a 1073741824", "alloc b 1048576", "async c 67108864", "free b"]);
    leak.run(&["alloc a 1048576"]);
    let prometheus = Prometheus::start(&agents.each_ref().map(|agent| agent.address), &rules);
    for (agent, machine, job, unit) in
        [(&agents[0], &first, &training, "training.service"), (&agents[1], &second, &leak, "leak.service")]
    {
        prometheus.until_is(&agent.selector("up", ""), 1);
        assert_machine_as_simulated(&prometheus, agent, machine);
        assert_job_as_simulated(&prometheus, agent, machine, (job.tgid(), unit));
        assert_all_is_read(&prometheus, agent);
    }
    let without_rules = Prometheus::start(&agents.each_ref().map(|agent| agent.address), "groups: []\n");
    for prometheus in [&prometheus, &without_rules] {
        assert_fleet_is_as_simulated(prometheus, [&first, &second], [&training, &leak]);
    }
    drop(without_rules);
    assert_refusal_is_reported(&prometheus, &agents[0], &mut training);
    assert_growth_is_reported(&prometheus, &agents[1], &mut leak);
    assert_panels_have_numbers(&prometheus, &first);
    drop((training, leak));
    drop(agents);
    prometheus.until_fires("MemwatchAgentDown");
    let gone = first.run_memwatch(&["fleet", "--prometheus", &prometheus.url()]);
    assert!(gone.stdout.contains("2 agents do not answer: "), "{gone:?}");
}

/// Asserts that each query of the shipped dashboard finds something while a program with PyTorch
/// runs.
fn assert_panels_have_numbers(prometheus: &Prometheus, machine: &SimulatedGpu) {
    let mut holder = machine.torch("2.15", TorchAllocator::Native, &["idle_hold.py", "--mib", "64"]);
    holder.next_checkpoint().expect("it holds something");
    for (panel, query) in shipped_queries() {
        // A panel shows a range of time: the time to full disappears once a GPU stops growing.
        let shown = format!("last_over_time(({query})[10m:1s])");
        until(&format!("{panel}: {query}"), || (!prometheus.query(&shown).is_empty()).then_some(()));
    }
    holder.kill();
}

#[test(alone)]
fn every_field_of_the_shipped_dashboard_is_one_of_grafanas() {
    let mut check = python_reader("check_dashboard.py");
    check.arg(shipped().join("../grafana/memwatch.json"));
    let checked = CommandOutcome::of(check);
    checked.assert_ended_with(0, &[]);
    assert_eq!(checked.stdout.trim(), "[]", "not in Grafana's own types");
}

/// Asserts the fleet of two machines with three GPUs, and the memory of each job.
fn assert_fleet_is_as_simulated(prometheus: &Prometheus, machines: [&SimulatedGpu; 2], jobs: [&SimulatedWorkload; 2]) {
    let url = prometheus.url();
    let ask = |words: &[&str]| machines[0].run_memwatch(&[&["fleet", "--prometheus", &url], words].concat());
    let sum = |of: fn(&SimulatedGpu, usize) -> u64| -> u64 {
        let each = |machine: &&SimulatedGpu| {
            (0..machine.ledger().device_count().expect("devices")).map(|device| of(machine, device)).sum::<u64>()
        };
        machines.iter().map(each).sum()
    };
    let totals = [
        ("nodes", 2),
        ("gpus", 3),
        ("limit_bytes", sum(|machine, device| machine.ledger().total_bytes(device).expect("the device"))),
        ("used_bytes", sum(|machine, device| machine.ledger().device_used_bytes(device).expect("the device"))),
    ];
    let used = |index: usize| {
        let process = machines[index].ledger().process(jobs[index].tgid()).expect("the job is there");
        process.devices[0].used_bytes
    };
    let expected = [("training.service", used(0)), ("leak.service", used(1))];
    until("the fleet is as simulated", || {
        let report = serde_json::from_str::<serde_json::Value>(&ask(&["--json"]).stdout).ok()?;
        assert_eq!(report["schema"], "memwatch.fleet/1", "{report}");
        let has_totals = totals.iter().all(|(name, value)| report["data"]["totals"][name] == *value);
        let has_jobs = expected.iter().all(|(unit, bytes)| {
            let rows = report["data"]["workloads"].as_array().into_iter().flatten();
            let mut own = rows.filter(|row| row["unit"] == *unit);
            own.any(|row| row["used_bytes"] == *bytes && row["gpus"] == 1 && row["nodes"] == 1)
        });
        (has_totals && has_jobs).then_some(())
    });
    let text = ask(&[]).stdout;
    assert!(text.starts_with("2 nodes, 3 GPUs, ") && text.contains("  training.service\n"), "{text}");
    let gpus: serde_json::Value = serde_json::from_str(&ask(&["--by", "gpu", "--json"]).stdout).expect("a report");
    assert_eq!(gpus["data"]["gpus"].as_array().map(Vec::len), Some(3), "{gpus}");
    assert_eq!(ask(&["--by", "node", "-n", "1"]).stdout.matches("1 more rows: -n shows more").count(), 1);
}

/// Asserts the memory of each GPU against the simulator's ledger.
fn assert_machine_as_simulated(prometheus: &Prometheus, agent: &ScrapedAgent, machine: &SimulatedGpu) {
    let ledger = machine.ledger();
    for device in 0..ledger.device_count().expect("the ledger can be read") {
        let uuid = ledger.uuid(device).expect("the device is there");
        let is = |name: &str, bytes: u64| {
            prometheus.until_is(&agent.selector(name, &format!(",gpu=\"{device}\",uuid=\"{uuid}\"")), bytes);
        };
        is("memwatch_gpu_up", 1);
        is("memwatch_gpu_memory_limit_bytes", ledger.total_bytes(device).expect("the device is there"));
        is("memwatch_gpu_memory_used_bytes", ledger.device_used_bytes(device).expect("the device is there"));
        is("memwatch_gpu_info", 1);
    }
}

/// Asserts a job's memory by kind against the simulator's ledger.
fn assert_job_as_simulated(
    prometheus: &Prometheus,
    agent: &ScrapedAgent,
    machine: &SimulatedGpu,
    (tgid, unit): (u32, &str),
) {
    let entry = machine.ledger().process(tgid).expect("the job is in the simulator's ledger");
    let device = &entry.devices[0];
    let is = |name: &str, labels: &str, number: u64| {
        let labels = format!(",workload_kind=\"systemd\",unit=\"{unit}\",gpu=\"0\"{labels}");
        prometheus.until_is(&agent.selector(name, &labels), number);
    };
    is("memwatch_workload_memory_used_bytes", "", device.used_bytes);
    is("memwatch_workload_processes", "", 1);
    is("memwatch_workload_memory_peak_bytes", "", device.peak_owned_bytes);
    is("memwatch_workload_oom_events_total", "", 0);
    let kinds = [("device", device.device), ("async_pool", device.pool_used)];
    for (kind, balance) in kinds.into_iter().filter(|(_, balance)| balance.allocations > 0) {
        let Balance { live_bytes, allocations, frees, .. } = balance;
        let kind = format!(",kind=\"{kind}\"");
        is("memwatch_workload_memory_driver_allocated_bytes", &kind, live_bytes);
        is("memwatch_workload_allocations_total", &kind, allocations);
        is("memwatch_workload_frees_total", &kind, frees);
    }
}

/// Asserts that Prometheus has read every family with its type and unit, and every series, and that
/// promtool accepts the older format.
fn assert_all_is_read(prometheus: &Prometheus, agent: &ScrapedAgent) {
    let plain = agent.metrics("");
    let promtool = promtool(&["check", "metrics"]);
    assert_accepted(&fed(promtool, &plain.body));
    assert!(plain.head.contains("text/plain; version=0.0.4"), "{}", plain.head);
    let open = agent.metrics(OPEN_METRICS);
    assert!(open.head.contains("application/openmetrics-text; version=1.0.0"), "{}", open.head);
    assert!(open.body.ends_with("# EOF\n"), "{}", open.body);
    let families = prometheus.families(agent.address);
    let of =
        |name: &str| families.iter().find(|family| family["metric"] == name).unwrap_or_else(|| panic!("no {name}"));
    for (name, kind) in open.body.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')) {
        assert_eq!(of(name)["type"], kind, "{name}");
    }
    for (name, unit) in open.body.lines().filter_map(|line| line.strip_prefix("# UNIT ")?.split_once(' ')) {
        assert_eq!(of(name)["unit"], unit, "{name}");
    }
    let names = |text: &str| -> BTreeSet<String> {
        let series = text.lines().filter(|line| !line.starts_with('#'));
        series.filter_map(|line| Some(line.split(['{', ' ']).next()?.to_owned())).collect()
    };
    assert_eq!(names(&plain.body), names(&open.body));
    for name in names(&open.body) {
        assert!(!prometheus.query(&agent.selector(&name, "")).is_empty(), "{name} was not read");
    }
}

fn assert_refusal_is_reported(prometheus: &Prometheus, agent: &ScrapedAgent, training: &mut SimulatedWorkload) {
    let refused = training.ask("alloc huge 200000000000");
    assert_eq!(refused["result"], 2, "{refused}");
    // The other agent watches the same processes, so it reports the job too, possibly earlier.
    let mine = agent.selector("ALERTS", ",alertname=\"MemwatchWorkloadOutOfMemory\",alertstate=\"firing\"");
    let firing =
        until("this agent's alert fires", || Some(prometheus.query(&mine)).filter(|firing| !firing.is_empty()));
    assert_eq!((&firing[0].0["unit"], &firing[0].0["gpu"]), (&"training.service".into(), &"0".into()), "{firing:?}");
    let alerts = prometheus.until_fires("MemwatchWorkloadOutOfMemory");
    assert!(alerts.iter().all(|labels| labels["unit"] == "training.service"), "{alerts:#?}");
    let labels = ",unit=\"training.service\",gpu=\"0\"";
    prometheus.until_is(&agent.selector("memwatch_workload_oom_events_total", labels), 1);
    let since = format!("time() - {}", agent.selector("memwatch_workload_last_oom_timestamp_seconds", labels));
    let age = prometheus.query(&since);
    assert!(matches!(age[..], [(_, age)] if (-1.0..60.0).contains(&age)), "{age:?}");
}

fn assert_growth_is_reported(prometheus: &Prometheus, agent: &ScrapedAgent, leak: &mut SimulatedWorkload) {
    let mut number = 0;
    let alert = agent.selector("ALERTS", ",alertname=\"MemwatchWorkloadGrowth\",alertstate=\"firing\"");
    let rate = agent.selector("memwatch_workload_growth_bytes_per_second", "");
    let full = agent.selector("memwatch_gpu_seconds_to_full", "");
    let [firing, rate, full] = until("growth is reported", || {
        number += 1;
        leak.run(&[&format!("alloc grown{number} {}", 16 * MIB)]);
        let reported = [&alert, &rate, &full].map(|expression| prometheus.query(expression));
        Some(reported).filter(|reported| reported.iter().all(|series| !series.is_empty()))
    });
    for (labels, _) in firing.iter().chain(&rate) {
        assert_eq!(labels["unit"], "leak.service", "{labels}");
    }
    assert!(rate.iter().all(|(_, bytes)| *bytes > 0.0), "{rate:?}");
    assert!(full.iter().all(|(labels, seconds)| labels["gpu"] == "0" && *seconds > 0.0), "{full:?}");
}

#[test(alone)]
fn an_agent_becomes_ready_when_nvml_comes_and_says_why_not_before() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let words = gpu.memwatch(&[]);
    let mut words = words.get_args().skip_while(|word| *word != "--nvml-lib");
    let real = words.nth(1).expect("memwatch is given the simulator's NVML").to_owned();
    let nvml = gpu.directory().join("libnvidia-ml.so.1");
    fs::copy(gpu.libcuda(), &nvml).expect("a library that is no NVML");
    let gpu = gpu.with_nvml(&nvml);
    let address = http::free_port();
    let socket = gpu.directory().join("memwatch.sock");
    let command = gpu.memwatch(&["agent", "--listen", &address.to_string(), "--socket", &socket.to_string_lossy()]);
    let _agent = RunningProgram::start(command);
    let readiness = |status| move || http::get(address, "/readyz", "").filter(|answer| answer.status == status);
    let refused = until("the agent says why it is not ready", || {
        readiness(503)().filter(|answer| answer.body.starts_with("not ready: NVML: "))
    });
    assert!(refused.body.contains("libnvidia-ml.so.1") && refused.body.contains("--no-nvml"), "{refused:?}");
    assert_eq!(http::get(address, "/healthz", "").map(|answer| answer.status), Some(200));
    let complete = gpu.directory().join("complete");
    fs::copy(real, &complete).expect("a copy of NVML");
    fs::rename(&complete, &nvml).expect("the directory is ours");
    until("the agent is ready", readiness(200));
}

#[test(alone)]
fn three_hundred_workloads_have_two_hundred_series_and_a_sum() {
    // Enough memory for 150 contexts of the usual size.
    let machine = || SimulatedGpu::new(PrologueShape::Cmp).with("GPUSIM_TOTAL_MB", &200_000);
    let [first, second] = [machine(), machine()];
    let agent = ScrapedAgent::start(&first, None);
    let mut jobs = Vec::new();
    for number in 0..300_u64 {
        // A simulated machine has 256 slots for processes.
        let machine = if number % 2 == 0 { &first } else { &second };
        let (mut job, group) = job(machine, &format!("job-{number:03}.service"));
        job.run(&[&format!("alloc a {}", (number + 1) * MIB)]);
        jobs.push((job, group));
    }
    let body = agent.metrics(OPEN_METRICS).body;
    let pairs: Vec<&str> = body.lines().filter(|line| line.starts_with("memwatch_workload_processes{")).collect();
    let sums = pairs.iter().filter(|line| line.contains("workload_kind=\"other\"")).count();
    assert_eq!(pairs.len() - sums, OWN_SERIES, "{pairs:#?}");
    assert_eq!(sums, 1, "{pairs:#?}");
    let value = |name: &str, labels: &str| -> u64 {
        let lines = body.lines().filter(|line| line.starts_with(name) && line.contains(labels));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    };
    // Other programs may use a GPU while the tests run, so these are lower bounds.
    assert!(value("memwatch_agent_series_suppressed ", "") >= 100);
    assert!(value("memwatch_workload_processes{", "") >= 300);
    assert!(
        value("memwatch_workload_memory_driver_allocated_bytes{", "kind=\"device\"")
            >= (1..=300).map(|one| one * MIB).sum()
    );
    assert_eq!(value("memwatch_workload_memory_driver_allocated_bytes{", "unit=\"job-299.service\""), 300 * MIB);
    assert_accepted(&fed(promtool(&["check", "metrics"]), &agent.metrics("").body));
    drop(jobs);
    drop(agent.program);
}

/// Prometheus' own parser imports a recording as OpenMetrics into a database, at the recorded time.
#[test(alone)]
fn a_recording_as_openmetrics_is_taken_into_a_prometheus_at_its_own_time() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let place = |name: &str| gpu.directory().join(name).display().to_string();
    let (script, file, text) = (place("script"), place("job.mwr"), place("job.openmetrics"));
    fs::write(&script, "device 0\nalloc a 64M\nalloc b 1M\nfree b\nsleep 2500\nkill\n").expect("it is written");
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("exec {} < {script}", gpu.workload_program().display()));
    let workload = gpu.workload_command();
    shell.envs(workload.get_envs().filter_map(|(name, value)| Some((name, value?))));
    assert_eq!(CommandOutcome::of(gpu.memwatch_run(&["-o", &file], &shell)).code, 128 + 9);
    let export = |words: &[&str]| CommandOutcome::of(gpu.memwatch(&[&["export", "--in", &file], words].concat()));
    export(&["--until", "1s", "-o", &text]).assert_ended_with(0, &["job.openmetrics is written"]);
    export(&["-o", &text]).assert_ended_with(1, &["job.openmetrics"]);
    let stated = fs::read_to_string(&text).expect("it was written");
    assert!(stated.ends_with("# EOF\n"), "{stated}");
    let live = |line: &&str| {
        line.starts_with("memwatch_workload_memory_driver_allocated_bytes{") && line.contains("kind=\"device\"")
    };
    let sample: Vec<&str> = stated.lines().find(live).expect("it holds memory").rsplit(' ').take(2).collect();
    assert_eq!(sample[1], (64 * MIB).to_string(), "{stated}");
    let stamps: BTreeSet<&str> =
        stated.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit(' ').next()).collect();
    assert_eq!(stamps, BTreeSet::from([sample[0]]), "all samples are of one time");
    assert!(!stated.contains("process_cpu_seconds"), "no agent was there: {stated}");
    let stdout = export(&["--until", "1s", "-f", "openmetrics", "-o", "-"]).stdout;
    assert_eq!(stdout, stated);
    let blocks = place("blocks");
    let mut create = promtool(&["tsdb", "create-blocks-from", "openmetrics", &text, &blocks]);
    let created = create.output().expect("promtool runs");
    assert!(created.status.success(), "{created:#?}");
    // promtool also requires the write-ahead log of a server.
    fs::create_dir(place("blocks/wal")).expect("the blocks are there");
    let dumped = promtool(&["tsdb", "dump", &blocks]).output().expect("promtool runs");
    let dumped = String::from_utf8(dumped.stdout).expect("text");
    // Prometheus stores milliseconds.
    let milliseconds = sample[0].replace('.', "")[..13].to_owned();
    let of_live = dumped
        .lines()
        .find(|line| line.contains("workload_memory_driver_allocated_bytes") && line.contains("\"device\""));
    let of_live = of_live.unwrap_or_else(|| panic!("{dumped}"));
    let [when, bytes] = [0, 1].map(|place| of_live.rsplit(' ').nth(place).expect("a number and its time"));
    assert_eq!((when, bytes.parse()), (milliseconds.as_str(), Ok(67_108_864.0_f64)), "{of_live}, not {sample:?}");
}
