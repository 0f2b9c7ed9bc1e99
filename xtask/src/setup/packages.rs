//! Packages from the system's package manager.

use super::{announce, step};
use crate::run::{run_quietly, succeeds};
use anyhow::{Result, anyhow, bail};
use std::path::Path;
use std::process::Command;

/// A dependency of a task that neither rustup nor cargo provides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Package {
    /// A C compiler and libc headers: links every Rust program, compiles the simulated GPU.
    CCompiler,
    /// A cross compiler for 64-bit Arm.
    CCompilerForAarch64,
    /// A C++ compiler: the fuzz targets contain libFuzzer.
    CxxCompiler,
    /// `python3 -m venv`: the simulated GPU's PyTorch lives in virtual environments.
    PythonVenv,
    /// `systemd-analyze`: judges the agent's unit.
    Systemd,
    /// bpftrace, which `bench overhead` compares memwatch with.
    Bpftrace,
    /// Prometheus with promtool, and network namespaces: the agent's metrics are tested with a real
    /// one.
    Prometheus,
    /// Alertmanager with amtool: the shipped routes are tested with a real one.
    Alertmanager,
    /// Certificates for the tests of TLS.
    Openssl,
    /// VictoriaMetrics, which also provides Prometheus's API: `bench fleet` compares both.
    VictoriaMetrics,
    /// Node.js: installs and runs programs that read profiles.
    NodeJs,
    /// Container engines: the tests run the simulated GPU's workload in them.
    Containers,
    /// Slurm: the tests run the simulated GPU's workload as a batch job.
    Slurm,
    /// Unpacks Debian's packages into a folder.
    Mmdebstrap,
    /// QEMU and tools that make disks for virtual machines.
    Qemu,
    /// Another malloc: a program that uses it is read.
    Jemalloc,
    /// A browser: the tests open the agent's page in it.
    Chromium,
}

impl Package {
    /// Returns the Debian packages.
    fn names(self) -> &'static [&'static str] {
        match self {
            Self::CCompiler => &["gcc", "libc6-dev"],
            Self::CCompilerForAarch64 => &["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"],
            Self::CxxCompiler => &["g++"],
            Self::PythonVenv => &["python3-venv"],
            Self::Systemd => &["systemd"],
            Self::Bpftrace => &["bpftrace"],
            Self::Prometheus => &["prometheus", "iproute2"],
            Self::Alertmanager => &["prometheus-alertmanager"],
            Self::Openssl => &["openssl"],
            Self::VictoriaMetrics => &["victoria-metrics"],
            Self::NodeJs => &["nodejs", "npm"],
            Self::Containers => &["docker.io", "containerd", "runc", "podman"],
            Self::Slurm => &["slurmctld", "slurmd", "slurm-client", "munge"],
            Self::Mmdebstrap => &["mmdebstrap"],
            Self::Qemu => &["qemu-system-x86", "qemu-system-arm", "e2fsprogs", "cpio"],
            Self::Jemalloc => &["libjemalloc2"],
            Self::Chromium => &["chromium"],
        }
    }

    /// Returns a command that succeeds if the dependency is already installed, by whatever means.
    fn probe(self) -> &'static [&'static str] {
        match self {
            Self::CCompiler => &["cc", "-include", "stdio.h", "-E", "-x", "c", "/dev/null"],
            Self::CCompilerForAarch64 => {
                &["aarch64-linux-gnu-gcc", "-include", "stdio.h", "-E", "-x", "c", "/dev/null"]
            }
            Self::CxxCompiler => &["c++", "-include", "vector", "-E", "-x", "c++", "/dev/null"],
            Self::PythonVenv => &["python3", "-c", "import venv, ensurepip"],
            Self::Systemd => &["systemd-analyze", "--version"],
            Self::Bpftrace => &["bpftrace", "--version"],
            Self::Prometheus => &["sh", "-c", "promtool --version && prometheus --version && ip -V"],
            Self::Alertmanager => &["sh", "-c", "amtool --version && prometheus-alertmanager --version"],
            Self::Openssl => &["openssl", "version"],
            Self::VictoriaMetrics => &["sh", "-c", "victoria-metrics -version && vmalert -version"],
            Self::NodeJs => &["sh", "-c", "node --version && npm --version"],
            Self::Containers => &[
                "sh",
                "-c",
                "docker --version && dockerd --version && containerd --version && runc --version && podman --version",
            ],
            Self::Slurm => &["sh", "-c", "srun --version && slurmd -V && slurmctld -V && munged --version"],
            Self::Mmdebstrap => &["mmdebstrap", "--version"],
            Self::Qemu => &[
                "sh",
                "-c",
                "qemu-system-x86_64 --version && qemu-system-aarch64 --version && mkfs.ext4 -V && cpio --version",
            ],
            Self::Jemalloc => &["sh", "-c", "ls /usr/lib/*/libjemalloc.so.2"],
            Self::Chromium => &["chromium", "--version"],
        }
    }

    /// Returns the service that Debian starts with the package, which is not wanted here.
    fn service(self) -> Option<&'static str> {
        match self {
            Self::Prometheus => Some("prometheus"),
            Self::Alertmanager => Some("prometheus-alertmanager"),
            Self::VictoriaMetrics => Some("victoria-metrics"),
            _ => None,
        }
    }

    fn is_there(self) -> bool {
        let probe = self.probe();
        succeeds(Command::new(probe[0]).args(&probe[1..])) || self.names().iter().all(|name| is_installed(name))
    }
}

