//! A Slurm cluster of the test's own with this machine as its only node: munged, slurmctld and
//! slurmd in their own namespaces.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::enclosure::{Cgroups, Enclosure, machine_proc, need_program};
use crate::harness::cannot_run;
use crate::workload::Pipes;
use crate::{SimulatedGpu, SimulatedWorkload};

/// Name of the node, which is also part of the control group's name.
const NODE: &str = "memwatch-test";

/// A running cluster.
#[derive(Debug)]
pub struct Slurm {
    // Dropped before the directory, which the daemons use.
    enclosure: Enclosure,
    directory: TempDir,
}

/// A started job.
#[derive(Debug)]
pub struct StartedJob {
    srun: Child,
    /// Tasks by number.
    pub tasks: Vec<SimulatedWorkload>,
}

impl Drop for StartedJob {
    fn drop(&mut self) {
        // Fails if srun has already exited.
        let _ = self.srun.kill();
        let _ = self.srun.wait();
    }
}

impl Slurm {
    /// Starts the cluster. Ignores the test if Slurm is not installed.
    ///
    /// # Panics
    /// When the cluster does not start.
    pub fn start() -> Self {
        ["munged", "slurmctld", "slurmd", "srun", "sinfo"].into_iter().for_each(need_program);
        if !Path::new("/sys/fs/cgroup/freezer").exists() {
            cannot_run(
                "this machine has no control groups of version 1, and Slurm's plugin for version 2 wants systemd",
            );
        }
        let directory = TempDir::with_prefix("memwatch-slurm-").expect("a temporary directory");
        let path = directory.path().to_str().expect("a plain path");
        for folder in ["munge", "spool", "state"] {
            fs::create_dir(directory.path().join(folder)).expect("a directory in the temporary one");
        }
        write(directory.path(), "slurm.conf", &configuration(path));
        write(
            directory.path(),
            "cgroup.conf",
            "CgroupPlugin=cgroup/v1\nConstrainDevices=yes\nConstrainRAMSpace=no\nConstrainCores=no\n",
        );
        let key = directory.path().join("munge/key");
        fs::copy("/proc/sys/kernel/random/uuid", &key).expect("a key");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o400)).expect("the key is ours");
        let script = "munged --force --key-file=\"$1/munge/key\" --socket=\"$1/munge/socket\" --pid-file=\"$1/munge/pid\" \
            --log-file=\"$1/munge/log\" --seed-file=\"$1/munge/seed\" && export SLURM_CONF=\"$1/slurm.conf\" && \
            slurmctld -f \"$1/slurm.conf\" && exec slurmd -D -f \"$1/slurm.conf\" -N memwatch-test";
        let mut enclosure = Enclosure::start(directory.path(), Cgroups::Machine, script, &[]);
        enclosure.owns_group(format!("slurm_{NODE}"));
        let mut slurm = Self { enclosure, directory };
        let configuration = slurm.directory.path().join("slurm.conf");
        slurm.enclosure.wait_until(|| {
            let mut nodes = Command::new("sinfo");
            nodes.env("SLURM_CONF", &configuration).args(["--noheader", "--format=%T"]);
            nodes.output().is_ok_and(|output| output.stdout.starts_with(b"idle"))
        });
        slurm
    }

    /// Starts a job with one step of `tasks` tasks, each of which runs the workload.
    ///
    /// # Panics
    /// When the job does not start.
    pub fn run(&self, gpu: &SimulatedGpu, name: &str, tasks: usize) -> StartedJob {
        let places: Vec<_> = (0..tasks).map(|task| self.directory.path().join(format!("task{task}"))).collect();
        let pipes: Vec<_> = places.iter().map(|place| Pipes::make(place)).collect();
        let mut command = Command::new("srun");
        gpu.apply(&mut command);
        command.env("SLURM_CONF", self.directory.path().join("slurm.conf"));
        command.env("GPUSIM_PROC", machine_proc(self.directory.path()));
        command.env("MEMWATCH_PIPES", self.directory.path()).env("MEMWATCH_WORKLOAD", gpu.workload_program());
        command.args(["--input=none", "--overcommit", "--job-name", name, "--ntasks", &tasks.to_string(), "sh", "-c"]);
        command.arg("cd \"$MEMWATCH_PIPES/task$SLURM_PROCID\" && exec \"$MEMWATCH_WORKLOAD\" <questions >answers");
        let srun = command.stdin(Stdio::null()).spawn().expect("srun starts");
        StartedJob { srun, tasks: pipes.into_iter().map(SimulatedWorkload::behind).collect() }
    }

    /// Returns the number of the job with this name.
    ///
    /// # Panics
    /// When squeue cannot be started.
    pub fn job(&self, name: &str) -> String {
        let mut jobs = Command::new("squeue");
        jobs.env("SLURM_CONF", self.directory.path().join("slurm.conf"));
        let output = jobs.args(["--noheader", "--format=%A", "--name", name]).output().expect("squeue starts");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

fn write(directory: &Path, name: &str, text: &str) {
    fs::write(directory.join(name), text).expect("a file in the temporary directory");
}

/// Returns two ports that were free a moment ago.
fn ports() -> [u16; 2] {
    let listen = || TcpListener::bind("127.0.0.1:0").expect("a free port");
    [listen(), listen()].map(|listener| listener.local_addr().expect("a bound port").port())
}

fn configuration(directory: &str) -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("a host name");
    let host = host.trim().split('.').next().unwrap_or("localhost");
    let [controller, node] = ports();
    format!(
        "ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge/socket
CredType=cred/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/state/slurmctld.pid
SlurmdPidFile={directory}/spool/slurmd.pid
SlurmctldLogFile={directory}/log
SlurmdLogFile={directory}/log
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
JobAcctGatherType=jobacct_gather/cgroup
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
NodeName={NODE} NodeHostname={host} NodeAddr=127.0.0.1 Port={node} CPUs=1 State=UNKNOWN
PartitionName=all Nodes={NODE} Default=YES OverSubscribe=FORCE State=UP
"
    )
}
