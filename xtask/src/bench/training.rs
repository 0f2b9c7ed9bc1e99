//! A program that runs steps on command, and the tool that traces it: all modes take turns within
//! one run of the program.

use super::watcher::{Watcher, attach_bpftrace, attach_memwatch_with};
use crate::binary;
use crate::child::OwnedChild;
use crate::gpusim::Prologue;
use crate::integration;
use crate::repo::{BuildProfile, Repo};
use crate::setup::{self, Package};
use crate::torch;
use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Version of PyTorch.
pub(super) const VERSION: &str = "2.8.0";
/// Version of TensorFlow, which names the operators of chunks.
pub(super) const TENSORFLOW: &str = "2.21.0";
/// Time in which PyTorch's libraries are found and probed.
const PROBED: Duration = Duration::from_secs(2);
/// Warm-up time before steps are timed: a level that costs too much is lowered by then.
const WARM: Duration = Duration::from_millis(1_500);
/// Number of steps between two checks of the warm-up time.
const WARM_STEPS: u64 = 50;

/// Function by which PyTorch reports each tensor.
const REPORTS_TENSORS: &str = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE";
/// Function by which the allocator of XLA and TensorFlow reports each chunk.
const REPORTS_CHUNKS: &str = "_ZN3tsl12BFCAllocator10AddTraceMeESt17basic_string_viewIcSt11char_traitsIcEEPKvll";

/// What traces the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TracingMode {
    Nobody,
    /// `memwatch --pid` with these options.
    Memwatch(&'static [&'static str]),
    /// PyTorch's own memory history.
    History,
    /// bpftrace, counting the calls of the function that reports each tensor or chunk.
    Count,
}

impl TracingMode {
    /// Returns the name in the tables.
    pub(super) fn title(self) -> String {
        match self {
            Self::Nobody => "no tool".to_owned(),
            Self::Memwatch([]) => "memwatch, as it is by default".to_owned(),
            Self::Memwatch(["--tensors=off"]) => "memwatch, driver calls only".to_owned(),
            Self::Memwatch(["--budget=0"]) => "memwatch, read only".to_owned(),
            Self::Memwatch(options) => format!("memwatch {}", options.join(" ")),
            Self::History => "PyTorch's own history, Python stacks".to_owned(),
            Self::Count => "bpftrace, counting the same events".to_owned(),
        }
    }
}

/// Programs to measure.
pub(super) struct Tools {
    pub(super) memwatch: PathBuf,
    pub(super) driver: PathBuf,
}

impl Tools {
    /// Builds the programs for this benchmark.
    ///
    /// # Errors
    /// A program cannot be built, or this process is not root.
    pub(super) fn build(repo: &Repo, bench: &str) -> Result<Self> {
        if !setup::is_root() {
            bail!("uprobes need root: sudo --preserve-env=PATH,HOME cargo xtask bench {bench}");
        }
        let memwatch = binary::build(repo, BuildProfile::Release)?;
        setup::packages(&[Package::Bpftrace])?;
        Ok(Self { memwatch, driver: integration::build_simulator(repo, Prologue::Cmp)? })
    }
}

