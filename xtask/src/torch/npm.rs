//! A package from npm's registry, at the version and with the checksum of a committed lock file.

use crate::run;
use crate::setup::{self, Package};
use anyhow::{Context as _, Result};
use std::fs;
use std::path::Path;
use std::process::Command;

/// llama.cpp's libraries for CUDA.
pub(super) const LLAMA_CPP: &str = "@node-llama-cpp/linux-x64-cuda";
/// Files that npm reads: the requirements, and the lock file with checksums.
const FILES: [&str; 2] = ["package.json", "package-lock.json"];
/// File written last: a directory without it is incomplete.
const STAMP: &str = ".memwatch-complete";

/// Unpacks the packages of the files in `wanted` below `folder/node_modules`, unless they are
/// there; `name` is used in messages. Does not run package scripts.
///
/// # Errors
/// npm is missing, or finds a checksum other than the lock file's.
pub(super) fn packages(folder: &Path, wanted: &Path, name: &str) -> Result<()> {
    let read = |file: &str| {
        let path = wanted.join(file);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let texts = [read(FILES[0])?, read(FILES[1])?];
    let stamp = folder.join(STAMP);
    if fs::read_to_string(&stamp).is_ok_and(|made_from| made_from == texts.concat()) {
        return Ok(());
    }
    setup::packages(&[Package::NodeJs])?;
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for (file, text) in FILES.iter().zip(&texts) {
        fs::write(folder.join(file), text).with_context(|| format!("cannot write in {}", folder.display()))?;
    }
    eprintln!("set-up: installing {name} in {} ...", folder.display());
    let mut npm = Command::new("npm");
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline", "--prefix"]).arg(folder);
    run::run_quietly(&mut npm).with_context(|| format!("npm could not install {name}"))?;
    fs::write(&stamp, texts.concat()).with_context(|| format!("cannot write {}", stamp.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_has_a_version_and_a_checksum() {
        let repo = crate::repo::Repo::locate().unwrap();
        for folder in ["ggml", "ggml-oldest"] {
            let lock = fs::read_to_string(repo.path(&format!("tests/gpusim/{folder}/package-lock.json"))).unwrap();
            let count = |word: &str| lock.matches(word).count();
            assert_eq!(count("\"node_modules/"), 1, "{lock}");
            assert_eq!(count("\"integrity\": \"sha512-"), 1, "{lock}");
        }
    }

    #[test]
    fn a_missing_lock_file_is_named() {
        let nowhere = Path::new("/nowhere");
        let error = packages(nowhere, nowhere, "it").unwrap_err();
        assert!(error.to_string().contains("/nowhere/package.json"), "{error}");
    }
}
