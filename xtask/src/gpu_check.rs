//! `cargo xtask gpu-check`: checks memwatch's assumptions on a real GPU.
//!
//! The questions are in `tests/gpu`. They are packed into a bundle that needs no Rust, no compiler
//! and no network; on a machine with an NVIDIA GPU it runs at once. The simulated GPU can run it as
//! well, to exercise the questions and to be compared with traces of a real GPU.

mod bundle;
mod simulated;

use crate::args::TaskArgs;
use crate::binary;
use crate::child::OwnedChild;
use crate::interrupt;
use crate::repo::{BuildProfile, Repo};
use crate::setup;
use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

/// Files of which one exists if a program can use an NVIDIA GPU. Unlike a call of NVML, checking
/// for them creates no device file.
const SIGNS_OF_GPU: [&str; 2] = ["/proc/driver/nvidia/version", "/dev/nvidia0"];
/// Exit code for an unsupported machine, as in memwatch.
const UNSUPPORTED: i32 = 5;
/// Time in which the check ends its steps and writes its reports after a Ctrl-C.
const GRACE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// Runs `cargo xtask gpu-check`.
pub(crate) fn task(repo: &Repo, mut args: TaskArgs) -> Result<()> {
    let packed = args.value("--bundle")?.map(PathBuf::from);
    let trace = args.value("--diff")?.map(PathBuf::from);
    let is_simulated = args.flag("--simulated");
    let words = args.passed_on();
    args.finish()?;
    let memwatch = binary::build(repo, BuildProfile::Release)?;
    let folder = bundle::fill(repo, &memwatch)?;
    if let Some(trace) = trace {
        return end_with(simulated::diff(repo, &folder, &trace, &words)?);
    }
    if is_simulated {
        return end_with(simulated::check(repo, &folder, &words)?);
    }
    let packed = bundle::pack(repo, &folder, packed)?;
    if !SIGNS_OF_GPU.iter().any(|sign| Path::new(sign).exists()) {
        eprintln!(
            "no NVIDIA GPU here: there is neither {}. The bundle is written to {}: copy it to a GPU machine, unpack it and \
             run ./gpu-check there as root",
            SIGNS_OF_GPU.join(" nor "),
            packed.display()
        );
        std::process::exit(UNSUPPORTED);
    }
    println!("bundle: {}", packed.display());
    end_with(follow(real(repo, &folder).args(words))?)
}

/// Returns the check on this machine's GPU, with sudo unless we are root.
fn real(repo: &Repo, folder: &Path) -> Command {
    let program = folder.join(bundle::PROGRAM);
    let mut command = if setup::is_root() {
        Command::new(program)
    } else {
        let mut sudo = Command::new("sudo");
        sudo.arg("--").arg(program);
        sudo
    };
    command.arg("--out").arg(repo.path("docs/project/gpu-runs"));
    command
}

/// Runs the check on the terminal. The check handles Ctrl-C itself; we wait until it exits.
fn follow(command: &mut Command) -> Result<ExitStatus> {
    interrupt::watch()?;
    let mut check = OwnedChild::start_on_terminal(command)?;
    loop {
        if let Some(status) = check.ended()? {
            return Ok(status);
        }
        if interrupt::arrived() {
            return check.wait(GRACE)?.context("the check did not end after a Ctrl-C and was killed");
        }
        std::thread::sleep(POLL);
    }
}

/// Exits with the check's exit code.
fn end_with(status: ExitStatus) -> Result<()> {
    match status.code() {
        Some(0) => Ok(()),
        Some(code) => std::process::exit(code),
        None => bail!("the check ended with {status}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::run_quietly;
    use crate::setup::Package;

    #[test]
    fn the_python_half_passes_its_own_tests() {
        setup::packages(&[Package::PythonVenv]).unwrap();
        let tests = Repo::locate().unwrap().path("tests/gpu");
        run_quietly(Command::new("python3").args(["-B", "-m", "unittest", "discover", "-s"]).arg(tests)).unwrap();
    }
}
