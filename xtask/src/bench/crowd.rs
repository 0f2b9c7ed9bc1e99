//! Thousands of processes with simulated GPU memory, in cgroups: what an agent sees on a busy node.

use crate::child::OwnedChild;
use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Maximum number of processes in a group: one workload program and its forked children.
pub(super) const PER_GROUP: usize = 10;
/// Maximum number of groups on a simulated machine, which supports 256 processes.
const GROUPS_PER_MACHINE: usize = 25;
/// Memory of the simulated device, enough for the contexts of 250 processes.
const DEVICE_MIB: &str = "1000000";
/// Members of the root cgroup in the pids hierarchy of cgroup v1.
const UNLIMITED: &str = "/sys/fs/cgroup/pids/cgroup.procs";
const POLL: Duration = Duration::from_millis(10);
const TIMEOUT: Duration = Duration::from_secs(30);

/// Idle processes that hold memory. Dropping it kills them, and removes their cgroups and ledgers.
pub(super) struct Crowd {
    driver: PathBuf,
    slice: PathBuf,
    groups: Vec<CrowdGroup>,
    processes: usize,
}

struct CrowdGroup {
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    _program: OwnedChild,
}

impl Crowd {
    /// Makes an empty crowd.
    ///
    /// # Errors
    /// No writable cgroup v2 hierarchy is mounted.
    pub(super) fn new(driver: &Path) -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").context("cannot read the mounts")?;
        let place = |line: &str| {
            let mut fields = line.split(' ').skip(1).map(str::to_owned);
            fields.next().filter(|_| fields.next().as_deref() == Some("cgroup2"))
        };
        let root = mounts.lines().find_map(place).context("no cgroup2 is mounted")?;
        let slice = Path::new(&root).join(format!("mwbench-{}.slice", std::process::id()));
        fs::create_dir(&slice).with_context(|| format!("cannot make {}", slice.display()))?;
        Ok(Self { driver: driver.to_owned(), slice, groups: Vec::new(), processes: 0 })
    }

    /// Returns the ledger of the first simulated machine, which NVML reports.
    pub(super) fn first_ledger(&self) -> PathBuf {
        self.ledger(0)
    }

    /// Starts processes until there are this many.
    ///
    /// # Errors
    /// A process cannot be started, or fails a command.
    pub(super) fn grow(&mut self, processes: usize) -> Result<()> {
        while self.processes < processes {
            let (number, members) = (self.groups.len(), PER_GROUP.min(processes - self.processes));
            let group = self.start(number, members).with_context(|| format!("group {number}"))?;
            self.groups.push(group);
            self.processes += members;
        }
        Ok(())
    }

    /// Starts a group of `members` processes, each of which has a context and two allocations.
    fn start(&self, number: usize, members: usize) -> Result<CrowdGroup> {
        let directory = self.slice.join(format!("job-{number:04}.service"));
        fs::create_dir(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let mut command = Command::new(self.driver.join("bin/gpusim-workload"));
        command.env("LD_LIBRARY_PATH", self.driver.join("lib")).env("GPUSIM_TOTAL_MB", DEVICE_MIB);
        command.env("GPUSIM_LEDGER", self.ledger(number));
        let mut program = OwnedChild::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        fs::write(directory.join("cgroup.procs"), program.tgid().to_string()).context("the group takes nobody")?;
        if Path::new(UNLIMITED).exists() {
            // In cgroup v1 a session has a limit on processes, which is not to be measured.
            fs::write(UNLIMITED, program.tgid().to_string()).context("the root of the pids hierarchy takes nobody")?;
        }
        let (commands, answers) = program.pipes();
        let mut group = CrowdGroup {
            commands: commands.context("the workload has no input")?,
            answers: BufReader::new(answers.context("the workload has no output")?),
            _program: program,
        };
        for child in 1..members {
            group.ask(&format!("fork c{child}"))?;
        }
        for prefix in (1..members).map(|child| format!("@c{child} ")).chain([String::new()]) {
            for line in ["device 0", "alloc a 16777216", "alloc b 1048576"] {
                group.ask(&format!("{prefix}{line}"))?;
            }
        }
        Ok(group)
    }

    fn ledger(&self, group: usize) -> PathBuf {
        let name = format!("bench-crowd-{}-{}", std::process::id(), group / GROUPS_PER_MACHINE);
        self.driver.join(name)
    }
}

impl CrowdGroup {
    fn ask(&mut self, line: &str) -> Result<()> {
        writeln!(self.commands, "{line}").context("the workload reads no commands")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer).context("the workload does not answer")?;
        // A fork returns the child's process id, a driver call its result.
        match serde_json::from_str::<Value>(&answer) {
            Ok(answer) if answer["result"] == 0 || answer["tgid"].is_u64() => Ok(()),
            _ => bail!("'{line}' was answered {answer:?}"),
        }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        let groups = self.groups.len();
        self.groups.clear();
        let begin = Instant::now();
        let below = fs::read_dir(&self.slice).into_iter().flatten().flatten().map(|entry| entry.path());
        for directory in below.filter(|path| path.is_dir()).chain([self.slice.clone()]) {
            while directory.is_dir() && fs::remove_dir(&directory).is_err() && begin.elapsed() < TIMEOUT {
                std::thread::sleep(POLL);
            }
        }
        for group in (0..groups).step_by(GROUPS_PER_MACHINE) {
            // The ledgers are small, and below target/.
            drop(fs::remove_file(self.ledger(group)));
        }
    }
}