/// Installs missing packages if that is possible without interaction: as root on a Debian-like
/// system.
///
/// # Errors
/// Otherwise, if a package is missing: the error has the command to type.
pub(crate) fn ensure(needed: &[Package]) -> Result<()> {
    step("system packages", || {
        let missing: Vec<_> = needed.iter().copied().filter(|package| !package.is_there()).collect();
        let names: Vec<_> = missing.iter().flat_map(|package| package.names()).copied().collect();
        if names.is_empty() {
            return Ok("nothing is missing from the system's packages".to_owned());
        }
        let names_line = names.join(" ");
        if !is_root() || !Path::new("/usr/bin/apt-get").exists() {
            bail!("missing: {names_line}. On Debian or Ubuntu: sudo apt-get install -y {names_line}");
        }
        announce(&format!("installing {names_line}"));
        let apt =
            |words: &[&str]| run_quietly(Command::new("apt-get").args(words).env("DEBIAN_FRONTEND", "noninteractive"));
        apt(&["update"])?;
        apt(&[["install", "-y", "--no-install-recommends"].as_slice(), &names].concat())?;
        for service in missing.iter().filter_map(|package| package.service()) {
            // Without systemd, the service was not started.
            succeeds(Command::new("systemctl").args(["disable", "--now", service]));
        }
        Ok(format!("installed {names_line}"))
    })
}

/// Installs daemons and other large programs that some tests start, or prints the command to type
/// and that these tests will be skipped.
///
/// Nothing is installed if systemd runs: it would start a package's daemons at once, for the whole
/// machine.
pub(crate) fn ensure_daemons(wanted: &[Package]) {
    let missing = wanted.iter().filter(|package| !package.is_there()).flat_map(|package| package.names());
    let names_line = missing.copied().collect::<Vec<_>>().join(" ");
    let would_start = Path::new("/run/systemd/system").exists();
    let outcome = if would_start && !names_line.is_empty() {
        Err(anyhow!("missing: {names_line}. On Debian or Ubuntu: sudo apt-get install -y {names_line}"))
    } else {
        ensure(wanted)
    };
    if let Err(error) = outcome {
        eprintln!("set-up: the tests that need them are SKIPPED. {error:#}");
    }
}

fn is_installed(name: &str) -> bool {
    Command::new("dpkg-query")
        .args(["--show", "--showformat=${db:Status-Status}", name])
        .output()
        .is_ok_and(|output| output.stdout == b"installed")
}

/// Whether we can load eBPF programs and install packages without sudo.
pub(crate) fn is_root() -> bool {
    // SAFETY: geteuid takes no arguments and cannot fail.
    unsafe { libc::geteuid() == 0 }
}
