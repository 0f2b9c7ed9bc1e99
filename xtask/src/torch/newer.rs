//! A newer system than most machines have, for PyTorch to run in: a small Debian in a folder, without anything that starts or is installed.
//!
//! Its C library is newer, and its Python is an executable with fixed addresses, as distributions build it: its heap begins below 4 GiB.

use crate::run;
use crate::setup::{self, Package};
use anyhow::{Context as _, Result};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The release of Debian.
const RELEASE: &str = "trixie";
/// Its Python.
const PYTHON: &str = "3.13";
/// What PyTorch's wheel needs of a system; packages that these depend on come along.
const PACKAGES: &str = "python3.13-minimal,libpython3.13-stdlib,libstdc++6";
/// A folder in the root, and what it is a link to: no package has these.
const LINKS: &[(&str, &str)] = &[("bin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")];
/// Folders that something is mounted on.
const MOUNT_POINTS: &[&str] = &["proc", "sys", "dev", "tmp"];
/// `/etc/passwd`: PyTorch asks for the user's name.
const USERS: &str = "root:x:0:0:root:/root:/bin/sh\n";
/// The systems that wheels are made for and that run in it.
const PLATFORMS: &[&str] = &["manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014"];
/// Written last: a folder without it is half made.
const STAMP: &str = ".memwatch-complete";

/// Makes the root directory in `folder`, or finds it made.
///
/// # Errors
/// When Debian's packages or the program that unpacks them cannot be had.
pub(super) fn root(folder: &Path) -> Result<()> {
    let wanted = format!("{RELEASE} {PACKAGES}\n{USERS}");
    if is_complete(folder, &wanted) {
        return Ok(());
    }
    setup::packages(&[Package::Mmdebstrap])?;
    remove(folder)?;
    eprintln!("set-up: unpacking Debian {RELEASE} in {} ...", folder.display());
    let mut unpack = Command::new("mmdebstrap");
    unpack.args(["--quiet", "--variant=extract", &format!("--include={PACKAGES}"), RELEASE]).arg(folder);
    run::run_quietly(&mut unpack).context("mmdebstrap could not unpack Debian's packages")?;
    for (link, target) in LINKS {
        symlink(target, folder.join(link)).with_context(|| format!("cannot link {link}"))?;
    }
    for name in MOUNT_POINTS {
        fs::create_dir_all(folder.join(name)).with_context(|| format!("cannot create {name}"))?;
    }
    let users = folder.join("etc/passwd");
    fs::write(&users, USERS).with_context(|| format!("cannot write {}", users.display()))?;
    complete(folder, &wanted)
}

/// Unpacks wheels into `folder` for the Python in the root, or finds them there: the ones in `requirements`, and `more`. `python` has pip; `name` is
/// what they are called in messages.
///
/// # Errors
/// When pip fails.
pub(super) fn packages(
    folder: &Path,
    python: &Path,
    (requirements, more): (&Path, Option<&str>),
    name: &str,
) -> Result<()> {
    let listed = fs::read_to_string(requirements).with_context(|| format!("cannot read {}", requirements.display()))?;
    let wanted = listed + &format!("{} for {PYTHON}\n", more.unwrap_or_default());
    if is_complete(folder, &wanted) {
        return Ok(());
    }
    remove(folder)?;
    eprintln!("set-up: installing {name} for Python {PYTHON} in {} ...", folder.display());
    let mut pip = Command::new(python);
    // The wheels' dependencies would bring NVIDIA's libraries, hence --no-deps. pip asks of a wheel for any Python whether its own would do.
    pip.args(["-m", "pip", "install", "--no-deps", "--no-compile", "--disable-pip-version-check", "--quiet"]);
    pip.args(["--root-user-action=ignore", "--only-binary=:all:", "--implementation=cp", "--ignore-requires-python"]);
    pip.arg(format!("--python-version={PYTHON}"));
    for platform in PLATFORMS {
        pip.arg(format!("--platform={platform}_{}", std::env::consts::ARCH));
    }
    pip.arg("--target").arg(folder).args(more).arg("--requirement").arg(requirements);
    run::run_quietly(&mut pip).with_context(|| format!("pip could not install {name}"))?;
    complete(folder, &wanted)
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
