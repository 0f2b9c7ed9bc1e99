//! A program that makes steps of work when it is asked to, and who watches it meanwhile: all modes take turns within one run of it.

use super::watcher::{Watcher, attach_bpftrace, attach_memwatch_with};
use crate::binary;
use crate::child::Owned;
use crate::gpusim::Prologue;
use crate::integration;
use crate::repo::{Profile, Repo};
use crate::setup::{self, Package};
use crate::torch;
use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// The version of PyTorch.
pub(super) const VERSION: &str = "2.8.0";
/// And that of TensorFlow, which names the operators of chunks.
pub(super) const TENSORFLOW: &str = "2.21.0";
/// PyTorch's libraries are found, and their probes put in, within so long.
const PROBED: Duration = Duration::from_secs(2);
/// So long it works before steps are timed: a level that costs too much is lowered by then.
const WARM: Duration = Duration::from_millis(1_500);
/// So many steps between two looks at the clock.
const WARM_STEPS: u64 = 50;

/// By this PyTorch reports each tensor.
const REPORTS_TENSORS: &str = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE";
/// By this the allocator of XLA and TensorFlow reports each chunk.
const REPORTS_CHUNKS: &str = "_ZN3tsl12BFCAllocator10AddTraceMeESt17basic_string_viewIcSt11char_traitsIcEEPKvll";

/// Who watches while the program works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Nobody,
    /// `memwatch --pid` with these options.
    Memwatch(&'static [&'static str]),
    /// PyTorch itself.
    History,
    /// bpftrace, counting the calls of the function that reports each tensor.
    Count,
}

impl Mode {
    /// What the tables call it.
    pub(super) fn title(self) -> String {
        match self {
            Self::Nobody => "nobody".to_owned(),
            Self::Memwatch([]) => "memwatch, as it is by default".to_owned(),
            Self::Memwatch(["--tensors=off"]) => "memwatch, calls of the driver alone".to_owned(),
            Self::Memwatch(["--budget=0"]) => "memwatch, read only".to_owned(),
            Self::Memwatch(options) => format!("memwatch {}", options.join(" ")),
            Self::History => "PyTorch's own history, Python stacks".to_owned(),
            Self::Count => "bpftrace, counting the same events".to_owned(),
        }
    }
}

/// What is built to be measured.
pub(super) struct Tools {
    pub(super) memwatch: PathBuf,
    pub(super) driver: PathBuf,
}

impl Tools {
    /// Builds it, for this benchmark.
    ///
    /// # Errors
    /// When something cannot be built, or this is not root.
    pub(super) fn build(repo: &Repo, bench: &str) -> Result<Self> {
        if !setup::is_root() {
            bail!("uprobes need root: sudo --preserve-env=PATH,HOME cargo xtask bench {bench}");
        }
        let memwatch = binary::build(repo, Profile::Release)?;
        setup::packages(&[Package::Bpftrace])?;
        Ok(Self { memwatch, driver: integration::build_simulator(repo, Prologue::Cmp)? })
    }
}

