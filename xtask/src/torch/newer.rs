//! Another system than the machine's, for frameworks to run in: a small Debian in a folder, without anything that starts or is installed.
//!
//! The newer one's C library is newer than most machines', and its Python is an executable with fixed addresses, as distributions build it: its heap begins
//! below 4 GiB. The older one has a Python for which earlier releases have wheels.

use super::lock;
use crate::run;
use crate::setup::{self, Package};
use anyhow::{Context as _, Result};
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A Debian.
#[derive(Debug, Clone, Copy)]
pub(super) struct System {
    /// Its folder among all environments.
    folder: &'static str,
    release: &'static str,
    /// Its Python.
    pub(super) python: &'static str,
    /// What a framework's wheel needs of a system; packages that these depend on come along. ONNX Runtime 1.29 ends where there is no shell; TensorFlow
    /// to 2.18 imports Python's distutils.
    packages: &'static str,
    /// The systems that wheels are made for and that run in it.
    platforms: &'static [&'static str],
}

/// The one that all tests with a newer system have.
pub(super) const NEWER: System = System {
    folder: "newer",
    release: "trixie",
    python: "3.13",
    packages: "python3.13-minimal,libpython3.13-stdlib,libstdc++6,dash",
    platforms: &["manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014"],
};
/// For releases that have no wheel for the newer one's Python.
pub(super) const OLDER: System = System {
    folder: "older",
    release: "bookworm",
    python: "3.11",
    packages: "python3.11-minimal,libpython3.11-stdlib,python3-distutils,libstdc++6,dash",
    platforms: &["manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux2010", "manylinux1"],
};

/// A folder in the root, and what it is a link to: no package has these.
const LINKS: &[(&str, &str)] = &[("bin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")];
/// Folders that something is mounted on.
const MOUNT_POINTS: &[&str] = &["proc", "sys", "dev", "tmp"];
/// `/etc/passwd`: PyTorch asks for the user's name.
const USERS: &str = "root:x:0:0:root:/root:/bin/sh\n";
/// Written last: a folder without it is half made.
const STAMP: &str = ".memwatch-complete";

impl System {
    /// Its root directory among all environments.
    pub(super) fn root(self, cache: &Path) -> PathBuf {
        self.home(cache).join("root")
    }

    fn home(self, cache: &Path) -> PathBuf {
        cache.join(self.folder)
    }

    /// Makes the root directory, or finds it made, while nobody else does: until what is returned is dropped.
    ///
    /// # Errors
    /// When Debian's packages or the program that unpacks them cannot be had.
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
        // A release may have them itself.
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

    /// Unpacks wheels into `folder` for its Python, or finds them there: the ones in `requirements`, and `more`. `python` has pip; `name` is what they are
    /// called in messages.
    ///
    /// # Errors
    /// When pip fails.
    pub(super) fn packages(
        self,
        folder: &Path,
        python: &Path,
        wheels: (&Path, Option<&str>),
        name: &str,
    ) -> Result<()> {
        // The wheels' dependencies would bring NVIDIA's libraries.
        self.install(folder, python, wheels, (name, &["--no-deps"]))
    }

    /// The same with what the wheels depend on, as pip chooses it.
    ///
    /// # Errors
    /// When pip fails.
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
        // pip asks of a wheel for any Python whether its own would do.
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

/// The folder of PyTorch's own shared libraries.
pub(super) fn torch_libraries(packages: &Path) -> PathBuf {
    packages.join("torch/lib")
}

/// Whether a folder of these is there.
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
    fn a_folder_is_complete_with_what_it_was_made_from() {
        let folder = std::env::temp_dir().join(format!("memwatch-newer-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let before = is_complete(&folder, "a\n");
        complete(&folder, "a\n").unwrap();
        let after = (is_complete(&folder, "a\n"), is_complete(&folder, "b\n"));
        remove(&folder).unwrap();
        assert_eq!((before, after, folder.exists()), (false, (true, false), false));
    }
}
