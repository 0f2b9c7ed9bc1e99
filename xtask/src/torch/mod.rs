//! Unmodified PyTorch on the simulated GPU: a virtual environment with the wheel, and stand-ins for
//! NVIDIA's libraries.
//!
//! The wheel contains no NVIDIA library, and these dependencies are not installed. They are
//! replaced by libraries built from `tests/gpusim/runtime`, which export exactly what this wheel's
//! own libraries import.

mod built_for;
mod imports;
mod inside;
mod newer;
mod npm;
mod releases;
mod stand_ins;
mod venv;

pub(crate) use releases::{
    MakeRelease, ReleaseEnv, ReleasePlace, ensure_oldest_jax, ggml_release, jax_release, onnxruntime_release,
    python_with_pip, tensorflow_release, torch_release,
};

use anyhow::{Context as _, Result};
use newer::NEWER;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// PyTorch versions that all tests run with, and that [`ensure`] can install: one per CUDA major
/// version.
pub(crate) const VERSIONS: &[&str] = &["2.15.0", "2.8.0"];
/// Earlier versions, for tests of reading a process's memory.
pub(crate) const EARLIER: &[&str] = &["2.6.0"];
/// Versions in between, which a few tests run with, and which [`ensure_newer`] can install.
pub(crate) const BETWEEN: &[&str] = &["2.11.0", "2.10.0", "2.9.1"];

/// Facts about a wheel, all from its own metadata.
struct Wheel {
    version: &'static str,
    /// Major version of the CUDA runtime it was built for.
    cuda_major: u32,
    /// A driver version that this runtime accepts: 1000 * major + 10 * minor.
    driver_version: u32,
    /// cuDNN version it was built for and insists on: 10000 * major + 100 * minor + patch.
    cudnn_version: u32,
    /// NCCL version it was built for: 10000 * major + 100 * minor + patch.
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
    /// Interpreter of the virtual environment.
    pub(crate) python: PathBuf,
    /// Directory of the stand-in runtime libraries.
    pub(crate) runtime_lib_dir: PathBuf,
    /// Version of PyTorch, such as `2.15.0`.
    pub(crate) version: String,
}

/// A PyTorch for another root directory than the machine's.
#[derive(Debug, Clone)]
pub(crate) struct NewerEnv {
    /// Root directory, with a Python.
    pub(crate) root: PathBuf,
    /// Directory with PyTorch and its imports: this Python's path.
    pub(crate) packages: PathBuf,
    /// Directory of the stand-in runtime libraries.
    pub(crate) runtime_lib_dir: PathBuf,
}

/// Makes the environment for one PyTorch version under `cache/torch-<version>`, unless it exists.
///
/// The first call downloads the wheel (0.5 to 0.9 GB) with pip's ordinary configuration. An
/// incomplete environment is rebuilt; stand-ins are rebuilt when their sources change. Concurrent
/// calls wait for each other.
///
/// # Errors
/// The version is not in [`VERSIONS`] or [`EARLIER`], or there is no suitable Python, no C compiler
/// or no network; the error says what to install.
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

/// Makes the environment for one of [`BETWEEN`], in the newer system under `cache/newer`, which the
/// first call unpacks.
///
/// # Errors
/// The version is not in [`BETWEEN`], or that system, the wheel, a C compiler or a dependency of
/// [`ensure`] cannot be installed.
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

/// Makes JAX in the newer system under `cache/newer`: its wheels need a Python that older systems
/// lack. The libraries that it opens by name at run time are the stand-ins for PyTorch's wheel of
/// the same CUDA version.
///
/// The first call downloads 0.3 GB with pip's ordinary configuration.
///
/// # Errors
/// Those of [`ensure_newer`].
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

    /// Returns the paths of the environment of a version.
    fn below(cache: &Path, version: &str) -> Self {
        let folder = cache.join(format!("torch-{version}"));
        let root = NEWER.root(cache);
        Self { root, packages: folder.join("site-packages"), runtime_lib_dir: folder.join("runtime") }
    }

    /// Returns the environment that [`ensure_newer`] has made; `None` if it could not.
    pub(crate) fn made(cache: &Path, version: &str) -> Option<Self> {
        let environment = Self::below(cache, version);
        let is_made = newer::is_made(&environment.root)
            && newer::is_made(&environment.packages)
            && stand_ins::is_made(&environment.runtime_lib_dir);
        is_made.then_some(environment)
    }
}

