//! Formats the owner of a process.

use memwatch_core::owner::{Container, Owner, Pod, SlurmJob, short_id};
use memwatch_core::snapshot::groups::OwnerGrouping;
use memwatch_core::snapshot::{ProcessView, Snapshot};

use super::format::printable;

/// Returns the most specific owner in a few words: a job, a pod's container, a container or a
/// service. Returns `None` for login sessions and processes without an owner.
pub(crate) fn workload(owner: &Owner) -> Option<String> {
    let Owner { container, pod, slurm, unit, .. } = owner;
    let text = match (slurm, pod, container, unit) {
        (Some(slurm), ..) => job(slurm),
        (_, Some(pod), container, _) => {
            let inside = pod.container.clone().or_else(|| container.as_ref().map(Container::label));
            inside.map_or_else(|| self::pod(pod), |inside| format!("{}/{inside}", self::pod(pod)))
        }
        (_, _, Some(container), _) => container.label(),
        (_, _, _, Some(unit)) => unit.clone(),
        _ => return None,
    };
    Some(printable(&text).into_owned())
}

/// Returns whether any process has a workload.
pub(crate) fn any(snapshot: &Snapshot) -> bool {
    snapshot.processes.iter().any(|process| workload(&process.owner).is_some())
}

/// Returns the name of a grouping, as on the command line and in JSON.
pub(crate) const fn by_name(by: OwnerGrouping) -> &'static str {
    match by {
        OwnerGrouping::Container => "container",
        OwnerGrouping::Pod => "pod",
        OwnerGrouping::Job => "job",
        OwnerGrouping::User => "user",
        OwnerGrouping::Gpu => "gpu",
    }
}

/// Formats a pod as `namespace/name`, or by the beginning of its uid.
pub(crate) fn pod(pod: &Pod) -> String {
    match (&pod.namespace, &pod.name) {
        (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
        (None, Some(name)) => name.clone(),
        _ => format!("pod {}", short_id(&pod.uid)),
    }
}

/// Formats a job as Slurm does: `job 4242.0`, with the task if it is known.
pub(crate) fn job(slurm: &SlurmJob) -> String {
    let step = slurm.step.as_ref().map(|step| format!(".{step}")).unwrap_or_default();
    let task = slurm.task.as_ref().map(|task| format!(" task {task}")).unwrap_or_default();
    format!("job {}{step}{task}", slurm.number().unwrap_or("-"))
}

/// Returns everything that is known about a process's owner, one string per aspect.
pub(crate) fn details(process: &ProcessView) -> Vec<String> {
    let Owner { container, pod, slurm, unit, session, rank, .. } = &process.owner;
    let mut parts = Vec::new();
    if let Some(slurm) = slurm {
        let named = |what: &str, value: &Option<String>| value.as_ref().map(|value| format!("{what} {value}"));
        let facts =
            [slurm.name.clone(), named("account", &slurm.account), named("partition", &slurm.partition)].into_iter();
        parts.push(with_facts(format!("Slurm {}", job(slurm)), &facts.flatten().collect::<Vec<_>>()));
    }
    if let Some(pod) = pod {
        let facts =
            [pod.container.as_ref().map(|name| format!("container {name}")), pod.qos.as_deref().map(str::to_owned)];
        let text = pod.name.as_ref().map_or_else(|| self::pod(pod), |_| format!("pod {}", self::pod(pod)));
        parts.push(with_facts(text, &facts.into_iter().flatten().collect::<Vec<_>>()));
    }
    if let Some(container) = container {
        let runtime = container.runtime.as_deref().unwrap_or("container");
        let id = container.name.as_ref().map(|_| short_id(&container.id));
        let image = container.image.as_ref().map(|image| format!("image {image}"));
        let facts: Vec<_> = id.into_iter().chain(image).collect();
        parts.push(with_facts(format!("{runtime} {}", container.label()), &facts));
    }
    parts.extend(unit.clone().or_else(|| session.clone()));
    if let Some(rank) = rank {
        let known = |what: &str, value: Option<u32>| value.map(|value| format!("{what} {value}"));
        let parts_of_rank = [known("rank", rank.rank), known("of", rank.world_size), known("local", rank.local_rank)];
        parts.push(parts_of_rank.into_iter().flatten().collect::<Vec<_>>().join(" "));
    }
    parts.extend(process.inner_tgid.map(|inner| format!("PID {inner} inside")));
    parts.iter().map(|part| printable(part).into_owned()).collect()
}

fn with_facts(text: String, facts: &[String]) -> String {
    if facts.is_empty() { text } else { format!("{text} ({})", facts.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memwatch_core::owner::Rank;

    fn docker(name: Option<&str>) -> Owner {
        let id = "17db96a24ae1e9dd57143e62b1cb0d2d35e693c65c774c7470e87b0572e07c1a".to_owned();
        let container = Container {
            of_user: None,
            runtime: Some("docker".into()),
            id,
            name: name.map(str::to_owned),
            image: name.map(|_| "trainer:3".to_owned()),
        };
        Owner { container: Some(container), unit: Some("docker.service".to_owned()), ..Owner::default() }
    }

    #[test]
    fn workload_name_prefers_slurm_then_pod_then_container() {
        assert_eq!(workload(&Owner::default()), None);
        assert_eq!(workload(&docker(None)).as_deref(), Some("17db96a24ae1"));
        assert_eq!(workload(&docker(Some("train"))).as_deref(), Some("train"));
        let pod = Pod { uid: "8712f785-1a3e".to_owned(), ..Pod::default() };
        let in_pod = Owner { pod: Some(pod.clone()), ..docker(None) };
        assert_eq!(workload(&in_pod).as_deref(), Some("pod 8712f785-1a3/17db96a24ae1"));
        let named = Pod {
            namespace: Some("ml".to_owned()),
            name: Some("train-0".to_owned()),
            container: Some("trainer".to_owned()),
            ..pod
        };
        assert_eq!(workload(&Owner { pod: Some(named), ..docker(None) }).as_deref(), Some("ml/train-0/trainer"));
        let step = SlurmJob {
            job_id: Some("4242".to_owned()),
            step: Some("0".to_owned()),
            task: Some("3".to_owned()),
            ..SlurmJob::default()
        };
        assert_eq!(workload(&Owner { slurm: Some(step), ..docker(None) }).as_deref(), Some("job 4242.0 task 3"));
    }

    #[test]
    fn a_name_cannot_steer_the_terminal() {
        assert_eq!(workload(&docker(Some("a\x1b[2Jb"))).as_deref(), Some("a\\x1b[2Jb"));
    }

    #[test]
    fn details_name_every_part() {
        let mut process = crate::render::fixture::quiet_node().processes.remove(0);
        process.owner = docker(Some("train"));
        process.owner.rank = Some(Rank { rank: Some(3), local_rank: None, world_size: Some(8) });
        process.inner_tgid = Some(7);
        let reported = details(&process);
        assert_eq!(
            reported,
            ["docker train (17db96a24ae1, image trainer:3)", "docker.service", "rank 3 of 8", "PID 7 inside"]
        );
    }
}
