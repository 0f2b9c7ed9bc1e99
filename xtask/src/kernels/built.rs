//! Programs for a virtual machine, compiled for its processor: memwatch, the tests and the
//! simulated GPU.

use super::machine::Processor;
use crate::gpusim;
use crate::integration;
use crate::repo::{BuildProfile, Repo};
use crate::run::{output, pinned, run};
use crate::setup::{self, Package};
use anyhow::{Context as _, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Programs of a virtual machine.
pub(super) struct Programs {
    pub(super) memwatch: PathBuf,
    /// Tests that need the machine for themselves.
    pub(super) tests: PathBuf,
    /// Simulated GPUs, with the variables that pass their paths to the tests.
    pub(super) simulators: Vec<(&'static str, PathBuf)>,
}

/// Builds the programs.
///
/// # Errors
/// A program does not compile, or no compiler for the processor is available.
pub(super) fn programs(repo: &Repo, processor: &Processor) -> Result<Programs> {
    let is_own = processor.name == std::env::consts::ARCH;
    let compiler = if is_own { gpusim::OWN } else { processor.compiler };
    if !is_own {
        setup::packages(&[Package::CCompilerForAarch64])?;
        run(Command::new("rustup")
            .args(["target", "add", "--toolchain", crate::repo::rust_version()])
            .arg(target(processor)))?;
    }
    let object = setup::ebpf_object_for(repo, processor.name)?;
    let mut built = Vec::new();
    let of_tests = repo.made("tests");
    let packages: [(&str, &[&str], BuildProfile, &Path); 2] = [
        ("memwatch", &["--bin", "memwatch"], BuildProfile::Tested, &repo.cargo_target()),
        ("memwatch-tests", &["--test", "integration"], BuildProfile::Debug, &of_tests),
    ];
    for (package, words, profile, folder) in packages {
        let mut cargo = pinned(repo, "cargo");
        cargo.args(["build", "--profile", profile.name(), "--message-format=json-render-diagnostics"]);
        cargo.args(["--package", package]).args(words).arg("--target-dir").arg(folder);
        if package == "memwatch" && !is_own {
            cargo.env("MEMWATCH_EBPF_OBJECT", &object);
        }
        if !is_own {
            let variable = target(processor).replace('-', "_");
            cargo.args(["--target", &target(processor)]).env(format!("CC_{variable}"), compiler.program);
            cargo.env(format!("CARGO_TARGET_{}_LINKER", variable.to_uppercase()), compiler.program);
        }
        built.push(executable(&output(&mut cargo)?).with_context(|| format!("cargo built no program of {package}"))?);
    }
    let mut simulators = Vec::new();
    for (shape, variable, folder) in integration::SHAPES {
        let folder = if is_own { repo.made(folder) } else { repo.made(&format!("{folder}-{}", processor.name)) };
        gpusim::build(repo.root(), &folder, *shape, &compiler)?;
        simulators.push((*variable, folder));
    }
    let [memwatch, tests] = <[PathBuf; 2]>::try_from(built).expect("two packages were built");
    Ok(Programs { memwatch, tests, simulators })
}

fn target(processor: &Processor) -> String {
    format!("{}-unknown-linux-gnu", processor.name)
}

/// Returns the last program in cargo's report.
fn executable(report: &str) -> Option<PathBuf> {
    let mut messages = report.lines().rev().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    messages.find_map(|message| Some(PathBuf::from(message.get("executable")?.as_str()?)))
}

#[cfg(test)]
mod tests {
    use super::executable;

    #[test]
    fn the_program_is_the_last_that_cargo_reports() {
        let report = concat!(
            "{\"reason\":\"compiler-artifact\",\"executable\":null}\n",
            "{\"reason\":\"compiler-artifact\",\"executable\":\"/t/integration-1\"}\n",
            "{\"reason\":\"build-finished\",\"success\":true}\n",
        );
        assert_eq!(executable(report).unwrap().to_str(), Some("/t/integration-1"));
        assert_eq!(executable("warning: something"), None);
    }
}
