//! Whose a process is: its container, pod, job, unit, rank and user, from its control group's path and a few variables of its
//! environment. String work only; what runtimes call these things comes later, as [`ContainerNames`].

mod cgroup;
mod environment;
mod path;
mod slurm;
/// A number of at most twenty digits.
fn is_number(text: &str) -> bool {
    (1..=20).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::words::{Name, Tgid, json};
use cgroup::Groups;
use path::Place;

/// The variables of a program's environment that memwatch reads; nothing else of it is kept.
///
/// Slurm's: sbatch(1), srun(1) "OUTPUT ENVIRONMENT VARIABLES". `RANK`, `LOCAL_RANK`, `WORLD_SIZE`: torchrun. `OMPI_…`: Open MPI's mpirun(1).
pub const VARIABLES: [&str; 16] = [
    "SLURM_JOB_ID",
    "SLURM_JOB_NAME",
    "SLURM_STEP_ID",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NTASKS",
    "SLURM_JOB_ACCOUNT",
    "SLURM_JOB_PARTITION",
    "SLURM_CLUSTER_NAME",
    "SLURM_JOB_GPUS",
    "SLURM_STEP_GPUS",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
];

/// Variables of [`VARIABLES`] that a process has, with their values.
pub type Environment = BTreeMap<Name, String>;

/// Whose a process is. What is not known, or does not apply, is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The path by which this was decided, below the root of its hierarchy.
    pub cgroup: Option<String>,
    /// Its container; of nested ones the innermost.
    pub container: Option<Container>,
    /// Its Kubernetes pod.
    pub pod: Option<Pod>,
    /// Its Slurm job.
    pub slurm: Option<SlurmJob>,
    /// Its systemd service, such as `jupyterhub.service`; the one inside its container or job, where it is in one.
    pub unit: Option<String>,
    /// Its login session's scope, such as `session-3.scope`; not of what is in a container or job.
    pub session: Option<String>,
    /// Its place among the processes of a distributed program.
    pub rank: Option<Rank>,
}

/// A container.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Container {
    /// `docker`, `containerd`, `cri-o`, `podman`, `nerdctl`, `lxc`, `nspawn`, …; `None` where the path does not say.
    pub runtime: Option<Name>,
    /// The runtime's id of it: 64 hex digits, or what the runtime calls it.
    pub id: String,
    /// What people call it.
    pub name: Option<String>,
    /// The image it was made from.
    pub image: Option<String>,
    /// The user whose engine has made it, in groups of the user's own: its id is what the user calls it.
    #[serde(default)]
    #[serde(serialize_with = "json::apart")]
    pub of_user: Option<u32>,
}

/// A Kubernetes pod, and the container in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Pod {
    /// The API server's id of the pod, with dashes; of a static pod the hash of its file.
    pub uid: String,
    /// `guaranteed`, `burstable` or `besteffort`.
    pub qos: Option<Name>,
    /// Its namespace.
    pub namespace: Option<String>,
    /// Its name.
    pub name: Option<String>,
    /// The name of the container in the pod's specification.
    pub container: Option<String>,
}

/// A place in a Slurm job.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SlurmJob {
    /// The job's number.
    pub job_id: Option<String>,
    /// The job's SLUID, where the path has that in place of the number (Slurm 26.05).
    pub sluid: Option<String>,
    /// A number, `batch`, `extern`, `interactive`, or `0+1` of a heterogeneous job.
    pub step: Option<String>,
    /// A number, or `special`.
    pub task: Option<String>,
    /// The job's name.
    pub name: Option<String>,
    /// Who pays.
    pub account: Option<String>,
    /// The partition.
    pub partition: Option<String>,
    /// The cluster.
    pub cluster: Option<String>,
}

/// A process's place among those of a distributed program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rank {
    /// Among all.
    pub rank: Option<u32>,
    /// Among those of this machine.
    pub local_rank: Option<u32>,
    /// How many there are.
    pub world_size: Option<u32>,
}

