//! Dependencies of the integration tests, and the environment variables that locate them.

use crate::args::TaskArgs;
use crate::gpusim::{self, Prologue};
use crate::profile_readers;
use crate::repo::{BuildProfile, Repo};
use crate::run::pinned;
use crate::setup;
use crate::torch::{self, NewerEnv, TorchEnv};
use anyhow::{Context as _, Result};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Prologue shapes of the simulated driver, with the environment variable and the directory of
/// each.
pub(crate) const SHAPES: &[(Prologue, &str, &str)] =
    &[(Prologue::Cmp, "GPUSIM_CMP", "gpusim/cmp"), (Prologue::Push, "GPUSIM_PUSH", "gpusim/push")];

/// Returns the build directory of one shape of the simulated driver, which contains `lib/` and
/// `bin/`.
pub(crate) fn simulator(repo: &Repo, prologue: Prologue) -> PathBuf {
    let shape = SHAPES.iter().find(|(shape, ..)| *shape == prologue);
    repo.made(shape.expect("every shape is in the table").2)
}

/// Runs `cargo xtask gpusim`.
pub(crate) fn simulators_task(repo: &Repo, args: TaskArgs) -> Result<()> {
    args.finish()?;
    build_simulators(repo)?;
    for (prologue, ..) in SHAPES {
        println!("{}", simulator(repo, *prologue).display());
    }
    Ok(())
}

/// Builds both shapes of the simulated driver.
///
/// # Errors
/// The sources do not compile.
pub(crate) fn build_simulators(repo: &Repo) -> Result<()> {
    SHAPES.iter().try_for_each(|(prologue, ..)| build_simulator(repo, *prologue).map(drop))
}

/// Builds one shape of the simulated driver and returns its directory.
///
/// # Errors
/// The sources do not compile.
pub(crate) fn build_simulator(repo: &Repo, prologue: Prologue) -> Result<PathBuf> {
    let out = simulator(repo, prologue);
    gpusim::build(repo.root(), &out, prologue, &gpusim::OWN)
        .with_context(|| format!("cannot build {}", out.display()))?;
    Ok(out)
}

/// Makes one of [`OTHERS`], unless it exists.
type Ensure = fn(&Path, &Path) -> Result<NewerEnv>;

/// Other frameworks in the newer system: name in messages, prefix of their variables, and the
/// function that makes them.
const OTHERS: [(&str, &str, Ensure); 6] = [
    ("JAX", "JAX", torch::ensure_jax),
    ("the oldest JAX", "JAX_OLDEST", torch::ensure_oldest_jax),
    ("ONNX Runtime", "ONNX", torch::ensure_onnxruntime),
    ("llama.cpp", "GGML", torch::ensure_ggml),
    ("the oldest llama.cpp", "GGML_OLDEST", torch::ensure_oldest_ggml),
    ("RAPIDS' memory manager and CuPy", "POOLS", torch::ensure_pools),
];

/// Makes every PyTorch environment that the tests use.
///
/// # Errors
/// A wheel cannot be downloaded, or the stand-in runtime does not build.
pub(crate) fn install_torch(repo: &Repo) -> Result<()> {
    let own_python = torch::VERSIONS.iter().chain(torch::EARLIER);
    own_python.clone().try_for_each(|version| torch_environment(repo, version).map(drop))?;
    for version in torch::BETWEEN {
        if let Err(error) = torch::ensure_newer(repo.root(), &repo.made("torch"), version) {
            eprintln!("set-up: the tests with PyTorch {version} in a newer system are SKIPPED. {error:#}");
        }
    }
    for (name, _, ensure) in OTHERS {
        if let Err(error) = ensure(repo.root(), &repo.made("torch")) {
            eprintln!("set-up: the tests with {name} in a newer system are SKIPPED. {error:#}");
        }
    }
    Ok(())
}

/// Returns the environment with one PyTorch version, after making it if needed.
///
/// # Errors
/// Those of [`install_torch`].
pub(crate) fn torch_environment(repo: &Repo, version: &str) -> Result<TorchEnv> {
    torch::ensure(repo.root(), &repo.made("torch"), version).with_context(|| format!("PyTorch {version}"))
}

/// Returns the environment variables of the tests with one PyTorch version, after making it if needed.
///
/// # Errors
/// Those of [`install_torch`].
pub(crate) fn torch_variables(repo: &Repo, version: &str) -> Result<[(String, OsString); 2]> {
    let (environment, name) = (torch_environment(repo, version)?, variable_part(version));
    let (python, runtime) = (environment.python.into(), environment.runtime_lib_dir.into());
    Ok([(format!("TORCH_{name}_PYTHON"), python), (format!("TORCH_{name}_RUNTIME"), runtime)])
}

