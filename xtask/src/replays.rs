//! `cargo xtask replays` records the runs of `tests/replays/runs.tsv`: real PyTorch on the
//! simulated GPU. `cargo xtask calibrate` measures on them how reliable verdicts and forecasts are.
//!
//! A recording contains command lines, paths and names. So each run is made in its own namespaces,
//! where the tree is at `/srv`, the host has another name, and the parent of the program is not
//! visible.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;

use anyhow::{Context as _, Result, bail, ensure};

use crate::args::TaskArgs;
use crate::binary;
use crate::gpusim::Prologue;
use crate::integration;
use crate::repo::{BuildProfile, Repo};
use crate::run::{pinned, run};
use crate::setup;

const TORCH: &str = "2.15.0";
const FOLDER: &str = "tests/replays";
/// Number of runs at a time: each is idle most of the time, and has its own simulated GPU.
const TOGETHER: usize = 6;
/// Path of the tree inside the namespaces.
const ROOT: &str = "/srv";
/// Shell script of a run. The shell exits at once, so that the program has no visible parent; the
/// output ends when the last process exits.
const SCRIPT: &str = "mount --bind \"$TREE\" /srv && hostname simulated && cd /srv/tests/workloads && { \"$@\" & }";

/// A run.
#[derive(Clone, Debug)]
struct RecordedProgramRun {
    name: String,
    total_mb: String,
    /// Variables as `NAME=VALUE`, then the command.
    words: Vec<String>,
}

/// Runs `cargo xtask replays [NAME]...`.
pub(crate) fn task(repo: &Repo, mut args: TaskArgs) -> Result<()> {
    let wanted: Vec<String> = std::iter::from_fn(|| args.word()).collect();
    args.finish()?;
    ensure!(setup::is_root(), "namespaces and uprobes need root: run it as root");
    let runs = runs(repo)?;
    let is_wanted = |run: &RecordedProgramRun| wanted.is_empty() || wanted.iter().any(|name| run.name.contains(name));
    let chosen: Vec<RecordedProgramRun> = runs.into_iter().filter(is_wanted).collect();
    ensure!(!chosen.is_empty(), "no run of {FOLDER}/runs.tsv has that in its name");
    binary::build(repo, BuildProfile::Release)?;
    integration::build_simulator(repo, Prologue::Cmp)?;
    integration::torch_environment(repo, TORCH)?;
    let waiting = Mutex::new(chosen.into_iter());
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..TOGETHER {
            scope.spawn(|| {
                while let Some(run) = next(&waiting) {
                    match record(repo, &run) {
                        Ok(bytes) => println!("{:28}{bytes:>9} bytes", run.name),
                        Err(error) => lock(&failed).push(format!("{}: {error:#}", run.name)),
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

/// Runs `cargo xtask calibrate`.
pub(crate) fn calibrate(repo: &Repo, args: TaskArgs) -> Result<()> {
    args.finish()?;
    // The first pass writes the table into the code; the second is compiled with it and writes the
    // document.
    for part in ["table", "document"] {
        run(pinned(repo, "cargo").env("MEMWATCH_CALIBRATE", part).args([
            "test",
            "--package",
            "memwatch-core",
            "--test",
            "replays",
            "current",
        ]))?;
    }
    Ok(())
}

fn next(waiting: &Mutex<impl Iterator<Item = RecordedProgramRun>>) -> Option<RecordedProgramRun> {
    lock(waiting).next()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Reads the rows of `runs.tsv`.
fn runs(repo: &Repo) -> Result<Vec<RecordedProgramRun>> {
    let path = repo.path(FOLDER).join("runs.tsv");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let rows = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    rows.map(|row| match row.split('\t').collect::<Vec<_>>()[..] {
        [name, total_mb, words, ..] => Ok(RecordedProgramRun {
            name: name.to_owned(),
            total_mb: total_mb.to_owned(),
            words: words.split(' ').map(str::to_owned).collect(),
        }),
        _ => bail!("{}: {row:?} has too few columns", path.display()),
    })
    .collect()
}

/// Returns the path of a file of this tree inside the namespaces.
fn inside(repo: &Repo, path: &Path) -> Result<PathBuf> {
    let below = path.strip_prefix(repo.root());
    Ok(Path::new(ROOT)
        .join(below.with_context(|| format!("{} is not below {}", path.display(), repo.root().display()))?))
}

/// Makes one recording, and returns its size in bytes.
fn record(repo: &Repo, run: &RecordedProgramRun) -> Result<u64> {
    let torch = integration::torch_environment(repo, TORCH)?;
    let simulator = inside(repo, &integration::simulator(repo, Prologue::Cmp))?.join("lib");
    let ledger = std::env::temp_dir().join(format!("memwatch-replay-{}-{}", std::process::id(), run.name));
    let python = inside(repo, &torch.python)?;
    let settings = torch.command(Path::new(""), &ledger);
    let file = Path::new(FOLDER).join(&run.name).with_extension("mwr");
    let (variables, words): (Vec<&String>, Vec<&String>) = run.words.iter().partition(|word| word.contains('='));
    let mut command = Command::new("unshare");
    command.envs(settings.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command
        .env("TREE", repo.root())
        .env("GPUSIM_TOTAL_MB", &run.total_mb)
        .env(
            "LD_LIBRARY_PATH",
            [simulator.as_os_str(), inside(repo, &torch.runtime_lib_dir)?.as_os_str()].join(":".as_ref()),
        )
        .args(["--mount", "--uts", "--cgroup", "sh", "-c", SCRIPT, "sh"])
        .arg(inside(repo, &repo.memwatch(BuildProfile::Release))?)
        .arg("--nvml-lib")
        .arg(simulator.join("libnvidia-ml.so.1"))
        .args(["run", "--force", "-o"])
        .arg(Path::new(ROOT).join(&file))
        .arg("--")
        .arg(python)
        .arg("courses.py")
        .args(words);
    command.envs(variables.into_iter().filter_map(|variable| variable.split_once('=')));
    let Output { stdout, stderr, .. } = command.output().context("unshare, of util-linux, is needed")?;
    drop(fs::remove_file(&ledger));
    let stated = String::from_utf8_lossy(&stdout);
    ensure!(stated.contains("\"label\": \""), "it did not come to its end:\n{}", String::from_utf8_lossy(&stderr));
    let facts = fs::metadata(repo.path(&file.to_string_lossy())).context("there is no recording")?;
    Ok(facts.len())
}
