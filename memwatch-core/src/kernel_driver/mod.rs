//! The kernel driver's own books: every object that a process asked it for, by its ioctls. What NVML charges a process is the sum of its video memory,
//! as it was granted, which is more than what was asked for.
//!
//! It is NVIDIA's `_gpuCollectMemInfo` that makes that sum (open-gpu-kernel-modules, `gpu_rmapi.c`): class 0x40, by the process that made the client.
//! Measured on an H100 with driver 580.159.04: equal at 38 of 38 marks of a program, and at 674 of 676 of ten others, of which the two were in flight.

pub mod books;
pub mod columns;
pub mod decode;
pub mod labels;
mod ledger;
pub mod local_memory;
pub mod objects;
pub mod stacks;
pub mod trust;
pub mod view;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::stack::native::NativeStack;
use crate::words::{GpuUuid, Tgid};

use books::Books;
use decode::Key;
use objects::{Client, Memory, Place};
use stacks::Caller;
use trust::{Compared, Reason, Standing, Trust};

/// The branches of the driver whose layouts are known.
const KNOWN_BRANCHES: std::ops::RangeInclusive<u32> = 515..=595;

/// Whether the layouts of a version of the kernel driver are known, such as `580.159.04`.
pub fn knows(version: &str) -> bool {
    branch_of(version).is_some_and(|branch| KNOWN_BRANCHES.contains(&branch))
}

fn branch_of(version: &str) -> Option<u32> {
    version.split('.').next()?.parse().ok()
}

/// The books of all processes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct KernelDriver {
    /// As `/sys/module/nvidia/version` has it; `None` where nobody has read it.
    version: Option<String>,
    /// By their numbers: the kernel driver gives none twice while it lives.
    clients: BTreeMap<u32, Client>,
    processes: BTreeMap<Tgid, Books>,
    /// Who else has memory, in the order in which they got it.
    imported: BTreeMap<Key, Vec<Key>>,
    /// With this version the sum of a process seen from its start agreed with NVML.
    confirmed: bool,
    /// The last reading of the devices is not compared yet: what was in flight then may not have returned.
    awaits: bool,
}

/// What is to be known of a process beside its ioctls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watched {
    /// Nothing of it was missed.
    pub from_start: bool,
    /// Every record of its ioctls arrived.
    pub complete: bool,
    /// One of them had a size that no known layout has.
    pub odd_layout: bool,
}

impl KernelDriver {
    /// The kernel driver is of this version.
    pub fn learn_version(&mut self, version: Option<String>) {
        if self.version != version {
            self.version = version;
            self.confirmed = false;
            self.processes.values_mut().for_each(|books| books.standings.clear());
        }
    }

    /// The version, as `/sys/module/nvidia/version` has it.
    pub fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// The driver's branch, such as 580; `None` where the version is not known, or is none.
    pub fn branch(&self) -> Option<u32> {
        branch_of(self.version.as_ref()?)
    }

    /// Whether the layouts of this kernel driver are known.
    pub fn is_known(&self) -> bool {
        self.version.as_deref().is_some_and(knows)
    }

    /// Whether with this version the sum of a process seen from its start agreed with NVML.
    pub const fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    /// A native stack: of use here where it is one at an ioctl. Says whether it is.
    pub fn learn_stack(&mut self, tgid: Tgid, id: u64, stack: &NativeStack) -> bool {
        let caller = Caller::of(stack);
        let is_of_request = caller.is_some();
        if let Some(caller) = caller {
            self.processes.entry(tgid).or_default().stacks.learn(id, caller);
        }
        is_of_request
    }

    /// What is kept of a process; `None` where no ioctl of it was seen.
    pub fn books(&self, tgid: Tgid) -> Option<&Books> {
        self.processes.get(&tgid)
    }

    /// All processes of which there are books.
    pub fn processes(&self) -> impl Iterator<Item = Tgid> {
        self.processes.keys().copied()
    }

    /// A process's memory, with the GPU that it is below of.
    pub fn memory(&self, tgid: Tgid) -> impl Iterator<Item = (Key, Place, &Memory)> {
        let own = self.clients.values().filter(move |client| client.tgid == tgid);
        own.flat_map(|client| client.memory().map(|(key, memory)| (key, client.place(memory.device), memory)))
    }

    /// How much memory of others a process has as well.
    pub fn imported(&self, tgid: Tgid) -> u64 {
        let own = self.clients.values().filter(|client| client.tgid == tgid);
        own.map(Client::imported).sum()
    }

    /// What readings have shown of a process so far is of no use: its calls are seen from here on only.
    pub fn forget_standing(&mut self, tgid: Tgid) {
        if let Some(books) = self.processes.get_mut(&tgid) {
            books.standings.clear();
        }
    }

    /// Holds a process's books against what NVML charged it on a GPU at a settled reading.
    pub fn compare(&mut self, tgid: Tgid, gpu: &GpuUuid, compared: Compared, watched: Watched) {
        let Some(books) = self.processes.get_mut(&tgid) else { return };
        let is_sound = watched.complete && books.violation.is_none();
        let standing = books.standings.entry(gpu.clone()).or_default();
        standing.compare(compared, watched.from_start);
        if watched.from_start && is_sound && !books.uses_unknown && standing.has_agreed() {
            self.confirmed = true;
        }
    }

    /// A reading of the devices is to be compared, once what was in flight has returned.
    pub const fn await_comparison(&mut self) {
        self.awaits = true;
    }

    /// Whether one is to be compared: not again.
    pub const fn take_awaited(&mut self) -> bool {
        std::mem::replace(&mut self.awaits, false)
    }

    /// Readings that began before `since_ns` have been judged.
    pub fn forget_before(&mut self, since_ns: u64) {
        let clients = &self.clients;
        for books in self.processes.values_mut() {
            books.forget_devices(since_ns, |client| clients.contains_key(&client));
        }
    }

    /// Whether a process's books on a GPU explain what NVML charges it there.
    pub fn trust(&self, tgid: Tgid, gpu: &GpuUuid, watched: Watched) -> Trust {
        let Some(books) = self.processes.get(&tgid) else { return Trust::Settling };
        match books.violation {
            _ if watched.odd_layout => return Trust::Refused(Reason::Layout),
            Some(decode::Violation::Layout) => return Trust::Refused(Reason::Layout),
            Some(decode::Violation::Unreadable) => return Trust::Refused(Reason::Lost),
            Some(_) => return Trust::Refused(Reason::Contradictory),
            None if !watched.complete => return Trust::Refused(Reason::Lost),
            None if watched.from_start && books.uses_unknown => return Trust::Refused(Reason::NeverMade),
            None => {}
        }
        if !self.is_known() {
            return Trust::Unknown;
        }
        let has_agreed = books.standing(gpu).is_some_and(Standing::has_agreed);
        // What a late process has before the watch fits any sum at first: that the sums are right was to be seen elsewhere.
        let is_trusted = has_agreed && (watched.from_start || self.confirmed);
        if is_trusted { Trust::Trusted } else { Trust::Settling }
    }
}

#[cfg(test)]
mod tests;
