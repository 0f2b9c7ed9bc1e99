//! `cargo xtask package --check`: tests the packages in a virtual machine with systemd as its first
//! process and Debian's kernel.
//!
//! A container would not suffice: the agent refuses to run in another pid namespace.

use super::BuiltPackages;
use crate::gpusim::Prologue;
use crate::integration;
use crate::repo::Repo;
use crate::run::{line, run_quietly};
use crate::setup::{self, Package};
use anyhow::{Context as _, Result, bail};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Debian release. Its kernel has `uprobe_multi`, which pinned probes need.
const RELEASE: &str = "trixie";
/// Packages beyond the minimal system: a kernel for virtual machines, systemd, and programs of the
/// check.
const PACKAGES: &str = "linux-image-cloud-amd64,initramfs-tools,zstd,systemd,systemd-sysv,dbus,rpm,iproute2,procps,passwd,init-system-helpers";
/// Kernel modules needed to mount the disk.
const MODULES: &str = "virtio_pci virtio_blk ext4";
/// The check script, and the unit that starts it.
const FILES: [&str; 2] = ["check_system.sh", "check.service"];
/// Last line of a successful check.
const FINE: &str = "PACKAGES ARE FINE";
/// Time limit in seconds: an emulated machine takes a minute to start.
const AT_MOST_SECONDS: &str = "900";
/// File written last, so that a directory without it, or with other contents, is rebuilt.
const STAMP: &str = ".memwatch-complete";

/// Installs, upgrades and removes the packages in the machine; `later` is the version to upgrade
/// to.
///
/// # Errors
/// The machine cannot be made, or the check fails; its output is already on the terminal.
pub(super) fn check(repo: &Repo, packages: &BuiltPackages, later: &BuiltPackages, folder: &Path) -> Result<()> {
    setup::packages(&[Package::CCompiler, Package::Mmdebstrap, Package::Qemu])?;
    let folder = folder.join("system");
    let image = image(repo, &folder)?;
    let load = payload(repo, packages, later, &folder)?;
    let mut machine = Command::new("timeout");
    machine.args([AT_MOST_SECONDS, "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"]);
    machine
        .args(["-m", "2048", "-nic", "none", "-display", "none", "-no-reboot", "-kernel"])
        .arg(folder.join("vmlinuz"));
    machine.arg("-initrd").arg(folder.join("initrd"));
    machine.args(["-append", "root=/dev/vda rw console=ttyS0 quiet"]);
    // The first serial port has the system's output, the second the check's.
    machine.arg("-serial").arg(format!("file:{}", folder.join("console.log").display())).args(["-serial", "stdio"]);
    machine.arg("-drive").arg(drive(&image, "snapshot=on")).arg("-drive").arg(drive(&load, "readonly=on"));
    let words = line(&machine);
    let mut machine = machine.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("qemu does not start")?;
    let output = machine.stdout.take().context("its output is a pipe")?;
    let mut is_fine = false;
    for line in BufReader::new(output).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).trim_end().to_owned();
        println!("{line}");
        is_fine |= line == FINE;
    }
    machine.wait()?;
    if is_fine { Ok(()) } else { bail!("the check in the virtual machine failed: {words}") }
}

fn drive(file: &Path, setting: &str) -> String {
    format!("file={},if=virtio,format=raw,{setting}", file.display())
}

/// Returns the disk of a small Debian that runs the check after boot, with its kernel next to it;
/// made if needed.
fn image(repo: &Repo, folder: &Path) -> Result<PathBuf> {
    let (image, stamp) = (folder.join("root.ext4"), folder.join(STAMP));
    let unit = fs::read_to_string(repo.path("tests/packages").join(FILES[1]))?;
    let wanted = format!("{RELEASE} {PACKAGES} {MODULES}\n{unit}");
    if fs::read_to_string(&stamp).is_ok_and(|made_from| made_from == wanted) {
        return Ok(image);
    }
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    eprintln!("set-up: unpacking Debian {RELEASE} in {} (two minutes) ...", folder.display());
    let root = folder.join("root");
    let mut debian = Command::new("mmdebstrap");
    debian.args(["--quiet", "--variant=minbase", &format!("--include={PACKAGES}")]);
    debian.arg(format!(
        "--customize-hook=for module in {MODULES}; do echo $module; done >>\"$1/etc/initramfs-tools/modules\""
    ));
    debian.arg("--customize-hook=sed -i s/MODULES=most/MODULES=list/ \"$1/etc/initramfs-tools/initramfs.conf\"");
    debian.arg("--customize-hook=chroot \"$1\" update-initramfs -u");
    run_quietly(debian.arg(RELEASE).arg(&root)).context("mmdebstrap could not make the system")?;
    let units = root.join("etc/systemd/system");
    fs::write(units.join(FILES[1]), unit).context("cannot write the check's unit")?;
    let wanted_by = units.join("graphical.target.wants");
    fs::create_dir_all(&wanted_by)?;
    symlink(Path::new("..").join(FILES[1]), wanted_by.join(FILES[1])).context("cannot enable the check's unit")?;
    for kernel in ["vmlinuz", "initrd"] {
        // Symlinks that Debian makes to its newest kernel.
        let name = if kernel == "initrd" { "initrd.img" } else { kernel };
        fs::copy(root.join(name), folder.join(kernel)).with_context(|| format!("cannot copy {name}"))?;
    }
    run_quietly(Command::new("truncate").args(["--size", "2G"]).arg(&image))?;
    run_quietly(Command::new("mkfs.ext4").args(["-q", "-d"]).arg(&root).arg(&image))?;
    fs::remove_dir_all(&root).with_context(|| format!("cannot remove {}", root.display()))?;
    fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(image)
}

/// Makes the second disk: an archive with the packages, the check and the simulated GPU.
fn payload(repo: &Repo, packages: &BuiltPackages, later: &BuiltPackages, folder: &Path) -> Result<PathBuf> {
    let load = folder.join("payload");
    if load.exists() {
        fs::remove_dir_all(&load).with_context(|| format!("cannot remove {}", load.display()))?;
    }
    fs::create_dir_all(&load)?;
    let script = repo.path("tests/packages").join(FILES[0]);
    let named = [
        (&packages.deb, "first.deb"),
        (&later.deb, "second.deb"),
        (&packages.rpm, "first.rpm"),
        (&later.rpm, "second.rpm"),
        (&script, FILES[0]),
    ];
    for (from, name) in named {
        fs::copy(from, load.join(name)).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    let simulator = integration::build_simulator(repo, Prologue::Cmp)?;
    for part in ["bin", "lib", "device"] {
        super::tree::copy(&simulator.join(part), &load.join("gpusim").join(part))?;
    }
    let archive = folder.join("payload.tar");
    run_quietly(
        Command::new("tar").arg("--directory").arg(&load).arg("--create").arg("--file").arg(&archive).arg("."),
    )?;
    Ok(archive)
}