/// The program that works.
pub(super) struct Training {
    program: Owned,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    ledger: PathBuf,
    /// The library and the function in it by which it reports what comes and goes.
    reports: (PathBuf, &'static str),
}

/// One mode's steps, of all rounds.
pub(super) struct Measured {
    pub(super) mode: Mode,
    /// The shortest step of each round, nanoseconds.
    pub(super) shortest_ns: Vec<f64>,
    /// The one that a tenth of them are below.
    pub(super) tenth_ns: Vec<f64>,
    /// The middle one.
    pub(super) median_ns: Vec<f64>,
    /// Tensors that come or go in a step.
    pub(super) events_per_step: f64,
}

/// Times the steps of each mode in turns, so many rounds of so many steps.
///
/// # Errors
/// When the program ends, or a watcher does not do what it should.
pub(super) fn in_turns(
    training: &mut Training,
    tools: &Tools,
    modes: &[Mode],
    (rounds, steps): (u64, u64),
) -> Result<Vec<Measured>> {
    let none = |mode: &Mode| Measured {
        mode: *mode,
        shortest_ns: Vec::new(),
        tenth_ns: Vec::new(),
        median_ns: Vec::new(),
        events_per_step: 0.0,
    };
    let mut all: Vec<Measured> = modes.iter().map(none).collect();
    for round in 1..=rounds {
        // Back and forth: none always follows the same one.
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
    /// Starts it with these options, and waits until it is ready.
    ///
    /// # Errors
    /// When PyTorch cannot be installed, or the program does not start.
    pub(super) fn start(repo: &Repo, driver: &Path, words: &[&str]) -> Result<Self> {
        let torch = integration::torch_environment(repo, VERSION)?;
        let ledger = ledger_in(driver);
        let mut command = torch.command(&driver.join("lib"), &ledger);
        command.arg(repo.path("tests/workloads/busy_step.py")).args(words);
        let venv = torch.python.parent().and_then(Path::parent).context("the interpreter lies in no environment")?;
        let library = library(venv).context("the wheel has no libc10.so")?;
        Self::of(&mut command, ledger, (library, REPORTS_TENSORS))
    }

    /// Starts one on JAX that makes arrays, and waits until it is ready.
    ///
    /// # Errors
    /// When JAX cannot be installed, or the program does not start.
    pub(super) fn start_arrays(repo: &Repo, driver: &Path) -> Result<Self> {
        let jax = torch::ensure_jax(repo.root(), &repo.made("torch"))?;
        let ledger = ledger_in(driver);
        let mut command = jax.arena_script(repo.root(), (driver, &ledger), "busy_arrays.py")?;
        let library = jax.packages.join("jax_plugins/xla_cuda13/xla_cuda_plugin.so");
        Self::of(&mut command, ledger, (library, REPORTS_CHUNKS))
    }

    /// Starts one on TensorFlow that runs operators, and waits until it is ready.
    ///
    /// # Errors
    /// When TensorFlow cannot be installed, or the program does not start.
    pub(super) fn start_operators(repo: &Repo, driver: &Path) -> Result<Self> {
        let (cache, home) = (repo.made("torch"), repo.made("matrix").join(format!("tensorflow-{TENSORFLOW}")));
        let place = torch::Place { repo: repo.root(), cache: &cache, home: &home };
        let tensorflow = torch::tensorflow_release(&place, TENSORFLOW)?.environment;
        let ledger = ledger_in(driver);
        let mut command = tensorflow.arena_script(repo.root(), (driver, &ledger), "busy_operators.py")?;
        command.env("GPUSIM_DRIVER_VERSION", "12080").env("TF_ENABLE_ONEDNN_OPTS", "0");
        let library = tensorflow.packages.join("tensorflow/libtensorflow_framework.so.2");
        Self::of(&mut command, ledger, (library, REPORTS_CHUNKS))
    }

    fn of(command: &mut Command, ledger: PathBuf, reports: (PathBuf, &'static str)) -> Result<Self> {
        let mut program = Owned::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
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

    /// The nanoseconds of each step while `mode` watches, and how many tensors come and go in one.
    fn timed(&mut self, mode: Mode, tools: &Tools, steps: u64) -> Result<(Vec<f64>, f64)> {
        let Tools { memwatch, driver } = tools;
        let tgid = self.program.tgid();
        let watcher = match mode {
            Mode::Nobody => None,
            Mode::Memwatch(options) => {
                let watcher = attach_memwatch_with(memwatch, driver, (tgid, &self.ledger), options)?;
                std::thread::sleep(PROBED);
                Some(watcher)
            }
            Mode::History => {
                self.ask("history on")?;
                None
            }
            Mode::Count => {
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
        if mode == Mode::History {
            self.ask("history off")?;
        }
        let times: Vec<f64> = answer["step_ns"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        if times.is_empty() {
            bail!("the program answered {answer}");
        }
        Ok((times, answer["events_per_step"].as_f64().unwrap_or_default()))
    }

    /// Its process id.
    pub(super) fn tgid(&self) -> u32 {
        self.program.tgid()
    }

    /// The simulator's ledger of it.
    pub(super) fn ledger(&self) -> &Path {
        &self.ledger
    }

    /// What it answers to an order.
    ///
    /// # Errors
    /// When it has ended.
    pub(super) fn ask(&mut self, order: &str) -> Result<Value> {
        writeln!(self.orders, "{order}").context("the program reads no orders")?;
        self.answer()
    }

    /// The next line of JSON; PyTorch's own remarks are none.
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
        // What stays behind lies below target/ and is small.
        drop(std::fs::remove_file(&self.ledger));
    }
}

/// The simulator's, for one program of this benchmark.
fn ledger_in(driver: &Path) -> PathBuf {
    driver.join(format!("bench-ledger-{}", std::process::id()))
}

/// The library that reports tensors, in an environment.
fn library(venv: &Path) -> Option<PathBuf> {
    let versions = std::fs::read_dir(venv.join("lib")).ok()?;
    let file = |entry: std::fs::DirEntry| entry.path().join("site-packages/torch/lib/libc10.so");
    versions.flatten().map(file).find(|file| file.is_file())
}

/// The middle one of some measurements.
pub(super) fn middle(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The one that a quarter of some measurements are below.
pub(super) fn lower_quarter(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 4).copied().unwrap_or(f64::NAN)
}

/// The smallest of some measurements.
pub(super) fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}
