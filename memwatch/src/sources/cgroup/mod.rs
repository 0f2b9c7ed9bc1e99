//! Control groups: which one an id of the kernel half means, who was moved, and what the groups of watched processes hold by the
//! kernel's account. What `/proc/PID/cgroup` says is read in `procfs`.

mod device_memory;
mod mount;
pub(crate) mod own_limit;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;

use memwatch_core::input::Input;
use memwatch_core::owner::CgroupMemory;
use memwatch_core::words::Tgid;

use super::procfs::ProcReader;
use device_memory::DeviceMemory;
use mount::Mount;

/// So many groups are remembered, for processes that are heard of when their group is gone already.
const REMEMBERED: usize = 1024;
/// A group that is always there: nothing is below it that it could be taken for.
const ROOT: &str = "/";

/// What is known of the machine's control groups.
#[derive(Debug)]
pub(crate) struct Groups {
    unified: Option<Mount>,
    device_memory: Option<DeviceMemory>,
    has_v1: bool,
    known: BTreeMap<u64, String>,
    oldest: VecDeque<u64>,
    moved: BTreeSet<u32>,
}

impl Groups {
    /// Finds the machine's trees.
    pub(crate) fn open() -> Self {
        let unified = fs::read("/proc/self/mountinfo").ok().and_then(|mounts| Mount::open(&mounts));
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self {
            device_memory: unified.as_ref().and_then(|mount| DeviceMemory::open(&mount.point)),
            unified,
            has_v1: own.lines().any(|line| !line.starts_with("0::")),
            known: BTreeMap::new(),
            oldest: VecDeque::new(),
            moved: BTreeSet::new(),
        }
    }

    /// A process in the group with this id has these groups, as `/proc/PID/cgroup` writes them.
    pub(crate) fn note(&mut self, id: u64, cgroups: &str) {
        let Some(path) = cgroups.lines().find_map(|line| line.strip_prefix("0::")) else { return };
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        if id == 0 || path == ROOT || self.known.contains_key(&id) {
            return;
        }
        if self.oldest.len() == REMEMBERED {
            self.oldest.pop_front().and_then(|oldest| self.known.remove(&oldest));
        }
        self.known.insert(id, path.to_owned());
        self.oldest.push_back(id);
    }

    /// The groups of a process that is gone, of which only the id of the unified one is known; as `/proc/PID/cgroup` would write them.
    ///
    /// `None` where the group is gone as well and was never heard of, and where it is the root beside hierarchies of v1, which may say otherwise.
    pub(crate) fn of_gone(&self, id: u64) -> Option<String> {
        if id == 0 {
            return None;
        }
        let now = self.unified.as_ref().and_then(|mount| mount.path_of(id).ok());
        let path = now.or_else(|| self.known.get(&id).cloned())?;
        (path != ROOT || !self.has_v1).then(|| format!("0::{path}\n"))
    }

    /// A process was moved to another group.
    pub(crate) fn note_move(&mut self, tgid: u32) {
        self.moved.insert(tgid);
    }

    /// Where those are now that were moved since the last time. Who moves on and on is read once.
    pub(crate) fn take_moved(&mut self, processes: &ProcReader) -> Vec<Input> {
        let moved = std::mem::take(&mut self.moved).into_iter();
        moved.filter_map(|tgid| Some(Input::Cgroups { tgid: Tgid(tgid), cgroups: processes.cgroups(tgid)? })).collect()
    }

    /// Device memory of these groups by the kernel's account; `None` where it keeps none.
    pub(crate) fn device_memory<'a>(&self, groups: impl Iterator<Item = &'a str>) -> Option<Vec<CgroupMemory>> {
        self.device_memory.as_ref().map(|memory| memory.of(groups))
    }
}

#[cfg(test)]
mod tests;
