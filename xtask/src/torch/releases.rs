//! Environments with any release of a framework, for `cargo xtask matrix`: made like those of the
//! tests, each in its own directory.
//!
//! A release is installed for the newer system's Python if it has a wheel for it, else for the
//! older one's.

use super::built_for::{of_cuda, of_tensorflow, of_torch};
use super::newer::{self, DebianSystem, NEWER, OLDER};
use super::{GGML, NewerEnv, ONNX_RUNTIME, VERSIONS, Wheel, ensure, lock, npm, stand_ins};
use crate::repo::Repo;
use crate::run;
use anyhow::{Context as _, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Paths for making the environment of a release.
#[derive(Debug)]
pub(crate) struct ReleasePlace<'a> {
    /// Root of the repository.
    pub(crate) repo: &'a Path,
    /// Directory of all environments.
    pub(crate) cache: &'a Path,
    /// Directory of this environment.
    pub(crate) home: &'a Path,
}

/// The environment of a release.
#[derive(Debug)]
pub(crate) struct ReleaseEnv {
    /// The environment.
    pub(crate) environment: NewerEnv,
    /// Major version of CUDA that it is built for.
    pub(crate) cuda_major: u32,
    /// Version of its Python.
    pub(crate) python: &'static str,
    /// Settings of the simulated driver that differ from the defaults.
    pub(crate) settings: Vec<(&'static str, String)>,
}

/// Makes the environment of a version, unless it exists.
pub(crate) type MakeRelease = fn(&ReleasePlace<'_>, &str) -> Result<ReleaseEnv>;

/// Returns a Python with pip: that of the first PyTorch.
///
/// # Errors
/// Those of [`ensure`].
pub(crate) fn python_with_pip(repo: &Repo) -> Result<PathBuf> {
    Ok(ensure(repo.root(), &repo.made("torch"), VERSIONS[0])?.python)
}

/// First version of JAX with a plug-in for CUDA 13, and first version that works with the NumPy of
/// the requirements.
const JAX_OF_CUDA_13: [u32; 3] = [0, 7, 2];
const JAX_OF_TODAY: [u32; 3] = [0, 8, 0];
/// Dependencies of earlier versions of JAX.
const BESIDE_EARLIER_JAX: [&str; 5] =
    ["ml_dtypes==0.5.3", "numpy==2.2.6", "nvidia-cuda-nvcc==13.5.37", "opt_einsum==3.4.0", "scipy==1.15.3"];
/// Version of PyTorch with a wheel that imports the libraries which a framework opens by name at
/// run time, by major version of CUDA.
const STAND_INS: [(u32, &str); 2] = [(13, "2.15.0"), (12, "2.8.0")];

/// Makes JAX, with stand-ins for PyTorch's wheel of the same CUDA version.
///
/// # Errors
/// Its wheels cannot be downloaded.
pub(crate) fn jax_release(place: &ReleasePlace<'_>, version: &str) -> Result<ReleaseEnv> {
    let cuda_major = if numbers(version) >= JAX_OF_CUDA_13.to_vec() { 13 } else { 12 };
    let plugin = ["pjrt", "plugin"].map(|part| format!("jax-cuda{cuda_major}-{part}"));
    let own = ["jax".to_owned(), "jaxlib".to_owned()].into_iter().chain(plugin);
    let mut wheels: Vec<String> = own.map(|package| format!("{package}=={version}")).collect();
    let listed = read(&place.repo.join("tests/gpusim/jax-requirements.txt"))?;
    if numbers(version) >= JAX_OF_TODAY.to_vec() {
        wheels.extend(listed.lines().filter(|line| !line.starts_with("jax")).map(str::to_owned));
    } else {
        wheels.extend(BESIDE_EARLIER_JAX.map(str::to_owned));
    }
    let (system, packages) = place.wheels(&[(NEWER, wheels.join("\n"))], version)?;
    Ok(ReleaseEnv {
        environment: NewerEnv {
            root: system.root(place.cache),
            packages,
            runtime_lib_dir: place.stand_ins(cuda_major)?,
        },
        cuda_major,
        python: system.python,
        settings: Vec::new(),
    })
}

/// Oldest release of JAX that memwatch is compared with. All tests run with it as well.
const OLDEST_JAX: &str = "0.4.38";

/// Makes the oldest release of JAX, under `cache/jax-oldest`.
///
/// The first call downloads 0.3 GB with pip's ordinary configuration.
///
/// # Errors
/// Those of [`jax_release`].
pub(crate) fn ensure_oldest_jax(repo: &Path, cache: &Path) -> Result<NewerEnv> {
    let place = ReleasePlace { repo, cache, home: &cache.join("jax-oldest") };
    Ok(jax_release(&place, OLDEST_JAX)?.environment)
}

/// First version of ONNX Runtime with `AllocatorGetStats` in its C interface (`ORT_API_VERSION`
/// 23).
const ONNX_RUNTIME_WITH_NUMBERS: [u32; 2] = [1, 23];

/// Makes ONNX Runtime, with stand-ins for the CUDA version that its wheel is built for.
///
/// # Errors
/// Its wheel cannot be downloaded, is for a CUDA version other than 12 and 13, or does not report
/// its arena's counters.
pub(crate) fn onnxruntime_release(place: &ReleasePlace<'_>, version: &str) -> Result<ReleaseEnv> {
    if numbers(version) < ONNX_RUNTIME_WITH_NUMBERS.to_vec() {
        bail!("does not say what its arena has counted (`AllocatorGetStats` came with 1.23)");
    }
    let listed = read(&place.repo.join("tests/gpusim/onnxruntime-requirements.txt"))?;
    let wheels = at_version(&listed, "onnxruntime-gpu", version);
    let (system, packages) = place.wheels(&[(NEWER, wheels.clone()), (OLDER, wheels)], version)?;
    let libraries = packages.join("onnxruntime/capi");
    let wheel = of_cuda(&ONNX_RUNTIME, &libraries)?;
    place.with_own_stand_ins((system.root(place.cache), system.python), packages, &libraries, &wheel)
}

/// Makes ggml from npm's package of llama.cpp.
///
/// # Errors
/// npm cannot install it.
pub(crate) fn ggml_release(place: &ReleasePlace<'_>, version: &str) -> Result<ReleaseEnv> {
    drop(NEWER.ensure(place.cache)?);
    let package = format!("{}@{version}", npm::LLAMA_CPP);
    let packages = place.home.join("packages/node_modules").join(npm::LLAMA_CPP).join("bins/linux-x64-cuda");
    if !packages.exists() {
        let mut npm = Command::new("npm");
        npm.args(["install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-save", "--prefix"]);
        npm.arg(place.home.join("packages")).arg(&package);
        run::run_quietly(&mut npm).with_context(|| format!("npm could not install {package}"))?;
    }
    if !packages.join("libggml-cuda.so").exists() {
        bail!("its package has no libggml-cuda.so");
    }
    let wheel = of_cuda(&GGML, &packages)?;
    let libraries = packages.clone();
    place.with_own_stand_ins((NEWER.root(place.cache), NEWER.python), packages, &libraries, &wheel)
}

/// Makes PyTorch, with stand-ins for the versions that its wheel was built for.
///
/// # Errors
/// The wheel cannot be downloaded, or does not name these versions.
pub(crate) fn torch_release(place: &ReleasePlace<'_>, version: &str) -> Result<ReleaseEnv> {
    let beside = read(&place.repo.join("tests/gpusim/runtime/requirements.txt"))?;
    let wheels = format!("torch=={version}\n{beside}");
    let (system, packages) = place.wheels(&[(NEWER, wheels.clone()), (OLDER, wheels)], version)?;
    let wheel = of_torch(&packages)?;
    let libraries = newer::torch_libraries(&packages);
    let mut made = place.with_own_stand_ins((system.root(place.cache), system.python), packages, &libraries, &wheel)?;
    made.settings.push(("GPUSIM_DRIVER_VERSION", wheel.driver_version.to_string()));
    Ok(made)
}

/// Makes TensorFlow with its dependencies, and stand-ins for PyTorch's wheel of the same CUDA
/// version.
///
/// # Errors
/// Its wheel cannot be downloaded, or is for a CUDA version without stand-ins.
pub(crate) fn tensorflow_release(place: &ReleasePlace<'_>, version: &str) -> Result<ReleaseEnv> {
    let wheels = format!("tensorflow=={version}\n");
    let lists = [(NEWER, wheels.clone()), (OLDER, wheels)];
    let (system, packages) = place.first_of(&lists, |system, packages, python, wanted| {
        system.packages_and_dependencies(packages, python, wanted, version)
    })?;
    let cuda_major = of_tensorflow(&packages)?;
    Ok(ReleaseEnv {
        environment: NewerEnv {
            root: system.root(place.cache),
            packages,
            runtime_lib_dir: place.stand_ins(cuda_major)?,
        },
        cuda_major,
        python: system.python,
        settings: Vec::new(),
    })
}

impl ReleasePlace<'_> {
    /// Unpacks the first of these lists of wheels that can be downloaded, without dependencies.
    /// Returns its system and directory.
    fn wheels(&self, lists: &[(DebianSystem, String)], name: &str) -> Result<(DebianSystem, PathBuf)> {
        self.first_of(lists, |system, packages, python, wanted| system.packages(packages, python, (wanted, None), name))
    }

    /// Unpacks the first of these lists that `unpack` can install. `unpack` gets a system, a
    /// directory, a Python with pip, and a requirements file.
    fn first_of(
        &self,
        lists: &[(DebianSystem, String)],
        unpack: impl Fn(&DebianSystem, &Path, &Path, &Path) -> Result<()>,
    ) -> Result<(DebianSystem, PathBuf)> {
        let python = ensure(self.repo, self.cache, VERSIONS[0])?.python;
        fs::create_dir_all(self.home).with_context(|| format!("cannot create {}", self.home.display()))?;
        let _lock = lock(&self.home.join("lock"))?;
        let packages = self.home.join("site-packages");
        let mut pythons = Vec::new();
        for (system, wheels) in lists {
            drop(system.ensure(self.cache)?);
            let wanted = self.home.join("requirements.txt");
            fs::write(&wanted, wheels).with_context(|| format!("cannot write {}", wanted.display()))?;
            match unpack(system, &packages, &python, &wanted) {
                Ok(()) => return Ok((*system, packages)),
                Err(error) if format!("{error:#}").contains("No matching distribution") => pythons.push(system.python),
                Err(error) => return Err(error),
            }
        }
        bail!("PyPI has no wheels of it for Python {}", pythons.join(" or "))
    }

    /// Returns the stand-ins for PyTorch's wheel of a CUDA version.
    fn stand_ins(&self, cuda_major: u32) -> Result<PathBuf> {
        let known = STAND_INS.into_iter().find(|(major, _)| *major == cuda_major);
        let (_, torch) = known.with_context(|| format!("there are no stand-ins for CUDA {cuda_major}"))?;
        Ok(ensure(self.repo, self.cache, torch)?.runtime_lib_dir)
    }

    /// Makes an environment with stand-ins for the imports of its own libraries.
    fn with_own_stand_ins(
        &self,
        (root, python): (PathBuf, &'static str),
        packages: PathBuf,
        libraries: &Path,
        wheel: &Wheel,
    ) -> Result<ReleaseEnv> {
        let runtime_lib_dir = self.home.join("runtime");
        stand_ins::ensure(wheel, &self.repo.join("tests/gpusim/runtime"), libraries, &runtime_lib_dir)?;
        let environment = NewerEnv { root, packages, runtime_lib_dir };
        Ok(ReleaseEnv { environment, cuda_major: wheel.cuda_major, python, settings: Vec::new() })
    }
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Returns the leading numbers of a version.
fn numbers(version: &str) -> Vec<u32> {
    version.split('.').map_while(|part| part.parse().ok()).collect()
}

/// Returns a list of packages with another version of one of them.
fn at_version(listed: &str, own: &str, version: &str) -> String {
    let line = |line: &str| match line.split_once("==") {
        Some((name, _)) if name == own => format!("{name}=={version}\n"),
        _ => format!("{line}\n"),
    };
    listed.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_requirement_changes_only_the_requested_package() {
        assert_eq!(at_version("jax==1\nnumpy==2\n", "jax", "0.9"), "jax==0.9\nnumpy==2\n");
    }

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert!(numbers("0.12.0.1") > numbers("0.7.2") && numbers("1.9") < numbers("1.23"));
        assert_eq!(numbers("2.15.0.post1"), [2, 15, 0]);
    }

    #[test]
    fn a_release_that_cannot_be_compared_is_refused_before_it_is_downloaded() {
        let nowhere = Path::new("/nowhere");
        let place = ReleasePlace { repo: nowhere, cache: nowhere, home: nowhere };
        let error = onnxruntime_release(&place, "1.22.0").unwrap_err();
        assert!(error.to_string().contains("AllocatorGetStats"), "{error}");
    }
}
