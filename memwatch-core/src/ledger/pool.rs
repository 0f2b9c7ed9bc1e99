//! Pools of stream-ordered memory: the bytes in use, and the bytes reserved on the device.
//!
//! A free returns memory to its pool, not to the device. The driver takes it back at a
//! synchronisation, down to the release threshold, or at a trim (cuda.h). Synchronisations are not
//! traced, so the reserved bytes are exact only when the program queries them
//! (`cuMemPoolGetAttribute`). Between queries they are estimated as the highest use since the last
//! trim, limited by the threshold, but at least the current use.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::decode::{Location, PoolPlace, PoolSite};
use crate::words::Ordinal;

use super::totals::{AllocationKind, DeviceRef};

/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD` (cuda.h).
const RELEASE_THRESHOLD: u32 = 4;
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT` (cuda.h).
const HELD_BYTES: u32 = 5;

/// Identifies a pool for the lifetime of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PoolId(NonZeroU32);

impl PoolId {
    /// Creates an identifier from its number.
    #[cfg(test)]
    pub(super) const fn of(number: NonZeroU32) -> Self {
        Self(number)
    }
}

/// Bytes that pools reserve on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backed {
    /// Bytes, used or not.
    pub bytes: u64,
    /// Whether the bytes are estimated rather than reported by the driver; see the module
    /// documentation.
    pub estimated: bool,
}

/// Owner and kind of a pool's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum PoolOwner {
    Here(AllocationKind, DeviceRef),
    /// Memory of another process; this process owns none of it.
    Elsewhere,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct StreamPool {
    kept: PoolOwner,
    used_bytes: u64,
    /// Highest number of bytes used, or reported as reserved, since the last trim.
    high_bytes: u64,
    /// Release threshold; `None` if it may have been set before the attach.
    threshold_bytes: Option<u64>,
    /// Whether the driver has reported the reserved bytes and the pool has not changed since.
    reported: bool,
    destroyed: bool,
}

impl StreamPool {
    fn backed(&self) -> Option<Backed> {
        if self.reported {
            return Some(Backed { bytes: self.high_bytes, estimated: false });
        }
        // A pool that was never used, is trimmed to nothing, or is destroyed and empty needs no
        // estimate.
        let empty =
            self.used_bytes == 0 && (self.destroyed || (self.high_bytes == 0 && self.threshold_bytes.is_some()));
        if empty {
            return Some(Backed::default());
        }
        let kept_bytes = if self.destroyed { 0 } else { self.high_bytes.min(self.threshold_bytes?) };
        Some(Backed { bytes: kept_bytes.max(self.used_bytes), estimated: true })
    }
}

/// All pools of one process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StreamPools {
    pools: Vec<StreamPool>,
    by_handle: HashMap<u64, PoolId>,
    defaults: BTreeMap<PoolSite, PoolId>,
    current: BTreeMap<PoolSite, PoolId>,
    /// Whether every pool call of the process was seen.
    complete: bool,
}

impl StreamPools {
    /// Creates an empty state; `complete` means that no earlier pool call was missed.
    pub fn new(complete: bool) -> Self {
        Self { complete, ..Self::default() }
    }

    /// Number of entries in all tables.
    pub(super) fn listed(&self) -> usize {
        self.pools.len() + self.by_handle.len() + self.defaults.len() + self.current.len()
    }

    fn add(&mut self, kept: PoolOwner, seen_from_start: bool) -> PoolId {
        // A new pool has a threshold of 0 (cuda.h).
        let threshold_bytes = seen_from_start.then_some(0);
        self.pools.push(StreamPool {
            kept,
            used_bytes: 0,
            high_bytes: 0,
            threshold_bytes,
            reported: false,
            destroyed: false,
        });
        let number = u32::try_from(self.pools.len()).ok().and_then(NonZeroU32::new);
        PoolId(number.unwrap_or(NonZeroU32::MAX))
    }

