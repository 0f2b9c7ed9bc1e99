//! Unmodified PyTorch on the simulated GPU: a virtual environment with the wheel, and stand-ins for NVIDIA's libraries.
//!
//! The wheel brings no NVIDIA library: those are dependencies of it that we leave out. In their place come libraries built
//! from `tests/gpusim/runtime`, which offer exactly what this wheel's own libraries import.

mod built_for;
mod imports;
mod inside;
mod newer;
mod npm;
mod releases;
mod stand_ins;
mod venv;

pub(crate) use releases::{
    Made, Place, Release, ensure_oldest_jax, ggml_release, jax_release, onnxruntime_release, python_with_pip,
    tensorflow_release, torch_release,
};

use anyhow::{Context as _, Result};
use newer::NEWER;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The PyTorch versions that all tests run with, and [`ensure`] can install: one per CUDA major version.
pub(crate) const VERSIONS: &[&str] = &["2.15.0", "2.8.0"];
/// An earlier one, with which is tested what is read of a process's memory.
pub(crate) const EARLIER: &[&str] = &["2.6.0"];
/// Those between them, which a few tests run with, and [`ensure_newer`] can install.
pub(crate) const BETWEEN: &[&str] = &["2.11.0", "2.10.0", "2.9.1"];

/// What has to be known of one wheel. All of it is in the wheel's own metadata.
struct Wheel {
    version: &'static str,
    /// Major version of the CUDA runtime it was built for.
    cuda_major: u32,
    /// A driver that this runtime accepts: 1000 * major + 10 * minor.
    driver_version: u32,
    /// The cuDNN it was built for, which it insists on: 10000 * major + 100 * minor + patch.
    cudnn_version: u32,
    /// The NCCL it was built for: 10000 * major + 100 * minor + patch.
    nccl_version: u32,
}

const WHEELS: &[Wheel] = &[
    Wheel { version: "2.15.0", cuda_major: 13, driver_version: 13020, cudnn_version: 92600, nccl_version: 23007 },
    Wheel { version: "2.8.0", cuda_major: 12, driver_version: 12080, cudnn_version: 91002, nccl_version: 22703 },
    Wheel { version: "2.6.0", cuda_major: 12, driver_version: 12040, cudnn_version: 90100, nccl_version: 22105 },
    Wheel { version: "2.11.0", cuda_major: 13, driver_version: 13000, cudnn_version: 91900, nccl_version: 22809 },
    Wheel { version: "2.10.0", cuda_major: 12, driver_version: 12080, cudnn_version: 91002, nccl_version: 22705 },
    Wheel { version: "2.9.1", cuda_major: 12, driver_version: 12080, cudnn_version: 91002, nccl_version: 22705 },
];

/// An installed PyTorch, ready to run on the simulated driver.
#[derive(Debug, Clone)]
pub(crate) struct TorchEnv {
    /// The interpreter of the virtual environment.
    pub(crate) python: PathBuf,
    /// The folder of the stand-in runtime libraries.
    pub(crate) runtime_lib_dir: PathBuf,
    /// The version of PyTorch, such as `2.15.0`.
    pub(crate) version: String,
}

/// A PyTorch for another root directory than the machine's.
#[derive(Debug, Clone)]
pub(crate) struct NewerEnv {
    /// The root directory, with a Python.
    pub(crate) root: PathBuf,
    /// The folder with PyTorch and what it imports: this Python's path.
    pub(crate) packages: PathBuf,
    /// The folder of the stand-in runtime libraries.
    pub(crate) runtime_lib_dir: PathBuf,
}

/// Makes the environment for one PyTorch version under `cache/torch-<version>`, or finds it made already.
///
/// The first call downloads the wheel (0.5 to 0.9 GB) with pip's ordinary configuration. An environment that was left half
/// made is made again; stand-ins are rebuilt when their sources change. Concurrent calls wait for one another.
///
/// # Errors
/// For a version not in [`VERSIONS`] or [`EARLIER`]; when no suitable Python, no C compiler or no network is there; the error says what to
/// install.
pub(crate) fn ensure(repo: &Path, cache: &Path, version: &str) -> Result<TorchEnv> {
    let wheel = wheel(&[VERSIONS, EARLIER].concat(), version)?;
    let folder = cache.join(format!("torch-{version}"));
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let _lock = lock(&folder.join("lock"))?;
    let sources = repo.join("tests/gpusim/runtime");
    let venv = folder.join("venv");
    let python = venv::ensure(&venv, &sources.join("requirements.txt"), version)?;
    let runtime_lib_dir = folder.join("runtime");
    stand_ins::ensure(wheel, &sources, &venv::torch_libraries(&venv)?, &runtime_lib_dir)?;
    Ok(TorchEnv { python, runtime_lib_dir, version: version.to_owned() })
}

