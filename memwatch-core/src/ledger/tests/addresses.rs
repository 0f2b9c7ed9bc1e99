//! Addresses keep what was recorded for them, in little memory.

use std::mem::size_of;
use std::num::NonZeroU32;

use super::*;
use crate::ledger::table::slot_bytes;
use crate::ledger::tenants::Tenant;
use crate::words::Ordinal;

fn from_pool(pool: u32, bytes: u64) -> Tenancy {
    let pool = NonZeroU32::new(pool).map(PoolId::of);
    Tenancy::Own(Allocation {
        bytes,
        context: 7,
        device: DeviceRef::Ordinal(Ordinal(1)),
        pool,
        kind: AllocationKind::Pool,
    })
}

fn rows(addresses: &LiveAddresses) -> usize {
    addresses.sorts.rows.len()
}

#[test]
fn two_allocations_take_one_line_of_memory() {
    assert_eq!(slot_bytes::<Tenant<Small>>(), 32);
    assert!(size_of::<Tenancy>() > size_of::<Small>());
}

#[test]
fn live_address_tenancy_is_returned_as_it_was_granted() {
    let mut addresses = LiveAddresses::default();
    assert_eq!(addresses.grant(0x1000, 10, from_pool(1, 100)), None);
    assert_eq!(addresses.grant(0x2000, 10, from_pool(2, 200)), None);
    assert_eq!(addresses.grant(0x3000, 10, Tenancy::Foreign), None);
    assert_eq!(addresses.get(0x1000), Some(from_pool(1, 100)));
    assert_eq!(addresses.get(0x3000), Some(Tenancy::Foreign));
    assert_eq!(addresses.own_count(), 2);
    assert_eq!(addresses.grant(0x2000, 30, from_pool(1, 300)), Some(from_pool(2, 200)));
    assert_eq!(addresses.release(0x2000, 20), ReleaseOutcome::PreviousTenant);
    assert_eq!(addresses.release(0x2000, 40), ReleaseOutcome::Freed(from_pool(1, 300)));
    assert_eq!(addresses.own_count(), 1);
    assert_eq!(addresses.displace(0x3000), Some(Tenancy::Foreign));
    assert_eq!(addresses.len(), 1);
}

#[test]
fn only_the_processes_own_memory_dies_with_a_context() {
    let mut addresses = LiveAddresses::default();
    addresses.grant(0x1000, 10, from_pool(1, 100));
    addresses.grant(0x2000, 10, Tenancy::Foreign);
    addresses.grant(0x3000, 90, from_pool(1, 300));
    let gone = addresses.drain_own(50, |own| own.bytes > 0);
    assert_eq!(gone.into_iter().map(|(address, own)| (address, own.bytes)).collect::<Vec<_>>(), [(0x1000, 100)]);
    assert_eq!((addresses.len(), addresses.own_count()), (2, 1));
}

#[test]
fn live_addresses_stay_compact_as_pools_come_and_go() {
    let mut addresses = LiveAddresses::default();
    addresses.grant(0x1000, 1, from_pool(1, 100));
    for pool in 2..100_000 {
        addresses.grant(0x2000, u64::from(pool), from_pool(pool, 200));
        assert_eq!(addresses.release(0x2000, u64::from(pool)), ReleaseOutcome::Freed(from_pool(pool, 200)));
    }
    assert!(rows(&addresses) <= FEW, "{}", rows(&addresses));
    assert_eq!(addresses.get(0x1000), Some(from_pool(1, 100)));
}

#[test]
fn many_pools_in_use_are_all_distinguished() {
    let mut addresses = LiveAddresses::default();
    for pool in 1..5_000 {
        addresses.grant(u64::from(pool) << 12, 1, from_pool(pool, 200));
    }
    assert_eq!(rows(&addresses), 4_999);
    assert!((1..5_000).all(|pool| addresses.get(u64::from(pool) << 12) == Some(from_pool(pool, 200))));
}
