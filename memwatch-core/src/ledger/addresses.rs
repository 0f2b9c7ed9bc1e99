//! Live allocations by address, stored compactly because there may be millions of them.
//!
//! Most attributes of allocations repeat: context, device, pool and kind. Each combination is
//! stored once and referred to by number. An address therefore takes 32 bytes, and two addresses
//! share a cache line.

use std::collections::HashMap;
use std::num::NonZeroU32;

use foldhash::fast::RandomState;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::grants::{Allocation, Tenancy};
use super::pool::PoolId;
use super::table::Tag;
use super::tenants::{ReleaseOutcome, Tenants};
use super::totals::{AllocationKind, DeviceRef};

/// Number of combinations from which unused ones are looked for.
const FEW: usize = 256;

/// Allocations by address.
#[derive(Clone, Debug, Default)]
pub(super) struct LiveAddresses {
    tenants: Tenants<Small>,
    sorts: Sorts,
}

/// Compact form of a [`Tenancy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Small {
    bytes: u64,
    sort: SortId,
}

/// All attributes of an allocation except its size; `None` for memory of another owner.
type AllocationSort = Option<(u64, DeviceRef, Option<PoolId>, AllocationKind)>;

/// Index of a sort in the list, starting at one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SortId(NonZeroU32);

impl LiveAddresses {
    /// See [`Tenants::grant`].
    pub(super) fn grant(&mut self, address: u64, granted_ns: u64, tenancy: Tenancy) -> Option<Tenancy> {
        let small = self.pack(tenancy);
        let previous = self.tenants.grant(address, granted_ns, small)?;
        Some(self.take(previous))
    }

    /// See [`Tenants::displace`].
    pub(super) fn displace(&mut self, address: u64) -> Option<Tenancy> {
        let previous = self.tenants.displace(address)?;
        Some(self.take(previous))
    }

    /// See [`Tenants::release`].
    #[inline]
    pub(super) fn release(&mut self, address: u64, entered_ns: u64) -> ReleaseOutcome<Tenancy> {
        match self.tenants.release(address, entered_ns) {
            ReleaseOutcome::Freed(small) => ReleaseOutcome::Freed(self.take(small)),
            ReleaseOutcome::PreviousTenant => ReleaseOutcome::PreviousTenant,
            ReleaseOutcome::Unknown => ReleaseOutcome::Unknown,
        }
    }

    /// See [`Tenants::await_frees`].
    pub(super) fn await_frees(&mut self, address: u64, count: u32) {
        self.tenants.await_frees(address, count);
    }

    /// See [`Tenants::await_nothing`].
    pub(super) fn await_nothing(&mut self) {
        self.tenants.await_nothing();
    }

    /// See [`Tenants::prefetch`].
    #[inline]
    pub(super) fn prefetch(&self, address: u64) -> Tag {
        self.tenants.prefetch(address)
    }

    /// See [`Tenants::prefetch_tenant`].
    #[inline]
    pub(super) fn prefetch_tenant(&self, tag: Tag) {
        self.tenants.prefetch_tenant(tag);
    }

    /// Removes the process's own allocations granted by `until_ns` for which `dies` returns true.
    pub(super) fn drain_own(&mut self, until_ns: u64, dies: impl Fn(&Allocation) -> bool) -> Vec<(u64, Allocation)> {
        let sorts = &self.sorts;
        let is_dying = |small: &Small| sorts.unpack(*small).own().is_some_and(&dies);
        let gone = self.tenants.drain_where(until_ns, is_dying);
        let own = gone.into_iter().map(|(address, small)| (address, self.take(small)));
        own.filter_map(|(address, tenancy)| Some((address, *tenancy.own()?))).collect()
    }

    /// Removes all entries for which `goes` returns true, with their addresses.
    pub(super) fn extract(&mut self, goes: impl Fn(u64, &Tenancy) -> bool) -> Vec<(u64, Tenancy)> {
        let sorts = &self.sorts;
        let gone = self.tenants.extract(|address, small| goes(address, &sorts.unpack(*small)));
        gone.into_iter().map(|(address, small)| (address, self.take(small))).collect()
    }

    /// Returns the allocation at an address.
    pub(super) fn get(&self, address: u64) -> Option<Tenancy> {
        self.tenants.get(address).map(|small| self.sorts.unpack(*small))
    }

    /// Iterates over the process's own allocations by address, in no particular order.
    pub(super) fn own(&self) -> impl Iterator<Item = (u64, Allocation)> {
        self.tenants.iter().filter_map(|(address, small)| Some((address, *self.sorts.unpack(*small).own()?)))
    }

    /// See [`Tenants::granted_ns`].
    pub(super) fn granted_ns(&self, address: u64) -> Option<u64> {
        self.tenants.granted_ns(address)
    }

    /// Iterates over all addresses in use, in no particular order.
    pub(super) fn keys(&self) -> impl Iterator<Item = u64> {
        self.tenants.keys()
    }

