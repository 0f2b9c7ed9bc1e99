//! What a program's environment adds: the names of its job, and its rank.
//!
//! An environment is inherited by whatever a program starts, and says nothing of where that runs: it names a job only as far as the control group
//! does not contradict it.

use super::{Environment, Owner, Rank, SlurmJob, is_number};

/// A longer value is cut: nobody calls a job so.
const VALUE_BYTES: usize = 256;
/// The step of a job in which its own script, or its adopted logins, run: Slurm's numbers of tasks are not theirs.
const WITHOUT_RANKS: [&str; 3] = ["batch", "extern", "interactive"];

/// Adds what the environment says of its job and its rank.
pub(super) fn add(owner: &mut Owner, environment: &Environment) {
    if owner.slurm.is_none() && is_outside_groups(owner) {
        owner.slurm = job_without_groups(environment);
    }
    if let Some(job) = &mut owner.slurm {
        name(job, environment);
    }
    owner.rank = rank(owner, environment);
}

/// Where Slurm makes no groups, its tasks are in slurmd's own, or in the root where there is no systemd. In a login session, a service or a container
/// the job may be one that was only asked for from there (salloc(1)), or that has ended.
fn is_outside_groups(owner: &Owner) -> bool {
    let of_slurm = owner.unit.as_deref().is_none_or(|unit| unit == "slurmd.service");
    of_slurm && owner.session.is_none() && owner.container.is_none() && owner.pod.is_none()
}

/// `SLURM_PROCID` is what slurmstepd adds to the environment of what it runs; salloc's does not have it.
fn job_without_groups(environment: &Environment) -> Option<SlurmJob> {
    let task = number(environment, "SLURM_PROCID")?;
    let job_id = number(environment, "SLURM_JOB_ID")?;
    let step = number(environment, "SLURM_STEP_ID");
    let task = step.is_some().then_some(task);
    Some(SlurmJob { job_id: Some(job_id), step, task, ..SlurmJob::default() })
}

/// The rest of a job that the path shows in part. A path with a SLUID has no number to compare: the environment's is taken.
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
    // Without groups of tasks. Both numbers are of all tasks of the step (slurmstepd names its groups by gtid).
    let same_step = job.step.is_some() && job.step == number(environment, "SLURM_STEP_ID");
    if job.task.is_none() && same_step {
        job.task = number(environment, "SLURM_PROCID");
    }
}

/// The first that has a rank: torchrun's variables (which programs started otherwise use as well), Slurm's, Open MPI's.
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

/// A variable that is set to something.
fn value<'a>(environment: &'a Environment, name: &str) -> Option<&'a str> {
    let value = environment.get(name)?;
    let value = &value[..value.floor_char_boundary(VALUE_BYTES)];
    (!value.is_empty()).then_some(value)
}
