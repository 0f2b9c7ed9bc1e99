//! Adds job names and the rank from a program's environment.
//!
//! An environment is inherited by every child and does not show where the child runs. It identifies
//! a job only if the control group does not contradict it.

use super::{Environment, Owner, Rank, SlurmJob, is_number};

/// Limit of a value's length; longer values are truncated.
const VALUE_BYTES: usize = 256;
/// Steps of a job that run its script or its adopted logins, to which Slurm's task numbers do not
/// apply.
const WITHOUT_RANKS: [&str; 3] = ["batch", "extern", "interactive"];

/// Adds the job and the rank from the environment.
pub(super) fn add(owner: &mut Owner, environment: &Environment) {
    if owner.slurm.is_none() && is_outside_groups(owner) {
        owner.slurm = job_without_groups(environment);
    }
    if let Some(job) = &mut owner.slurm {
        name(job, environment);
    }
    owner.rank = rank(owner, environment);
}

/// Returns whether the control groups allow a job of Slurm without groups of its own. Such tasks
/// are in slurmd's group, or in the root without systemd. In a login session, a service or a
/// container, the job may only have been requested from there (salloc(1)), or may have ended.
fn is_outside_groups(owner: &Owner) -> bool {
    let of_slurm = owner.unit.as_deref().is_none_or(|unit| unit == "slurmd.service");
    of_slurm && owner.session.is_none() && owner.container.is_none() && owner.pod.is_none()
}

/// Returns the job from the environment. slurmstepd adds `SLURM_PROCID` to the environment of its
/// tasks; that of salloc lacks it.
fn job_without_groups(environment: &Environment) -> Option<SlurmJob> {
    let task = number(environment, "SLURM_PROCID")?;
    let job_id = number(environment, "SLURM_JOB_ID")?;
    let step = number(environment, "SLURM_STEP_ID");
    let task = step.is_some().then_some(task);
    Some(SlurmJob { job_id: Some(job_id), step, task, ..SlurmJob::default() })
}

/// Completes a job that the path shows in part. If the path has a SLUID, there is no number to
/// compare, and the environment's number is used.
fn name(job: &mut SlurmJob, environment: &Environment) {
    let Some(job_id) = number(environment, "SLURM_JOB_ID") else { return };
    if job.job_id.as_ref().is_some_and(|known| *known != job_id) {
        return;
    }
    job.job_id = Some(job_id);
    let text = |name| value(environment, name).map(str::to_owned);
    job.name = text("SLURM_JOB_NAME");
    job.account = text("SLURM_JOB_ACCOUNT");
    job.partition = text("SLURM_JOB_PARTITION");
    job.cluster = text("SLURM_CLUSTER_NAME");
    // Without task groups, the task number comes from the environment. Both count all tasks of the
    // step (slurmstepd names its groups by gtid).
    let same_step = job.step.is_some() && job.step == number(environment, "SLURM_STEP_ID");
    if job.task.is_none() && same_step {
        job.task = number(environment, "SLURM_PROCID");
    }
}

/// Returns the first rank found in the variables of torchrun (also used by other launchers), Slurm
/// and Open MPI.
fn rank(owner: &Owner, environment: &Environment) -> Option<Rank> {
    let read = |[rank, local_rank, world_size]: [&str; 3]| {
        let small = |name: &str| value(environment, name)?.parse::<u32>().ok();
        let (rank, local_rank, world_size) = (small(rank)?, small(local_rank), small(world_size));
        Some(Rank { rank: Some(rank), local_rank, world_size })
    };
    let step = owner.slurm.as_ref().and_then(|job| job.step.as_deref());
    let has_tasks = step.is_none_or(|step| !WITHOUT_RANKS.contains(&step));
    read(["RANK", "LOCAL_RANK", "WORLD_SIZE"])
        .or_else(|| read(["SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"]).filter(|_| has_tasks))
        .or_else(|| read(["OMPI_COMM_WORLD_RANK", "", "OMPI_COMM_WORLD_SIZE"]))
}

fn number(environment: &Environment, name: &str) -> Option<String> {
    value(environment, name).filter(|value| is_number(value)).map(str::to_owned)
}

/// Returns the value of a variable that is set and not empty.
fn value<'a>(environment: &'a Environment, name: &str) -> Option<&'a str> {
    let value = environment.get(name)?;
    let value = &value[..value.floor_char_boundary(VALUE_BYTES)];
    (!value.is_empty()).then_some(value)
}