    /// Number of addresses in use.
    pub(super) fn len(&self) -> usize {
        self.tenants.len()
    }

    /// Number of entries in all tables.
    pub(super) fn listed(&self) -> usize {
        self.tenants.listed() + self.sorts.rows.len()
    }

    /// Number of addresses of the process's own memory.
    pub(super) fn own_count(&self) -> u64 {
        self.sorts.rows.iter().filter(|row| row.sort.is_some()).map(|row| row.live).sum()
    }

    fn pack(&mut self, tenancy: Tenancy) -> Small {
        let own = tenancy.own();
        let sort = own.map(|own| (own.context, own.device, own.pool, own.kind));
        Small { bytes: own.map_or(0, |own| own.bytes), sort: self.sorts.enter(sort) }
    }

    /// Unpacks a removed entry and releases its sort.
    #[inline]
    fn take(&mut self, small: Small) -> Tenancy {
        let tenancy = self.sorts.unpack(small);
        self.sorts.leave(small.sort);
        tenancy
    }
}

/// Serialised form: each sort once, and each address with the index of its sort.
#[derive(Serialize)]
struct ToStore<'a> {
    sorts: Vec<AllocationSort>,
    tenants: &'a Tenants<Small>,
}

#[derive(Deserialize)]
struct Stored {
    sorts: Vec<AllocationSort>,
    tenants: Tenants<Small>,
}

impl Serialize for LiveAddresses {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let sorts = self.sorts.rows.iter().map(|row| row.sort).collect();
        ToStore { sorts, tenants: &self.tenants }.serialize(serializer)
    }
}

/// Rebuilds the counts of sorts in use.
impl<'de> Deserialize<'de> for LiveAddresses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Stored { sorts: kept, mut tenants } = Stored::deserialize(deserializer)?;
        let mut sorts = Sorts::default();
        for small in tenants.values_mut() {
            let sort =
                kept.get(small.sort.index()).ok_or_else(|| D::Error::custom("an address refers to an unknown sort"))?;
            small.sort = sorts.enter(*sort);
        }
        Ok(Self { tenants, sorts })
    }
}

/// The combinations in use.
#[derive(Clone, Debug, Default)]
struct Sorts {
    rows: Vec<SortRow>,
    ids: HashMap<AllocationSort, SortId, RandomState>,
    /// The sort used last; the next allocation is most often of the same sort.
    last: Option<SortId>,
    vacant: Vec<SortId>,
    /// Number of rows from which unused ones are looked for.
    most: usize,
}

#[derive(Clone, Copy, Debug)]
struct SortRow {
    sort: AllocationSort,
    live: u64,
}

impl Sorts {
    /// Counts one more allocation of this sort.
    #[inline]
    fn enter(&mut self, sort: AllocationSort) -> SortId {
        let id = match self.last {
            Some(last) if self.rows[last.index()].sort == sort => last,
            _ => self.find_or_add(sort),
        };
        self.rows[id.index()].live += 1;
        self.last = Some(id);
        id
    }

    /// Counts one allocation less of this sort.
    #[inline]
    fn leave(&mut self, id: SortId) {
        self.rows[id.index()].live -= 1;
    }

    #[inline]
    fn unpack(&self, small: Small) -> Tenancy {
        match self.rows[small.sort.index()].sort {
            None => Tenancy::Foreign,
            Some((context, device, pool, kind)) => {
                Tenancy::Own(Allocation { bytes: small.bytes, context, device, pool, kind })
            }
        }
    }

    fn find_or_add(&mut self, sort: AllocationSort) -> SortId {
        if let Some(id) = self.ids.get(&sort) {
            return *id;
        }
        if self.vacant.is_empty() && self.rows.len() >= self.most.max(FEW) {
            self.forget_unused();
        }
        let row = SortRow { sort, live: 0 };
        let id = self.vacant.pop().unwrap_or_else(|| SortId::of_index(self.rows.len()));
        if id.index() == self.rows.len() {
            self.rows.push(row);
        } else {
            self.rows[id.index()] = row;
        }
        self.ids.insert(sort, id);
        id
    }

    /// Removes the sorts without live allocations: a program may create pool after pool, each with
    /// a sort of its own.
    fn forget_unused(&mut self) {
        let rows = &self.rows;
        let unused = self.ids.extract_if(|_, id| rows[id.index()].live == 0);
        self.vacant = unused.map(|(_, id)| id).collect();
        self.last = None;
        self.most = 2 * (self.rows.len() - self.vacant.len());
    }
}

impl SortId {
    fn of_index(index: usize) -> Self {
        let number = u32::try_from(index).ok().and_then(|index| NonZeroU32::MIN.checked_add(index));
        Self(number.expect("fewer than 2^32 sorts are in use"))
    }

    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

#[cfg(test)]
#[path = "tests/addresses.rs"]
mod tests;
