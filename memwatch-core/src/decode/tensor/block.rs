//! Splits the report of one probe about a granted or freed block into an entry of the allocator's
//! trace and a report of totals.

use std::collections::BTreeMap;

use memwatch_common::tensor::{FLAG_EXTRA_UNREADABLE, PRIVATE_POOL, TensorMeaning, TensorRecord};
use serde::{Deserialize, Serialize};

use super::{StackRef, TensorChange, TensorEvent, TraceAction, Traced, device_index, gpu};
use crate::words::Ordinal;

/// A granted or freed block, with the allocator's totals after the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockReport {
    /// Address of one device's allocator: the `this` of its methods; 0 if it could not be read.
    pub allocator: u64,
    /// Device of the allocator.
    pub ordinal: Ordinal,
    /// Address of the block.
    pub address: u64,
    /// Size as rounded by the allocator, bytes.
    pub block_bytes: u64,
    /// Kind of the change.
    pub turn: BlockTurn,
}

/// Change of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BlockTurn {
    /// The block was granted to the program.
    Granted {
        /// Totals of the allocator.
        totals: BlockTotals,
        /// Request that the block serves; `None` if it could not be read.
        request: Option<BlockRequest>,
    },
    /// The program freed the block.
    GivenBack {
        /// Totals of the allocator.
        totals: BlockTotals,
        /// Number of freed blocks that a stream still uses; `None` if it could not be read.
        pending_blocks: Option<u64>,
    },
    /// No stream uses the block any longer; the program had freed it before.
    Completed {
        /// Requested size, bytes.
        requested_bytes: u64,
        /// Stream of the block.
        stream: u64,
    },
}

/// The totals of one device's allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockTotals {
    /// `allocated_bytes.all.current`.
    pub allocated_bytes: u64,
    /// `reserved_bytes.all.current`.
    pub reserved_bytes: u64,
}

/// Request that a granted block serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockRequest {
    /// Requested size, bytes.
    pub bytes: u64,
    /// Stream of the request.
    pub stream: u64,
    /// Whether the block is from a private pool.
    pub is_private: bool,
}

/// Number of freed blocks that a stream still uses, by allocator. The number shows whether a freed
/// block returned to its pool at once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingBlocks(BTreeMap<u64, u64>);

impl PendingBlocks {
    /// Forgets all numbers, because events were lost.
    pub fn forget(&mut self) {
        self.0.clear();
    }

    /// Returns whether the block freed last has returned to its pool, given the present number of
    /// pending blocks.
    fn is_completed(&mut self, allocator: u64, now: u64) -> bool {
        let before = self.0.insert(allocator, now);
        // If the previous number is unknown, assume that it has not changed: few blocks wait for a
        // stream.
        before.is_none_or(|before| before.checked_add(1) != Some(now))
    }

    fn complete(&mut self, allocator: u64) {
        if let Some(pending) = self.0.get_mut(&allocator) {
            *pending = pending.saturating_sub(1);
        }
    }
}

impl BlockReport {
    /// Decodes a record; `None` for a device that is not a GPU, or for a record of another meaning.
    pub(super) fn of(record: &TensorRecord, meaning: TensorMeaning) -> Option<Self> {
        let readable = record.flags & FLAG_EXTRA_UNREADABLE == 0;
        let [first, second, third, fourth, fifth, sixth] = record.args;
        let totals = BlockTotals { allocated_bytes: third, reserved_bytes: fourth };
        let [requested_bytes, allocator] = record.extra;
        let turn = match meaning {
            TensorMeaning::Granted => {
                let is_private = fifth & PRIVATE_POOL != 0;
                let request = BlockRequest { bytes: requested_bytes, stream: sixth, is_private };
                BlockTurn::Granted { totals, request: readable.then_some(request) }
            }
            TensorMeaning::GivenBack => BlockTurn::GivenBack { totals, pending_blocks: readable.then_some(sixth) },
            TensorMeaning::Completed if readable => {
                let turn = BlockTurn::Completed { requested_bytes: fourth, stream: fifth };
                let ordinal = device_index(sixth);
                return Some(Self { allocator: first, ordinal, address: second, block_bytes: third, turn });
            }
            _ => return None,
        };
        let block_bytes = second.cast_signed().unsigned_abs();
        Some(Self { allocator, ordinal: gpu(fifth)?, address: first, block_bytes, turn })
    }

    /// Splits the report into entries of the allocator's trace and a report of totals, in their
    /// order. `pool_of` returns the private pool of an address.
    pub fn events(
        &self,
        event: &TensorEvent,
        pending: &mut PendingBlocks,
        pool_of: impl FnOnce(Ordinal, u64) -> Option<(u64, u64)>,
    ) -> [Option<TensorEvent>; 3] {
        let (bytes, signed) = (self.block_bytes, i64::try_from(self.block_bytes).unwrap_or(i64::MAX));
        let line = |what| TensorEvent {
            what: TensorChange::Traced(what),
            stack: StackRef::NotAsked,
            is_sampled: false,
            ..*event
        };
        let report =
            |bytes, totals| Some(TensorEvent { what: self.reported(bytes, totals), stack: event.stack, ..*event });
        match self.turn {
            BlockTurn::Granted { totals, request } => {
                let traced = request.map(|BlockRequest { bytes, stream, is_private }| {
                    let pool = if is_private { pool_of(self.ordinal, self.address) } else { Some((0, 0)) };
                    line(Traced { stream, pool, ..self.traced(TraceAction::Alloc, bytes) })
                });
                [traced, None, report(signed, totals)]
            }
            BlockTurn::GivenBack { totals, pending_blocks } => {
                let is_completed = pending_blocks.is_none_or(|now| pending.is_completed(self.allocator, now));
                let traced = |action| line(Traced { is_rounded: true, ..self.traced(action, bytes) });
                let completed = is_completed.then(|| traced(TraceAction::FreeCompleted));
                [Some(traced(TraceAction::FreeRequested)), completed, report(-signed, totals)]
            }
            BlockTurn::Completed { requested_bytes, stream } => {
                pending.complete(self.allocator);
                let traced = Traced { stream, ..self.traced(TraceAction::FreeCompleted, requested_bytes) };
                [Some(line(traced)), None, None]
            }
        }
    }

