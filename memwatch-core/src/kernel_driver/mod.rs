//! Ledger of the kernel driver: every object that a process requested from it by ioctl. NVML
//! charges a process the sum of its granted video memory, which is more than the requested sum.
//!
//! NVIDIA's `_gpuCollectMemInfo` computes that sum (open-gpu-kernel-modules, `gpu_rmapi.c`): class
//! 0x40, by the process that created the client. Measured on an H100 with driver 580.159.04: equal
//! at 38 of 38 marks of one program, and at 674 of 676 marks of ten others; at the other two marks
//! an ioctl was in flight.

pub mod columns;
pub mod decode;
pub mod labels;
mod ledger;
pub mod local_memory;
pub mod objects;
pub mod process_ledger;
pub mod stacks;
pub mod trust;
pub mod view;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::stack::native::NativeStack;
use crate::words::{GpuUuid, Tgid};

use decode::ObjectKey;
use objects::{DriverDevice, DriverMemory, RmClient};
use process_ledger::DriverLedger;
use stacks::Caller;
use trust::{Compared, LedgerTrust, NvmlAgreement, Reason};

/// Driver branches with known layouts.
const KNOWN_BRANCHES: std::ops::RangeInclusive<u32> = 515..=595;

/// Returns whether the layouts of a kernel driver version, such as `580.159.04`, are known.
pub fn knows(version: &str) -> bool {
    branch_of(version).is_some_and(|branch| KNOWN_BRANCHES.contains(&branch))
}

fn branch_of(version: &str) -> Option<u32> {
    version.split('.').next()?.parse().ok()
}

/// Kernel-driver ledgers of all processes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct KernelDriver {
    /// Content of `/sys/module/nvidia/version`; `None` if it has not been read.
    version: Option<String>,
    /// Clients by number. The kernel driver never reuses a number while it is loaded.
    clients: BTreeMap<u32, RmClient>,
    processes: BTreeMap<Tgid, DriverLedger>,
    /// Other objects that share each memory object, in the order in which they were created.
    imported: BTreeMap<ObjectKey, Vec<ObjectKey>>,
    /// Whether the sum of a process seen from its start has agreed with NVML for this version.
    confirmed: bool,
    /// Whether the last device reading has not been compared yet: ioctls in flight at its time may
    /// not have returned.
    awaits: bool,
}

/// Properties of a process's tracing that decide whether its ledger is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracingStatus {
    /// Whether the process was traced from its start.
    pub from_start: bool,
    /// Whether every record of its ioctls arrived.
    pub complete: bool,
    /// Whether one of its ioctls had a size that no known layout has.
    pub odd_layout: bool,
}

impl KernelDriver {
    /// Returns the clients and ledgers of these processes.
    #[must_use]
    pub(crate) fn of(&self, is_one: impl Fn(Tgid) -> bool) -> Self {
        let mut own = self.clone();
        own.clients.retain(|_, client| is_one(client.tgid));
        own.processes.retain(|tgid, _| is_one(*tgid));
        let is_own = |key: &ObjectKey| own.clients.contains_key(&key.client);
        own.imported.retain(|key, sharers| {
            sharers.retain(is_own);
            is_own(key) && !sharers.is_empty()
        });
        own
    }

    /// Sets the version of the kernel driver.
    pub fn learn_version(&mut self, version: Option<String>) {
        if self.version != version {
            self.version = version;
            self.confirmed = false;
            self.processes.values_mut().for_each(|ledger| ledger.standings.clear());
        }
    }

    /// Kernel driver version, from `/sys/module/nvidia/version`.
    pub fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// Returns the driver branch, such as 580; `None` if the version is unknown or malformed.
    pub fn branch(&self) -> Option<u32> {
        branch_of(self.version.as_ref()?)
    }

    /// Returns whether the layouts of this kernel driver are known.
    pub fn is_known(&self) -> bool {
        self.version.as_deref().is_some_and(knows)
    }

    /// Returns whether the sum of a process seen from its start has agreed with NVML for this
    /// version.
    pub const fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    /// Records the caller in a native stack taken at an ioctl. Returns false if the stack was taken
    /// elsewhere.
    pub fn learn_stack(&mut self, tgid: Tgid, id: u64, stack: &NativeStack) -> bool {
        let caller = Caller::of(stack);
        let is_of_request = caller.is_some();
        if let Some(caller) = caller {
            self.processes.entry(tgid).or_default().stacks.learn(id, caller);
        }
        is_of_request
    }

