//! The smallest framework: a pool that keeps its blocks. It is in the list of frameworks in tests
//! only.

use super::*;
use crate::decode::{PoolBlock, PoolChange, PoolKind, PoolTurn};
use crate::words::Framework;

/// A pool whose events are those of other pools.
#[derive(Clone, Debug, Default)]
pub(in crate::allocators) struct ToyPool {
    is_watched: bool,
    is_lossy: bool,
    /// Size in bytes of each block, by address.
    blocks: BTreeMap<u64, u64>,
}

impl ToyPool {
    /// Returns whether the pool's functions are probed.
    pub(in crate::allocators) const fn is_watched(&self) -> bool {
        self.is_watched
    }

    fn grant(&mut self, event: &TensorEvent, block: &PoolBlock) -> BlockChange {
        self.blocks.insert(block.address, block.bytes);
        BlockChange::Granted(TensorBlock {
            ordinal: GPU,
            address: block.address,
            block_bytes: block.bytes,
            requested_bytes: Some(block.bytes),
            cached: None,
            tid: event.tid,
            stack: event.stack,
            is_sampled: event.is_sampled,
            time_ns: event.time_ns,
        })
    }
}

impl FrameworkAllocator for ToyPool {
    /// No other allocator is watched under this framework.
    fn watch(&mut self, framework: Framework, _from_start: bool) -> bool {
        let is_new = framework == Framework::Jax && !self.is_watched;
        self.is_watched |= is_new;
        is_new
    }

    fn note(&mut self, notice: AllocatorNotice) {
        self.is_lossy |= notice == AllocatorNotice::EventsLost;
    }

    fn apply(&mut self, event: &TensorEvent) -> Option<BlockChange> {
        let TensorChange::Pool(PoolChange { turn, .. }) = &event.what else { return None };
        match turn {
            PoolTurn::Granted(block) => Some(self.grant(event, block)),
            PoolTurn::Freed(PoolBlock { address, .. }) => {
                let block_bytes = self.blocks.remove(address)?;
                Some(BlockChange::Freed { ordinal: GPU, address: *address, block_bytes })
            }
            _ => None,
        }
    }

    fn driver(&mut self, _change: DriverChange) {}

    fn reported(&self) -> BTreeMap<Ordinal, ReportedTotals> {
        let allocated_bytes = self.blocks.values().sum();
        let totals = ReportedTotals { allocated_bytes, reserved_bytes: allocated_bytes, time_ns: 0 };
        if self.blocks.is_empty() { BTreeMap::new() } else { BTreeMap::from([(GPU, totals)]) }
    }

    fn blocks_on(&self, ordinal: Ordinal) -> BTreeMap<u64, u64> {
        if ordinal == GPU { self.blocks.clone() } else { BTreeMap::new() }
    }
}

#[test]
fn toy_framework_has_totals_and_attribution_through_its_trait_alone() {
    let mut ledger = TensorLedger::default();
    assert!(ledger.watch(Framework::Jax, true) && !ledger.watch(Framework::Jax, true));
    ledger.learn(FORWARD, stack(&["model.py forward:8"]));
    let mut apply = |address, turn: fn(PoolBlock) -> PoolTurn| {
        let block = PoolBlock { pool: 1, address, bytes: address / 4, counter: None, ordinal: None };
        let what = TensorChange::Pool(PoolChange { kind: PoolKind::Pool, turn: turn(block) });
        ledger.apply(&TensorEvent::made((Tgid(1), MAIN), address, StackRef::Known(FORWARD), what));
    };
    apply(0x4000, PoolTurn::Granted);
    apply(0x1000, PoolTurn::Granted);
    apply(0x4000, PoolTurn::Freed);
    assert_eq!(ledger.reported()[&GPU].allocated_bytes, 0x400);
    let live: Vec<u64> = ledger.attribution().devices()[&GPU].sites().map(|(_, sum)| sum.live_bytes).collect();
    assert_eq!(live, [0x400]);
    assert!(!ledger.allocators.toy.is_lossy);
    ledger.lose(Loss::TensorEventLost, 1);
    assert!(ledger.allocators.toy.is_lossy, "a framework learns of its losses");
}