/// The measured program.
pub(super) struct Training {
    program: OwnedChild,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    ledger: PathBuf,
    /// Library and function by which the program reports allocations and frees.
    reports: (PathBuf, &'static str),
}

/// Step durations of one mode, over all rounds.
pub(super) struct StepMeasurement {
    pub(super) mode: TracingMode,
    /// Shortest step of each round, in nanoseconds.
    pub(super) shortest_ns: Vec<f64>,
    /// Tenth percentile of each round, in nanoseconds.
    pub(super) tenth_ns: Vec<f64>,
    /// Median of each round, in nanoseconds.
    pub(super) median_ns: Vec<f64>,
    /// Allocations and frees per step.
    pub(super) events_per_step: f64,
}

/// Times the steps of each mode in turns, in `rounds` rounds of `steps` steps.
///
/// # Errors
/// The program exits, or a watcher fails.
pub(super) fn in_turns(
    training: &mut Training,
    tools: &Tools,
    modes: &[TracingMode],
    (rounds, steps): (u64, u64),
) -> Result<Vec<StepMeasurement>> {
    let none = |mode: &TracingMode| StepMeasurement {
        mode: *mode,
        shortest_ns: Vec::new(),
        tenth_ns: Vec::new(),
        median_ns: Vec::new(),
        events_per_step: 0.0,
    };
    let mut all: Vec<StepMeasurement> = modes.iter().map(none).collect();
    for round in 1..=rounds {
        // Alternates the order, so that a mode does not always follow the same one.
        let turns: Vec<usize> = if round % 2 == 1 { (0..all.len()).collect() } else { (0..all.len()).rev().collect() };
        for turn in turns {
            let measured = &mut all[turn];
            let title = measured.mode.title();
            let (mut times, events) = training.timed(measured.mode, tools, steps).context(title.clone())?;
            times.sort_by(f64::total_cmp);
            measured.shortest_ns.push(times[0]);
            measured.tenth_ns.push(times[times.len() / 10]);
            measured.median_ns.push(times[times.len() / 2]);
            measured.events_per_step = events;
            eprintln!("round {round} of {rounds}, {title}: {:.3} ms per step", times[times.len() / 2] / 1e6);
        }
    }
    Ok(all)
}

impl Training {
    /// Starts a PyTorch program with these options, and waits until it is ready.
    ///
    /// # Errors
    /// PyTorch cannot be installed, or the program does not start.
    pub(super) fn start(repo: &Repo, driver: &Path, words: &[&str]) -> Result<Self> {
        let torch = integration::torch_environment(repo, VERSION)?;
        let ledger = ledger_in(driver);
        let mut command = torch.command(&driver.join("lib"), &ledger);
        command.arg(repo.path("tests/workloads/busy_step.py")).args(words);
        let venv = torch.python.parent().and_then(Path::parent).context("the interpreter lies in no environment")?;
        let library = library(venv).context("the wheel has no libc10.so")?;
        Self::of(&mut command, ledger, (library, REPORTS_TENSORS))
    }

    /// Starts a JAX program that makes arrays, and waits until it is ready.
    ///
    /// # Errors
    /// JAX cannot be installed, or the program does not start.
    pub(super) fn start_arrays(repo: &Repo, driver: &Path) -> Result<Self> {
        let jax = torch::ensure_jax(repo.root(), &repo.made("torch"))?;
        let ledger = ledger_in(driver);
        let mut command = jax.arena_script(repo.root(), (driver, &ledger), "busy_arrays.py")?;
        let library = jax.packages.join("jax_plugins/xla_cuda13/xla_cuda_plugin.so");
        Self::of(&mut command, ledger, (library, REPORTS_CHUNKS))
    }

    /// Starts a TensorFlow program that runs operators, and waits until it is ready.
    ///
    /// # Errors
    /// TensorFlow cannot be installed, or the program does not start.
    pub(super) fn start_operators(repo: &Repo, driver: &Path) -> Result<Self> {
        let (cache, home) = (repo.made("torch"), repo.made("matrix").join(format!("tensorflow-{TENSORFLOW}")));
        let place = torch::ReleasePlace { repo: repo.root(), cache: &cache, home: &home };
        let tensorflow = torch::tensorflow_release(&place, TENSORFLOW)?.environment;
        let ledger = ledger_in(driver);
        let mut command = tensorflow.arena_script(repo.root(), (driver, &ledger), "busy_operators.py")?;
        command.env("GPUSIM_DRIVER_VERSION", "12080").env("TF_ENABLE_ONEDNN_OPTS", "0");
        let library = tensorflow.packages.join("tensorflow/libtensorflow_framework.so.2");
        Self::of(&mut command, ledger, (library, REPORTS_CHUNKS))
    }