/// A living process that started another, or started one that did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ancestor {
    /// Process id.
    pub tgid: Tgid,
    /// Thread-group leader's name.
    pub comm: String,
}

/// A container, by the user whose it is and by its id: what users call theirs is nobody else's.
pub type ContainerKey = (Option<u32>, String);

/// What a runtime says of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerNames {
    /// The runtime's id, as [`Container::id`].
    pub id: String,
    /// What people call it.
    pub name: Option<String>,
    /// The image it was made from.
    pub image: Option<String>,
    /// The user whose engine says so; `None` for the machine's.
    #[serde(default)]
    pub of_user: Option<u32>,
    /// The pod it is in.
    pub pod: Option<PodNames>,
}

/// What a runtime says of a pod's container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodNames {
    /// As [`Pod::uid`].
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The name of the container in the pod's specification.
    pub container: Option<String>,
}

/// Devices that the kubelet has promised to a container, used or not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promise {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The container's name in the pod.
    pub container: String,
    /// The resource, such as `nvidia.com/gpu`.
    pub resource: String,
    /// The device plugin's ids: GPU UUIDs, MIG UUIDs, or shared ones such as `GPU-…::3`.
    pub devices: Vec<String>,
}

/// Device memory by the kernel's own account of a control group (`dmem.current`, Linux 6.14): cgroup-v2.rst, "DMEM".
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupMemory {
    /// The group's path.
    pub cgroup: String,
    /// The region, such as `drm/0000:03:00.0/vram0`.
    pub region: String,
    /// Bytes charged to the group and those below it.
    pub current_bytes: u64,
}

/// As many letters of an id stand for a name that is not known; Docker shows as many.
const SHORT_ID: usize = 12;

/// The beginning of an id, for people.
pub fn short_id(id: &str) -> String {
    id.chars().take(SHORT_ID).collect()
}

impl Container {
    /// What people call it, or the beginning of its id; with its user, where it is a user's.
    pub fn label(&self) -> String {
        let name = self.name.clone().unwrap_or_else(|| short_id(&self.id));
        self.of_user.map_or_else(|| name.clone(), |uid| format!("user-{uid}/{name}"))
    }

    /// What distinguishes it from all others.
    pub fn key(&self) -> ContainerKey {
        (self.of_user, self.id.clone())
    }
}

impl ContainerNames {
    /// Of which container.
    pub fn key(&self) -> ContainerKey {
        (self.of_user, self.id.clone())
    }
}

impl SlurmJob {
    /// The job's number; its SLUID where that is all that is known.
    pub fn number(&self) -> Option<&str> {
        self.job_id.as_deref().or(self.sluid.as_deref())
    }
}

impl Owner {
    /// Whose a process with this `/proc/PID/cgroup` and environment is, without names that only a runtime knows.
    ///
    /// Any text is fine: what is not understood shows nothing.
    pub fn decide(cgroups: &str, environment: &Environment) -> Self {
        let Groups { path, place } = Groups::of(cgroups);
        let Place { container, pod, slurm, unit, session, .. } = place;
        let mut owner = Self { cgroup: path, container, pod, slurm, unit, session, rank: None };
        environment::add(&mut owner, environment);
        owner
    }

    /// The same with what its container's runtime calls things.
    #[must_use]
    pub fn named(mut self, names: Option<&ContainerNames>) -> Self {
        let Some(names) = names else { return self };
        if let Some(container) = &mut self.container {
            container.name = names.name.clone().or_else(|| container.name.take());
            container.image = names.image.clone().or_else(|| container.image.take());
        }
        // Of a pod in a container (a node in Docker), the names are those of the container asked for.
        if let (Some(pod), Some(names)) = (&mut self.pod, &names.pod) {
            pod.namespace = Some(names.namespace.clone());
            pod.name = Some(names.name.clone());
            pod.container.clone_from(&names.container);
        }
        self
    }
}
