//! The kernel half's own allocation map: the truth to go back to when records were lost.

mod batch;

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use aya::maps::{HashMap, IterableMap as _, MapData};
use aya::{Ebpf, Pod};
use memwatch_common::allocation_map::{AllocationMap, Place};
use memwatch_common::capture::Booked;
use memwatch_core::Unnamed;
use memwatch_core::input::{Held, HeldAddresses};
use memwatch_core::ledger::EndedAddress;
use memwatch_core::words::Tgid;

use super::load::LoadError;

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Key(Place);

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Entry(Booked);

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Sums(AllocationMap);

// SAFETY: integers without padding (memwatch-common asserts the sizes); every bit pattern is valid.
unsafe impl Pod for Key {}
// SAFETY: as above.
unsafe impl Pod for Entry {}
// SAFETY: as above.
unsafe impl Pod for Sums {}

/// Reads the allocation map, and takes out of them what the kernel half cannot see going.
pub(crate) struct KernelAllocationMap {
    sums: HashMap<MapData, u32, Sums>,
    addresses: HashMap<MapData, Key, Entry>,
    /// Bytes taken out by [`Self::remove`], by process and life: the kernel half's sums still count them.
    removed_bytes: BTreeMap<(u32, u32), u64>,
    /// Processes for which all addresses were walked over without result.
    waits: BTreeMap<u32, Wait>,
}

/// A walk takes a third of a second, however few addresses there are: it is not made every second for a process that it does not help.
#[derive(Clone, Copy, Debug)]
struct Wait {
    pause: Duration,
    until: Instant,
}

/// Only where there is no such entry (include/uapi/linux/bpf.h).
const BPF_NOEXIST: u64 = 1;

/// After the first walk without result; twice as long after each further one.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(64);

impl KernelAllocationMap {
    /// Takes the allocation map of the loaded kernel half.
    pub(crate) fn open(ebpf: &mut Ebpf) -> anyhow::Result<Self> {
        let sums = ebpf.take_map("ALLOCATION_MAP").ok_or(LoadError::Missing("ALLOCATION_MAP"))?;
        let addresses = ebpf.take_map("ADDRESSES").ok_or(LoadError::Missing("ADDRESSES"))?;
        Ok(Self {
            sums: HashMap::try_from(sums)?,
            addresses: HashMap::try_from(addresses)?,
            removed_bytes: BTreeMap::new(),
            waits: BTreeMap::new(),
        })
    }

    /// What was taken out that the kernel half's sums still count: process, life and bytes.
    pub(crate) fn removed(&self) -> Vec<(u32, u32, u64)> {
        self.removed_bytes.iter().map(|(&(tgid, life), &bytes)| (tgid, life, bytes)).collect()
    }

    /// So much was taken out by a process before this one.
    pub(crate) fn restore(&mut self, removed: &[(u32, u32, u64)]) {
        self.removed_bytes = removed.iter().map(|&(tgid, life, bytes)| ((tgid, life), bytes)).collect();
    }

    /// Processes that hold addresses which are not in here: what is here is never all that one has. Before its probes are in place.
    pub(crate) fn expect_more(&mut self, tgids: impl Iterator<Item = u32>) {
        // A life of the kernel half's own is made of the time and never 0 either.
        let more = Sums(AllocationMap { life: 1, missing: 1, ..AllocationMap::default() });
        for tgid in tgids {
            if let Err(error) = self.sums.insert(&tgid, &more, BPF_NOEXIST) {
                log::debug!("process {tgid}: {error}");
            }
        }
    }

    /// The sums of a process, if it has one.
    pub(crate) fn sums(&self, tgid: u32) -> Option<AllocationMap> {
        self.sums.get(&tgid, 0).ok().map(|sums| sums.0)
    }

    /// All addresses of a process, if none came or went since `before` was read, and none is missing.
    ///
    /// Walks over the addresses of all processes; after a walk without result, not again for a while.
    pub(crate) fn held_since(&mut self, tgid: u32, before: &AllocationMap) -> Option<HeldAddresses> {
        let waits = self.waits.get(&tgid).is_some_and(|wait| Instant::now() < wait.until);
        // Not worth the walk while the process makes calls, either.
        if waits || self.sums(tgid) != Some(*before) {
            return None;
        }
        let held = self.walk_for(tgid, before);
        match &held {
            Some(_) => drop(self.waits.remove(&tgid)),
            None => self.wait(tgid),
        }
        held
    }

    fn wait(&mut self, tgid: u32) {
        let now = Instant::now();
        let sums = &self.sums;
        self.waits.retain(|tgid, _| sums.get(tgid, 0).is_ok());
        let pause = self.waits.get(&tgid).map_or(SHORTEST_PAUSE, |wait| (wait.pause * 2).min(LONGEST_PAUSE));
        self.waits.insert(tgid, Wait { pause, until: now + pause });
    }

    fn walk_for(&self, tgid: u32, before: &AllocationMap) -> Option<HeldAddresses> {
        let entries = self.entries().into_iter();
        let held = entries.filter(|(place, _)| place.tgid == tgid && place.life == before.life);
        let held = held.map(|(place, booked)| Held {
            address: place.address,
            bytes: booked.bytes,
            probe: u16::try_from(booked.probe).unwrap_or(0),
        });
        let held: Vec<Held> = held.collect();
        let stood_still = self.sums(tgid).is_some_and(|after| after == *before);
        let removed_bytes = self.removed_bytes.get(&(tgid, before.life)).copied().unwrap_or(0);
        let held_bytes = held.iter().fold(removed_bytes, |sum, held| sum.wrapping_add(held.bytes));
        let complete = held_bytes == before.live_bytes && before.missing == 0;
        (stood_still && complete).then_some(HeldAddresses { tgid: Tgid(tgid), held, teardowns: before.teardowns })
    }

    /// Takes out addresses that went without being named: with a context, an image or a process.
    pub(crate) fn remove(&mut self, (tgid, life): (u32, u32), unnamed: &Unnamed) {
        let alive = self.sums(tgid).is_some_and(|sums| sums.life == life);
        for &EndedAddress { address, until_ns } in &unnamed.addresses {
            let key = Key(Place { address, tgid, life });
            let Ok(Entry(booked)) = self.addresses.get(&key, 0) else { continue };
            if booked.granted_ns <= until_ns && self.addresses.remove(&key).is_ok() && alive {
                let removed = self.removed_bytes.entry((tgid, life)).or_insert(0);
                *removed = removed.wrapping_add(booked.bytes);
            }
        }
        if !alive {
            self.removed_bytes.remove(&(tgid, life));
        }
    }

    /// Takes out whatever is left of a process's earlier lives.
    pub(crate) fn sweep(&mut self, tgid: u32) {
        let now = self.sums(tgid).map(|sums| sums.life);
        let old: Vec<Place> = self
            .entries()
            .into_iter()
            .map(|(place, _)| place)
            .filter(|place| place.tgid == tgid && Some(place.life) != now)
            .collect();
        for place in old {
            let _ = self.addresses.remove(&Key(place));
            self.removed_bytes.remove(&(tgid, place.life));
        }
    }

    /// All addresses of all processes, but for the ones that come or go meanwhile.
    fn entries(&self) -> Vec<(Place, Booked)> {
        batch::entries(self.addresses.map().fd().as_fd()).unwrap_or_else(|error| {
            log::warn!("the kernel half's allocation map cannot be read: {error}");
            Vec::new()
        })
    }
}
