//! An agent with little memory, an honest user's job, and an attacking user with subordinate ids.
//! Measures the agent and the job during an attack and after it.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use memwatch_tests::agent::{TestAgent, workload_command_of, workload_of};
use memwatch_tests::groups::MemoryGroup;
use memwatch_tests::mounts::after_mounting;
use memwatch_tests::oracle::{Agreement, assert_process_agrees};
use memwatch_tests::report::ReportLine;
use memwatch_tests::{
    MIB, PrologueShape, SimulatedGpu, SimulatedWorkload, TIMEOUT, TorchAllocator, forget_peak, http,
    peak_resident_bytes, resident_bytes, until,
};

const ROOT: u32 = 0;
const BOB: u32 = 61_002;
const MALLORY: u32 = 61_001;
/// First of the subordinate ids that `/etc/subuid` gives the attacker.
const SUBORDINATE: u32 = 2_000_000;
/// Script that mounts the agent's `/etc`: the machine's, with both users and the attacker's
/// subordinate ids.
const USERS: &str = "rm -rf \"$1\" && cp -a /etc \"$1\" && mount --bind \"$1\" /etc \
    && echo 'mallory:x:61001:61001::/nonexistent:/bin/false' >>/etc/passwd \
    && echo 'bob:x:61002:61002::/nonexistent:/bin/false' >>/etc/passwd \
    && echo 'mallory:2000000:65536' >>/etc/subuid";
/// Upper bound of the memory that an agent keeps after an attack, compared with before the first
/// one. Tables do not shrink.
const KEPT: u64 = 24 * MIB;

/// Number of allocations and frees that the honest user's job makes during an attack.
const CALLS: u64 = 2000;

/// Programs of the attacker.
#[derive(Clone, Copy, Debug)]
pub(super) enum Means {
    /// `tests/hostile/attacker.c`, a process with its own driver library.
    Process,
    /// `tests/hostile/attacker.py`, which uses files and connections.
    Script,
    /// `tests/hostile/names.py`, on real PyTorch.
    Torch,
}

/// What is known of an attack before it begins.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AttackCourse {
    /// Whether the attacking processes call their driver, so that they are reported.
    pub(super) calls: bool,
    /// Time that it lasts, at least.
    pub(super) lasts: Duration,
    /// Whether the agent starts workers for it, which the kernel may end for lack of memory.
    pub(super) has_workers: bool,
}

/// Load on the agent during an attack, and its time limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demands {
    /// Number of queries by root, and of `/healthz` and `/readyz`.
    pub(super) questions: u32,
    /// Time limit of an answer, if it is checked.
    pub(super) answer: Option<Duration>,
    /// Time limit for the agent to shrink to its earlier size.
    pub(super) recovery: Duration,
    /// Limit of the agent's memory, kernel memory included, in bytes.
    pub(super) limit_bytes: u64,
}

/// Agent, honest user and machine, from the first attack to the last.
pub(super) struct Siege {
    demands: Demands,
    agent: TestAgent,
    group: MemoryGroup,
    address: SocketAddr,
    bob: SimulatedWorkload,
    attacker: PathBuf,
    driver: PathBuf,
    calm_bytes: u64,
    newcomers: u32,
    loops: u64,
    gpu: SimulatedGpu,
}

/// Attacking processes. They and all their children are killed when this is dropped.
struct Attackers(Vec<Attacker>);

/// One attacking process and its output.
struct Attacker {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Siege {
    /// Starts the agent and the honest user's job.
    pub(super) fn lay(demands: Demands) -> Self {
        let gpu = SimulatedGpu::new(PrologueShape::Push).with_own_libcuda();
        let group = MemoryGroup::new(&format!("memwatch-hostile-{}", std::process::id()), demands.limit_bytes);
        let address = http::free_port();
        let etc = gpu.directory().join("etc").display().to_string();
        let mut command = after_mounting(USERS, &[&etc], &gpu.memwatch(&[]));
        group.start_in(&mut command);
        let history = gpu.directory().join("history").display().to_string();
        let words = ["--listen", &address.to_string(), "--history", &history, "--process-metrics", "100"];
        let agent = TestAgent::with(&gpu, command, &words);
        let mut bob = workload_of(&gpu, BOB);
        bob.run(&["uuid 0", "device 0", "alloc kept 64M"]);
        let driver = gpu.directory().join("attacker/libcuda.so.1");
        fs::create_dir(driver.parent().expect("a folder")).expect("a folder in the temporary one");
        compile("libcuda.c", &driver, &["-shared", "-fPIC", "-fno-ipa-icf", "-Wl,-soname,libcuda.so.1"]);
        let attacker = gpu.directory().join("attacker/attacker");
        compile("attacker.c", &attacker, &["-pthread", "-ldl"]);
        let mut siege =
            Self { demands, agent, group, address, bob, attacker, driver, calm_bytes: 0, newcomers: 0, loops: 0, gpu };
        siege.welcome_newcomer();
        siege.calm_bytes = resident_bytes(siege.agent.tgid());
        siege
    }

