//! Runs a program in the newer system: its root directory with directories of the machine mounted
//! in it, in a separate mount namespace.

use super::NewerEnv;
use anyhow::{Context as _, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// `$1` is the root, followed by directories, `--` and the program.
const MOUNT: &str = r#"root=$1; shift
mount -t tmpfs tmpfs "$root/tmp" && mount --rbind /proc "$root/proc" && mount --rbind /dev "$root/dev" || exit
while [ "$1" != -- ]; do mkdir -p "$root$1" && mount --bind "$1" "$root$1" || exit; shift; done
shift
exec chroot "$root" "$@""#;

impl NewerEnv {
    /// Returns the command of a script of `tests/workloads` on JAX or TensorFlow, with the
    /// simulated driver in `driver` and `ledger` as the state of its devices. The started process
    /// becomes the script's.
    ///
    /// # Errors
    /// A directory is missing.
    pub(crate) fn arena_script(&self, repo: &Path, (driver, ledger): (&Path, &Path), script: &str) -> Result<Command> {
        let scripts = repo.join("tests/workloads");
        let folders = [&self.packages, &self.runtime_lib_dir, &driver.to_owned(), &scripts];
        let absolute =
            |folder: &&PathBuf| folder.canonicalize().with_context(|| format!("{} is missing", folder.display()));
        let folders: Vec<PathBuf> = folders.iter().map(absolute).collect::<Result<_>>()?;
        let root = self.root.canonicalize().with_context(|| format!("{} is missing", self.root.display()))?;
        let join = |paths: &[PathBuf]| std::env::join_paths(paths).context("a path holds a colon");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", MOUNT, "sh"]).arg(root).args(&folders);
        command.args(["--", "/usr/bin/python3.13"]).arg(folders[3].join(script));
        // XLA runs the program `ptxas` as its assembler; the wheel contains it.
        command.env("PATH", join(&[folders[0].join("nvidia/cu13/bin"), "/usr/sbin".into(), "/usr/bin".into()])?);
        command.env("LD_LIBRARY_PATH", join(&[folders[2].join("lib"), folders[1].clone()])?);
        command.env("PYTHONPATH", &folders[0]).env("PYTHONDONTWRITEBYTECODE", "1").env("GPUSIM_LEDGER", ledger);
        command.env("JAX_PLATFORMS", "cuda").env("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1");
        command.env("XLA_FLAGS", "--xla_gpu_autotune_level=0").env("TF_CPP_MIN_LOG_LEVEL", "3");
        command.env("GPUSIM_DRIVER_VERSION", "13020");
        Ok(command)
    }
}
