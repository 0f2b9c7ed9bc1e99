//! What runtimes call the containers that have living processes here. With its last process a container's names are forgotten: its id
//! or name may be used again, for another.

use std::collections::BTreeMap;

use crate::owner::{Container, ContainerNames, Owner};

/// Containers by id.
#[derive(Clone, Debug, Default)]
pub struct Names {
    containers: BTreeMap<String, Known>,
}

#[derive(Clone, Debug)]
struct Known {
    container: Container,
    processes: u64,
    names: Option<ContainerNames>,
}

impl Names {
    /// A process of this owner lives from here on; the answer is its owner with names.
    #[must_use]
    pub fn enter(&mut self, owner: Owner) -> Owner {
        let Some(container) = &owner.container else { return owner };
        let blank = || Known { container: container.clone(), processes: 0, names: None };
        let known = self.containers.entry(container.id.clone()).or_insert_with(blank);
        known.processes += 1;
        owner.named(known.names.as_ref())
    }

    /// A process of this owner has ended, or has another owner from here on.
    pub fn leave(&mut self, owner: &Owner) {
        let Some(id) = owner.container.as_ref().map(|container| &container.id) else { return };
        if let Some(known) = self.containers.get_mut(id) {
            known.processes -= 1;
            if known.processes == 0 {
                self.containers.remove(id);
            }
        }
    }

    /// What a runtime says; of a container without processes nothing is kept.
    pub fn learn(&mut self, names: &ContainerNames) {
        if let Some(known) = self.containers.get_mut(&names.id) {
            known.names = Some(names.clone());
        }
    }

    /// The containers that have processes.
    pub fn containers(&self) -> impl Iterator<Item = &Container> {
        self.containers.values().map(|known| &known.container)
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
    fn names_hold_until_the_containers_last_process_has_ended_and_not_for_a_later_one_of_its_id() {
        let mut names = Names::default();
        let first = names.enter(process_in("a1"));
        assert_eq!(name(&first), None);
        names.learn(&called("a1", "train"));
        let second = names.enter(process_in("a1"));
        assert_eq!(name(&second), Some("train"));
        names.leave(&first);
        assert_eq!(name(&names.enter(process_in("a1"))), Some("train"));
        names.leave(&second);
        names.leave(&second);
        assert_eq!(names.containers().count(), 0);
        assert_eq!(name(&names.enter(process_in("a1"))), None);
    }

    #[test]
    fn an_answer_for_a_container_without_processes_is_dropped() {
        let mut names = Names::default();
        names.learn(&called("a1", "train"));
        assert_eq!(name(&names.enter(process_in("a1"))), None);
        assert_eq!(names.enter(Owner::default()), Owner::default());
    }
}