/// Returns the environment variables that every integration test needs: memwatch and the simulated
/// GPU.
pub(crate) fn simulated(repo: &Repo) -> Vec<(String, OsString)> {
    let shapes =
        SHAPES.iter().map(|(prologue, variable, _)| ((*variable).to_owned(), simulator(repo, *prologue).into()));
    std::iter::once(("MEMWATCH_BIN".to_owned(), repo.memwatch(BuildProfile::Tested).into())).chain(shapes).collect()
}

/// Returns `cargo test` for the integration tests, with all environment variables.
///
/// # Errors
/// Those of [`install_torch`].
pub(crate) fn cargo_test(repo: &Repo) -> Result<Command> {
    let mut variables = simulated(repo);
    variables.push(("PROFILE_READERS".to_owned(), repo.made(profile_readers::FOLDER).into()));
    for version in torch::VERSIONS.iter().chain(torch::EARLIER) {
        variables.extend(torch_variables(repo, version)?);
    }
    for version in torch::BETWEEN {
        // If it cannot be made, `install_torch` has reported why.
        let Some(environment) = NewerEnv::made(&repo.made("torch"), version) else { continue };
        let name = variable_part(version);
        variables.push((format!("TORCH_{name}_ROOT"), environment.root.into()));
        variables.push((format!("TORCH_{name}_PACKAGES"), environment.packages.into()));
        variables.push((format!("TORCH_{name}_RUNTIME"), environment.runtime_lib_dir.into()));
    }
    // If it cannot be made, `install_torch` has reported why.
    for (_, variable, ensure) in OTHERS {
        let Ok(environment) = ensure(repo.root(), &repo.made("torch")) else { continue };
        variables.push((format!("{variable}_ROOT"), environment.root.into()));
        variables.push((format!("{variable}_PACKAGES"), environment.packages.into()));
        variables.push((format!("{variable}_RUNTIME"), environment.runtime_lib_dir.into()));
    }
    Ok(cargo_test_with(repo, variables))
}

/// Returns `cargo test` for the integration tests, with these environment variables only.
pub(crate) fn cargo_test_with(repo: &Repo, variables: Vec<(String, OsString)>) -> Command {
    let mut cargo = pinned(repo, "cargo");
    if !setup::is_root() {
        let names: Vec<&str> = variables.iter().map(|(name, _)| name.as_str()).collect();
        let machine = std::env::consts::ARCH.to_uppercase();
        cargo.env(
            format!("CARGO_TARGET_{machine}_UNKNOWN_LINUX_GNU_RUNNER"),
            format!("sudo --preserve-env={},{REQUIRED}", names.join(",")),
        );
    }
    cargo.args(["test", "--no-fail-fast", "--package", "memwatch-tests"]).envs(variables);
    // A separate target directory, so that concurrent builds do not block each other.
    cargo.arg("--target-dir").arg(repo.made("tests"));
    cargo
}

/// Number of tests that run at a time, of those that may run beside others.
pub(crate) const AT_ONCE: usize = 3;

/// Environment variable with the number of tests that have to pass.
pub(crate) const REQUIRED: &str = "MEMWATCH_TESTS_REQUIRED";

/// Returns the number of integration tests that have to pass, from `tests/required.txt`.
///
/// # Errors
/// The file cannot be read, or is no number.
pub(crate) fn required(repo: &Repo) -> Result<u64> {
    let path = repo.path("tests/required.txt");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    text.trim().parse().with_context(|| format!("{} is no number", path.display()))
}

/// Converts a version to a part of a variable name: `2.15.0` → `2_15`.
fn variable_part(version: &str) -> String {
    version.split('.').take(2).collect::<Vec<_>>().join("_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integration_variables_use_the_major_and_minor_version_only() {
        assert_eq!(variable_part("2.15.0"), "2_15");
    }

    #[test]
    fn every_file_of_tests_is_in_its_module() {
        let repo = Repo::locate().unwrap();
        for folder in std::fs::read_dir(repo.path("tests/tests")).unwrap() {
            let folder = folder.unwrap().path();
            let Ok(module) = std::fs::read_to_string(folder.join("mod.rs")) else { continue };
            for entry in std::fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_stem().unwrap().to_string_lossy();
                assert!(name == "mod" || module.contains(&format!("mod {name};")), "{}", path.display());
            }
        }
        assert!(required(&repo).unwrap() > 300);
    }
}
