//! A Docker engine of the test's own, or Podman behind the same API. It has no network, and no
//! state that outlives the test.

use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::enclosure::{Cgroups, Enclosure, machine_proc, need_program};
use crate::{SimulatedGpu, SimulatedWorkload, rootfs};

/// Container engine to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// dockerd.
    Docker,
    /// `podman system service`.
    Podman,
}

impl Engine {
    fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Docker => &["docker", "dockerd"],
            Self::Podman => &["docker", "podman", "runc"],
        }
    }

    /// Returns the script that starts the engine. It mounts its own /run, so that the engine's
    /// files there are not the machine's.
    fn script(self) -> &'static str {
        match self {
            Self::Docker => {
                "mount -t tmpfs tmpfs /run && exec dockerd --storage-driver=vfs --bridge=none --iptables=false \
                --ip-masq=false --data-root=\"$1/root\" --exec-root=/run/docker --pidfile=/run/docker.pid \
                --host=\"unix://$1/docker.sock\""
            }
            Self::Podman => {
                "mount -t tmpfs tmpfs /run && exec podman --root=\"$1/root\" --runroot=/run/containers --tmpdir=/run/libpod \
                --storage-driver=vfs --cgroup-manager=cgroupfs --runtime=runc system service --time=0 \"unix://$1/docker.sock\""
            }
        }
    }

    /// Returns the control groups that the engine's containers share, the deepest first.
    fn parent_groups(self) -> &'static [&'static str] {
        match self {
            Self::Docker => &["docker"],
            Self::Podman => &["libpod_parent/conmon", "libpod_parent"],
        }
    }

    fn group_of(self, id: &str) -> String {
        match self {
            Self::Docker => format!("docker/{id}"),
            Self::Podman => format!("libpod_parent/libpod-{id}"),
        }
    }
}

/// A running engine.
#[derive(Debug)]
pub struct Docker {
    engine: Engine,
    // Dropped before the directory, which the engine's processes use.
    enclosure: Enclosure,
    directory: TempDir,
    machine: String,
}

impl Docker {
    /// Starts an engine. Ignores the test if it is not installed.
    ///
    /// # Panics
    /// When the engine does not start.
    pub fn start(gpu: &SimulatedGpu, engine: Engine, cgroups: Cgroups) -> Self {
        engine.programs().iter().for_each(|program| need_program(program));
        let directory = TempDir::with_prefix("memwatch-docker-").expect("a temporary directory");
        let enclosure = Enclosure::start(directory.path(), cgroups, engine.script(), engine.parent_groups());
        let machine = gpu.directory().to_str().expect("a plain path").to_owned();
        let mut docker = Self { engine, enclosure, directory, machine };
        let version = docker.client(&["version"]);
        let version = std::cell::RefCell::new(version);
        docker.enclosure.wait_until(|| {
            let mut version = version.borrow_mut();
            version.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
        });
        docker
    }

    /// Returns the path of the engine's socket as a command-line argument.
    ///
    /// # Panics
    /// When the temporary directory's path is not UTF-8.
    pub fn socket(&self) -> String {
        self.directory.path().join("docker.sock").to_str().expect("a plain path").to_owned()
    }

    /// Returns the command `docker` with these arguments.
    pub fn client(&self, words: &[&str]) -> Command {
        let mut command = Command::new("docker");
        command.env("DOCKER_HOST", format!("unix://{}", self.socket())).args(words);
        command
    }

    /// Runs `docker` with these arguments and returns its trimmed output.
    ///
    /// # Panics
    /// When the command fails.
    pub fn ask(&self, words: &[&str]) -> String {
        let output = self.client(words).output().expect("docker starts");
        assert!(output.status.success(), "docker {words:?}: {output:#?}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Creates an image with the simulator's workload.
    ///
    /// # Panics
    /// When the import fails.
    pub fn import(&self, gpu: &SimulatedGpu, image: &str) {
        let root = rootfs::make(gpu, self.directory.path());
        let mut tar = Command::new("tar")
            .arg("-C")
            .arg(root)
            .args(["-c", "."])
            .stdout(Stdio::piped())
            .spawn()
            .expect("tar starts");
        let contents = tar.stdout.take().expect("standard output is piped");
        let imported = self.client(&["import", "-", image]).stdin(contents).output().expect("docker starts");
        assert!(imported.status.success() && tar.wait().is_ok_and(|status| status.success()), "{imported:#?}");
    }

    /// Starts the workload in a new container with all of Docker's namespaces. [`SimulatedWorkload::tgid`]
    /// is the process id of the client.
    pub fn run(&mut self, name: &str, image: &str) -> SimulatedWorkload {
        let machine = format!("{}:{}", self.machine, rootfs::MACHINE);
        let proc = format!("{}:/machine-proc", machine_proc(self.directory.path()).display());
        let libraries = format!("LD_LIBRARY_PATH={}", rootfs::LIBRARIES);
        let mut command = self.client(&["run", "--interactive", "--network", "none", "--name", name]);
        command.args(["--volume", &machine, "--volume", &proc, "--env", &libraries]);
        command.args(["--env", "GPUSIM_LEDGER=/machine/ledger", "--env", "GPUSIM_PROC=/machine-proc"]);
        // Podman's default is more than root may have in some sandboxes.
        command.args(["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]);
        command.args([image, rootfs::WORKLOAD]);
        let mut workload = SimulatedWorkload::start(command);
        workload.ask("tgid");
        let id = self.id(name);
        self.enclosure.owns_group(self.engine.group_of(&id));
        workload
    }

    /// Restarts a stopped container. [`SimulatedWorkload::tgid`] is the process id of the client.
    pub fn restart(&self, name: &str) -> SimulatedWorkload {
        let mut workload = SimulatedWorkload::start(self.client(&["start", "--attach", "--interactive", name]));
        workload.ask("tgid");
        workload
    }

    /// Returns the id of a container.
    pub fn id(&self, name: &str) -> String {
        self.ask(&["inspect", "--format", "{{.Id}}", name])
    }
}
