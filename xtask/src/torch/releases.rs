//! Environments with any release of a framework, for `cargo xtask matrix`: made like the ones for all tests, each in a folder of its own.

use super::{GGML, NewerEnv, ONNX_RUNTIME, VERSIONS, WHEELS, Wheel, ensure, newer, newer_root, npm, stand_ins, wheel};
use crate::repo::Repo;
use crate::run;
use anyhow::{Context as _, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes the environment with a version in a folder, or finds it made: the repository, the folder of all environments, and then these two.
pub(crate) type Release = fn(&Path, &Path, (&Path, &str)) -> Result<NewerEnv>;

/// A Python with pip: that of the first PyTorch.
///
/// # Errors
/// As [`ensure`].
pub(crate) fn python_with_pip(repo: &Repo) -> Result<PathBuf> {
    Ok(ensure(repo.root(), &repo.made("torch"), VERSIONS[0])?.python)
}

/// What the simulated driver has to say of itself for a version of PyTorch; nothing for other frameworks.
pub(crate) fn settings_of(version: &str) -> Vec<(&'static str, String)> {
    let known = WHEELS.iter().find(|wheel| wheel.version == version);
    known.map(|wheel| ("GPUSIM_DRIVER_VERSION", wheel.driver_version.to_string())).into_iter().collect()
}

/// JAX.
///
/// # Errors
/// When its wheels cannot be had.
pub(crate) fn jax_release(repo: &Path, cache: &Path, (home, version): (&Path, &str)) -> Result<NewerEnv> {
    let torch = ensure(repo, cache, VERSIONS[0])?;
    let wheels = ("jax-requirements.txt", &["jax", "jaxlib", "jax-cuda13-pjrt", "jax-cuda13-plugin"][..]);
    let (root, packages) = unpacked((repo, cache), &torch.python, (home, version), wheels)?;
    Ok(NewerEnv { root, packages, runtime_lib_dir: torch.runtime_lib_dir })
}

/// ONNX Runtime, with stand-ins for the CUDA version that its wheel is built for.
///
/// # Errors
/// When its wheel cannot be had, or is for another CUDA version than 12 and 13.
pub(crate) fn onnxruntime_release(repo: &Path, cache: &Path, (home, version): (&Path, &str)) -> Result<NewerEnv> {
    let python = ensure(repo, cache, VERSIONS[0])?.python;
    let wheels = ("onnxruntime-requirements.txt", &["onnxruntime-gpu"][..]);
    let (root, packages) = unpacked((repo, cache), &python, (home, version), wheels)?;
    let libraries = packages.join("onnxruntime/capi");
    let (runtime_lib_dir, wheel) =
        (home.join("runtime"), of_cuda(&ONNX_RUNTIME, &libraries.join("libonnxruntime_providers_cuda.so"))?);
    stand_ins::ensure(&wheel, &repo.join("tests/gpusim/runtime"), &libraries, &runtime_lib_dir)?;
    Ok(NewerEnv { root, packages, runtime_lib_dir })
}

/// ggml, as npm's package of llama.cpp has it.
///
/// # Errors
/// When npm cannot bring it.
pub(crate) fn ggml_release(repo: &Path, cache: &Path, (home, version): (&Path, &str)) -> Result<NewerEnv> {
    let root = cache.join(super::NEWER).join("root");
    let lock = newer_root(cache, &root)?;
    let package = format!("{}@{version}", npm::LLAMA_CPP);
    let packages = home.join("packages/node_modules").join(npm::LLAMA_CPP).join("bins/linux-x64-cuda");
    if !packages.exists() {
        let mut npm = Command::new("npm");
        npm.args(["install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-save", "--prefix"]);
        npm.arg(home.join("packages")).arg(&package);
        run::run_quietly(&mut npm).with_context(|| format!("npm could not install {package}"))?;
    }
    drop(lock);
    let (runtime_lib_dir, wheel) = (home.join("runtime"), of_cuda(&GGML, &packages.join("libggml-cuda.so"))?);
    stand_ins::ensure(&wheel, &repo.join("tests/gpusim/runtime"), &packages, &runtime_lib_dir)?;
    Ok(NewerEnv { root, packages, runtime_lib_dir })
}

/// PyTorch, of which it must be known what its wheel was built for.
///
/// # Errors
/// For a version that is not in the table of wheels; or when the wheel cannot be had.
pub(crate) fn torch_release(repo: &Path, cache: &Path, (home, version): (&Path, &str)) -> Result<NewerEnv> {
    let known: Vec<&str> = WHEELS.iter().map(|wheel| wheel.version).collect();
    let own = wheel(&known, version)?;
    let python = ensure(repo, cache, VERSIONS[0])?.python;
    let (root, packages) = (cache.join(super::NEWER).join("root"), home.join("site-packages"));
    let _lock = newer_root(cache, &root)?;
    let sources = repo.join("tests/gpusim/runtime");
    let (one, name) = (format!("torch=={version}"), format!("PyTorch {version}"));
    newer::packages(&packages, &python, (&sources.join("requirements.txt"), Some(&one)), &name)?;
    let runtime_lib_dir = home.join("runtime");
    stand_ins::ensure(own, &sources, &newer::torch_libraries(&packages), &runtime_lib_dir)?;
    Ok(NewerEnv { root, packages, runtime_lib_dir })
}

/// The wheels of a list in `tests/gpusim`, of which these have the wanted version: the root of the newer system, and the folder of packages.
fn unpacked(
    (repo, cache): (&Path, &Path),
    python: &Path,
    (home, version): (&Path, &str),
    (list, own): (&str, &[&str]),
) -> Result<(PathBuf, PathBuf)> {
    let (root, packages) = (cache.join(super::NEWER).join("root"), home.join("site-packages"));
    let _lock = newer_root(cache, &root)?;
    let listed = repo.join("tests/gpusim").join(list);
    let text = fs::read_to_string(&listed).with_context(|| format!("cannot read {}", listed.display()))?;
    fs::create_dir_all(home).with_context(|| format!("cannot create {}", home.display()))?;
    let wanted = home.join("requirements.txt");
    fs::write(&wanted, at_version(&text, own, version))
        .with_context(|| format!("cannot write {}", wanted.display()))?;
    newer::packages(&packages, python, (&wanted, None), version)?;
    Ok((root, packages))
}

/// A list of packages with another version of these.
fn at_version(listed: &str, own: &[&str], version: &str) -> String {
    let line = |line: &str| match line.split_once("==") {
        Some((name, _)) if own.contains(&name) => format!("{name}=={version}\n"),
        _ => format!("{line}\n"),
    };
    listed.lines().map(line).collect()
}

/// What is known of a wheel, for the CUDA version that this library of it asks for.
fn of_cuda(known: &Wheel, library: &Path) -> Result<Wheel> {
    let bytes = fs::read(library).with_context(|| format!("cannot read {}", library.display()))?;
    let asks_for = |name: &[u8]| bytes.windows(name.len()).any(|part| part == name);
    let Wheel { version, cuda_major, driver_version, cudnn_version, nccl_version } = *known;
    let wheel = Wheel { version, cuda_major, driver_version, cudnn_version, nccl_version };
    if asks_for(b"libcudart.so.13\0") {
        return Ok(wheel);
    }
    if asks_for(b"libcudart.so.12\0") {
        return Ok(Wheel { cuda_major: 12, driver_version: 12080, ..wheel });
    }
    bail!("it is for another CUDA version than 12 and 13")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_another_version_of_what_is_asked_for_alone() {
        let listed = "jax==1\nnumpy==2\njaxlib==1\n";
        assert_eq!(at_version(listed, &["jax", "jaxlib"], "0.9"), "jax==0.9\nnumpy==2\njaxlib==0.9\n");
    }

    #[test]
    fn a_version_that_nobody_has_looked_at_is_refused() {
        let error =
            torch_release(Path::new("/nowhere"), Path::new("/nowhere"), (Path::new("/nowhere"), "1.0.0")).unwrap_err();
        assert!(error.to_string().contains("PyTorch 1.0.0 is not known here"), "{error}");
        assert_eq!(settings_of("1.0.0"), Vec::new());
    }
}
