//! Files of a container image: the simulator's workload with everything it needs, and its own copy
//! of the driver library.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::SimulatedGpu;

/// Path of the workload program in the image.
pub const WORKLOAD: &str = "/opt/gpu/gpusim-workload";

/// Folder of the driver library in the image.
pub const LIBRARIES: &str = "/opt/gpu";

/// Mount point of the machine's directory in the container.
pub const MACHINE: &str = "/machine";

/// Creates the image's root directory in `directory`.
///
/// # Panics
/// When a file cannot be copied.
pub fn make(gpu: &SimulatedGpu, directory: &Path) -> PathBuf {
    let root = directory.join("rootfs");
    for folder in ["opt/gpu", "bin", "proc", "sys", "dev", "etc", "tmp", "machine"] {
        fs::create_dir_all(root.join(folder)).expect("a directory in the temporary one");
    }
    let shell = fs::canonicalize("/bin/sh").expect("a shell");
    let sleep = fs::canonicalize("/bin/sleep").expect("sleep");
    let files = [
        (gpu.workload_program(), WORKLOAD),
        (gpu.libcuda(), "/opt/gpu/libcuda.so.1"),
        (shell, "/bin/sh"),
        (sleep, "/bin/sleep"),
    ];
    for (file, place) in &files {
        copy(file, &root, Path::new(place));
        for library in libraries_of(file) {
            copy(&library, &root, &library);
        }
    }
    root
}

/// Writes an image with this root directory to a file, as `docker save` does (Docker Image
/// Specification v1.2), and returns its path.
///
/// # Panics
/// When a program that it needs is missing or fails.
pub fn archive(root: &Path, directory: &Path, image: &str) -> PathBuf {
    let parts = directory.join("parts");
    fs::create_dir(&parts).expect("a directory in the temporary one");
    tar(root, &[OsStr::new(".")], &parts.join("layer.tar"));
    let sum = Command::new("sha256sum").arg(parts.join("layer.tar")).output().expect("sha256sum runs");
    let sum = String::from_utf8_lossy(&sum.stdout).split(' ').next().expect("a sum").to_owned();
    let configuration = json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "config": { "Entrypoint": ["/bin/sleep", "1000000"] },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{sum}")] },
    });
    let manifest = json!([{ "Config": "config.json", "RepoTags": [image], "Layers": ["layer.tar"] }]);
    for (name, value) in [("config.json", configuration), ("manifest.json", manifest)] {
        fs::write(parts.join(name), value.to_string()).expect("a file in the temporary directory");
    }
    let archive = directory.join("image.tar");
    tar(&parts, &["manifest.json", "config.json", "layer.tar"].map(OsStr::new), &archive);
    archive
}

fn tar(directory: &Path, names: &[&OsStr], archive: &Path) {
    let status = Command::new("tar").arg("-C").arg(directory).arg("-cf").arg(archive).args(names).status();
    assert!(status.is_ok_and(|status| status.success()), "tar of {}", directory.display());
}

fn copy(file: &Path, root: &Path, place: &Path) {
    let target = root.join(place.strip_prefix("/").expect("an absolute path"));
    fs::create_dir_all(target.parent().expect("a file")).expect("a directory in the temporary one");
    fs::copy(file, &target).unwrap_or_else(|error| panic!("{error}: {} to {}", file.display(), target.display()));
}

/// Returns the libraries that a program or a library is linked with, by ldd(1).
///
/// # Panics
/// When ldd cannot be started.
pub fn libraries_of(file: &Path) -> Vec<PathBuf> {
    let output = Command::new("ldd").arg(file).output().expect("ldd runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let paths = text.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    paths.map(PathBuf::from).collect()
}