    const fn traced(&self, action: TraceAction, bytes: u64) -> Traced {
        let Self { allocator, ordinal, address, .. } = *self;
        Traced { allocator, action, address, bytes, stream: 0, ordinal, pool: None, is_rounded: false }
    }

    const fn reported(&self, block_bytes: i64, totals: BlockTotals) -> TensorChange {
        let BlockTotals { allocated_bytes, reserved_bytes } = totals;
        TensorChange::Reported {
            ordinal: self.ordinal,
            address: self.address,
            block_bytes,
            allocated_bytes,
            reserved_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use memwatch_common::record::RingRecord;
    use memwatch_common::tensor::{FLAG_EXTRA_UNREADABLE, PRIVATE_POOL, TensorRecord};

    use super::PendingBlocks;
    use crate::decode::{TensorChange, TraceAction, decode_tensor};

    const GRANTED: u16 = 10;
    const GIVEN_BACK: u16 = 11;
    const COMPLETED: u16 = 12;
    const POOL: (u64, u64) = (0, 7);

    fn record(probe: u16, args: [u64; 6], extra: [u64; 2]) -> TensorRecord {
        TensorRecord { kind: 3, probe, args, extra, stack: 9, ..TensorRecord::default() }
    }

    /// Returns the parts of an event: action and bytes for trace entries, bytes and allocated total
    /// for reports.
    fn parts(record: TensorRecord, pending: &mut PendingBlocks) -> Vec<(Option<TraceAction>, i64, u64)> {
        let event = decode_tensor(&RingRecord::Tensor(record)).expect("an event");
        let TensorChange::Block(report) = &event.what else { panic!("{event:?}") };
        let parts = report.events(&event, pending, |_, _| Some(POOL));
        let shown = parts.into_iter().flatten().map(|part| match part.what {
            TensorChange::Traced(traced) => {
                let is_private = traced.pool == Some(POOL);
                (Some(traced.action), i64::try_from(traced.bytes).expect("small"), u64::from(is_private))
            }
            TensorChange::Reported { block_bytes, allocated_bytes, .. } => (None, block_bytes, allocated_bytes),
            other => panic!("{other:?}"),
        });
        shown.collect()
    }

    fn given_back(pending: u64) -> TensorRecord {
        record(GIVEN_BACK, [0x7000, 512_u64.wrapping_neg(), 1024, 4096, 1, pending], [0, 5])
    }

    #[test]
    fn a_granted_block_is_traced_with_what_was_asked_for_and_then_reported() {
        let granted = |device| record(GRANTED, [0x7000, 512, 1536, 4096, device, 3], [400, 5]);
        let pending = &mut PendingBlocks::default();
        assert_eq!(parts(granted(1), pending), [(Some(TraceAction::Alloc), 400, 0), (None, 512, 1536)]);
        let private = parts(granted(1 | PRIVATE_POOL), pending);
        assert_eq!(private, [(Some(TraceAction::Alloc), 400, 1), (None, 512, 1536)]);
        let unreadable = TensorRecord { flags: FLAG_EXTRA_UNREADABLE, ..granted(1) };
        assert_eq!(parts(unreadable, pending), [(None, 512, 1536)], "nothing is guessed");
    }

    #[test]
    fn a_block_that_a_stream_still_uses_goes_back_into_its_pool_later() {
        let (at_once, later) = (
            vec![
                (Some(TraceAction::FreeRequested), 512, 0),
                (Some(TraceAction::FreeCompleted), 512, 0),
                (None, -512, 1024),
            ],
            vec![(Some(TraceAction::FreeRequested), 512, 0), (None, -512, 1024)],
        );
        let pending = &mut PendingBlocks::default();
        // Two blocks were pending before the first event.
        for (count, expected) in [(2, &at_once), (3, &later), (3, &at_once), (4, &later)] {
            assert_eq!(parts(given_back(count), pending), *expected, "{count}");
        }
        let completed = record(COMPLETED, [5, 0x7000, 512, 400, 3, 0], [0; 2]);
        assert_eq!(parts(completed, pending), [(Some(TraceAction::FreeCompleted), 400, 0)]);
        assert_eq!(parts(given_back(3), pending), at_once);
        pending.forget();
        assert_eq!(parts(given_back(9), pending), at_once, "it is begun again with what there is then");
        let unreadable = TensorRecord { flags: FLAG_EXTRA_UNREADABLE, ..given_back(10) };
        assert_eq!(parts(unreadable, pending), at_once);
    }
}
