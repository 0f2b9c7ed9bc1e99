//! Reads the kernel half's allocation map, for resyncs after lost records.

mod batch;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use aya::maps::{HashMap, IterableMap as _, MapData};
use aya::{Ebpf, Pod};
use memwatch_common::allocation_map::{AllocationKey, AllocationMap};
use memwatch_common::capture::MappedAllocation;
use memwatch_common::shares::{NOBODY, SharedTable};
use memwatch_core::input::{HeldAddresses, LiveAddress};
use memwatch_core::ledger::EndedAddress;
use memwatch_core::state::Unnamed;
use memwatch_core::words::Tgid;

use super::load::{BPF_NOEXIST, LoadError};
use super::shares::GiveBack;

#[derive(Clone, Copy)]
#[repr(transparent)]
struct AddressKey(AllocationKey);

#[derive(Clone, Copy)]
#[repr(transparent)]
struct AddressEntry(MappedAllocation);

#[derive(Clone, Copy)]
#[repr(transparent)]
struct AllocationSums(AllocationMap);

// SAFETY: integers without padding (memwatch-common asserts the sizes); every bit pattern is valid.
unsafe impl Pod for AddressKey {}
// SAFETY: as above.
unsafe impl Pod for AddressEntry {}
// SAFETY: as above.
unsafe impl Pod for AllocationSums {}

/// Reads the allocation map, and removes entries that were freed in a way the kernel half cannot
/// see.
pub(crate) struct KernelAllocationMap {
    sums: HashMap<MapData, u32, AllocationSums>,
    addresses: HashMap<MapData, AddressKey, AddressEntry>,
    give_back: GiveBack,
    /// Bytes removed by [`Self::remove`] that the kernel half's sums still include, by process and
    /// life.
    removed_bytes: BTreeMap<(u32, u32), u64>,
    /// Processes for which a walk over all addresses gave no result.
    waits: BTreeMap<u32, Wait>,
    /// Processes that may have left addresses of earlier lives in the map.
    to_sweep: BTreeSet<u32>,
    /// Earliest times of the next walk over all addresses: for a resync, and for a sweep.
    next_look: Option<Instant>,
    next_sweep: Option<Instant>,
}

/// Pause before the next walk for a process. A walk takes a third of a second even with few
/// addresses, so it is repeated less often for a process that gets no result.
#[derive(Clone, Copy, Debug)]
struct Wait {
    pause: Duration,
    until: Instant,
}

/// Pause after the first walk without a result. It doubles with each further one.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(64);
/// Pause after a walk, as a multiple of the walk's duration. It limits the load, since a user can
/// start processes with lost records at any rate.
const BETWEEN_LOOKS: u32 = 4;
const BETWEEN_SWEEPS: u32 = 16;

impl KernelAllocationMap {
    /// Opens the allocation map of the loaded kernel half.
    pub(crate) fn open(ebpf: &mut Ebpf) -> anyhow::Result<Self> {
        let sums = ebpf.take_map("ALLOCATION_MAP").ok_or(LoadError::Missing("ALLOCATION_MAP"))?;
        let addresses = ebpf.take_map("ADDRESSES").ok_or(LoadError::Missing("ADDRESSES"))?;
        Ok(Self {
            sums: HashMap::try_from(sums)?,
            addresses: HashMap::try_from(addresses)?,
            give_back: GiveBack::open(ebpf)?,
            removed_bytes: BTreeMap::new(),
            waits: BTreeMap::new(),
            to_sweep: BTreeSet::new(),
            next_look: None,
            next_sweep: None,
        })
    }

    /// Returns the removed bytes that the kernel half's sums still include: process, life and
    /// bytes.
    pub(crate) fn removed(&self) -> Vec<(u32, u32, u64)> {
        self.removed_bytes.iter().map(|(&(tgid, life), &bytes)| (tgid, life, bytes)).collect()
    }

    /// Restores the removed bytes of the previous memwatch.
    pub(crate) fn restore(&mut self, removed: &[(u32, u32, u64)]) {
        self.removed_bytes = removed.iter().map(|&(tgid, life, bytes)| ((tgid, life), bytes)).collect();
    }