/// Facts about ONNX Runtime's wheel for CUDA 13.
const ONNX_RUNTIME: Wheel =
    Wheel { version: "onnxruntime", cuda_major: 13, driver_version: 13020, cudnn_version: 92600, nccl_version: 23007 };

/// Makes ONNX Runtime in the newer system under `cache/newer`, with stand-ins for the imports of
/// its wheel's libraries.
///
/// The first call downloads 0.27 GB with pip's ordinary configuration.
///
/// # Errors
/// Those of [`ensure_newer`].
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

/// Facts about ggml's build for CUDA 13.
const GGML: Wheel =
    Wheel { version: "ggml", cuda_major: 13, driver_version: 13020, cudnn_version: 92600, nccl_version: 23007 };

/// Makes ggml with its CUDA backend in the newer system under `cache/newer`, from Node.js's package
/// of llama.cpp, with stand-ins for its imports. Its directory of libraries is Python's path there.
///
/// The first call downloads 0.15 GB with npm's ordinary configuration.
///
/// # Errors
/// Those of [`ensure_newer`], or npm cannot be installed.
pub(crate) fn ensure_ggml(repo: &Path, cache: &Path) -> Result<NewerEnv> {
    ggml(repo, cache, "ggml")
}

/// Makes the oldest release of ggml that memwatch is compared with, like [`ensure_ggml`].
///
/// # Errors
/// Those of [`ensure_ggml`].
pub(crate) fn ensure_oldest_ggml(repo: &Path, cache: &Path) -> Result<NewerEnv> {
    ggml(repo, cache, "ggml-oldest")
}

/// Makes the release that a directory of `tests/gpusim` pins.
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

/// Makes RMM and CuPy in the newer system under `cache/newer`. Only their files are examined: both
/// need a real driver to run.
///
/// The first call downloads 75 MB with pip's ordinary configuration.
///
/// # Errors
/// Those of [`ensure_newer`].
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

/// Returns the facts about a version's wheel.
fn wheel(known: &[&str], version: &str) -> Result<&'static Wheel> {
    let wheel = WHEELS.iter().find(|wheel| wheel.version == version && known.contains(&version));
    wheel.with_context(|| format!("PyTorch {version} is not known here, only {}", known.join(" and ")))
}

impl TorchEnv {
    /// Returns the interpreter's command with the simulated driver in `driver_lib_dir`, and
    /// `ledger` as the state of its devices.
    ///
    /// The caller adds the script, and `GPUSIM_*` variables that differ from the defaults.
    pub(crate) fn command(&self, driver_lib_dir: &Path, ledger: &Path) -> Command {
        let mut libraries = driver_lib_dir.as_os_str().to_owned();
        libraries.push(":");
        libraries.push(&self.runtime_lib_dir);
        let mut command = Command::new(&self.python);
        command.env("LD_LIBRARY_PATH", libraries).env("GPUSIM_LEDGER", ledger);
        // NumPy is optional, and PyTorch warns at each start that it is missing.
        command.env("PYTHONWARNINGS", "ignore:Failed to initialize NumPy:UserWarning");
        if let Some(wheel) = WHEELS.iter().find(|wheel| wheel.version == self.version) {
            command.env("GPUSIM_DRIVER_VERSION", wheel.driver_version.to_string());
        }
        command
    }
}

/// Locks a file until the returned handle is dropped.
///
/// # Errors
/// The file cannot be created.
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
