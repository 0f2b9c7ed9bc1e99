//! Names of containers with living processes, from container runtimes. The names are dropped with
//! the last process, since a container's id or name may be reused.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::owner::{Container, ContainerKey, ContainerNames, Owner};

/// Containers by key.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ContainerRegistry {
    containers: BTreeMap<ContainerKey, KnownContainer>,
    lives: u64,
    revision: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct KnownContainer {
    container: Container,
    cgroup: Option<String>,
    life: u64,
    processes: u64,
    names: Option<ContainerNames>,
}

/// A container that has processes and no names yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nameless<'a> {
    /// The container, as parsed from its control group path.
    pub container: &'a Container,
    /// Control group path of its first known process.
    pub cgroup: Option<&'a str>,
    /// Sequence number that distinguishes containers with the same id.
    pub life: u64,
}

impl ContainerRegistry {
    /// Adds a process of this owner. Returns the owner, with names where they are known.
    #[must_use]
    pub fn enter(&mut self, owner: Owner) -> Owner {
        let Some(container) = &owner.container else { return owner };
        let Self { containers, lives, revision } = self;
        let known = containers.entry(container.key()).or_insert_with(|| {
            *lives += 1;
            *revision += 1;
            let (container, cgroup) = (container.clone(), owner.cgroup.clone());
            KnownContainer { container, cgroup, life: *lives, processes: 0, names: None }
        });
        known.processes += 1;
        owner.named(known.names.as_ref())
    }

    /// Removes a process of this owner, because it has exited or its owner has changed.
    pub fn leave(&mut self, owner: &Owner) {
        let Some(key) = owner.container.as_ref().map(Container::key) else { return };
        if let Some(known) = self.containers.get_mut(&key) {
            known.processes = known.processes.saturating_sub(1);
            if known.processes == 0 {
                self.containers.remove(&key);
                self.revision += 1;
            }
        }
    }

    /// Sets the names reported by a runtime. Ignores a container without processes.
    pub fn learn(&mut self, names: &ContainerNames) {
        if let Some(known) = self.containers.get_mut(&names.key()) {
            known.names = Some(names.clone());
            self.revision += 1;
        }
    }

    /// Returns the containers with processes and without names, by id.
    pub fn nameless(&self) -> impl Iterator<Item = Nameless<'_>> {
        self.containers.values().filter(|known| known.names.is_none()).map(KnownContainer::nameless)
    }

    /// Whether this container still has processes, has no names, and has this [`Nameless::life`].
    pub fn lacks(&self, key: &ContainerKey, life: u64) -> bool {
        self.containers.get(key).is_some_and(|known| known.names.is_none() && known.life == life)
    }

    /// Returns a number that changes whenever the result of [`Self::nameless`] may have changed.
    pub fn revision(&self) -> u64 {
        self.revision
    }
}

impl KnownContainer {
    fn nameless(&self) -> Nameless<'_> {
        Nameless { container: &self.container, cgroup: self.cgroup.as_deref(), life: self.life }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process_in(id: &str) -> Owner {
        let container = Some(Container { id: id.to_owned(), ..Container::default() });
        Owner { container, ..Owner::default() }
    }

    fn called(id: &str, name: &str) -> ContainerNames {
        ContainerNames { id: id.to_owned(), name: Some(name.to_owned()), ..ContainerNames::default() }
    }

    fn name(owner: &Owner) -> Option<&str> {
        owner.container.as_ref()?.name.as_deref()
    }

    #[test]
    fn container_name_is_kept_until_its_last_process_ends() {
        let mut names = ContainerRegistry::default();
        let first = names.enter(process_in("a1"));
        assert_eq!(name(&first), None);
        names.learn(&called("a1", "train"));
        let second = names.enter(process_in("a1"));
        assert_eq!(name(&second), Some("train"));
        names.leave(&first);
        assert_eq!(name(&names.enter(process_in("a1"))), Some("train"));
        names.leave(&second);
        names.leave(&second);
        assert_eq!(names.nameless().count(), 0);
        assert_eq!(name(&names.enter(process_in("a1"))), None);
    }

    #[test]
    fn an_answer_for_a_container_without_processes_is_dropped() {
        let mut names = ContainerRegistry::default();
        names.learn(&called("a1", "train"));
        assert_eq!(name(&names.enter(process_in("a1"))), None);
        assert_eq!(names.enter(Owner::default()), Owner::default());
    }

    #[test]
    fn container_id_reused_is_a_new_life_without_names() {
        let mut names = ContainerRegistry::default();
        let first = names.enter(process_in("a1"));
        let lives = |names: &ContainerRegistry| names.nameless().map(|nameless| nameless.life).collect::<Vec<_>>();
        assert_eq!(lives(&names), [1]);
        names.learn(&called("a1", "train"));
        assert_eq!(lives(&names), <[u64; 0]>::default());
        assert!(!names.lacks(&(None, "a1".to_owned()), 1));
        names.leave(&first);
        let _ = names.enter(process_in("a1"));
        assert_eq!(lives(&names), [2]);
        assert!(names.lacks(&(None, "a1".to_owned()), 2) && !names.lacks(&(None, "a1".to_owned()), 1));
    }

    #[test]
    fn container_revision_changes_with_the_set_of_unnamed_containers() {
        let mut names = ContainerRegistry::default();
        let mut seen = vec![names.revision()];
        let first = names.enter(process_in("a1"));
        seen.push(names.revision());
        let second = names.enter(process_in("a1"));
        assert_eq!(names.revision(), seen[1]);
        names.learn(&called("a1", "train"));
        seen.push(names.revision());
        names.leave(&second);
        assert_eq!(names.revision(), seen[2]);
        names.leave(&first);
        seen.push(names.revision());
        seen.dedup();
        assert_eq!(seen.len(), 4);
    }
}
