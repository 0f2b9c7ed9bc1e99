//! A framework other than PyTorch behind the framework interface: attribution by code and totals
//! need nothing specific to it.

use super::*;

/// An arena that reports each block and its total, has no cache, and has no counters that could be
/// read.
#[derive(Clone, Debug, Default)]
struct FakeArena {
    totals: BTreeMap<Ordinal, ReportedTotals>,
    is_lossy: bool,
}

impl FrameworkAllocator for FakeArena {
    fn begin(&mut self, _from_start: bool, _missing: &[u16]) {}

    fn miss_start(&mut self) {}

    fn apply(&mut self, event: &TensorEvent) -> Option<BlockChange> {
        let TensorChange::Reported { ordinal, address, block_bytes, allocated_bytes, reserved_bytes } = event.what
        else {
            return None;
        };
        let time_ns = event.time_ns;
        self.totals.insert(ordinal, ReportedTotals { allocated_bytes, reserved_bytes, time_ns });
        let bytes = block_bytes.unsigned_abs();
        if block_bytes < 0 {
            return Some(BlockChange::Freed { ordinal, address, block_bytes: bytes });
        }
        let (tid, stack) = (event.tid, event.stack);
        let requested_bytes = Some(bytes);
        let block = TensorBlock {
            ordinal,
            address,
            block_bytes: bytes,
            requested_bytes,
            cached: Some(false),
            tid,
            stack,
            is_sampled: false,
            time_ns,
        };
        Some(BlockChange::Granted(block))
    }

    fn driver(&mut self, _change: DriverChange) {}

    fn reported(&self) -> BTreeMap<Ordinal, ReportedTotals> {
        self.totals.clone()
    }

    fn lose(&mut self) {
        self.is_lossy = true;
    }
}

#[test]
fn another_framework_has_totals_and_places_through_the_seam_alone() {
    let mut ledger = TensorLedger::<FakeArena>::default();
    ledger.learn(FORWARD, stack(&["model.py forward:8"]));
    let mut report = |address, block_bytes: i64, allocated_bytes| {
        let what =
            TensorChange::Reported { ordinal: GPU, address, block_bytes, allocated_bytes, reserved_bytes: 1 << 20 };
        let stack = StackRef::Known(FORWARD);
        ledger.apply(&TensorEvent::made((Tgid(1), MAIN), allocated_bytes, stack, what));
    };
    report(0x1000, 4096, 4096);
    report(0x2000, 1024, 5120);
    report(0x1000, -4096, 1024);
    assert_eq!(ledger.reported()[&GPU].allocated_bytes, 1024);
    let live: Vec<u64> = ledger.attribution().devices()[&GPU].sites().map(|(_, sum)| sum.live_bytes).collect();
    assert_eq!(live, [1024]);
    assert!(!ledger.wants_statistics());
    ledger.lose(Loss::TensorEventLost, 1);
    assert_eq!(ledger.losses()[&Loss::TensorEventLost], 1);
    assert!(ledger.allocators.is_lossy, "a framework learns of its losses");
}
