//! `cargo xtask demo`: traces a real PyTorch job on the simulated GPU with memwatch.

use crate::args::TaskArgs;
use crate::binary;
use crate::child::OwnedChild;
use crate::gpusim::Prologue;
use crate::integration;
use crate::interrupt;
use crate::repo::{BuildProfile, Repo};
use crate::setup;
use crate::setup::Package;
use anyhow::{Context as _, Result, bail};
use std::fs::{self, File};
use std::io::Write as _;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const TORCH: &str = "2.15.0";
/// Run time of the job without `--duration`: longer than any demo.
const ENDLESS: Duration = Duration::from_hours(24);
/// Time limit for the start. Importing PyTorch takes seconds on a fast machine and much longer on a
/// cold, slow one.
const START_LIMIT: Duration = Duration::from_secs(180);
const GRACE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(50);

/// Runs `cargo xtask demo`.
pub(crate) fn task(repo: &Repo, mut args: TaskArgs) -> Result<()> {
    let duration = args.duration("--duration")?;
    args.finish()?;
    setup::tools(repo)?;
    let driver = integration::build_simulator(repo, Prologue::Push)?;
    // PyTorch arrives over the network while the processors compile.
    let (memwatch, training) = thread::scope(|scope| {
        let training = scope.spawn(|| training_command(repo, &driver));
        (binary::build(repo, BuildProfile::Demo), training.join())
    });
    let memwatch = memwatch?;
    let training = training.unwrap_or_else(|panic| resume_unwind(panic));
    interrupt::watch()?;
    let mut job = Job::start(repo, &driver, training)?;
    if !job.wait_for_driver()? {
        return Ok(());
    }
    println!("watching {} with: {}\n", job.what, memwatch.display());
    watch(&memwatch, &driver, &mut job, duration)
}

/// Returns the PyTorch job, or `None` if this machine has no suitable Python.
fn training_command(repo: &Repo, driver: &Path) -> Option<Command> {
    let environment = setup::packages(&[Package::PythonVenv])
        .and_then(|()| integration::torch_environment(repo, TORCH))
        .inspect_err(|error| {
            eprintln!("demo: no PyTorch here ({error:#}); a small program that calls the driver stands in for it");
        })
        .ok()?;
    let mut command = environment.command(&driver.join("lib"), &Job::ledger(repo));
    command.arg(repo.path("tests/workloads/transformer.py")).arg("--seconds").arg(ENDLESS.as_secs().to_string());
    Some(command)
}

/// A program on the simulated GPU; dropping it kills the program and removes its files.
struct Job {
    what: &'static str,
    program: OwnedChild,
    ledger: PathBuf,
    log: PathBuf,
}

impl Job {
    /// Returns the path of the simulated GPU's ledger. Contains the process id, since several demos
    /// may run at once.
    fn ledger(repo: &Repo) -> PathBuf {
        repo.made(&format!("demo/ledger-{}", std::process::id()))
    }

    fn start(repo: &Repo, driver: &Path, training: Option<Command>) -> Result<Self> {
        let ledger = Self::ledger(repo);
        let log = ledger.with_extension("log");
        let folder = repo.made("demo");
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let output = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        let errors = output.try_clone().context("cannot share the job's log")?;
        let is_training = training.is_some();
        let what = if is_training { "a PyTorch transformer in training" } else { "a small driver program" };
        let mut command = training.unwrap_or_else(|| small_command(driver, &ledger));
        let input = if is_training { Stdio::null() } else { Stdio::piped() };
        let program = OwnedChild::start(command.stdin(input).stdout(output).stderr(errors))?;
        let mut job = Self { what, program, ledger, log };
        job.feed_small_program();
        Ok(job)
    }

    /// Feeds the stand-in program allocations and frees until the demo ends; PyTorch reads no
    /// input.
    fn feed_small_program(&mut self) {
        let Some(mut input) = self.program.pipes().0 else { return };
        thread::spawn(move || {
            let mut stated = writeln!(input, "device 0\nalloc resident {}", 2_u64 << 30);
            for step in 1_u64.. {
                if stated.is_err() {
                    return;
                }
                let batch_bytes = (64 + 32 * (step % 8)) << 20;
                stated = writeln!(input, "alloc batch {batch_bytes}\nsleep 300\nfree batch");
                thread::sleep(Duration::from_millis(300));
            }
        });
    }

    /// Waits until the job has loaded the driver; returns false if Ctrl-C came first.
    fn wait_for_driver(&mut self) -> Result<bool> {
        let start = Instant::now();
        let maps = format!("/proc/{}/maps", self.program.tgid());
        while !fs::read_to_string(&maps).is_ok_and(|text| text.contains("/libcuda.so")) {
            if interrupt::arrived() {
                return Ok(false);
            }
            if let Some(status) = self.program.ended()? {
                bail!("the job ended at once ({status}):\n{}", self.last_words());
            }
            if start.elapsed() > START_LIMIT {
                bail!("the job has not loaded libcuda after {} s:\n{}", START_LIMIT.as_secs(), self.last_words());
            }
            thread::sleep(POLL);
        }
        Ok(true)
    }

    fn last_words(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // Errors cannot be reported here. Remaining files are below target/ and are replaced by the
        // next run.
        drop(self.program.interrupt(Duration::ZERO));
        for file in [&self.ledger, &self.log] {
            drop(fs::remove_file(file));
        }
    }
}

fn small_command(driver: &Path, ledger: &Path) -> Command {
    let mut command = Command::new(driver.join("bin/gpusim-workload"));
    command.env("LD_LIBRARY_PATH", driver.join("lib")).env("GPUSIM_LEDGER", ledger);
    command
}

/// Runs memwatch on the terminal until it exits, the time is over, or a signal arrives.
fn watch(memwatch: &Path, driver: &Path, job: &mut Job, duration: Option<Duration>) -> Result<()> {
    let mut command = watcher(memwatch, driver, job);
    if let Some(duration) = duration {
        command.arg("--duration").arg(format!("{}s", duration.as_secs_f64().ceil()));
    }
    let mut watcher = OwnedChild::start_on_terminal(&mut command)?;
    let start = Instant::now();
    let limit = duration.map(|duration| duration + GRACE);
    loop {
        if let Some(status) = watcher.ended()? {
            if status.success() || interrupt::arrived() {
                return Ok(());
            }
            bail!("memwatch ended with {status}");
        }
        if let Some(status) = job.program.ended()? {
            watcher.wait(GRACE)?;
            bail!("the job ended ({status}):\n{}", job.last_words());
        }
        if interrupt::arrived() || limit.is_some_and(|limit| start.elapsed() > limit) {
            watcher.interrupt(GRACE)?;
            return Ok(());
        }
        thread::sleep(POLL);
    }
}

/// Returns the command that runs memwatch on the job, with sudo unless we are root. The simulated
/// NVML reads the same ledger.
fn watcher(memwatch: &Path, driver: &Path, job: &Job) -> Command {
    let mut command = if setup::is_root() {
        Command::new(memwatch)
    } else {
        let mut sudo = Command::new("sudo");
        sudo.args(["--preserve-env=GPUSIM_LEDGER", "--"]).arg(memwatch);
        sudo
    };
    command
        .env("GPUSIM_LEDGER", &job.ledger)
        // The simulated GPU takes no time, so training on it is limited by the CPU and exceeds the
        // overhead budget. Hence an explicit level.
        .arg("--tensors=modules")
        .arg("--pid")
        .arg(job.program.tgid().to_string())
        .arg("--nvml-lib")
        .arg(driver.join("lib/libnvidia-ml.so.1"));
    command
}
