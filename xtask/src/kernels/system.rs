//! The system of a virtual machine: Debian's C library, a shell and a kernel, unpacked without
//! installation, as an initramfs archive.

use super::built::Programs;
use super::machine::Processor;
use crate::package::copy_tree;
use crate::repo::Repo;
use crate::run::run_quietly;
use anyhow::{Context as _, Result, bail};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Packages besides the kernel. The test programs read thread names and use nothing else of a
/// system.
const PACKAGES: &str = "busybox-static,libc6,libgcc-s1";
/// Unused directories of the packages.
const NOT_NEEDED: [&str; 8] =
    ["boot", "lib/modules", "usr/lib/modules", "usr/share", "var", "usr/lib/python3", "usr/sbin", "usr/lib/linux"];
const MOUNT_POINTS: [&str; 6] = ["proc", "sys", "dev", "tmp", "run", "root"];
/// File written last, so that a directory without it, or with other contents, is rebuilt.
const STAMP: &str = ".memwatch-complete";
/// Directory of the programs in the machine.
const HOME: &str = "memwatch";

/// An unpacked system.
pub(super) struct MachineSystem {
    folder: PathBuf,
}

impl MachineSystem {
    /// Unpacks the system, unless it is complete already.
    ///
    /// # Errors
    /// Debian's packages cannot be downloaded or unpacked.
    pub(super) fn ensure(folder: &Path, release: &str, processor: &Processor) -> Result<Self> {
        let system = Self { folder: folder.to_owned() };
        let wanted = format!("{release} {} {PACKAGES} {}", processor.debian, processor.kernel_package);
        if fs::read_to_string(folder.join(STAMP)).is_ok_and(|made_from| made_from == wanted) {
            return Ok(system);
        }
        remove(folder)?;
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        eprintln!("set-up: unpacking Debian {release} for {} in {} ...", processor.name, folder.display());
        let root = folder.join("root");
        let mut debian = Command::new("mmdebstrap");
        debian.args(["--quiet", "--variant=extract", &format!("--architectures={}", processor.debian)]);
        debian.arg(format!("--include={PACKAGES},{}", processor.kernel_package)).arg(release).arg(&root);
        run_quietly(&mut debian).context("mmdebstrap could not unpack Debian's packages")?;
        fs::copy(newest_kernel(&root)?, system.kernel()).context("cannot copy the kernel")?;
        trim(&root)?;
        archive(&root, &folder.join("root.cpio"))?;
        remove(&root)?;
        fs::write(folder.join(STAMP), wanted).context("cannot write the stamp")?;
        Ok(system)
    }

    /// Returns the kernel of the system.
    pub(super) fn kernel(&self) -> PathBuf {
        self.folder.join("vmlinuz")
    }

    /// Makes the archive with the programs, the simulated GPU and the init script.
    ///
    /// # Errors
    /// A file cannot be copied.
    pub(super) fn with_programs(&self, repo: &Repo, programs: &Programs, tests: &str) -> Result<PathBuf> {
        let load = self.folder.join("payload");
        remove(&load)?;
        let home = load.join(HOME);
        fs::create_dir_all(&home)?;
        for (from, name) in [(&programs.memwatch, "memwatch"), (&programs.tests, "integration")] {
            fs::copy(from, home.join(name)).with_context(|| format!("cannot copy {}", from.display()))?;
        }
        let mut settings = format!("TESTS={tests}\n");
        for (variable, from) in &programs.simulators {
            // At their build path, since the simulator's libraries refer to each other by it.
            let to = load.join(from.strip_prefix("/").context("the repository's path begins at the root")?);
            for part in ["bin", "lib", "device"] {
                copy_tree(&from.join(part), &to.join(part))?;
            }
            writeln!(settings, "export {variable}='{}'", from.display())?;
        }
        fs::write(home.join("settings"), settings)?;
        let init = load.join("init");
        fs::copy(repo.path("tests/kernels/init.sh"), &init).context("cannot copy init.sh")?;
        fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).context("cannot make init.sh executable")?;
        let (added, whole) = (self.folder.join("payload.cpio"), self.folder.join("whole.cpio"));
        archive(&load, &added)?;
        // The kernel unpacks concatenated archives in order.
        let mut to = File::create(&whole).with_context(|| format!("cannot create {}", whole.display()))?;
        for part in [&self.folder.join("root.cpio"), &added] {
            io::copy(&mut File::open(part)?, &mut to).with_context(|| format!("cannot copy {}", part.display()))?;
        }
        Ok(whole)
    }
}

/// Removes unused directories, and creates mount points.
fn trim(root: &Path) -> Result<()> {
    for name in NOT_NEEDED {
        remove(&root.join(name))?;
    }
    for name in MOUNT_POINTS {
        fs::create_dir_all(root.join(name)).with_context(|| format!("cannot create {name}"))?;
    }
    // In some releases these are symlinks, in others directories.
    for name in ["bin", "lib", "lib64"] {
        let (link, target) = (root.join(name), Path::new("usr").join(name));
        if !link.exists() && root.join(&target).exists() {
            std::os::unix::fs::symlink(&target, &link).with_context(|| format!("cannot link {name}"))?;
        }
    }
    Ok(())
}

/// Returns the only kernel of the package.
fn newest_kernel(root: &Path) -> Result<PathBuf> {
    let boot = root.join("boot");
    let entries = fs::read_dir(&boot).with_context(|| format!("cannot list {}", boot.display()))?;
    let mut kernels: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    kernels.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinu")));
    kernels.sort();
    match kernels.pop() {
        Some(kernel) => Ok(kernel),
        None => bail!("Debian's package has no kernel in {}", boot.display()),
    }
}

/// Packs a directory in the format that the kernel unpacks
/// (`Documentation/driver-api/early-userspace/buffer-format.rst`).
fn archive(folder: &Path, to: &Path) -> Result<()> {
    let mut list = Command::new("find");
    let mut list = list.arg(".").current_dir(folder).stdout(Stdio::piped()).spawn().context("find does not start")?;
    let names = list.stdout.take().context("its output is a pipe")?;
    let mut pack = Command::new("cpio");
    pack.args(["--quiet", "--create", "--format=newc", "--owner=0:0"]).current_dir(folder).stdin(names);
    let file = File::create(to).with_context(|| format!("cannot create {}", to.display()))?;
    let packed = pack.stdout(file).status().context("cpio does not start")?;
    let listed = list.wait()?;
    if packed.success() && listed.success() { Ok(()) } else { bail!("cannot pack {}", folder.display()) }
}

fn remove(path: &Path) -> Result<()> {
    if path.is_symlink() || path.is_file() {
        fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
    } else if path.exists() {
        fs::remove_dir_all(path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}