/// The same for one of [`BETWEEN`], in the newer system under `cache/newer`, which the first call unpacks.
///
/// # Errors
/// For a version not in [`BETWEEN`]; when that system, the wheel, a C compiler or what [`ensure`] needs cannot be had.
pub(crate) fn ensure_newer(repo: &Path, cache: &Path, version: &str) -> Result<NewerEnv> {
    let wheel = wheel(BETWEEN, version)?;
    let with_pip = ensure(repo, cache, VERSIONS[0])?.python;
    let environment = NewerEnv::below(cache, version);
    let _lock = NEWER.ensure(cache)?;
    let sources = repo.join("tests/gpusim/runtime");
    let (own, name) = (format!("torch=={version}"), format!("PyTorch {version}"));
    let wheels = (&*sources.join("requirements.txt"), Some(&*own));
    NEWER.packages(&environment.packages, &with_pip, wheels, &name)?;
    let libraries = newer::torch_libraries(&environment.packages);
    stand_ins::ensure(wheel, &sources, &libraries, &environment.runtime_lib_dir)?;
    Ok(environment)
}

/// JAX in the newer system under `cache/newer`: its wheels need a Python that older systems do not have. What it opens by name at run time are the
/// stand-ins for PyTorch's wheel of the same CUDA version.
///
/// The first call downloads 0.3 GB with pip's ordinary configuration.
///
/// # Errors
/// As [`ensure_newer`].
pub(crate) fn ensure_jax(repo: &Path, cache: &Path) -> Result<NewerEnv> {
    let torch = ensure(repo, cache, VERSIONS[0])?;
    let environment = NewerEnv::jax(cache, torch.runtime_lib_dir);
    let _lock = NEWER.ensure(cache)?;
    let wheels = repo.join("tests/gpusim/jax-requirements.txt");
    NEWER.packages(&environment.packages, &torch.python, (&wheels, None), "JAX")?;
    Ok(environment)
}

impl NewerEnv {
    fn jax(cache: &Path, runtime_lib_dir: PathBuf) -> Self {
        Self { root: NEWER.root(cache), packages: cache.join("jax/site-packages"), runtime_lib_dir }
    }

    /// Where it is, once it is made.
    fn below(cache: &Path, version: &str) -> Self {
        let folder = cache.join(format!("torch-{version}"));
        let root = NEWER.root(cache);
        Self { root, packages: folder.join("site-packages"), runtime_lib_dir: folder.join("runtime") }
    }

    /// The one that [`ensure_newer`] has made; `None` where it could not.
    pub(crate) fn made(cache: &Path, version: &str) -> Option<Self> {
        let environment = Self::below(cache, version);
        let is_made = newer::is_made(&environment.root)
            && newer::is_made(&environment.packages)
            && stand_ins::is_made(&environment.runtime_lib_dir);
        is_made.then_some(environment)
    }
}

/// What is known of ONNX Runtime's wheel for CUDA 13.
const ONNX_RUNTIME: Wheel =
    Wheel { version: "onnxruntime", cuda_major: 13, driver_version: 13020, cudnn_version: 92600, nccl_version: 23007 };

/// ONNX Runtime in the newer system under `cache/newer`, with stand-ins for what its wheel's libraries import.
///
/// The first call downloads 0.27 GB with pip's ordinary configuration.
///
/// # Errors
/// As [`ensure_newer`].
pub(crate) fn ensure_onnxruntime(repo: &Path, cache: &Path) -> Result<NewerEnv> {
    let with_pip = ensure(repo, cache, VERSIONS[0])?.python;
    let home = cache.join("onnxruntime");
    let (packages, runtime_lib_dir) = (home.join("site-packages"), home.join("runtime"));
    let environment = NewerEnv { root: NEWER.root(cache), packages, runtime_lib_dir };
    let _lock = NEWER.ensure(cache)?;
    let wheels = repo.join("tests/gpusim/onnxruntime-requirements.txt");
    NEWER.packages(&environment.packages, &with_pip, (&wheels, None), "ONNX Runtime")?;
    let libraries = environment.packages.join("onnxruntime/capi");
    stand_ins::ensure(&ONNX_RUNTIME, &repo.join("tests/gpusim/runtime"), &libraries, &environment.runtime_lib_dir)?;
    Ok(environment)
}

/// What is known of ggml's build for CUDA 13.
const GGML: Wheel =
    Wheel { version: "ggml", cuda_major: 13, driver_version: 13020, cudnn_version: 92600, nccl_version: 23007 };

/// ggml with its part for CUDA, as Node.js's package of llama.cpp brings it, in the newer system under `cache/newer`, with stand-ins for what that imports.
/// Its folder of libraries is Python's path there.
///
/// The first call downloads 0.15 GB with npm's ordinary configuration.
///
/// # Errors
/// As [`ensure_newer`]; or when npm cannot be had.
pub(crate) fn ensure_ggml(repo: &Path, cache: &Path) -> Result<NewerEnv> {
    ggml(repo, cache, "ggml")
}

