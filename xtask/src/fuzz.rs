//! `cargo xtask fuzz`: fuzzes every parser of memwatch.
//!
//! The targets of `fuzz/` are compiled by the pinned stable toolchain with LLVM's coverage pass and
//! no sanitizer: the bugs to find are panics, endless loops and unbounded memory, in safe Rust.

use crate::args::TaskArgs;
use crate::child::OwnedChild;
use crate::repo::Repo;
use crate::run::{first_line, line, pinned, run};
use crate::setup::{self, Package};
use anyhow::{Context as _, Result, bail};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A fuzz target: name, and maximum useful length of an input in bytes.
struct FuzzTarget {
    name: &'static str,
    longest_bytes: u32,
}

/// All targets, those with the longest inputs first, since two run at a time.
const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "ledger_ops", longest_bytes: 6_144 },
    FuzzTarget { name: "elf_prologue", longest_bytes: 4_096 },
    FuzzTarget { name: "process_image", longest_bytes: 4_096 },
    FuzzTarget { name: "read_recording", longest_bytes: 4_096 },
    FuzzTarget { name: "proc_files", longest_bytes: 2_048 },
    FuzzTarget { name: "agent_requests", longest_bytes: 2_048 },
    FuzzTarget { name: "decode_record", longest_bytes: 136 },
];
/// Default run time per target, in seconds.
const SECONDS: u64 = 40;
/// Limits per input, in seconds and MiB. An input that exceeds them is a finding.
const LIMITS: [&str; 2] = ["-timeout=10", "-rss_limit_mb=2048"];
/// Limits for targets that run with a raised nice value: 6 s at a tenth of a CPU.
const LIMITS_GIVING_WAY: [&str; 2] = ["-timeout=60", LIMITS[1]];
/// Maximum time by which a run of libFuzzer exceeds its duration.
const GRACE: Duration = Duration::from_secs(60);

/// Maximum number of log lines that are printed.
const LINES_SHOWN: usize = 40;

/// Coverage instrumentation for libFuzzer: the flags that cargo-fuzz passes for a build without a
/// sanitizer.
const RUSTFLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";
const PROFILE: [(&str, &str); 4] = [
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1"),
    ("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true"),
    ("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true"),
];

/// Runs `cargo xtask fuzz`.
pub(crate) fn task(repo: &Repo, mut args: TaskArgs) -> Result<()> {
    let (name, how) = match (args.word(), args.word()) {
        (Some(seconds), None) if seconds.parse::<u64>().is_ok() => (None, Some(seconds)),
        words => words,
    };
    args.finish()?;
    let targets: Vec<&FuzzTarget> =
        TARGETS.iter().filter(|target| name.as_deref().is_none_or(|own| own == target.name)).collect();
    if targets.is_empty() {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        bail!("there is no such target; there are {}", names.join(", "));
    }
    let seconds = how.as_ref().map(|word| word.parse::<u64>());
    let programs = build(repo)?;
    match (how, seconds) {
        // Not a number: the path of an input that failed before.
        (Some(input), Some(Err(_))) => run(Command::new(programs.join(targets[0].name)).args(limits()).arg(input)),
        (_, seconds) => run_all(repo, &programs, &targets, seconds.and_then(Result::ok).unwrap_or(SECONDS)),
    }
}

/// Runs every target for [`SECONDS`], starting from the committed seeds only.
///
/// # Errors
/// A target finds something, or cannot be built.
pub(crate) fn check(repo: &Repo) -> Result<()> {
    let programs = build(repo)?;
    let corpus = repo.made("fuzz/corpus");
    if corpus.exists() {
        fs::remove_dir_all(&corpus).with_context(|| format!("cannot empty {}", corpus.display()))?;
    }
    run_all(repo, &programs, &TARGETS.iter().collect::<Vec<_>>(), SECONDS)
}

/// Compiles the targets and returns the directory of their programs.
fn build(repo: &Repo) -> Result<PathBuf> {
    setup::packages(&[Package::CxxCompiler])?;
    // With an explicit target, build scripts and procedural macros are not instrumented.
    let machine = first_line(pinned(repo, "rustc").args(["--print", "host-tuple"]))?;
    let out = repo.made("fuzz");
    let mut cargo = pinned(repo, "cargo");
    cargo.args(["build", "--quiet", "--release", "--package", "memwatch-fuzz", "--target", &machine, "--target-dir"]);
    run(cargo.arg(&out).env("RUSTFLAGS", RUSTFLAGS).envs(PROFILE))?;
    Ok(out.join(machine).join("release"))
}