    /// Runs one attack with `ids` of the attacker's user ids, and checks the agent during and after
    /// it.
    pub(super) fn stand(&mut self, name: &str, (means, course): (Means, AttackCourse), ids: u32, words: &[&str]) {
        let AttackCourse { calls, lasts, has_workers } = course;
        forget_peak(self.agent.tgid());
        let killed_before = self.group.killed();
        let attackers = self.attackers(means, ids, words);
        self.bob.report(&format!("loop cuMemAlloc {CALLS} 2M"));
        let (mut answer, mut health) = (Duration::ZERO, Duration::ZERO);
        let (begun, mut asked) = (Instant::now(), 0);
        while asked < self.demands.questions || begun.elapsed() < lasts {
            asked += 1;
            answer = answer.max(timed(|| drop(self.ask())));
            health = health.max(timed(|| self.is_healthy()));
        }
        assert_eq!(self.bob.answer()["result"], 0, "{name}");
        let report = self.ask_afresh();
        assert_process_agrees(&self.gpu, &report, &self.bob, Agreement::CallsOnly);
        self.loops += 1;
        let on_gpu = report.process(self.bob.tgid()).expect("it is reported").only_gpu();
        assert_eq!(on_gpu.number("allocations"), 1 + CALLS * self.loops, "{name}");
        let probed = self.welcome_newcomer();
        if calls {
            until("the attacker is watched", || self.ask().has_user("mallory").then_some(()));
        }
        let peak_bytes = peak_resident_bytes(self.agent.tgid());
        drop(attackers);
        let recovery = self.recover(name);
        eprintln!(
            "{name}: the agent had {} MiB at the most, {} after {:.1} s; answers took {:.2} s at the most, /healthz {:.2} s; a new library was probed \
             after {:.2} s; {} workers were killed",
            peak_bytes >> 20,
            resident_bytes(self.agent.tgid()) >> 20,
            recovery.as_secs_f64(),
            answer.as_secs_f64(),
            health.as_secs_f64(),
            probed.as_secs_f64(),
            self.group.killed() - killed_before,
        );
        // The agent has answered until now: what the kernel has ended were workers.
        assert!(
            has_workers || self.group.killed() == killed_before,
            "{name}: the agent needs more memory than it may have"
        );
        assert!(peak_bytes < self.demands.limit_bytes, "{name}: {peak_bytes} bytes");
        if let Some(limit) = self.demands.answer {
            assert!(answer <= limit && health <= limit, "{name}: answers took {answer:?}, /healthz {health:?}");
        }
    }

    /// Returns the agent's report for root.
    fn ask(&self) -> ReportLine {
        self.agent.skip_reports();
        let asked = self.agent.ask(&self.gpu, ROOT, &["ps", "--json"]);
        asked.assert_ended_with(0, &[]);
        // Otherwise the client would have started its own watch.
        assert!(!asked.stderr.contains("cannot be used"), "{}", asked.stderr);
        ReportLine::parse(&asked.stdout)
    }

    /// Returns a report that is made after this call. An answer may be some tenths of a second old.
    fn ask_afresh(&self) -> ReportLine {
        let asked = Timestamp::now();
        until("a later report", || Some(self.ask()).filter(|report| report.is_made_after(asked)))
    }

    fn is_healthy(&self) {
        for path in ["/healthz", "/readyz"] {
            let answer = http::get(self.address, path, "").unwrap_or_else(|| panic!("{path} is not answered"));
            assert_eq!(answer.status, 200, "{answer:?}");
        }
    }

    /// Starts a process of the honest user with a new copy of the driver library and asserts that
    /// it is reported exactly. Returns how long it took until the library was probed.
    fn welcome_newcomer(&mut self) -> Duration {
        self.newcomers += 1;
        let folder = self.gpu.directory().join(format!("newcomer-{}", self.newcomers));
        fs::create_dir(&folder).expect("a folder in the temporary one");
        self.gpu.copy_libcuda(&folder);
        let mut command = workload_command_of(&self.gpu, BOB);
        command.env("LD_LIBRARY_PATH", &folder);
        let mut newcomer = SimulatedWorkload::start(command);
        newcomer.run(&["uuid 0", "device 0"]);
        let begin = Instant::now();
        let library = folder.join("libcuda.so.1").display().to_string();
        until("the newcomer's library is probed", || self.ask().has_probes_in(&library).then_some(()));
        let probed = begin.elapsed();
        newcomer.run(&["alloc more 4M"]);
        // Until the next NVML reading, the process may be marked as possibly not probed.
        let tgid = newcomer.tgid();
        let is_exact = |report: &ReportLine| report.process(tgid).is_some_and(|process| process.is_exact());
        let report = until("the newcomer is exact", || Some(self.ask_afresh()).filter(is_exact));
        assert_process_agrees(&self.gpu, &report, &newcomer, Agreement::CallsOnly);
        newcomer.end();
        fs::remove_dir_all(&folder).expect("it is ours");
        probed
    }

