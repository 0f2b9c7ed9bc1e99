//! Owner of a process: container, pod, job, unit, rank and user, from the path of its control group
//! and a few environment variables. Only text processing; names from container runtimes are added
//! later, as [`ContainerNames`].

mod cgroup;
mod environment;
mod path;
mod slurm;
/// Returns whether the text is a number of at most twenty digits.
fn is_number(text: &str) -> bool {
    (1..=20).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::words::{Name, Tgid, json};
use cgroup::CgroupPaths;
use path::PathOwner;

/// Environment variables that memwatch reads; no other variable is kept.
///
/// Slurm: sbatch(1), srun(1) "OUTPUT ENVIRONMENT VARIABLES". `RANK`, `LOCAL_RANK`, `WORLD_SIZE`:
/// torchrun. `OMPI_…`: Open MPI's mpirun(1).
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

/// Variables of [`VARIABLES`] set in a process, with their values.
pub type Environment = BTreeMap<Name, String>;

/// Owner of a process. Fields that are unknown or do not apply are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Path of the control group that identifies the owner, relative to the root of its hierarchy.
    pub cgroup: Option<String>,
    /// Container; of nested containers, the innermost.
    pub container: Option<Container>,
    /// Kubernetes pod.
    pub pod: Option<Pod>,
    /// Slurm job.
    pub slurm: Option<SlurmJob>,
    /// systemd service, such as `jupyterhub.service`; within a container or job, a service inside
    /// it.
    pub unit: Option<String>,
    /// Scope of the login session, such as `session-3.scope`; `None` within a container or job.
    pub session: Option<String>,
    /// Rank of the process in a distributed program.
    pub rank: Option<Rank>,
}

/// A container.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Container {
    /// `docker`, `containerd`, `cri-o`, `podman`, `nerdctl`, `lxc`, `nspawn`, …; `None` if the path
    /// does not show it.
    pub runtime: Option<Name>,
    /// Container id of the runtime: 64 hex digits, or the name used by the runtime.
    pub id: String,
    /// Name of the container.
    pub name: Option<String>,
    /// Image of the container.
    pub image: Option<String>,
    /// User, if a user's own container engine created it in the user's control groups; then the id
    /// is chosen by the user.
    #[serde(default)]
    #[serde(serialize_with = "json::apart")]
    pub of_user: Option<u32>,
}

/// A Kubernetes pod, and the container in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Pod {
    /// Pod id of the API server, with dashes; for a static pod, the hash of its file.
    pub uid: String,
    /// `guaranteed`, `burstable` or `besteffort`.
    pub qos: Option<Name>,
    /// Namespace of the pod.
    pub namespace: Option<String>,
    /// Name of the pod.
    pub name: Option<String>,
    /// Name of the container in the pod's specification.
    pub container: Option<String>,
}

/// Slurm job, step and task of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SlurmJob {
    /// Job id.
    pub job_id: Option<String>,
    /// SLUID of the job, if the path has it instead of the number (Slurm 26.05).
    pub sluid: Option<String>,
    /// Step: a number, `batch`, `extern`, `interactive`, or `0+1` of a heterogeneous job.
    pub step: Option<String>,
    /// Task: a number, or `special`.
    pub task: Option<String>,
    /// Name of the job.
    pub name: Option<String>,
    /// Account charged for the job.
    pub account: Option<String>,
    /// Partition of the job.
    pub partition: Option<String>,
    /// Cluster of the job.
    pub cluster: Option<String>,
}

/// Rank of a process in a distributed program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rank {
    /// Rank among all processes.
    pub rank: Option<u32>,
    /// Rank among the processes of this machine.
    pub local_rank: Option<u32>,
    /// Number of processes.
    pub world_size: Option<u32>,
}

/// A live ancestor of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ancestor {
    /// Process id.
    pub tgid: Tgid,
    /// Name of the main thread.
    pub comm: String,
}

