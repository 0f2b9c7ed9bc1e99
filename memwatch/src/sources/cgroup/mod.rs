//! Control groups: resolves the kernel half's group ids to paths, tracks moved processes, and reads
//! the device memory of groups from the kernel's accounting. `/proc/PID/cgroup` is read in
//! `procfs`.

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

/// Maximum number of remembered groups. A group may be gone by the time its process is reported.
const REMEMBERED: usize = 1024;
/// Path of the root group, which always exists and need not be remembered.
const ROOT: &str = "/";

/// State of the machine's control groups.
#[derive(Debug)]
pub(crate) struct ControlGroups {
    unified: Option<Mount>,
    device_memory: Option<DeviceMemory>,
    has_v1: bool,
    known: BTreeMap<u64, String>,
    oldest: VecDeque<u64>,
    moved: BTreeSet<u32>,
}

impl ControlGroups {
    /// Finds the machine's cgroup trees.
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

    /// Records the groups of a process in the group with this id, in the format of
    /// `/proc/PID/cgroup`.
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

    /// Returns the groups of an exited process from the id of its unified group, in the format of
    /// `/proc/PID/cgroup`.
    ///
    /// `None` if the group is gone as well and not remembered, or if it is the root group next to
    /// v1 hierarchies, which may differ.
    pub(crate) fn of_gone(&self, id: u64) -> Option<String> {
        if id == 0 {
            return None;
        }
        let now = self.unified.as_ref().and_then(|mount| mount.path_of(id).ok());
        let path = now.or_else(|| self.known.get(&id).cloned())?;
        (path != ROOT || !self.has_v1).then(|| format!("0::{path}\n"))
    }

    /// Records that a process was moved to another group.
    pub(crate) fn note_move(&mut self, tgid: u32) {
        self.moved.insert(tgid);
    }

    /// Returns the current groups of the processes moved since the last call. A process moved
    /// several times is read once.
    pub(crate) fn take_moved(&mut self, processes: &ProcReader) -> Vec<Input> {
        let moved = std::mem::take(&mut self.moved).into_iter();
        moved.filter_map(|tgid| Some(Input::Cgroups { tgid: Tgid(tgid), cgroups: processes.cgroups(tgid)? })).collect()
    }

    /// Returns the device memory of these groups from the kernel's accounting; `None` if the kernel
    /// has none.
    pub(crate) fn device_memory<'a>(&self, groups: impl Iterator<Item = &'a str>) -> Option<Vec<CgroupMemory>> {
        self.device_memory.as_ref().map(|memory| memory.of(groups))
    }
}

#[cfg(test)]
mod tests;