    /// Marks processes that have live addresses missing from the map, so that the map never counts
    /// as complete for them. Must be called before the probes are in place.
    pub(crate) fn expect_more(&mut self, tgids: impl Iterator<Item = u32>) {
        // Lives assigned by the kernel half derive from the time and are never 0, either.
        let more = AllocationSums(AllocationMap { life: 1, missing: 1, owner: NOBODY, ..AllocationMap::default() });
        for tgid in tgids {
            if let Err(error) = self.sums.insert(&tgid, &more, BPF_NOEXIST) {
                log::debug!("process {tgid}: {error}");
            }
        }
    }

    /// Returns the sums of a process, if it has an entry.
    pub(crate) fn sums(&self, tgid: u32) -> Option<AllocationMap> {
        self.sums.get(&tgid, 0).ok().map(|sums| sums.0)
    }

    /// Returns all addresses of each process whose map is complete and has not changed since these
    /// sums were read.
    ///
    /// Walks once over the addresses of all processes. A process without a result is skipped for a
    /// while.
    pub(crate) fn held_since(&mut self, before: &[(u32, AllocationMap)]) -> Vec<HeldAddresses> {
        let now = Instant::now();
        if self.next_look.is_some_and(|next| now < next) {
            return Vec::new();
        }
        let Self { sums, waits, .. } = self;
        waits.retain(|tgid, _| sums.get(tgid, 0).is_ok());
        // A walk gives no result if the process makes calls meanwhile or its map is incomplete.
        let is_worth = |&&(tgid, before): &&(u32, AllocationMap)| {
            let waits = self.waits.get(&tgid).is_some_and(|wait| now < wait.until);
            !waits && before.missing == 0 && self.sums(tgid) == Some(before)
        };
        let still: Vec<(u32, AllocationMap)> = before.iter().filter(is_worth).copied().collect();
        if still.is_empty() {
            return Vec::new();
        }
        let mut of_life: BTreeMap<(u32, u32), Vec<LiveAddress>> =
            still.iter().map(|(tgid, sums)| ((*tgid, sums.life), Vec::new())).collect();
        let entries = self.entries();
        self.next_look = Some(after(now, BETWEEN_LOOKS));
        for (place, booked) in entries {
            if let Some(held) = of_life.get_mut(&(place.tgid, place.life)) {
                let probe = u16::try_from(booked.probe).unwrap_or(0);
                held.push(LiveAddress { address: place.address, bytes: booked.bytes, probe });
            }
        }
        let mut all = Vec::new();
        for (tgid, before) in still {
            let held = of_life.remove(&(tgid, before.life)).unwrap_or_default();
            match self.whole(tgid, &before, held) {
                Some(held) => {
                    self.waits.remove(&tgid);
                    all.push(held);
                }
                None => self.wait(tgid),
            }
        }
        all
    }

    fn wait(&mut self, tgid: u32) {
        let now = Instant::now();
        let pause = self.waits.get(&tgid).map_or(SHORTEST_PAUSE, |wait| (wait.pause * 2).min(LONGEST_PAUSE));
        self.waits.insert(tgid, Wait { pause, until: now + pause });
    }

    /// Returns these addresses if the map was complete and did not change during the walk.
    fn whole(&self, tgid: u32, before: &AllocationMap, held: Vec<LiveAddress>) -> Option<HeldAddresses> {
        let stood_still = self.sums(tgid).is_some_and(|after| after == *before);
        let removed_bytes = self.removed_bytes.get(&(tgid, before.life)).copied().unwrap_or(0);
        let held_bytes = held.iter().fold(removed_bytes, |sum, held| sum.wrapping_add(held.bytes));
        let complete = held_bytes == before.live_bytes && before.missing == 0;
        (stood_still && complete).then_some(HeldAddresses { tgid: Tgid(tgid), held, teardowns: before.teardowns })
    }

