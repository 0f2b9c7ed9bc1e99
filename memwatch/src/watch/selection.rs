//! Selects the processes of a snapshot to show: by container, pod, job, user, control group or
//! name, with their children.

use std::collections::BTreeSet;

use memwatch_core::owner::{Container, Pod, SlurmJob};
use memwatch_core::snapshot::{ProcessView, Snapshot};
use memwatch_core::words::Tgid;

use crate::options::Choice;

/// Minimum length of an id prefix that selects a container or a pod.
const SHORTEST_ID: usize = 4;

/// Selection of processes. Words of one kind are alternatives; all kinds must match.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    choice: Choice,
    tgids: BTreeSet<Tgid>,
}

impl Selection {
    /// Creates a selection from the words of the command line and the process numbers.
    pub(crate) fn new(choice: &Choice, tgids: &[Tgid]) -> Self {
        Self { choice: choice.clone(), tgids: tgids.iter().copied().collect() }
    }

    /// Whether the selection includes all processes.
    pub(crate) fn is_everybody(&self) -> bool {
        self.choice.is_empty() && self.tgids.is_empty()
    }

    /// Keeps only the selected processes in the snapshot.
    pub(crate) fn apply(&self, snapshot: &mut Snapshot) {
        if self.is_everybody() {
            return;
        }
        snapshot.processes.retain(|process| self.chooses(process));
        for process in &mut snapshot.processes {
            process.target |= self.tgids.contains(&process.tgid);
        }
    }

    /// Describes the selection in words: `container train, user alice`.
    pub(crate) fn describe(&self) -> String {
        let kinds = self.choice.kinds().into_iter().filter(|(_, words)| !words.is_empty());
        let mut parts: Vec<String> = kinds.map(|(kind, words)| format!("{kind} {}", words.join(" or "))).collect();
        if !self.tgids.is_empty() {
            let tgids: Vec<_> = self.tgids.iter().map(|tgid| tgid.0.to_string()).collect();
            parts.push(format!("PID {}", tgids.join(" or ")));
        }
        parts.join(", ")
    }

    /// Whether the selection includes a process.
    pub(crate) fn chooses(&self, process: &ProcessView) -> bool {
        let any =
            |words: &[String], holds: &dyn Fn(&str) -> bool| words.is_empty() || words.iter().any(|word| holds(word));
        let (choice, owner) = (&self.choice, &process.owner);
        self.names_process(process)
            && any(&choice.containers, &|word| {
                let in_pod = owner.pod.as_ref().and_then(|pod| pod.container.as_deref()) == Some(word);
                in_pod || owner.container.as_ref().is_some_and(|container| names_container(word, container))
            })
            && any(&choice.pods, &|word| owner.pod.as_ref().is_some_and(|pod| names_pod(word, pod)))
            && any(&choice.slurm_jobs, &|word| owner.slurm.as_ref().is_some_and(|job| names_job(word, job)))
            && any(&choice.users, &|word| {
                process.user.as_deref() == Some(word) || word.parse().is_ok_and(|uid: u32| process.uid == Some(uid))
            })
            && any(&choice.cgroups, &|word| owner.cgroup.as_deref().is_some_and(|path| is_below(path, word)))
            && any(&choice.names, &|word| self.has_name(word, process))
    }

    fn names_process(&self, process: &ProcessView) -> bool {
        let ancestor = || process.ancestors.iter().any(|ancestor| self.tgids.contains(&ancestor.tgid));
        self.tgids.is_empty()
            || self.tgids.contains(&process.tgid)
            || process.target
            || (!self.choice.no_children && ancestor())
    }

    /// Whether a process has a matching name: its own, that of its program's file or its script, or
    /// that of an ancestor.
    fn has_name(&self, pattern: &str, process: &ProcessView) -> bool {
        let mut words = process.command.split(' ').filter(|word| !word.starts_with('-'));
        let file = |path: &str| path.rsplit('/').next().is_some_and(|name| matches(pattern, name));
        matches(pattern, &process.comm)
            || words.next().is_some_and(file)
            || words.next().is_some_and(file)
            || (!self.choice.no_children && process.ancestors.iter().any(|ancestor| matches(pattern, &ancestor.comm)))
    }
}

fn names_container(word: &str, container: &Container) -> bool {
    let bare = word.strip_prefix('/').unwrap_or(word);
    container.name.as_deref() == Some(bare) || names_id(word, &container.id)
}

fn names_id(word: &str, id: &str) -> bool {
    word == id || (word.len() >= SHORTEST_ID && id.starts_with(word))
}

/// Whether `word` names the pod: `namespace/name`, `name` in any namespace, or the uid.
fn names_pod(word: &str, pod: &Pod) -> bool {
    match word.split_once('/') {
        Some((namespace, name)) => pod.namespace.as_deref() == Some(namespace) && pod.name.as_deref() == Some(name),
        None => pod.name.as_deref() == Some(word) || names_id(word, &pod.uid),
    }
}

/// Whether `word` names the job: `4242`, or `4242.0` for one of its steps.
fn names_job(word: &str, job: &SlurmJob) -> bool {
    let (number, step) = word.split_once('.').map_or((word, None), |(number, step)| (number, Some(step)));
    let is_job = [&job.job_id, &job.sluid].into_iter().any(|id| id.as_deref() == Some(number));
    is_job && step.is_none_or(|step| job.step.as_deref() == Some(step))
}

/// Whether a control group's path equals `wanted` or is below it. `wanted` may include the mount
/// point.
fn is_below(path: &str, wanted: &str) -> bool {
    let wanted = wanted.strip_prefix("/sys/fs/cgroup").unwrap_or(wanted);
    let wanted = wanted.strip_prefix("/unified").unwrap_or(wanted).trim_matches('/');
    let rest = path.trim_matches('/').strip_prefix(wanted);
    rest.is_some_and(|rest| wanted.is_empty() || rest.is_empty() || rest.starts_with('/'))
}

/// Whether a name matches a pattern, in which each `*` matches any text.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(place) = rest.find(part) else { return false };
        rest = &rest[place + part.len()..];
    }
    true
}

#[cfg(test)]
mod tests;