    fn of(command: &mut Command, ledger: PathBuf, reports: (PathBuf, &'static str)) -> Result<Self> {
        let mut program = OwnedChild::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let (orders, answers) = program.pipes();
        let mut training = Self {
            program,
            orders: orders.context("the program has no input")?,
            answers: BufReader::new(answers.context("the program has no output")?),
            ledger,
            reports,
        };
        training.answer()?;
        Ok(training)
    }

    /// Returns the duration of each step under `mode` in nanoseconds, and the number of events per
    /// step.
    fn timed(&mut self, mode: TracingMode, tools: &Tools, steps: u64) -> Result<(Vec<f64>, f64)> {
        let Tools { memwatch, driver } = tools;
        let tgid = self.program.tgid();
        let watcher = match mode {
            TracingMode::Nobody => None,
            TracingMode::Memwatch(options) => {
                let watcher = attach_memwatch_with(memwatch, driver, (tgid, &self.ledger), options)?;
                std::thread::sleep(PROBED);
                Some(watcher)
            }
            TracingMode::History => {
                self.ask("history on")?;
                None
            }
            TracingMode::Count => {
                let (library, symbol) = &self.reports;
                let script = format!("uprobe:{}:{symbol} {{ @ = count(); }} END {{ clear(@); }}", library.display());
                Some(attach_bpftrace(&script, tgid)?)
            }
        };
        let begun = Instant::now();
        while begun.elapsed() < WARM {
            self.ask(&format!("run {WARM_STEPS}"))?;
        }
        let answer = self.ask(&format!("run {steps}"))?;
        watcher.map(Watcher::detach).transpose()?;
        if mode == TracingMode::History {
            self.ask("history off")?;
        }
        let times: Vec<f64> = answer["step_ns"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        if times.is_empty() {
            bail!("the program answered {answer}");
        }
        Ok((times, answer["events_per_step"].as_f64().unwrap_or_default()))
    }

    /// Returns the process id.
    pub(super) fn tgid(&self) -> u32 {
        self.program.tgid()
    }

    /// Returns the simulator's ledger file.
    pub(super) fn ledger(&self) -> &Path {
        &self.ledger
    }

    /// Sends a command and returns the answer.
    ///
    /// # Errors
    /// The program has exited.
    pub(super) fn ask(&mut self, order: &str) -> Result<Value> {
        writeln!(self.orders, "{order}").context("the program reads no orders")?;
        self.answer()
    }

    /// Returns the next line of JSON, skipping PyTorch's own messages.
    fn answer(&mut self) -> Result<Value> {
        loop {
            let mut line = String::new();
            if self.answers.read_line(&mut line)? == 0 {
                bail!("the program has ended");
            }
            if let Ok(answer @ Value::Object(_)) = serde_json::from_str(&line) {
                return Ok(answer);
            }
        }
    }
}

impl Drop for Training {
    fn drop(&mut self) {
        // Remaining files are below target/ and small.
        drop(std::fs::remove_file(&self.ledger));
    }
}

/// Returns the ledger file of one program of this benchmark.
fn ledger_in(driver: &Path) -> PathBuf {
    driver.join(format!("bench-ledger-{}", std::process::id()))
}

/// Returns the library that reports tensors, in a virtual environment.
fn library(venv: &Path) -> Option<PathBuf> {
    let versions = std::fs::read_dir(venv.join("lib")).ok()?;
    let file = |entry: std::fs::DirEntry| entry.path().join("site-packages/torch/lib/libc10.so");
    versions.flatten().map(file).find(|file| file.is_file())
}

/// Returns the median of the values.
pub(super) fn middle(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Returns the lower quartile of the values.
pub(super) fn lower_quarter(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 4).copied().unwrap_or(f64::NAN)
}

/// Returns the smallest of the values.
pub(super) fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}