    /// Returns the state of a process; `None` if no ioctl of it was seen.
    pub fn ledger_of(&self, tgid: Tgid) -> Option<&DriverLedger> {
        self.processes.get(&tgid)
    }

    /// Iterates over all processes with a kernel-driver ledger.
    pub fn processes(&self) -> impl Iterator<Item = Tgid> {
        self.processes.keys().copied()
    }

    /// Iterates over a process's memory objects, with the GPU of each.
    pub fn memory(&self, tgid: Tgid) -> impl Iterator<Item = (ObjectKey, DriverDevice, &DriverMemory)> {
        let own = self.clients.values().filter(move |client| client.tgid == tgid);
        own.flat_map(|client| client.memory().map(|(key, memory)| (key, client.place(memory.device), memory)))
    }

    /// Number of memory objects of other clients that a process shares.
    pub fn imported(&self, tgid: Tgid) -> u64 {
        let own = self.clients.values().filter(|client| client.tgid == tgid);
        own.map(RmClient::imported).sum()
    }

    /// Discards the comparisons with NVML: the process's calls are seen only from now on.
    pub fn forget_standing(&mut self, tgid: Tgid) {
        if let Some(ledger) = self.processes.get_mut(&tgid) {
            ledger.standings.clear();
        }
    }

    /// Compares the ledger of a process with what NVML charged it on a GPU, at a settled reading.
    pub fn compare(&mut self, tgid: Tgid, gpu: &GpuUuid, compared: Compared, watched: TracingStatus) {
        let Some(ledger) = self.processes.get_mut(&tgid) else { return };
        let is_sound = watched.complete && ledger.violation.is_none();
        let standing = ledger.standings.entry(gpu.clone()).or_default();
        standing.compare(compared, watched.from_start);
        if watched.from_start && is_sound && !ledger.uses_unknown && standing.has_agreed() {
            self.confirmed = true;
        }
    }

    /// Schedules the comparison of a device reading, for when the ioctls in flight have returned.
    pub const fn await_comparison(&mut self) {
        self.awaits = true;
    }

    /// Returns whether a comparison is scheduled, and clears the schedule.
    pub const fn take_awaited(&mut self) -> bool {
        std::mem::replace(&mut self.awaits, false)
    }

    /// Drops state needed only for readings that began before `since_ns`.
    pub fn forget_before(&mut self, since_ns: u64) {
        let clients = &self.clients;
        for ledger in self.processes.values_mut() {
            ledger.forget_devices(since_ns, |client| clients.contains_key(&client));
        }
    }

    /// Returns whether the ledger of a process on a GPU explains what NVML charges there.
    pub fn trust(&self, tgid: Tgid, gpu: &GpuUuid, watched: TracingStatus) -> LedgerTrust {
        let Some(ledger) = self.processes.get(&tgid) else { return LedgerTrust::Settling };
        match ledger.violation {
            _ if watched.odd_layout => return LedgerTrust::Refused(Reason::Layout),
            Some(decode::RmViolation::Layout) => return LedgerTrust::Refused(Reason::Layout),
            Some(decode::RmViolation::Unreadable) => return LedgerTrust::Refused(Reason::Lost),
            Some(_) => return LedgerTrust::Refused(Reason::Contradictory),
            None if !watched.complete => return LedgerTrust::Refused(Reason::Lost),
            None if watched.from_start && ledger.uses_unknown => return LedgerTrust::Refused(Reason::NeverMade),
            None => {}
        }
        if !self.is_known() {
            return LedgerTrust::Unknown;
        }
        let has_agreed = ledger.standing(gpu).is_some_and(NvmlAgreement::has_agreed);
        // After a late attach, the initial difference is taken as older memory, so any sum fits at
        // first. The sums must have been confirmed with another process.
        let is_trusted = has_agreed && (watched.from_start || self.confirmed);
        if is_trusted { LedgerTrust::Trusted } else { LedgerTrust::Settling }
    }
}

#[cfg(test)]
mod tests;
