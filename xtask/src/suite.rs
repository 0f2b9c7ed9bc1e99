//! `cargo xtask test`: runs all checks, cheapest first, each with the command that repeats it.

use crate::args::TaskArgs;
use crate::binary;
use crate::book;
use crate::child::OwnedChild;
use crate::docs;
use crate::fuzz;
use crate::integration;
use crate::orphans;
use crate::package;
use crate::profile_readers;
use crate::repo::{self, BuildProfile, Repo};
use crate::run::{pinned, run};
use crate::setup;
use crate::setup::Package;
use crate::spelling;
use crate::table::MarkdownTable;
use crate::test_output::run_tests;
use crate::tidy;
use anyhow::{Context as _, Result, bail};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// State shared by the steps.
struct SuiteRun<'repo> {
    repo: &'repo Repo,
    /// Filter: runs only tests with this in their name; `None` runs all.
    filter: Option<String>,
    /// Last lines of the latest test step, printed at the end of the output.
    closing_lines: String,
    /// Downloads that run while the CPU compiles.
    downloads: Option<OwnedChild>,
    /// Parts that run in parallel with the others.
    beside: Option<Beside>,
}

/// One step of the run.
struct SuiteStep {
    /// Name in the table of durations.
    name: &'static str,
    /// Argument of `cargo xtask test` that runs the step.
    part: &'static str,
    run: fn(&mut SuiteRun<'_>) -> Result<()>,
}

/// All steps, in order. A part given on the command line runs all steps with its name, and the
/// set-up steps, which have none.
const STEPS: &[SuiteStep] = &[
    SuiteStep { name: "disk space", part: WHOLE, run: |session| disk_space(session.repo) },
    SuiteStep { name: "tools", part: "", run: |session| setup::tools(session.repo) },
    SuiteStep { name: "system packages", part: INTEGRATION, run: system_packages },
    SuiteStep { name: "PyTorch and readers, in the background", part: INTEGRATION, run: start_downloads },
    SuiteStep { name: "format", part: "fmt", run: format },
    SuiteStep { name: "house rules", part: "tidy", run: |session| tidy::check(session.repo) },
    SuiteStep { name: "spelling", part: "spelling", run: |session| spelling::check(session.repo) },
    SuiteStep { name: "documents from code", part: "tidy", run: |session| docs::check(session.repo) },
    SuiteStep { name: "eBPF object", part: "", run: |session| setup::ebpf_object(session.repo) },
    SuiteStep { name: "lints, unit tests and fuzz targets, beside", part: WHOLE, run: start_beside },
    SuiteStep { name: "clippy, kernel half", part: "clippy", run: clippy_kernel_half },
    SuiteStep { name: "clippy, user half", part: "clippy", run: clippy_user_half },
    SuiteStep { name: "unit tests", part: "unit", run: unit_tests },
    SuiteStep { name: "fuzz targets", part: "fuzz", run: |session| fuzz::check(session.repo) },
    SuiteStep { name: "memwatch", part: INTEGRATION, run: build_memwatch },
    SuiteStep { name: "book", part: "book", run: book_is_current },
    SuiteStep { name: "packages", part: "packages", run: packages },
    SuiteStep { name: "simulated GPU", part: INTEGRATION, run: |session| integration::build_simulators(session.repo) },
    SuiteStep { name: "PyTorch and readers, the rest", part: INTEGRATION, run: finish_downloads },
    SuiteStep { name: "integration tests", part: INTEGRATION, run: integration_tests },
    SuiteStep { name: "lints, unit tests and fuzz targets, the rest", part: WHOLE, run: finish_beside },
    SuiteStep { name: "unit tests with probes", part: "probes", run: unit_tests_with_probes },
];
/// Packages that the integration tests need besides memwatch. Includes the fuzz targets' compiler,
/// so that apt-get runs once.
const INTEGRATION_PACKAGES: &[Package] = &[
    Package::CxxCompiler,
    Package::Systemd,
    Package::PythonVenv,
    Package::Prometheus,
    Package::Alertmanager,
    Package::Openssl,
    Package::NodeJs,
    Package::Mmdebstrap,
    Package::Jemalloc,
];
const INTEGRATION: &str = "integration";
/// Part of steps that run only in a full run.
const WHOLE: &str = "whole";
/// Parts that need only the CPU. A full run starts them in parallel with the integration tests,
/// which wait most of the time.
const BESIDE: &[&str] = &["clippy", "unit", "fuzz"];
/// Name of these parts on the command line.
const BESIDE_PART: &str = "beside";
/// Unit tests that run and probe programs on the simulated GPU. They are skipped in parallel with
/// the integration tests, which trace the whole machine and would report these programs. They run
/// after all other steps, and if only unit tests were requested.
const WITH_PROBES: &[&str] =
    &["sources::kernel::attach::tests::", "sources::python::tests::kernel::", "frameworks::probes::tests::"];
/// Environment variable that makes these tests skip.
const BESIDE_VARIABLE: &str = "MEMWATCH_TESTS_BESIDE";
/// Free space in bytes that a first full run takes below the checkout and in the home directory,
/// with the wheels of all frameworks; and that a later one needs.
const FIRST_RUN_BYTES: u64 = 32 << 30;
const LATER_RUN_BYTES: u64 = 8 << 30;
/// Nice value of the parallel parts. They keep a tenth of a CPU, so that they stay within their
/// time limits.
const GIVE_WAY: libc::c_int = 10;
/// Time limit of the parallel parts after all other steps are done.
const BESIDE_AT_MOST: Duration = Duration::from_mins(20);
/// Parts of `cargo xtask test quick`, which need neither root, nor PyTorch, nor minutes.
const QUICK: &[&str] = &["fmt", "tidy", "spelling", "clippy", "unit"];
/// Parts with tests that the name filter applies to.
const FILTERED: &[&str] = &["unit", INTEGRATION];

/// Runs `cargo xtask test`.
pub(crate) fn task(repo: &Repo, mut args: TaskArgs) -> Result<()> {
    let names: Vec<String> = std::iter::from_fn(|| args.word()).collect();
    args.finish()?;
    let (parts, filter) = plan(&names)?;
    if parts == BESIDE {
        // SAFETY: a plain system call. If it fails, the priority stays unchanged and the run only
        // takes longer.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, GIVE_WAY) };
    }
    let mut session = SuiteRun { repo, filter, closing_lines: String::new(), downloads: None, beside: None };
    let mut durations = Vec::new();
    let outcome = run_steps(&mut session, &parts, &mut durations);
    let mut table = MarkdownTable::new(&["step", "seconds"]);
    for (name, duration) in &durations {
        table.row(vec![(*name).to_owned(), format!("{:.1}", duration.as_secs_f64())]);
    }
    println!("\n{}", table.text());
    print!("{}", session.closing_lines);
    std::io::stdout().flush().context("cannot write to the terminal")?;
    outcome
}

/// Returns the parts to run and the name filter for the words `[]`, `[part]`, `[part, filter]` or
/// `[filter]`.
fn plan(names: &[String]) -> Result<(Vec<&'static str>, Option<String>)> {
    let find = |name: &String| STEPS.iter().map(|step| step.part).find(|part| !part.is_empty() && part == name);
    let all = || STEPS.iter().map(|step| step.part).filter(|part| !part.is_empty() && !BESIDE.contains(part)).collect();
    match names {
        [] => Ok((all(), None)),
        [name] if name == "quick" => Ok((QUICK.to_vec(), None)),
        [name] if name == BESIDE_PART => Ok((BESIDE.to_vec(), None)),
        [name] => Ok(match find(name) {
            Some(part) => (vec![part], None),
            None => (FILTERED.to_vec(), Some(name.clone())),
        }),
        [name, filter] => match find(name) {
            Some(part) if FILTERED.contains(&part) => Ok((vec![part], Some(filter.clone()))),
            _ => bail!("'{name}' takes no name filter; {} do", FILTERED.join(" and ")),
        },
        _ => bail!("one part and one name filter at most"),
    }
}

fn run_steps(session: &mut SuiteRun<'_>, parts: &[&str], durations: &mut Vec<(&str, Duration)>) -> Result<()> {
    let checks_text_only = parts == ["tidy"];
    for step in STEPS {
        if !(parts.contains(&step.part) || (step.part.is_empty() && !checks_text_only)) {
            continue;
        }
        println!("== {}", step.name);
        print!("{}", std::mem::take(&mut session.closing_lines));
        let start = Instant::now();
        let outcome = (step.run)(session);
        durations.push((step.name, start.elapsed()));
        outcome.with_context(|| {
            let repeat = format!("cargo xtask test {}", step.part);
            format!("step '{}' failed; repeat it with: {}", step.name, repeat.trim_end())
        })?;
    }
    Ok(())
}

fn format(session: &mut SuiteRun<'_>) -> Result<()> {
    run(pinned(session.repo, "cargo").args(["fmt", "--all", "--", "--check"]))
        .with_context(|| format!("to format: rustup run {} cargo fmt --all", repo::rust_version()))
}

fn clippy_kernel_half(session: &mut SuiteRun<'_>) -> Result<()> {
    run(setup::kernel_cargo(session.repo, "clippy").args(["--", "-D", "warnings"]))
}

fn clippy_user_half(session: &mut SuiteRun<'_>) -> Result<()> {
    // Checking the fuzz targets does not need a compiled libFuzzer.
    run(pinned(session.repo, "cargo")
        .args(["clippy", "--package", "memwatch-fuzz", "--no-default-features", "--all-targets", "--quiet"])
        .args(["--", "-D", "warnings"]))?;
    run(pinned(session.repo, "cargo")
        .args(["clippy", "--workspace", "--exclude", "memwatch-ebpf", "--exclude", "memwatch-fuzz"])
        .args(["--all-targets", "--quiet"])
        .args(["--", "-D", "warnings"]))
}

fn unit_tests(session: &mut SuiteRun<'_>) -> Result<()> {
    let mut cargo = pinned(session.repo, "cargo");
    cargo.args(["test", "--workspace"]);
    for package in ["memwatch-ebpf", "memwatch-fuzz", "memwatch-tests"] {
        cargo.args(["--exclude", package]);
    }
    // A fixed seed, so that property tests use the same inputs each time; plain `cargo test` uses
    // random ones.
    cargo.args(&session.filter).env("PROPTEST_RNG_SEED", "1");
    run_tests(&mut cargo, &mut session.closing_lines)
}

fn unit_tests_with_probes(session: &mut SuiteRun<'_>) -> Result<()> {
    let mut cargo = pinned(session.repo, "cargo");
    cargo.args(["test", "--package", "memwatch", "--bin", "memwatch", "--", "--test-threads=1"]).args(WITH_PROBES);
    run_tests(&mut cargo, &mut session.closing_lines)
}

/// # Errors
/// Less space is free than a run needs: a compiler that finds none says so after half an hour.
fn disk_space(repo: &Repo) -> Result<()> {
    let needed = if repo.made("torch").exists() { LATER_RUN_BYTES } else { FIRST_RUN_BYTES };
    let free = free_bytes(repo.root())?;
    if free < needed {
        let [free, needed] = [free, needed].map(|bytes| bytes >> 30);
        bail!("{} has {free} GiB of free space and a full run needs {needed}", repo.root().display());
    }
    Ok(())
}

/// Returns the free space of the file system that holds this directory, in bytes.
fn free_bytes(directory: &Path) -> Result<u64> {
    let path = CString::new(directory.as_os_str().as_bytes())?;
    // SAFETY: an all-zero statvfs is valid, and is overwritten.
    let mut space: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live locals.
    if unsafe { libc::statvfs(path.as_ptr(), &raw mut space) } != 0 {
        let error = std::io::Error::last_os_error();
        return Err(error).with_context(|| format!("cannot see the free space of {}", directory.display()));
    }
    Ok(space.f_bavail.saturating_mul(space.f_frsize))
}

/// Installs all packages at once, before another step uses the package manager. Tests that need
/// daemons, Slurm or a browser skip without them.
fn system_packages(_: &mut SuiteRun<'_>) -> Result<()> {
    setup::packages(INTEGRATION_PACKAGES)?;
    setup::daemons(&[Package::Containers, Package::Slurm, Package::Chromium]);
    Ok(())
}

/// Starts the download of wheels in a separate process (`cargo xtask fetch`): it takes minutes of
/// network and little CPU.
fn start_downloads(session: &mut SuiteRun<'_>) -> Result<()> {
    let program = std::env::current_exe().context("cannot find xtask's own file")?;
    let downloads = OwnedChild::start(Command::new(program).arg("fetch"))?;
    orphans::spare(downloads.tgid());
    session.downloads = Some(downloads);
    Ok(())
}

/// The process of the parallel parts (`cargo xtask test beside`), and its log file.
struct Beside {
    process: OwnedChild,
    log: PathBuf,
}

fn start_beside(session: &mut SuiteRun<'_>) -> Result<()> {
    let program = std::env::current_exe().context("cannot find xtask's own file")?;
    let log = session.repo.made("beside.log");
    let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let errors = output.try_clone().context("cannot share the log")?;
    let process = OwnedChild::start(
        Command::new(program)
            .args(["test", BESIDE_PART])
            .env(BESIDE_VARIABLE, "1")
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors),
    )?;
    orphans::spare(process.tgid());
    session.beside = Some(Beside { process, log });
    Ok(())
}