    /// Removes addresses freed implicitly, with a context, a program or a process.
    pub(crate) fn remove(&mut self, (tgid, life): (u32, u32), unnamed: &Unnamed) {
        let alive = self.sums(tgid).is_some_and(|sums| sums.life == life);
        let mut owners = Vec::new();
        for &EndedAddress { address, until_ns } in &unnamed.addresses {
            let key = AddressKey(AllocationKey { address, tgid, life });
            let Ok(AddressEntry(booked)) = self.addresses.get(&key, 0) else { continue };
            if booked.granted_ns > until_ns || self.addresses.remove(&key).is_err() {
                continue;
            }
            owners.push(booked.owner);
            if alive {
                let removed = self.removed_bytes.entry((tgid, life)).or_insert(0);
                *removed = removed.wrapping_add(booked.bytes);
            }
        }
        self.give_back.give_all(SharedTable::Addresses, owners.into_iter());
        if !alive {
            self.removed_bytes.remove(&(tgid, life));
        }
    }

    /// Requests that the next sweep removes all addresses of a process's earlier lives.
    pub(crate) fn want_sweep(&mut self, tgid: u32) {
        self.to_sweep.insert(tgid);
    }

    /// Removes addresses of earlier lives where requested, if a sweep is due.
    pub(crate) fn sweep(&mut self) {
        if self.to_sweep.is_empty() || self.next_sweep.is_some_and(|next| Instant::now() < next) {
            return;
        }
        let present = |tgid: u32| (tgid, self.sums(tgid).map(|sums| sums.life));
        let lives: BTreeMap<u32, Option<u32>> = self.to_sweep.iter().map(|tgid| present(*tgid)).collect();
        self.to_sweep.clear();
        let begun = Instant::now();
        let mut old = self.entries();
        self.next_sweep = Some(after(begun, BETWEEN_SWEEPS));
        old.retain(|(place, _)| lives.get(&place.tgid).is_some_and(|life| *life != Some(place.life)));
        let mut owners = Vec::new();
        for (place, booked) in old {
            owners.extend(self.addresses.remove(&AddressKey(place)).is_ok().then_some(booked.owner));
            self.removed_bytes.remove(&(place.tgid, place.life));
        }
        self.give_back.give_all(SharedTable::Addresses, owners.into_iter());
    }

    /// Returns all addresses of all processes, except those added or removed during the walk.
    fn entries(&self) -> Vec<(AllocationKey, MappedAllocation)> {
        batch::entries(self.addresses.map().fd().as_fd()).unwrap_or_else(|error| {
            log::warn!("the kernel half's allocation map cannot be read: {error}");
            Vec::new()
        })
    }
}

/// Returns the earliest time of the next walk, after a walk that has just ended.
fn after(begun: Instant, pause: u32) -> Instant {
    let now = Instant::now();
    now + now.duration_since(begun) * pause
}

#[cfg(test)]
mod tests {
    use memwatch_common::shares::TABLES;

    use super::*;
    use crate::sources::kernel::load::{KernelHalf, LoadOptions};

    #[test]
    fn kernel_half_counts_entries_removed_by_user_space() {
        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!("SKIPPED: programs are loaded by root");
            return;
        }
        let options =
            LoadOptions { all_processes: true, ring_bytes: 1 << 20, classic_uprobes: false, diagnostics: false };
        let kernel = KernelHalf::load(options).expect("the kernel half is loaded");
        let give_back = GiveBack::open(&kernel.ebpf).expect("it has the program");
        give_back.give_all(SharedTable::Addresses, [4242, NOBODY, 4242].into_iter());
        give_back.give(SharedTable::Codes, 4243, 5);
        let counted = |name: &str, owner: u32, table: SharedTable| {
            let owners = kernel.ebpf.map(name).expect("the table is there");
            let owners: HashMap<&MapData, u32, [u64; TABLES]> = HashMap::try_from(owners).expect("as wide as declared");
            owners.get(&owner, 0).ok().map(|of| of[table as usize])
        };
        // No process has taken these entries, so giving them back makes the counters wrap.
        assert_eq!(counted("OWNERS", 4242, SharedTable::Addresses), Some(2_u64.wrapping_neg()));
        assert_eq!(counted("STACK_OWNERS", 4243, SharedTable::Codes), Some(5_u64.wrapping_neg()));
        assert_eq!(counted("OWNERS", NOBODY, SharedTable::Addresses), None);
    }
}