/// Identifies a container by its user and id: ids chosen by one user do not clash with another's.
pub type ContainerKey = (Option<u32>, String);

/// Names of a container from its runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerNames {
    /// Container id, as in [`Container::id`].
    pub id: String,
    /// Name of the container.
    pub name: Option<String>,
    /// Image of the container.
    pub image: Option<String>,
    /// User of the engine that reported the names; `None` for the machine's engine.
    #[serde(default)]
    pub of_user: Option<u32>,
    /// Pod of the container.
    pub pod: Option<PodNames>,
}

/// Names of a pod's container from its runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodNames {
    /// Pod id, as in [`Pod::uid`].
    pub uid: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// Name of the container in the pod's specification.
    pub container: Option<String>,
}

/// Devices that the kubelet has assigned to a container, used or not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promise {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// Name of the container in the pod.
    pub container: String,
    /// Resource, such as `nvidia.com/gpu`.
    pub resource: String,
    /// Device ids of the device plugin: GPU UUIDs, MIG UUIDs, or shared ones such as `GPU-…::3`.
    pub devices: Vec<String>,
}

/// Device memory as accounted by the kernel for a control group (`dmem.current`, Linux 6.14):
/// cgroup-v2.rst, "DMEM".
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupMemory {
    /// Path of the group.
    pub cgroup: String,
    /// Region, such as `drm/0000:03:00.0/vram0`.
    pub region: String,
    /// Bytes charged to the group and its descendants.
    pub current_bytes: u64,
}

/// Length of a shortened id, which replaces an unknown name; the same as in Docker.
const SHORT_ID: usize = 12;

/// Returns the start of an id, for display.
pub fn short_id(id: &str) -> String {
    id.chars().take(SHORT_ID).collect()
}

impl Container {
    /// Returns the name or the start of the id, for display; prefixed with the user for a user's
    /// container.
    pub fn label(&self) -> String {
        let name = self.name.clone().unwrap_or_else(|| short_id(&self.id));
        self.of_user.map_or_else(|| name.clone(), |uid| format!("user-{uid}/{name}"))
    }

    /// Returns the key of the container.
    pub fn key(&self) -> ContainerKey {
        (self.of_user, self.id.clone())
    }
}

impl ContainerNames {
    /// Returns the key of the container.
    pub fn key(&self) -> ContainerKey {
        (self.of_user, self.id.clone())
    }
}

impl SlurmJob {
    /// Returns the job id, or the SLUID if the job id is unknown.
    pub fn number(&self) -> Option<&str> {
        self.job_id.as_deref().or(self.sluid.as_deref())
    }
}

impl Owner {
    /// Determines the owner of a process with this `/proc/PID/cgroup` and environment, without
    /// names known only to a runtime.
    ///
    /// Accepts any text; unknown parts are ignored.
    pub fn decide(cgroups: &str, environment: &Environment) -> Self {
        let CgroupPaths { path, place } = CgroupPaths::of(cgroups);
        let PathOwner { container, pod, slurm, unit, session, .. } = place;
        let mut owner = Self { cgroup: path, container, pod, slurm, unit, session, rank: None };
        environment::add(&mut owner, environment);
        owner
    }

    /// Adds the names that the container's runtime has reported.
    #[must_use]
    pub fn named(mut self, names: Option<&ContainerNames>) -> Self {
        let Some(names) = names else { return self };
        if let Some(container) = &mut self.container {
            container.name = names.name.clone().or_else(|| container.name.take());
            container.image = names.image.clone().or_else(|| container.image.take());
        }
        // If a pod runs within a container (a node in Docker), the names are those of the requested
        // container.
        if let (Some(pod), Some(names)) = (&mut self.pod, &names.pod) {
            pod.namespace = Some(names.namespace.clone());
            pod.name = Some(names.name.clone());
            pod.container.clone_from(&names.container);
        }
        self
    }
}
