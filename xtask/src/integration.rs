//! What the integration tests need, and where they find it.

use crate::gpusim::{self, Prologue};
use crate::profile_readers;
use crate::repo::{Profile, Repo};
use crate::run::pinned;
use crate::setup;
use crate::torch::{self, TorchEnv};
use anyhow::{Context as _, Result};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

/// A shape of the simulated driver's functions, with the variable that names its folder to the tests.
const SHAPES: &[(Prologue, &str, &str)] =
    &[(Prologue::Cmp, "GPUSIM_CMP", "gpusim/cmp"), (Prologue::Push, "GPUSIM_PUSH", "gpusim/push")];

/// Where one shape of the simulated driver is built: `lib/` and `bin/` lie below.
pub(crate) fn simulator(repo: &Repo, prologue: Prologue) -> PathBuf {
    let shape = SHAPES.iter().find(|(shape, ..)| *shape == prologue);
    repo.made(shape.expect("every shape is in the table").2)
}

/// Builds both shapes of the simulated driver.
///
/// # Errors
/// When its sources do not compile.
pub(crate) fn build_simulators(repo: &Repo) -> Result<()> {
    SHAPES.iter().try_for_each(|(prologue, ..)| build_simulator(repo, *prologue).map(drop))
}

/// Files of tests that each compare PyTorch jobs of their own, whatever else runs: two of a file's tests run at a time. They wait for Python
/// for most of their time, and are more than half of all that the tests take.
const TOGETHER: &[&str] =
    &["diff", "export", "leak", "native", "pytorch", "simulate", "tensors", "tensors_more", "timeline"];

/// Builds one shape of the simulated driver and returns its folder.
///
/// # Errors
/// When its sources do not compile.
pub(crate) fn build_simulator(repo: &Repo, prologue: Prologue) -> Result<PathBuf> {
    let out = simulator(repo, prologue);
    gpusim::build(repo.root(), &out, prologue).with_context(|| format!("cannot build {}", out.display()))?;
    Ok(out)
}

/// Makes every PyTorch environment that the tests use.
///
/// # Errors
/// When a wheel cannot be had or the stand-in runtime does not build.
pub(crate) fn install_torch(repo: &Repo) -> Result<()> {
    torch::VERSIONS.iter().try_for_each(|version| torch_environment(repo, version).map(drop))
}

/// The environment with one PyTorch version, made first where needed.
///
/// # Errors
/// As [`install_torch`].
pub(crate) fn torch_environment(repo: &Repo, version: &str) -> Result<TorchEnv> {
    torch::ensure(repo.root(), &repo.made("torch"), version).with_context(|| format!("PyTorch {version}"))
}

/// `cargo test` on the integration tests, with everything they look for in its environment.
///
/// # Errors
/// As [`install_torch`].
pub(crate) fn cargo_test(repo: &Repo) -> Result<Command> {
    let mut variables: Vec<(String, OsString)> =
        vec![("MEMWATCH_BIN".to_owned(), repo.memwatch(Profile::Release).into())];
    for (prologue, variable, _) in SHAPES {
        variables.push(((*variable).to_owned(), simulator(repo, *prologue).into()));
    }
    variables.push(("PROFILE_READERS".to_owned(), repo.made(profile_readers::FOLDER).into()));
    for version in torch::VERSIONS {
        let environment = torch_environment(repo, version)?;
        let name = variable_part(version);
        variables.push((format!("TORCH_{name}_PYTHON"), environment.python.into()));
        variables.push((format!("TORCH_{name}_RUNTIME"), environment.runtime_lib_dir.into()));
    }
    let mut cargo = pinned(repo, "cargo");
    if !setup::is_root() {
        let names: Vec<&str> = variables.iter().map(|(name, _)| name.as_str()).collect();
        let machine = std::env::consts::ARCH.to_uppercase();
        cargo.env(
            format!("CARGO_TARGET_{machine}_UNKNOWN_LINUX_GNU_RUNNER"),
            format!("sudo --preserve-env={}", names.join(",")),
        );
    }
    cargo.args(["test", "--package", "memwatch-tests"]).envs(variables);
    Ok(cargo)
}

/// The arguments of cargo for the files of tests, in two parts, and how many tests of each may run at a time. Most look at the whole machine, where
/// another test's programs would be too many.
///
/// # Errors
/// When the files cannot be listed.
pub(crate) fn files(repo: &Repo) -> Result<[(Vec<String>, usize); 2]> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(repo.path("tests/tests")).context("cannot list the tests")? {
        let path = entry.context("cannot list the tests")?.path();
        names.extend(path.file_stem().filter(|_| path.is_file()).map(|stem| stem.to_string_lossy().into_owned()));
    }
    names.sort();
    let (together, alone): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| TOGETHER.contains(&name.as_str()));
    let words = |names: Vec<String>| names.into_iter().flat_map(|name| ["--test".to_owned(), name]);
    Ok([(["--lib".to_owned()].into_iter().chain(words(alone)).collect(), 1), (words(together).collect(), 2)])
}

/// `2.15.0` → `2_15`, as the variables spell it.
fn variable_part(version: &str) -> String {
    version.split('.').take(2).collect::<Vec<_>>().join("_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_carry_major_and_minor_only() {
        assert_eq!(variable_part("2.15.0"), "2_15");
    }

    #[test]
    fn every_file_of_tests_is_in_one_of_the_parts() {
        let [(alone, _), (together, _)] = files(&Repo::locate().unwrap()).unwrap();
        for name in TOGETHER {
            assert!(together.contains(&(*name).to_owned()) && !alone.contains(&(*name).to_owned()), "{name}");
        }
        assert_eq!(together.len(), 2 * TOGETHER.len());
        assert!(alone.contains(&"--lib".to_owned()) && alone.contains(&"agent".to_owned()), "{alone:?}");
    }
}
