use super::*;
use crate::owner::Rank;
use std::borrow::Cow;

fn environment(text: &[(&'static str, &str)]) -> Environment {
    text.iter().map(|(name, value)| (Cow::Borrowed(*name), (*value).to_owned())).collect()
}

fn decided(path: &str, text: &[(&'static str, &str)]) -> Owner {
    Owner::decide(&format!("0::{}", written(path)), &environment(text))
}

const NAMED: [(&str, &str); 8] = [
    ("SLURM_JOB_ID", "4242"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_PROCID", "3"),
    ("SLURM_JOB_NAME", "llama"),
    ("SLURM_JOB_ACCOUNT", "nlp"),
    ("SLURM_JOB_PARTITION", "gpu"),
    ("SLURM_CLUSTER_NAME", "hal"),
    ("SLURM_JOB_GPUS", "0,1"),
];

fn names(owner: &Owner) -> [Option<&str>; 4] {
    let job = owner.slurm.as_ref().expect("there is a job");
    [&job.name, &job.account, &job.partition, &job.cluster].map(|name| name.as_deref())
}

#[test]
fn slurm_names_and_sluid_job_numbers_come_from_the_environment() {
    let owner = decided("/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0/user/task_3", &NAMED);
    assert_eq!(stated(&owner), "job 4242, sluid sEKNKTV3WPV500, step 0, task 3");
    assert_eq!(names(&owner), [Some("llama"), Some("nlp"), Some("gpu"), Some("hal")]);
    let owner = decided("/slurm/uid_1/job_4242/step_0/task_3", &NAMED);
    assert_eq!(names(&owner), [Some("llama"), Some("nlp"), Some("gpu"), Some("hal")]);
}

#[test]
fn names_of_another_job_are_not_taken() {
    let owner = decided("/system.slice/slurmstepd.scope/job_7/step_0", &NAMED);
    assert_eq!(stated(&owner), "job 7, step 0");
    assert_eq!(names(&owner), [None; 4]);
    let without_number = decided("/system.slice/slurmstepd.scope/job_7/step_0", &NAMED[1..]);
    assert_eq!(names(&without_number), [None; 4]);
}

#[test]
fn without_groups_of_tasks_the_task_is_the_environments_if_the_step_is() {
    assert_eq!(stated(&decided("/slurm/uid_1/job_4242/step_0", &NAMED)), "job 4242, step 0, task 3");
    assert_eq!(stated(&decided("/slurm/uid_1/job_4242/step_1", &NAMED)), "job 4242, step 1");
    assert_eq!(stated(&decided("/slurm/uid_1/job_4242/step_batch", &NAMED)), "job 4242, step batch");
    assert_eq!(stated(&decided("/slurm/uid_1/job_4242", &NAMED)), "job 4242");
}

#[test]
fn slurm_job_from_the_environment_needs_a_slurmstepd_parent() {
    for path in ["/", "/system.slice/slurmd.service", "/system.slice"] {
        let owner = decided(path, &NAMED);
        assert!(stated(&owner).starts_with("job 4242, step 0, task 3"), "{path}: {owner:?}");
        assert_eq!(names(&owner)[0], Some("llama"), "{path}");
    }
    let elsewhere = [
        "/user.slice/user-1000.slice/session-3.scope",
        "/user.slice/user-1000.slice/user@1000.service/app.slice/tmux.service",
        "/docker/{a}",
        "/kubepods/burstable/pod{u}/{a}",
    ];
    for path in elsewhere {
        assert_eq!(decided(path, &NAMED).slurm, None, "{path}");
    }
    // The shell of salloc.
    assert_eq!(decided("/", &[("SLURM_JOB_ID", "7"), ("SLURM_JOB_NAME", "interactive")]).slurm, None);
    // A batch script has no step number, and its task is not a task of the job.
    assert_eq!(stated(&decided("/", &[("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "0")])), "job 7");
}

#[test]
fn values_that_are_no_numbers_name_no_job_and_long_names_are_cut() {
    let path = "/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0";
    for id in ["", "x", "7\n", "-1", "123456789012345678901"] {
        assert_eq!(stated(&decided(path, &[("SLURM_JOB_ID", id)])), "sluid sEKNKTV3WPV500, step 0", "{id:?}");
    }
    let long = "ü".repeat(1000);
    let owner = decided(path, &[("SLURM_JOB_ID", "7"), ("SLURM_JOB_NAME", &long), ("SLURM_JOB_ACCOUNT", "")]);
    assert_eq!(names(&owner), [Some(&long[..256]), None, None, None]);
}

fn rank(path: &str, text: &[(&'static str, &str)]) -> Option<[Option<u32>; 3]> {
    decided(path, text).rank.map(|Rank { rank, local_rank, world_size }| [rank, local_rank, world_size])
}

#[test]
fn the_rank_is_torchruns_else_slurms_else_open_mpis() {
    let mpi = [("OMPI_COMM_WORLD_RANK", "5"), ("OMPI_COMM_WORLD_SIZE", "8")];
    assert_eq!(rank("/", &mpi), Some([Some(5), None, Some(8)]));
    let slurm = [("SLURM_PROCID", "3"), ("SLURM_LOCALID", "1"), ("SLURM_NTASKS", "4")];
    assert_eq!(rank("/", &[&slurm[..], &mpi].concat()), Some([Some(3), Some(1), Some(4)]));
    let torch = [("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "2")];
    assert_eq!(rank("/", &[&torch[..], &slurm, &mpi].concat()), Some([Some(0), Some(0), Some(2)]));
    assert_eq!(rank("/", &[("RANK", "7")]), Some([Some(7), None, None]));
    assert_eq!(rank("/", &[("LOCAL_RANK", "7"), ("WORLD_SIZE", "8")]), None);
    for no_number in ["", "-1", "4294967296", "one", " 1"] {
        assert_eq!(rank("/", &[("RANK", no_number)]), None, "{no_number:?}");
    }
}

#[test]
fn slurm_batch_script_has_no_task_rank() {
    let slurm = [("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")];
    assert_eq!(rank("/system.slice/slurmstepd.scope/job_7/step_batch/user/task_0", &slurm), None);
    assert_eq!(rank("/system.slice/slurmstepd.scope/job_7/step_0/user/task_0", &slurm), Some([Some(0), None, Some(4)]));
    let torch = [("SLURM_PROCID", "0"), ("RANK", "1")];
    assert_eq!(
        rank("/system.slice/slurmstepd.scope/job_7/step_batch/user/task_0", &torch),
        Some([Some(1), None, None])
    );
}