    fn get_mut(&mut self, id: PoolId) -> Option<&mut StreamPool> {
        self.pools.get_mut(usize::try_from(id.0.get()).ok()?.checked_sub(1)?)
    }

    /// `cuMemPoolCreate`.
    pub fn create(&mut self, handle: u64, place: PoolPlace, device: DeviceRef) {
        let id = self.add(kept_at(place, device), true);
        self.by_handle.insert(handle, id);
    }

    /// `cuMemPoolImportFromShareableHandle`: the memory belongs to the exporting process.
    pub fn import(&mut self, handle: u64) {
        let id = self.add(PoolOwner::Elsewhere, true);
        self.by_handle.insert(handle, id);
    }

    /// `cuMemPoolDestroy`: the pool ends with its last allocation; until then it releases what is
    /// freed.
    pub fn destroy(&mut self, handle: u64) {
        let Some(id) = self.by_handle.remove(&handle) else { return };
        // The device falls back to its default pool (cuda.h).
        self.current.retain(|_, current| *current != id);
        if let Some(pool) = self.get_mut(id) {
            (pool.destroyed, pool.reported) = (true, false);
        }
    }

    /// `cuMemPoolTrimTo`.
    pub fn trim(&mut self, handle: u64, keep_bytes: u64) {
        if let Some(pool) = self.by_handle.get(&handle).copied().and_then(|id| self.get_mut(id)) {
            pool.high_bytes = pool.high_bytes.min(keep_bytes).max(pool.used_bytes);
            pool.reported = false;
        }
    }

    /// `cuMemPoolSetAttribute`.
    pub fn set_attribute(&mut self, handle: u64, attribute: u32, value: u64, device: DeviceRef) {
        if attribute == RELEASE_THRESHOLD {
            let id = self.known(handle, device);
            if let Some(pool) = self.get_mut(id) {
                pool.threshold_bytes = Some(value);
            }
        }
    }

    /// `cuMemPoolGetAttribute`: an attribute as reported by the driver to the program.
    pub fn learn_attribute(&mut self, handle: u64, attribute: u32, value: u64, device: DeviceRef) {
        let id = self.known(handle, device);
        let Some(pool) = self.get_mut(id) else { return };
        match attribute {
            RELEASE_THRESHOLD => pool.threshold_bytes = Some(value),
            HELD_BYTES => (pool.high_bytes, pool.reported) = (value, true),
            _ => {}
        }
    }

    /// `cuDeviceSetMemPool`, `cuMemSetMemPool`.
    pub fn set_current(&mut self, site: PoolSite, handle: u64) {
        let id = self.known(handle, device_at(site));
        self.current.insert(site, id);
    }

    /// Records the handle of the default pool, as reported to the program.
    pub fn learn_default(&mut self, site: PoolSite, handle: u64) {
        let id = match (self.by_handle.get(&handle), self.defaults.get(&site)) {
            (Some(id), _) | (None, Some(id)) => *id,
            (None, None) => self.add(kept_at_site(site), self.complete),
        };
        self.by_handle.insert(handle, id);
        self.defaults.insert(site, id);
    }

    /// Records the handle of the current pool, as reported to the program: the default pool unless
    /// the program has set another.
    pub fn learn_current(&mut self, site: PoolSite, handle: u64) {
        match self.by_handle.get(&handle) {
            Some(id) => {
                self.current.insert(site, *id);
            }
            None if self.current.contains_key(&site) || !self.complete => self.set_current(site, handle),
            None => self.learn_default(site, handle),
        }
    }

    /// Returns a pool by its handle. An unknown pool is older than the attach and assumed to be on
    /// `device`.
    fn known(&mut self, handle: u64, device: DeviceRef) -> PoolId {
        if let Some(id) = self.by_handle.get(&handle) {
            return *id;
        }
        let id = self.add(PoolOwner::Here(AllocationKind::Pool, device), false);
        self.by_handle.insert(handle, id);
        id
    }

