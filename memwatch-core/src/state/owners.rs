//! Owners of processes, from their control groups and from the names that container runtimes give
//! these.

use crate::owner::ContainerNames;
use crate::state::State;
use crate::words::Tgid;

impl State {
    /// Determines the owner of a process from its latest `/proc` data.
    pub(crate) fn own(&mut self, tgid: Tgid) {
        let facts = self.processes.get(&tgid).and_then(|process| process.facts.as_ref());
        if let Some(cgroups) = facts.and_then(|facts| facts.cgroups.clone()) {
            self.move_to(tgid, &cgroups);
        }
    }

    pub(crate) fn move_to(&mut self, tgid: Tgid, cgroups: &str) {
        if let Some(process) = self.processes.get_mut(&tgid) {
            let before = std::mem::take(&mut process.owner);
            process.owner = self.names.enter(process.owner_in(cgroups));
            self.names.leave(&before);
            if self.workloads.is_elsewhere(tgid, &process.owner) {
                self.workloads.leave(process, &self.reading.devices, self.now_ns);
                self.workloads.enter(tgid, &process.owner);
            } else {
                self.workloads.rename(tgid, &process.owner);
            }
        }
    }

    pub(crate) fn name(&mut self, answers: &[ContainerNames]) {
        for names in answers {
            self.names.learn(names);
            for process in self.processes.values_mut() {
                if process.owner.container.as_ref().is_some_and(|container| container.key() == names.key()) {
                    process.owner = std::mem::take(&mut process.owner).named(Some(names));
                    self.workloads.rename(process.tgid, &process.owner);
                }
            }
        }
    }
}
