//! Programs that read profiles and pages: the tests open memwatch's exports and pages with them.

use crate::repo::Repo;
use crate::run::run_quietly;
use crate::setup::{self, Package};
use crate::torch;
use anyhow::{Context as _, Result};
use std::fs;
use std::path::Path;
use std::process::Command;

/// npm packages: speedscope's importer, a reader of pprof profiles, and a browser driver. None has
/// dependencies that are used here.
const PACKAGES: &[&str] = &["speedscope@1.25.0", "pprof-format@2.3.2", "playwright-core@1.65.1"];
/// PyPI packages: message types of Perfetto's traces, readers of Parquet, TensorBoard, which brings
/// its own data server and gRPC, types of Grafana's dashboards, and OpenTelemetry's messages.
const PYTHON_PACKAGES: &[&str] = &[
    "perfetto==0.59.1",
    "protobuf==7.36.2",
    "pandas==2.3.3",
    "pyarrow==22.0.0",
    "tensorboard==2.21.0",
    "grafana-foundation-sdk==1769699998!10.1.0",
    "opentelemetry-proto==1.45.2",
];
/// Directory of the Python environment.
const PYTHON: &str = "python";
/// File written last: a directory without it is incomplete.
const STAMP: &str = ".memwatch-complete";
/// Directory below `target/`.
pub(crate) const FOLDER: &str = "profile-readers";

/// Installs the programs, or reports that the tests that need them will be skipped.
pub(crate) fn install(repo: &Repo) {
    let folder = repo.made(FOLDER);
    let _lock = match torch::lock(&repo.made("profile-readers.lock")) {
        Ok(lock) => lock,
        Err(error) => return eprintln!("set-up: the tests that need readers of profiles are SKIPPED. {error:#}"),
    };
    if let Err(error) = ensure(&folder) {
        eprintln!("set-up: the tests that need speedscope, pprof-format and playwright-core are SKIPPED. {error:#}");
    }
    if let Err(error) = ensure_python(&folder.join(PYTHON)) {
        eprintln!(
            "set-up: the tests that need perfetto, pandas, pyarrow, TensorBoard and opentelemetry-proto are SKIPPED. {error:#}"
        );
    }
}

fn ensure_python(folder: &Path) -> Result<()> {
    let (stamp, wanted) = (folder.join(STAMP), PYTHON_PACKAGES.join("\n"));
    if fs::read_to_string(&stamp).is_ok_and(|made_from| made_from == wanted) {
        return Ok(());
    }
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    eprintln!("set-up: installing {} in {} ...", PYTHON_PACKAGES.join(", "), folder.display());
    run_quietly(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    let mut pip = Command::new(folder.join("bin/python"));
    pip.args(["-m", "pip", "install", "--no-compile", "--only-binary=:all:", "--disable-pip-version-check"]);
    run_quietly(pip.args(PYTHON_PACKAGES))?;
    fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))
}

fn ensure(folder: &Path) -> Result<()> {
    setup::packages(&[Package::NodeJs])?;
    let (stamp, wanted) = (folder.join(STAMP), PACKAGES.join("\n"));
    if fs::read_to_string(&stamp).is_ok_and(|made_from| made_from == wanted) {
        return Ok(());
    }
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    eprintln!("set-up: installing {} in {} ...", PACKAGES.join(", "), folder.display());
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-save", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix"]);
    run_quietly(npm.arg(folder).args(PACKAGES))?;
    fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))
}