/// Waits for the parallel parts and prints their output.
fn finish_beside(session: &mut SuiteRun<'_>) -> Result<()> {
    let Some(mut beside) = session.beside.take() else { return Ok(()) };
    let status = beside.process.wait(BESIDE_AT_MOST)?;
    print!("{}", fs::read_to_string(&beside.log).with_context(|| format!("cannot read {}", beside.log.display()))?);
    match status {
        Some(status) if status.success() => Ok(()),
        Some(status) => bail!("{status}: cargo xtask test {BESIDE_PART}"),
        None => bail!("not ended {} minutes after the rest", BESIDE_AT_MOST.as_secs() / 60),
    }
}

/// Waits for the downloads, and repeats failed ones to report their errors.
fn finish_downloads(session: &mut SuiteRun<'_>) -> Result<()> {
    fetch(session.repo)?;
    session.downloads = None;
    Ok(())
}

/// Installs every PyTorch, and the programs that read profiles. Tests that need a reader skip
/// without it.
fn fetch(repo: &Repo) -> Result<()> {
    integration::install_torch(repo)?;
    profile_readers::install(repo);
    Ok(())
}

/// Runs `cargo xtask fetch`.
pub(crate) fn fetch_task(repo: &Repo, args: TaskArgs) -> Result<()> {
    args.finish()?;
    fetch(repo)
}

