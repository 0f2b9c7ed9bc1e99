//! The check on the simulated GPU: exercises every question, and compares the simulator with a real GPU's traces.

use super::{bundle, follow};
use crate::gpusim::Prologue;
use crate::integration;
use crate::repo::Repo;
use crate::setup;
use crate::setup::Package;
use anyhow::{Context as _, Result, bail};
use std::fs;
use std::path::Path;
use std::process::{Command, ExitStatus};

const TORCH: &str = "2.15.0";

/// The whole check. Its reports stay below `target/`: nothing simulated belongs beside what a real GPU answered.
pub(super) fn check(repo: &Repo, folder: &Path, words: &[String]) -> Result<ExitStatus> {
    run(repo, folder, |command| {
        command.arg("--out").arg(repo.made("gpu-check/simulated")).args(words);
    })
}

/// Runs what a trace was made of and prints the differences.
pub(super) fn diff(repo: &Repo, folder: &Path, trace: &Path, words: &[String]) -> Result<ExitStatus> {
    let text = fs::read_to_string(trace).with_context(|| format!("cannot read {}", trace.display()))?;
    let total_mib = traced_total_mib(&text);
    run(repo, folder, |command| {
        command.arg("--diff").arg(trace).args(words);
        if let Some(total_mib) = total_mib {
            command.env("GPUSIM_TOTAL_MB", total_mib.to_string());
        }
    })
}

fn run(repo: &Repo, folder: &Path, add: impl FnOnce(&mut Command)) -> Result<ExitStatus> {
    if !setup::is_root() {
        bail!("the probes need root: run this task as root");
    }
    let driver = integration::build_simulator(repo, Prologue::Push)?;
    setup::packages(&[Package::PythonVenv])?;
    let environment = integration::torch_environment(repo, TORCH)?;
    let ledger = repo.made(&format!("gpu-check/ledger-{}", std::process::id()));
    let mut command = environment.command(&driver.join("lib"), &ledger);
    command.arg(folder.join(bundle::PROGRAM)).arg("--simulated");
    add(&mut command);
    let ended = follow(&mut command);
    if ledger.exists() {
        fs::remove_file(&ledger).with_context(|| format!("cannot remove {}", ledger.display()))?;
    }
    ended
}

/// The traced device's memory, so that the simulated one runs out of it at the same point.
fn traced_total_mib(trace: &str) -> Option<u64> {
    let total = trace.lines().find_map(|line| line.strip_prefix("# gpu_total_bytes: "))?;
    total.trim().parse::<u64>().ok().map(|bytes| bytes >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_simulated_device_is_as_large_as_the_traced_one() {
        let trace = "# gpu: X\n# gpu_total_bytes: 85520809984\nsymbol\tstatus\n";
        assert_eq!(traced_total_mib(trace), Some(81559));
        assert_eq!(traced_total_mib("# gpu_total_bytes: None\n"), None);
    }
}
