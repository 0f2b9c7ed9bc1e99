//! Another system for frameworks to run in: a small Debian in a directory, without starting or
//! installing anything.
//!
//! The newer one's C library is newer than most machines', and its Python is an executable with
//! fixed addresses, as distributions build it: its heap begins below 4 GiB. The older one has a
//! Python for which earlier releases have wheels.

use super::lock;
use crate::run;
use crate::setup::{self, Package};
use anyhow::{Context as _, Result};
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A Debian release.
#[derive(Debug, Clone, Copy)]
pub(super) struct DebianSystem {
    /// Directory below all environments.
    folder: &'static str,
    release: &'static str,
    /// Version of its Python.
    pub(super) python: &'static str,
    /// Packages that a framework's wheel needs; their dependencies are included. ONNX Runtime 1.29
    /// exits without a shell; TensorFlow up to 2.18 imports Python's distutils.
    packages: &'static str,
    /// Platform tags of wheels that run in it.
    platforms: &'static [&'static str],
}

/// The system of all tests with a newer system.
pub(super) const NEWER: DebianSystem = DebianSystem {
    folder: "newer",
    release: "trixie",
    python: "3.13",
    packages: "python3.13-minimal,libpython3.13-stdlib,libstdc++6,dash",
    platforms: &["manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014"],
};
/// The system of releases without a wheel for the newer one's Python.
pub(super) const OLDER: DebianSystem = DebianSystem {
    folder: "older",
    release: "bookworm",
    python: "3.11",
    packages: "python3.11-minimal,libpython3.11-stdlib,python3-distutils,libstdc++6,dash",
    platforms: &["manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux2010", "manylinux1"],
};

/// Symlinks in the root and their targets, which no package contains.
const LINKS: &[(&str, &str)] = &[("bin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")];
/// Mount points.
const MOUNT_POINTS: &[&str] = &["proc", "sys", "dev", "tmp"];
/// Contents of `/etc/passwd`: PyTorch looks up the user's name.
const USERS: &str = "root:x:0:0:root:/root:/bin/sh\n";
/// File written last: a directory without it is incomplete.
const STAMP: &str = ".memwatch-complete";

impl DebianSystem {
    /// Returns the root directory below all environments.
    pub(super) fn root(self, cache: &Path) -> PathBuf {
        self.home(cache).join("root")
    }

    fn home(self, cache: &Path) -> PathBuf {
        cache.join(self.folder)
    }

    /// Makes the root directory if needed. Holds a lock until the returned file is dropped.
    ///
    /// # Errors
    /// Debian's packages or the program that unpacks them cannot be installed.
    pub(super) fn ensure(self, cache: &Path) -> Result<File> {
        let home = self.home(cache);
        fs::create_dir_all(&home).with_context(|| format!("cannot create {}", home.display()))?;
        let lock = lock(&home.join("lock"))?;
        self.unpack(&self.root(cache))?;
        Ok(lock)
    }

    fn unpack(self, folder: &Path) -> Result<()> {
        let Self { release, packages, .. } = self;
        let wanted = format!("{release} {packages}\n{USERS}");
        if is_complete(folder, &wanted) {
            return Ok(());
        }
        setup::packages(&[Package::Mmdebstrap])?;
        remove(folder)?;
        eprintln!("set-up: unpacking Debian {release} in {} ...", folder.display());
        let mut unpack = Command::new("mmdebstrap");
        unpack.args(["--quiet", "--variant=extract", &format!("--include={packages}"), release]).arg(folder);
        run::run_quietly(&mut unpack).context("mmdebstrap could not unpack Debian's packages")?;
        // Some releases contain these symlinks.
        for (link, target) in LINKS.iter().filter(|(link, _)| folder.join(link).symlink_metadata().is_err()) {
            symlink(target, folder.join(link)).with_context(|| format!("cannot link {link}"))?;
        }
        for name in MOUNT_POINTS {
            fs::create_dir_all(folder.join(name)).with_context(|| format!("cannot create {name}"))?;
        }
        let users = folder.join("etc/passwd");
        fs::write(&users, USERS).with_context(|| format!("cannot write {}", users.display()))?;
        complete(folder, &wanted)
    }

    /// Unpacks the wheels in `requirements` and `more` into `folder` for this system's Python,
    /// unless they are there. `python` has pip; `name` is used in messages.
    ///
    /// # Errors
    /// pip fails.
    /// When pip fails.
    pub(super) fn packages(
        self,
        folder: &Path,
        python: &Path,
        wheels: (&Path, Option<&str>),
        name: &str,
    ) -> Result<()> {
        // The wheels' dependencies would include NVIDIA's libraries.
        self.install(folder, python, wheels, (name, &["--no-deps"]))
    }

    /// Unpacks wheels with their dependencies, as pip selects them.
    ///
    /// # Errors
    /// pip fails.
    pub(super) fn packages_and_dependencies(
        self,
        folder: &Path,
        python: &Path,
        requirements: &Path,
        name: &str,
    ) -> Result<()> {
        self.install(folder, python, (requirements, None), (name, &[]))
    }

    fn install(
        self,
        folder: &Path,
        python: &Path,
        (requirements, more): (&Path, Option<&str>),
        (name, options): (&str, &[&str]),
    ) -> Result<()> {
        let own = self.python;
        let listed =
            fs::read_to_string(requirements).with_context(|| format!("cannot read {}", requirements.display()))?;
        let wanted = listed + &format!("{} for {own}\n", more.unwrap_or_default());
        if is_complete(folder, &wanted) {
            return Ok(());
        }
        remove(folder)?;
        eprintln!("set-up: installing {name} for Python {own} in {} ...", folder.display());
        let mut pip = Command::new(python);
        // pip would check a wheel for any Python against its own version.
        pip.args(["-m", "pip", "install", "--no-compile", "--disable-pip-version-check", "--quiet"]).args(options);
        pip.args(["--root-user-action=ignore", "--only-binary=:all:", "--implementation=cp"]);
        pip.arg("--ignore-requires-python").arg(format!("--python-version={own}"));
        for platform in self.platforms {
            pip.arg(format!("--platform={platform}_{}", std::env::consts::ARCH));
        }
        pip.arg("--target").arg(folder).args(more).arg("--requirement").arg(requirements);
        run::run_quietly(&mut pip).with_context(|| format!("pip could not install {name}"))?;
        complete(folder, &wanted)
    }
}

/// Returns the directory of PyTorch's own shared libraries.
pub(super) fn torch_libraries(packages: &Path) -> PathBuf {
    packages.join("torch/lib")
}

/// Whether a complete directory of wheels exists.
pub(super) fn is_made(folder: &Path) -> bool {
    folder.join(STAMP).is_file()
}

fn is_complete(folder: &Path, wanted: &str) -> bool {
    fs::read_to_string(folder.join(STAMP)).is_ok_and(|made_from| made_from == wanted)
}

fn complete(folder: &Path, wanted: &str) -> Result<()> {
    fs::write(folder.join(STAMP), wanted).with_context(|| format!("cannot write in {}", folder.display()))
}

fn remove(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torch_directory_is_complete_only_for_its_recorded_source() {
        let folder = std::env::temp_dir().join(format!("memwatch-newer-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let before = is_complete(&folder, "a\n");
        complete(&folder, "a\n").unwrap();
        let after = (is_complete(&folder, "a\n"), is_complete(&folder, "b\n"));
        remove(&folder).unwrap();
        assert_eq!((before, after, folder.exists()), (false, (true, false), false));
    }
}