fn build_memwatch(session: &mut SuiteRun<'_>) -> Result<()> {
    binary::compile(session.repo, BuildProfile::Tested).map(drop)
}

/// Compares the parts of the book that the program writes.
fn book_is_current(session: &mut SuiteRun<'_>) -> Result<()> {
    let memwatch = binary::compile(session.repo, BuildProfile::Tested)?;
    book::check(session.repo, &memwatch)
}

/// Builds the packages from the binary that the tests use, which takes seconds. `cargo xtask
/// package` builds the portable one.
fn packages(session: &mut SuiteRun<'_>) -> Result<()> {
    let memwatch = binary::compile(session.repo, BuildProfile::Tested)?;
    package::check_contents(session.repo, &memwatch)
}

/// Runs the unit tests of the tests' own library and all integration tests.
fn integration_tests(session: &mut SuiteRun<'_>) -> Result<()> {
    let mut cargo = integration::cargo_test(session.repo)?;
    cargo.args(["--lib", "--test", "integration"]).args(&session.filter);
    cargo.args(["--", &format!("--test-threads={}", integration::AT_ONCE)]);
    if session.filter.is_none() {
        cargo.env(integration::REQUIRED, integration::required(session.repo)?.to_string());
    }
    run_tests(&mut cargo, &mut session.closing_lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source::read_tree;

    fn planned(words: &[&str]) -> Result<(Vec<&'static str>, Option<String>)> {
        plan(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn no_words_run_every_part() {
        let (parts, filter) = planned(&[]).unwrap();
        let beside = planned(&[BESIDE_PART]).unwrap().0;
        let run = |part: &&str| usize::from(parts.contains(part)) + usize::from(beside.contains(part));
        assert!(STEPS.iter().all(|step| step.part.is_empty() || run(&step.part) == 1));
        assert_eq!(filter, None);
    }

    #[test]
    fn quick_suite_has_only_parts_without_root_or_pytorch() {
        let (parts, filter) = planned(&["quick"]).unwrap();
        assert_eq!((parts.as_slice(), filter), (QUICK, None));
        assert!(QUICK.iter().all(|part| STEPS.iter().any(|step| step.part == *part)) && !QUICK.contains(&INTEGRATION));
    }

    #[test]
    fn a_part_runs_alone_and_any_other_word_filters_tests() {
        assert_eq!(planned(&["tidy"]).unwrap(), (vec!["tidy"], None));
        assert_eq!(planned(&["integration", "attach"]).unwrap(), (vec!["integration"], Some("attach".to_owned())));
        assert_eq!(planned(&["tenant"]).unwrap(), (FILTERED.to_vec(), Some("tenant".to_owned())));
        assert!(planned(&["tidy", "attach"]).is_err());
        assert!(planned(&["a", "b", "c"]).is_err());
    }

    #[test]
    fn a_unit_test_that_skips_beside_others_is_in_the_list_of_what_runs_alone() {
        let sources = read_tree(&Repo::locate().unwrap().path("memwatch/src")).unwrap();
        let mut found = 0;
        for source in sources.iter().filter(|source| source.text.contains("if !may_probe()")) {
            let module = format!("{}::", source.path.trim_end_matches(".rs").replace('/', "::"));
            assert!(WITH_PROBES.iter().any(|list| module.starts_with(list)), "{module}");
            found += 1;
        }
        assert!(found >= WITH_PROBES.len());
    }
}
