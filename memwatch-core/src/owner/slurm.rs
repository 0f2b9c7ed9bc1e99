//! Parses Slurm's control groups. v1: `/slurm[_NODE]/uid_U/job_J/step_S/task_T`. v2:
//! `/system.slice/[NODE_]slurmstepd.scope/job_J/step_S/user/task_T`. Since Slurm 26.05, v2 paths
//! have the job's SLUID instead of `job_J` unless `CgroupJobIdPaths=yes` (cgroup.conf(5)). NODE is
//! present if several slurmd run on one machine. The administrator chooses the slice.

use super::{SlurmJob, is_number};

/// Maximum length of a step name.
const STEP_BYTES: usize = 32;

/// Returns the job with its groups starting here, and the number of components that name it.
pub(super) fn job(parts: &[&str]) -> Option<(SlurmJob, usize)> {
    let mut rest = match parts {
        [scope, rest @ ..] if is_scope(scope) => rest,
        [root, uid, rest @ ..] if is_root(root) && uid.strip_prefix("uid_").is_some_and(is_number) => rest,
        _ => return None,
    };
    let (job_id, sluid) = match rest.first() {
        Some(part) if is_sluid(part) => (None, Some((*part).to_owned())),
        part => (Some(part?.strip_prefix("job_").filter(|number| is_number(number))?.to_owned()), None),
    };
    rest = &rest[1..];
    let step = rest.first().and_then(|part| part.strip_prefix("step_")).filter(|name| is_step(name));
    rest = &rest[usize::from(step.is_some())..];
    // slurmstepd runs its tasks in `user`, and itself in `slurm`.
    rest = &rest[usize::from(step.is_some() && matches!(rest.first(), Some(&("user" | "slurm"))))..];
    let task = rest.first().filter(|_| step.is_some()).and_then(|part| part.strip_prefix("task_"));
    let task = task.filter(|task| *task == "special" || is_number(task));
    rest = &rest[usize::from(task.is_some())..];
    let (step, task) = (step.map(str::to_owned), task.map(str::to_owned));
    Some((SlurmJob { job_id, sluid, step, task, ..SlurmJob::default() }, parts.len() - rest.len()))
}

fn is_scope(part: &str) -> bool {
    part.strip_suffix("slurmstepd.scope").is_some_and(|node| node.is_empty() || (node.len() > 1 && node.ends_with('_')))
}

fn is_root(part: &str) -> bool {
    part.strip_prefix("slurm").is_some_and(|node| node.is_empty() || (node.len() > 1 && node.starts_with('_')))
}

/// Returns whether the text is a SLUID: `s` and thirteen digits in Crockford's base 32.
fn is_sluid(part: &str) -> bool {
    let digit =
        |byte: u8| byte.is_ascii_digit() || (byte.is_ascii_uppercase() && !matches!(byte, b'I' | b'L' | b'O' | b'U'));
    part.strip_prefix('s').is_some_and(|rest| rest.len() == 13 && rest.bytes().all(digit))
}

/// Returns whether the text is a step: a number, `batch`, `extern`, `interactive`, or `0+1` of a
/// heterogeneous job.
fn is_step(name: &str) -> bool {
    (1..=STEP_BYTES).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+')
}
