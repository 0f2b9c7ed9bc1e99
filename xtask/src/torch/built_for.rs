//! Detects what a release was built for, from its files.

use super::{Wheel, imports};
use anyhow::{Context as _, Result, bail};
use std::fs;
use std::path::Path;

/// Returns the facts about a wheel, for the CUDA version that the libraries in a directory import.
///
/// # Errors
/// The libraries cannot be read, or are for a CUDA version other than 12 and 13.
pub(super) fn of_cuda(known: &Wheel, libraries: &Path) -> Result<Wheel> {
    let interfaces = imports::read(libraries)?;
    let major = interfaces.keys().find_map(|name| name.strip_prefix("libcudart.so.")?.split('.').next()?.parse().ok());
    match major {
        Some(cuda_major) => for_cuda(known, cuda_major),
        None => bail!("its libraries do not name the CUDA that they are for"),
    }
}

/// Returns the facts about a wheel, for a CUDA version.
///
/// # Errors
/// The CUDA version is not 12 or 13.
pub(super) fn for_cuda(known: &Wheel, cuda_major: u32) -> Result<Wheel> {
    let Wheel { version, driver_version, cudnn_version, nccl_version, .. } = *known;
    let driver_version = match cuda_major {
        13 => driver_version,
        12 => 12080,
        _ => bail!("is for CUDA {cuda_major}, for which there are no stand-ins"),
    };
    Ok(Wheel { version, cuda_major, driver_version, cudnn_version, nccl_version })
}

/// Returns the requirements of PyTorch's wheel in a directory of packages.
///
/// # Errors
/// Its metadata cannot be read, or lacks them.
pub(super) fn of_torch(packages: &Path) -> Result<Wheel> {
    let entries = fs::read_dir(packages).with_context(|| format!("cannot list {}", packages.display()))?;
    let is_its = |name: &str| name.starts_with("torch-") && name.ends_with(".dist-info");
    let mut folders = entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_its));
    let folder = folders.next().with_context(|| format!("there is no PyTorch in {}", packages.display()))?.path();
    let path = folder.join("METADATA");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    asked_for(&text).with_context(|| format!("{} does not name the CUDA that it is for", path.display()))
}

/// Returns the major version of CUDA that TensorFlow's wheel in a directory of packages is built
/// for.
///
/// # Errors
/// The file cannot be read, or lacks the version.
pub(super) fn of_tensorflow(packages: &Path) -> Result<u32> {
    let path = packages.join("tensorflow/python/platform/build_info.py");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let version = text.split_once("('cuda_version', '").and_then(|(_, rest)| rest.split(['.', '\'']).next());
    version.and_then(|major| major.parse().ok()).with_context(|| format!("{} names no CUDA", path.display()))
}

/// Parses the requirements in a wheel's metadata.
fn asked_for(metadata: &str) -> Option<Wheel> {
    let version = |beginning: &str| version_of(metadata, beginning);
    let cuda = version("cuda-toolkit").or_else(|| version("nvidia-cuda-runtime"))?;
    let (cuda_major, cuda_minor) = (*cuda.first()?, *cuda.get(1)?);
    let nccl = version("nvidia-nccl")?;
    Some(Wheel {
        version: "a release",
        cuda_major,
        driver_version: 1000 * cuda_major + 10 * cuda_minor,
        cudnn_version: cudnn(&version("nvidia-cudnn")?)?,
        nccl_version: one_number(&nccl, 10_000)?,
    })
}

/// Converts a cuDNN version to a number; up to version 8 the major version is multiplied by a
/// thousand.
fn cudnn(version: &[u32]) -> Option<u32> {
    one_number(version, if *version.first()? < 9 { 1000 } else { 10_000 })
}

/// Converts a version to one number.
fn one_number(version: &[u32], major: u32) -> Option<u32> {
    match *version {
        [first, second, third, ..] => Some(major * first + 100 * second + third),
        _ => None,
    }
}

/// Returns the version of the first required package with this prefix: `Requires-Dist:
/// nvidia-cudnn-cu12==9.1.0.70; ...`.
fn version_of(metadata: &str, beginning: &str) -> Option<Vec<u32>> {
    let mut wanted = metadata.lines().filter_map(|line| line.strip_prefix("Requires-Dist: "));
    let line = wanted.find(|line| line.starts_with(beginning))?;
    let (_, version) = line.split_once("==")?;
    let end = version.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(version.len());
    version[..end].split('.').map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wheel_metadata_gives_cuda_cudnn_and_nccl_versions() {
        let twelve = "Name: torch\nRequires-Dist: nvidia-cuda-runtime-cu12==12.4.127; platform_system == \"Linux\"\n\
            Requires-Dist: nvidia-cudnn-cu12==9.1.0.70; x\nRequires-Dist: nvidia-nccl-cu12==2.21.5; x\n";
        let wheel = asked_for(twelve).unwrap();
        assert_eq!((wheel.cuda_major, wheel.driver_version), (12, 12040));
        assert_eq!((wheel.cudnn_version, wheel.nccl_version), (90100, 22105));
        let thirteen = "Requires-Dist: cuda-toolkit[cublas,cudart]==13.0.2; x\nRequires-Dist: nvidia-nccl-cu13==2.28.9\n\
            Requires-Dist: nvidia-cudnn-cu13==9.19.0.56; x\n";
        let wheel = asked_for(thirteen).unwrap();
        assert_eq!((wheel.driver_version, wheel.cudnn_version, wheel.nccl_version), (13000, 91900, 22809));
        assert!(asked_for("Name: torch\n").is_none());
    }

    #[test]
    fn an_older_cudnn_has_a_number_of_four_digits() {
        assert_eq!(cudnn(&[8, 9, 2, 26]), Some(8902));
    }
}