    /// Waits until the agent has its size from before the first attack, plus what it may keep.
    /// Returns how long that took.
    fn recover(&self, name: &str) -> Duration {
        let begin = Instant::now();
        while resident_bytes(self.agent.tgid()) > self.calm_bytes + KEPT {
            let now_bytes = resident_bytes(self.agent.tgid());
            let kept = format!("{} MiB before, {} MiB now", self.calm_bytes >> 20, now_bytes >> 20);
            assert!(begin.elapsed() < self.demands.recovery, "{name}: {kept}");
            std::thread::sleep(Duration::from_millis(200));
        }
        begin.elapsed()
    }

    fn attackers(&self, means: Means, ids: u32, words: &[&str]) -> Attackers {
        let mut attackers = Attackers(Vec::new());
        let uids = std::iter::once(MALLORY).chain(SUBORDINATE..).take(ids.try_into().expect("a small number"));
        for uid in uids {
            let mut command = self.attack(means, uid, words);
            command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
            // A user may not read PyTorch's files: that program changes its user itself.
            if !matches!(means, Means::Torch) {
                command.uid(uid).gid(uid);
            }
            // The kernel ends an attack if the test is killed. SAFETY: a plain system call, made
            // after the change of user, which would undo it.
            unsafe {
                command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                });
            }
            attackers.0.push(Attacker::of(command.spawn().expect("the attacker starts")));
        }
        if matches!(means, Means::Process) {
            attackers.0.iter_mut().for_each(|attacker| attacker.says("mapped"));
            let driver = self.driver.display().to_string();
            until("the attackers' driver is probed", || self.ask().has_probes_in(&driver).then_some(()));
            attackers.0.iter_mut().for_each(Attacker::may_begin);
        }
        attackers.0.iter_mut().for_each(|attacker| attacker.says("ready"));
        attackers
    }

    fn attack(&self, means: Means, uid: u32, words: &[&str]) -> Command {
        let folder = self.gpu.directory().join(format!("mallory-{uid}"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).expect("a folder in the temporary one");
        chown(&folder, Some(uid), Some(uid)).expect("it is given away");
        if matches!(means, Means::Torch) {
            let (script, user) = (source_file("names.py").display().to_string(), uid.to_string());
            let words: Vec<&str> = [&*script, &user].into_iter().chain(words.iter().copied()).collect();
            return self.gpu.torch_command("2.15", TorchAllocator::Native, &words);
        }
        let mut command = match means {
            Means::Process => Command::new(&self.attacker),
            Means::Script | Means::Torch => Command::new("python3"),
        };
        if matches!(means, Means::Script) {
            command.arg("-c").arg(include_str!("../../../hostile/attacker.py"));
        }
        let word = |word: &&str| match *word {
            "FOLDER" => folder.display().to_string(),
            "PROGRAM" => self.attacker.display().to_string(),
            "LIBRARY" => self.driver.display().to_string(),
            "SOCKET" => self.agent.socket().display().to_string(),
            "HOST" => self.address.ip().to_string(),
            "PORT" => self.address.port().to_string(),
            other => other.to_owned(),
        };
        command.args(words.iter().map(word)).env("LD_LIBRARY_PATH", self.driver.parent().expect("a folder"));
        command
    }
}

impl Attacker {
    fn of(mut child: Child) -> Self {
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { child, output }
    }

    fn says(&mut self, word: &str) {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the attacker writes text");
        assert_eq!(line.trim_end(), word, "the attack has failed");
    }

    fn may_begin(&mut self) {
        let input = self.child.stdin.as_mut().expect("it is piped");
        input.write_all(b"\n").expect("the attacker waits for it");
    }
}

impl Drop for Attackers {
    fn drop(&mut self) {
        for Attacker { child, .. } in &self.0 {
            if let Ok(group) = i32::try_from(child.id()) {
                // SAFETY: a plain system call; the group's first process has not been waited for
                // yet.
                unsafe { libc::kill(-group, libc::SIGKILL) };
            }
        }
        for Attacker { child, .. } in &mut self.0 {
            let _ = child.wait();
        }
    }
}

fn timed(work: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    work();
    let took = begin.elapsed();
    assert!(took < TIMEOUT, "{took:?}");
    took
}

fn source_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("hostile").join(name)
}

fn compile(source: &str, file: &Path, words: &[&str]) {
    let mut command = Command::new("cc");
    command.args(["-O2", "-Wall", "-Werror", "-o"]).arg(file).arg(source_file(source)).args(words);
    let status = command.status();
    assert!(status.is_ok_and(|status| status.success()), "no {}", file.display());
}
