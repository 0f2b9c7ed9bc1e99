//! `cargo xtask bench tensors`: what a step of training costs while somebody watches each tensor of it.
//!
//! A small model whose kernels take no time: the step is as fast as the processor lets it be, the worst case for any watcher. All modes take turns
//! within one run of one program.

use super::DOCUMENT;
use super::report::TENSORS;
use super::watcher::{Watcher, attach_bpftrace, attach_memwatch_with};
use crate::args::Args;
use crate::binary;
use crate::child::Owned;
use crate::document;
use crate::gpusim::Prologue;
use crate::integration;
use crate::repo::{Profile, Repo};
use crate::setup::{self, Package};
use crate::table::Table;
use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

const ROUNDS: u64 = 5;
const STEPS: u64 = 200;
const VERSION: &str = "2.8.0";
/// PyTorch's libraries are found, and their probes put in, within so long.
const PROBED: Duration = Duration::from_secs(2);

/// Who watches while the program trains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Nobody,
    /// memwatch with this level of `--tensors`.
    Memwatch(&'static str),
    /// `memwatch sites` or `memwatch layers`.
    Places(&'static str),
    /// PyTorch itself.
    History,
    /// bpftrace, counting the calls of the function that reports each tensor.
    Count,
}

const MODES: [Mode; 9] = [
    Mode::Nobody,
    Mode::Memwatch("off"),
    Mode::Memwatch("blocks"),
    Mode::Memwatch("sites"),
    Mode::Memwatch("layers"),
    Mode::Places("sites"),
    Mode::Places("layers"),
    Mode::History,
    Mode::Count,
];

impl Mode {
    fn title(self) -> String {
        match self {
            Self::Nobody => "nobody".to_owned(),
            Self::Memwatch("off") => "memwatch, driver calls only".to_owned(),
            Self::Memwatch(level) => format!("memwatch --tensors={level}"),
            Self::Places(list) => format!("memwatch {list}"),
            Self::History => "PyTorch's own history, Python stacks".to_owned(),
            Self::Count => "bpftrace, counting tensors".to_owned(),
        }
    }
}

/// The program that trains.
pub(super) struct Training {
    program: Owned,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    ledger: PathBuf,
    library: PathBuf,
}

/// One mode's steps, of all rounds.
struct Measured {
    mode: Mode,
    /// The shortest step of each round, nanoseconds.
    shortest_ns: Vec<f64>,
    /// The middle one.
    median_ns: Vec<f64>,
}

/// Builds everything, measures, prints the table and writes it into docs/overhead.md.
pub(super) fn task(repo: &Repo, mut args: Args) -> Result<()> {
    let rounds = args.count("--rounds")?.unwrap_or(ROUNDS);
    args.finish()?;
    if !setup::is_root() {
        bail!("uprobes need root: sudo --preserve-env=PATH,HOME cargo xtask bench tensors");
    }
    let memwatch = binary::build(repo, Profile::Release)?;
    setup::packages(&[Package::Bpftrace])?;
    let driver = integration::build_simulator(repo, Prologue::Cmp)?;
    let mut training = Training::start(repo, &driver)?;
    let mut measured = MODES.map(|mode| Measured { mode, shortest_ns: Vec::new(), median_ns: Vec::new() });
    let mut events_per_step = 0.0;
    for round in 1..=rounds {
        for measured in &mut measured {
            let title = measured.mode.title();
            let (mut times, events) = training.timed(measured.mode, &memwatch, &driver).context(title.clone())?;
            times.sort_by(f64::total_cmp);
            measured.shortest_ns.push(times[0]);
            measured.median_ns.push(times[times.len() / 2]);
            events_per_step = events;
            eprintln!("round {round} of {rounds}, {title}: {:.2} ms per step", times[times.len() / 2] / 1e6);
        }
    }
    let text = text(&measured, rounds, events_per_step)?;
    println!("{text}");
    document::update(&repo.path(DOCUMENT), &TENSORS, &text)
}

impl Training {
    /// Starts it, and waits until it is ready.
    ///
    /// # Errors
    /// When PyTorch cannot be installed, or the program does not start.
    pub(super) fn start(repo: &Repo, driver: &Path) -> Result<Self> {
        let torch = integration::torch_environment(repo, VERSION)?;
        let ledger = driver.join(format!("bench-ledger-{}", std::process::id()));
        let mut command = torch.command(&driver.join("lib"), &ledger);
        command.arg(repo.path("tests/workloads/busy_step.py")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = Owned::start(&mut command)?;
        let (orders, answers) = program.pipes();
        let venv = torch.python.parent().and_then(Path::parent).context("the interpreter lies in no environment")?;
        let library = library(venv).context("the wheel has no libc10.so")?;
        let mut training = Self {
            program,
            orders: orders.context("the program has no input")?,
            answers: BufReader::new(answers.context("the program has no output")?),
            ledger,
            library,
        };
        training.answer()?;
        Ok(training)
    }

    /// The nanoseconds of each step while `mode` watches, and how many tensors come and go in one.
    fn timed(&mut self, mode: Mode, memwatch: &Path, driver: &Path) -> Result<(Vec<f64>, f64)> {
        let tgid = self.program.tgid();
        let watcher = match mode {
            Mode::Nobody => None,
            Mode::Memwatch(level) => {
                let watcher =
                    attach_memwatch_with(memwatch, driver, (tgid, &self.ledger), &[&format!("--tensors={level}")])?;
                std::thread::sleep(PROBED);
                Some(watcher)
            }
            Mode::Places(list) => {
                let mut command = Command::new(memwatch);
                command.args(["--no-agent", list, "--duration", "10m", "--pid", &tgid.to_string(), "--nvml-lib"]);
                command.arg(driver.join("lib/libnvidia-ml.so.1")).env("GPUSIM_LEDGER", &self.ledger);
                let watcher = Watcher::silent(&mut command)?;
                std::thread::sleep(PROBED);
                Some(watcher)
            }
            Mode::History => {
                self.ask("history on")?;
                None
            }
            Mode::Count => {
                let symbol = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE";
                let script =
                    format!("uprobe:{}:{symbol} {{ @ = count(); }} END {{ clear(@); }}", self.library.display());
                Some(attach_bpftrace(&script, tgid)?)
            }
        };
        self.ask(&format!("run {}", STEPS / 10))?;
        let answer = self.ask(&format!("run {STEPS}"))?;
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

/// The library that reports tensors, in an environment.
fn library(venv: &Path) -> Option<PathBuf> {
    let versions = std::fs::read_dir(venv.join("lib")).ok()?;
    let file = |entry: std::fs::DirEntry| entry.path().join("site-packages/torch/lib/libc10.so");
    versions.flatten().map(file).find(|file| file.is_file())
}

#[allow(clippy::cast_precision_loss, reason = "a handful of rounds")]
fn middle(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The smallest of some measurements.
pub(super) fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn text(measured: &[Measured], rounds: u64, events_per_step: f64) -> Result<String> {
    let bpftrace = crate::run::first_line(Command::new("bpftrace").arg("--version"))?;
    let mut text = format!("{}, PyTorch {VERSION}, {bpftrace}.\n", document::machine()?);
    write!(
        text,
        "{rounds} rounds of {STEPS} steps, {events_per_step:.0} tensors granted or taken back in each; milliseconds per step.\n\n"
    )?;
    let mut table = Table::new(&["watched by", "shortest", "median", "added", "added %", "ns per tensor event"]);
    let (base_least, base) = (least(&measured[0].shortest_ns), middle(&measured[0].median_ns));
    for measured in measured {
        let (shortest, median) = (least(&measured.shortest_ns), middle(&measured.median_ns));
        let added = |of: String| if measured.mode == Mode::Nobody { String::new() } else { of };
        table.row(vec![
            measured.mode.title(),
            format!("{:.2}", shortest / 1e6),
            format!("{:.2}", median / 1e6),
            added(format!("{:.2}", (median - base) / 1e6)),
            added(format!("{:.0}", 100.0 * (median - base) / base)),
            added(format!("{:.0}", (shortest - base_least) / events_per_step)),
        ]);
    }
    text.push_str(&table.text());
    Ok(text)
}