    /// Returns the pool with this handle, or the current pool of a device.
    pub fn of(&mut self, handle: Option<u64>, device: DeviceRef) -> PoolId {
        if let Some(handle) = handle {
            return self.known(handle, device);
        }
        let DeviceRef::Ordinal(ordinal) = device else {
            // The device is not known, so all such allocations share one pool.
            return self.default_of(PoolSite::Place(PoolPlace { location: Location::Unknown, managed: false }));
        };
        let site = PoolSite::Device(ordinal);
        self.current.get(&site).copied().unwrap_or_else(|| self.default_of(site))
    }

    fn default_of(&mut self, site: PoolSite) -> PoolId {
        if let Some(id) = self.defaults.get(&site) {
            return *id;
        }
        let id = self.add(kept_at_site(site), self.complete);
        self.defaults.insert(site, id);
        id
    }

    /// Returns the kind and device of a pool's allocations; `None` if the pool belongs to another
    /// process.
    pub fn kept(&mut self, id: PoolId, device: DeviceRef) -> Option<(AllocationKind, DeviceRef)> {
        match self.get_mut(id)?.kept {
            PoolOwner::Here(kind, DeviceRef::Unknown) => Some((kind, device)),
            PoolOwner::Here(kind, own) => Some((kind, own)),
            PoolOwner::Elsewhere => None,
        }
    }

    /// Adds an allocation from the pool.
    pub fn take(&mut self, id: PoolId, bytes: u64) {
        if let Some(pool) = self.get_mut(id) {
            pool.used_bytes = pool.used_bytes.saturating_add(bytes);
            pool.high_bytes = pool.high_bytes.max(pool.used_bytes);
            pool.reported = false;
        }
    }

    /// Returns the bytes of a freed allocation to the pool.
    pub fn give_back(&mut self, id: PoolId, bytes: u64) {
        if let Some(pool) = self.get_mut(id) {
            pool.used_bytes = pool.used_bytes.saturating_sub(bytes);
            pool.reported = false;
        }
    }

    /// Returns the bytes that pools reserve on a device; `None` if one of them cannot be estimated.
    pub fn backed_on(&self, device: DeviceRef) -> Option<Backed> {
        let on_it =
            |pool: &&StreamPool| matches!(pool.kept, PoolOwner::Here(AllocationKind::Pool, own) if own == device);
        self.pools.iter().filter(on_it).try_fold(Backed::default(), |sum, pool| {
            let Backed { bytes, estimated } = pool.backed()?;
            Some(Backed { bytes: sum.bytes.saturating_add(bytes), estimated: sum.estimated || estimated })
        })
    }
}

fn device_at(site: PoolSite) -> DeviceRef {
    match site {
        PoolSite::Device(ordinal) => DeviceRef::Ordinal(ordinal),
        PoolSite::Place(place) => place.location.device().map_or(DeviceRef::Unknown, DeviceRef::Ordinal),
    }
}

fn kept_at_site(site: PoolSite) -> PoolOwner {
    match site {
        PoolSite::Device(ordinal) => PoolOwner::Here(AllocationKind::Pool, DeviceRef::Ordinal(ordinal)),
        PoolSite::Place(place) => kept_at(place, DeviceRef::Unknown),
    }
}

fn kept_at(place: PoolPlace, device: DeviceRef) -> PoolOwner {
    let on = |ordinal: Ordinal| DeviceRef::Ordinal(ordinal);
    match (place.location, place.managed) {
        (location, true) => PoolOwner::Here(AllocationKind::Managed, location.device().map_or(device, on)),
        (Location::Device(ordinal), false) => PoolOwner::Here(AllocationKind::Pool, on(ordinal)),
        (Location::Host, false) => PoolOwner::Here(AllocationKind::HostPhysical, DeviceRef::Unknown),
        (Location::Unknown, false) => PoolOwner::Here(AllocationKind::Pool, device),
    }
}

#[cfg(test)]
#[path = "tests/pool.rs"]
mod tests;