/// A running target.
struct RunningTarget {
    name: &'static str,
    program: OwnedChild,
    repeat: String,
    log: PathBuf,
}

/// Returns the limits for our own priority, which the targets inherit.
fn limits() -> [&'static str; 2] {
    // SAFETY: a plain system call. On failure it returns -1, which is not a raised nice value.
    let priority = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    if priority > 0 { LIMITS_GIVING_WAY } else { LIMITS }
}

/// Runs the targets, as many at a time as there are CPUs.
fn run_all(repo: &Repo, programs: &Path, targets: &[&FuzzTarget], seconds: u64) -> Result<()> {
    let at_once = std::thread::available_parallelism().context("cannot count processors")?.get();
    for batch in targets.chunks(at_once) {
        let mut running =
            batch.iter().map(|target| start(repo, programs, target, seconds)).collect::<Result<Vec<_>>>()?;
        for target in &mut running {
            finish(target, Duration::from_secs(seconds) + GRACE)?;
        }
    }
    Ok(())
}

fn start(repo: &Repo, programs: &Path, target: &FuzzTarget, seconds: u64) -> Result<RunningTarget> {
    let FuzzTarget { name, longest_bytes } = *target;
    let corpus = repo.made(&format!("fuzz/corpus/{name}"));
    let found = repo.made(&format!("fuzz/found/{name}"));
    for folder in [&corpus, &found] {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let log = repo.made(&format!("fuzz/{name}.log"));
    let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = Command::new(programs.join(name));
    command
        .args(limits())
        .args(["-seed=1", "-print_final_stats=1"])
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-max_len={longest_bytes}"))
        .arg(format!("-artifact_prefix={}/", found.display()))
        .args([corpus, repo.path(&format!("fuzz/seeds/{name}"))])
        .stdout(output.try_clone().context("cannot share the log")?)
        .stderr(output);
    let repeat = line(&command);
    Ok(RunningTarget { name, program: OwnedChild::start(&mut command)?, repeat, log })
}

fn finish(target: &mut RunningTarget, at_most: Duration) -> Result<()> {
    let RunningTarget { name, program, repeat, log } = target;
    let status = program.wait(at_most)?;
    let text = fs::read_to_string(&*log).with_context(|| format!("cannot read {}", log.display()))?;
    match status {
        Some(status) if status.success() => {
            println!("{name}: {}", outcome(&text));
            Ok(())
        }
        None => bail!("{name} does not end: {repeat}"),
        Some(status) => {
            let lines: Vec<&str> = text.lines().skip_while(|line| !is_finding(line)).take(LINES_SHOWN).collect();
            let shown = lines.join("\n");
            let input =
                text.lines().find_map(|line| line.split("Test unit written to ").nth(1)).unwrap_or("no input was kept");
            bail!("{name}: {status}\n{shown}\n{name} failed on {input}. To repeat it: cargo xtask fuzz {name} {input}")
        }
    }
}

/// Whether a log line begins a finding: a panic, or an error of libFuzzer.
fn is_finding(line: &str) -> bool {
    line.contains(" panicked at ") || line.contains("ERROR: ")
}

/// Summarises libFuzzer's closing statistics (`stat::name: value`) in one line.
fn outcome(log: &str) -> String {
    let value = |name: &str| {
        let value = log.lines().find_map(|line| line.strip_prefix("stat::")?.strip_prefix(name)?.strip_prefix(':'));
        value.map_or("?", str::trim).to_owned()
    };
    let runs = value("number_of_executed_units");
    format!("{runs} inputs, {} new, at most {} MiB", value("new_units_added"), value("peak_rss_mb"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_its_program_and_seeds() {
        let repo = Repo::locate().unwrap();
        for FuzzTarget { name, .. } in TARGETS {
            assert!(repo.path(&format!("fuzz/targets/{name}.rs")).exists(), "{name}");
            assert!(fs::read_dir(repo.path(&format!("fuzz/seeds/{name}"))).unwrap().count() > 0, "{name}");
        }
        assert_eq!(fs::read_dir(repo.path("fuzz/targets")).unwrap().count(), TARGETS.len());
    }

    #[test]
    fn the_outcome_is_read_from_the_statistics() {
        let log =
            "#2 DONE\nstat::number_of_executed_units: 12\nstat::new_units_added:          3\nstat::peak_rss_mb: 40\n";
        assert_eq!(outcome(log), "12 inputs, 3 new, at most 40 MiB");
    }
}
