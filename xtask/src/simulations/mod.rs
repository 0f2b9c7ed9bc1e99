//! `cargo xtask simulations`: compares `memwatch simulate` on a recording with the memory that real
//! PyTorch then takes on the simulated GPU.
//!
//! Each program runs once with PyTorch's default settings, and is recorded. Then it runs with each
//! other setting, untraced: its peak of reserved memory is compared with the simulation. Rows of
//! programs that do not run keep their earlier measurements.

mod measure;
mod settings;
mod table;

use std::sync::{Mutex, PoisonError};

use anyhow::{Result, ensure};

use self::measure::SimulationRow;
use crate::args::TaskArgs;
use crate::binary;
use crate::document::{self, DocumentPart};
use crate::gpusim::Prologue;
use crate::integration;
use crate::repo::{BuildProfile, Repo};
use crate::setup;
use crate::torch;

const DOCUMENT: &str = "docs/project/simulations.md";
const PART: DocumentPart = DocumentPart {
    begin: "<!-- simulations: begin (cargo xtask simulations writes what follows) -->\n",
    end: "<!-- simulations: end -->\n",
};
/// Number of programs that run at a time, each on its own simulated GPU.
const TOGETHER: usize = 2;
/// Maximum deviation of a simulated peak, in percent.
const MOST_OFF: f64 = 1.0;

/// A program of `tests/workloads`.
struct SimulationProgram {
    /// Name in the table.
    title: &'static str,
    /// Script with its arguments.
    words: &'static [&'static str],
    /// Whether it runs as two ranks, each with its own GPU.
    is_ranked: bool,
}

const fn one(title: &'static str, words: &'static [&'static str]) -> SimulationProgram {
    SimulationProgram { title, words, is_ranked: false }
}

const fn ranks(title: &'static str, words: &'static [&'static str]) -> SimulationProgram {
    SimulationProgram { title, words, is_ranked: true }
}

/// Measured programs.
const PROGRAMS: &[SimulationProgram] = &[
    one("transformer, AdamW", &["transformer.py", "--steps", "6", "--layers", "4", "--dim", "512"]),
    one("transformer, bf16 autocast", &["stages_truth.py", "transformer", "--steps", "5", "--vary"]),
    one("convnet", &["stages_truth.py", "convnet", "--steps", "5", "--vary"]),
    one("LSTM", &["stages_truth.py", "lstm", "--steps", "5", "--vary"]),
    one("activation checkpointing", &["stages_truth.py", "checkpointing", "--steps", "5", "--vary"]),
    one("gradient accumulation", &["stages_truth.py", "accumulation", "--steps", "5", "--vary"]),
    one("DataLoader, pinned memory", &["stages_truth.py", "loader", "--steps", "3"]),
    one("torch.compile, aot_eager", &["stages_truth.py", "compiled", "--steps", "5", "--vary"]),
    one("CUDA graphs", &["graphs.py"]),
    one("growth and frees", &["grow_free.py", "--tensors", "300"]),
    ranks("FSDP, two ranks", &["two_ranks.py", "fsdp"]),
    ranks("fully_shard, two ranks", &["two_ranks.py", "fully_shard"]),
];

/// Runs `cargo xtask simulations [NAME]...`.
pub(crate) fn task(repo: &Repo, mut args: TaskArgs) -> Result<()> {
    let wanted: Vec<String> = std::iter::from_fn(|| args.word()).collect();
    args.finish()?;
    ensure!(setup::is_root(), "uprobes need root: run it as root");
    let is_wanted =
        |program: &SimulationProgram| wanted.is_empty() || wanted.iter().any(|name| program.title.contains(name));
    let chosen: Vec<_> = PROGRAMS.iter().filter(|program| is_wanted(program)).collect();
    ensure!(!chosen.is_empty(), "no program has that in its name; there are {}", titles().join("; "));
    binary::build(repo, BuildProfile::Release)?;
    integration::build_simulator(repo, Prologue::Cmp)?;
    integration::install_torch(repo)?;
    let jobs: Vec<_> =
        chosen.into_iter().flat_map(|program| torch::VERSIONS.iter().map(move |version| (program, *version))).collect();
    let wrong = measure_all(repo, &jobs);
    ensure!(wrong.is_empty(), "failed, or more than {MOST_OFF} % off:\n{}", wrong.join("\n"));
    Ok(())
}

fn titles() -> Vec<&'static str> {
    PROGRAMS.iter().map(|program| program.title).collect()
}

/// Runs all jobs, some at a time; each writes its rows into the document when it is done. Returns
/// the failures.
fn measure_all(repo: &Repo, jobs: &[(&SimulationProgram, &str)]) -> Vec<String> {
    let waiting = Mutex::new(jobs.iter());
    let wrong = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..TOGETHER {
            scope.spawn(|| {
                while let Some((program, version)) = next(&waiting) {
                    let rows = measure::program(repo, program, version);
                    let mut wrong = lock(&wrong);
                    match rows.and_then(|rows| write(repo, &rows).map(|()| rows)) {
                        Ok(rows) => wrong.extend(rows.iter().flat_map(SimulationRow::off)),
                        Err(error) => wrong.push(format!("{error:#}")),
                    }
                }
            });
        }
    });
    wrong.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Writes rows into the document, replacing those of the same program and version.
fn write(repo: &Repo, rows: &[SimulationRow]) -> Result<()> {
    let path = repo.path(DOCUMENT);
    let text = table::text(rows, &document::measured(&path, &PART)?, &document::machine()?, &titles());
    document::update(&path, &PART, &text)
}

fn next<'a, T>(waiting: &Mutex<impl Iterator<Item = &'a T>>) -> Option<&'a T> {
    lock(waiting).next()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