/// The same with the oldest release that memwatch is compared with.
///
/// # Errors
/// As [`ensure_ggml`].
pub(crate) fn ensure_oldest_ggml(repo: &Path, cache: &Path) -> Result<NewerEnv> {
    ggml(repo, cache, "ggml-oldest")
}

/// The release that a folder of `tests/gpusim` names.
fn ggml(repo: &Path, cache: &Path, folder: &str) -> Result<NewerEnv> {
    let home = cache.join(folder);
    let packages = home.join("packages/node_modules").join(npm::LLAMA_CPP).join("bins/linux-x64-cuda");
    let runtime_lib_dir = home.join("runtime");
    let environment = NewerEnv { root: NEWER.root(cache), packages, runtime_lib_dir };
    let _lock = NEWER.ensure(cache)?;
    npm::packages(&home.join("packages"), &repo.join("tests/gpusim").join(folder), "llama.cpp")?;
    let sources = repo.join("tests/gpusim/runtime");
    let wheel = built_for::of_cuda(&GGML, &environment.packages)?;
    stand_ins::ensure(&wheel, &sources, &environment.packages, &environment.runtime_lib_dir)?;
    Ok(environment)
}

/// The files of RAPIDS' memory manager and of CuPy in the newer system under `cache/newer`: they are looked into there, and ask for a real driver before they do
/// more.
///
/// The first call downloads 75 MB with pip's ordinary configuration.
///
/// # Errors
/// As [`ensure_newer`].
pub(crate) fn ensure_pools(repo: &Path, cache: &Path) -> Result<NewerEnv> {
    let torch = ensure(repo, cache, VERSIONS[0])?;
    let root = NEWER.root(cache);
    let packages = cache.join("pools/site-packages");
    let environment = NewerEnv { root, packages, runtime_lib_dir: torch.runtime_lib_dir };
    let _lock = NEWER.ensure(cache)?;
    let wheels = repo.join("tests/gpusim/pools-requirements.txt");
    NEWER.packages(&environment.packages, &torch.python, (&wheels, None), "RAPIDS' memory manager and CuPy")?;
    Ok(environment)
}

/// What is known of a version's wheel.
fn wheel(known: &[&str], version: &str) -> Result<&'static Wheel> {
    let wheel = WHEELS.iter().find(|wheel| wheel.version == version && known.contains(&version));
    wheel.with_context(|| format!("PyTorch {version} is not known here, only {}", known.join(" and ")))
}

impl TorchEnv {
    /// The interpreter, set to use the simulated driver in `driver_lib_dir` with `ledger` as the state of its devices.
    ///
    /// The caller adds the script, and `GPUSIM_*` variables where the defaults do not do.
    pub(crate) fn command(&self, driver_lib_dir: &Path, ledger: &Path) -> Command {
        let mut libraries = driver_lib_dir.as_os_str().to_owned();
        libraries.push(":");
        libraries.push(&self.runtime_lib_dir);
        let mut command = Command::new(&self.python);
        command.env("LD_LIBRARY_PATH", libraries).env("GPUSIM_LEDGER", ledger);
        // NumPy is optional, and PyTorch warns at each start that it is not there.
        command.env("PYTHONWARNINGS", "ignore:Failed to initialize NumPy:UserWarning");
        if let Some(wheel) = WHEELS.iter().find(|wheel| wheel.version == self.version) {
            command.env("GPUSIM_DRIVER_VERSION", wheel.driver_version.to_string());
        }
        command
    }
}

/// Holds the lock file until the returned handle is dropped.
///
/// # Errors
/// When the file cannot be made.
pub(crate) fn lock(path: &Path) -> Result<File> {
    let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
    file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_has_its_wheel() {
        let wheels: Vec<_> = WHEELS.iter().map(|wheel| wheel.version).collect();
        assert_eq!([VERSIONS, EARLIER, BETWEEN].concat(), wheels);
    }

    #[test]
    fn an_unknown_version_is_refused_with_the_known_ones() {
        let error = ensure(Path::new("/nowhere"), Path::new("/nowhere"), "1.0.0").unwrap_err();
        assert!(error.to_string().contains("2.15.0 and 2.8.0"), "{error}");
        let error = ensure_newer(Path::new("/nowhere"), Path::new("/nowhere"), "2.8.0").unwrap_err();
        assert!(error.to_string().contains("2.11.0 and 2.10.0 and 2.9.1"), "{error}");
    }

    #[test]
    fn the_driver_is_searched_before_the_runtime() {
        let environment =
            TorchEnv { python: "/venv/bin/python".into(), runtime_lib_dir: "/runtime".into(), version: "2.8.0".into() };
        let command = environment.command(Path::new("/driver"), Path::new("/ledger"));
        let line = crate::run::line(&command);
        assert!(line.contains("LD_LIBRARY_PATH=/driver:/runtime "), "{line}");
        assert!(line.contains("GPUSIM_DRIVER_VERSION=12080 "), "{line}");
        assert!(line.ends_with("/venv/bin/python"), "{line}");
    }
}
