//! Decodes reports of RAPIDS Memory Manager's and CuPy's pools about blocks.

use memwatch_common::tensor::{
    BlockPlan, FrameworkLibrary, PoolPlan, PoolShape, TensorMeaning, TensorProbe, TensorRecord, tensor_probe,
};
use serde::{Deserialize, Serialize};

use crate::words::{Framework, Ordinal};

/// Change of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolChange {
    /// Kind of the pool.
    pub kind: PoolKind,
    /// Kind of the change.
    pub turn: PoolTurn,
}

/// Kind of a pool, by its allocation method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolKind {
    /// `pool_memory_resource` of RAPIDS: blocks of the requested size.
    Pool,
    /// `fixed_size_memory_resource` of RAPIDS: blocks of one size.
    FixedSize,
    /// `arena_memory_resource` of RAPIDS: a pool for each thread or stream, without counters.
    Arena,
    /// CuPy's `SingleDeviceMemoryPool`.
    MemoryPool,
}

impl PoolKind {
    /// Name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::FixedSize => "fixed_size",
            Self::Arena => "arena",
            Self::MemoryPool => "memory_pool",
        }
    }

    /// Framework of the pool.
    pub const fn framework(self) -> Framework {
        match self {
            Self::Pool | Self::FixedSize | Self::Arena => Framework::Rmm,
            Self::MemoryPool => Framework::CuPy,
        }
    }

    fn of(row: &TensorProbe) -> Option<Self> {
        let BlockPlan::Pool(PoolPlan { shape, .. }) = row.plan.block else {
            let is_fixed = row.symbol.contains("fixed_size_memory_resource");
            return (row.library == FrameworkLibrary::Rmm).then_some(if is_fixed {
                Self::FixedSize
            } else {
                Self::Pool
            });
        };
        Some(match shape {
            PoolShape::FromBlock | PoolShape::IntoBlock => Self::Pool,
            PoolShape::FromFixed | PoolShape::IntoFixed => Self::FixedSize,
            PoolShape::Wanted | PoolShape::Answered | PoolShape::IntoArena => Self::Arena,
            PoolShape::ChunkGranted | PoolShape::ChunkFreed => Self::MemoryPool,
        })
    }
}

/// Change of a pool, regardless of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PoolTurn {
    /// The pool at this address is created, without memory.
    Begins(u64),
    /// The pool at this address frees all its memory.
    Ends(u64),
    /// The pool grants a block, which its counter includes.
    Granted(PoolBlock),
    /// The pool takes back a block, which its counter still includes.
    Freed(PoolBlock),
    /// The thread requests memory from a pool.
    Wanted {
        /// Address of the pool.
        pool: u64,
        /// Size requested by the program, bytes.
        bytes: u64,
    },
    /// Address granted to the thread's last request; 0 if it failed.
    Answered(u64),
}

/// A block of a pool, with the pool's counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolBlock {
    /// Address of the pool.
    pub pool: u64,
    /// First address of the block.
    pub address: u64,
    /// Size as rounded by the pool, bytes; in a pool with blocks of one size, the smaller requested
    /// size.
    pub bytes: u64,
    /// Counter of the pool; `None` if its location in this build is unknown.
    pub counter: Option<PoolCounter>,
    /// CUDA device ordinal, if the pool stores it.
    pub ordinal: Option<Ordinal>,
}

/// Counter of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PoolCounter {
    /// Bytes allocated from the upstream resource.
    Size(u64),
    /// Size of each block, bytes.
    BlockSize(u64),
    /// Bytes reserved from the driver, and the bytes of them that are granted.
    SizeAndUse(u64, u64),
}

impl PoolChange {
    /// Decodes a record; `None` if it is not about a pool, or could not be read.
    pub(super) fn of(record: &TensorRecord, readable: bool) -> Option<Self> {
        let row = tensor_probe(record.probe)?;
        let kind = PoolKind::of(row)?;
        let [pool, bytes, address, ..] = record.args;
        let block = || readable.then(|| block(kind, record));
        let turn = match row.meaning {
            TensorMeaning::PoolBegins => PoolTurn::Begins(pool),
            TensorMeaning::PoolEnds => PoolTurn::Ends(pool),
            TensorMeaning::PoolGranted => PoolTurn::Granted(block()?),
            TensorMeaning::PoolFreed => PoolTurn::Freed(block()?),
            TensorMeaning::PoolWanted => PoolTurn::Wanted { pool, bytes },
            TensorMeaning::PoolAnswered => PoolTurn::Answered(address),
            _ => return None,
        };
        Some(Self { kind, turn })
    }

    /// Returns the address of a granted block, if any.
    pub const fn granted_address(&self) -> Option<u64> {
        match self.turn {
            PoolTurn::Granted(block) => Some(block.address),
            PoolTurn::Answered(address) if address != 0 => Some(address),
            _ => None,
        }
    }
}

fn block(kind: PoolKind, record: &TensorRecord) -> PoolBlock {
    let [pool, bytes, address, device, ..] = record.args;
    // A pool that grants a block has memory, so 0 means that the word was not requested.
    let counter = match (kind, record.extra) {
        (PoolKind::Arena, _) | (_, [0, _]) => None,
        (PoolKind::Pool, [size, _]) => Some(PoolCounter::Size(size)),
        (PoolKind::FixedSize, [size, _]) => Some(PoolCounter::BlockSize(size)),
        (PoolKind::MemoryPool, [size, used]) => Some(PoolCounter::SizeAndUse(size, used)),
    };
    let number = u32::try_from(device & u64::from(u32::MAX)).ok();
    let ordinal = number.filter(|_| kind == PoolKind::MemoryPool).map(|number| Ordinal(number.cast_signed()));
    PoolBlock { pool, address, bytes, counter, ordinal }
}

#[cfg(test)]
mod tests {
    use memwatch_common::record::RingRecord;
    use memwatch_common::tensor::{FLAG_EXTRA_UNREADABLE, TensorRecord};

    use super::{PoolBlock, PoolChange, PoolCounter, PoolKind, PoolTurn};
    use crate::decode::{TensorChange, decode_tensor};
    use crate::words::{Framework, Ordinal};

    fn change(probe: u16, flags: u8, args: [u64; 6], extra: [u64; 2]) -> Option<PoolChange> {
        let record = TensorRecord { kind: 3, probe, flags, tgid: 7, tid: 8, args, extra, ..TensorRecord::default() };
        match decode_tensor(&RingRecord::Tensor(record))?.what {
            TensorChange::Pool(change) => Some(change),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn pool_probe_rows_decode_to_their_pool_kind() {
        let kinds = (67..80).map(|probe| change(probe, 0, [1, 2, 3, 0, 0, 0], [9, 8]).expect("a change").kind);
        let kinds: Vec<&str> = kinds.map(PoolKind::name).collect();
        let (four, three) = (|name| [name; 4], |name| [name; 3]);
        let expected = [&four("pool")[..], &four("fixed_size"), &three("arena"), &["memory_pool"; 2]].concat();
        assert_eq!(kinds, expected);
        assert_eq!((PoolKind::Arena.framework(), PoolKind::MemoryPool.framework()), (Framework::Rmm, Framework::CuPy));
        assert_eq!(serde_json::to_string(&PoolKind::FixedSize).expect("a word"), "\"fixed_size\"");
    }

    #[test]
    fn a_block_has_what_its_pool_counts() {
        let plain = PoolBlock { pool: 1, address: 3, bytes: 2, counter: None, ordinal: None };
        let granted = |probe, extra| change(probe, 0, [1, 2, 3, 0xff_0000_0001, 0, 0], extra).map(|change| change.turn);
        let with = |counter| Some(PoolTurn::Granted(PoolBlock { counter: Some(counter), ..plain }));
        assert_eq!(granted(67, [9, 8]), with(PoolCounter::Size(9)));
        assert_eq!(granted(71, [9, 8]), with(PoolCounter::BlockSize(9)));
        assert_eq!(granted(67, [0, 0]), Some(PoolTurn::Granted(plain)), "it was not asked for");
        let cupys = PoolBlock { counter: Some(PoolCounter::SizeAndUse(9, 8)), ordinal: Some(Ordinal(1)), ..plain };
        assert_eq!(granted(78, [9, 8]), Some(PoolTurn::Granted(cupys)), "the device is half a word");
        assert_eq!(granted(79, [9, 8]), Some(PoolTurn::Freed(cupys)));
    }

    #[test]
    fn unreadable_pool_block_is_skipped_but_pool_begin_and_end_are_kept() {
        assert_eq!(change(67, FLAG_EXTRA_UNREADABLE, [1, 2, 0, 0, 0, 0], [0; 2]), None);
        let begins = change(69, FLAG_EXTRA_UNREADABLE, [1, 2, 3, 0, 0, 0], [0; 2]).map(|change| change.turn);
        assert_eq!(begins, Some(PoolTurn::Begins(1)));
        assert_eq!(change(74, 0, [1, 2, 3, 0, 0, 0], [0; 2]).map(|change| change.turn), Some(PoolTurn::Ends(1)));
    }

    #[test]
    fn an_arena_is_asked_and_answers_apart() {
        let wanted = change(75, 0, [1, 2, 3, 0, 0, 0], [0; 2]).expect("a change");
        assert_eq!((wanted.turn, wanted.granted_address()), (PoolTurn::Wanted { pool: 1, bytes: 2 }, None));
        let answered = change(76, 0, [1, 2, 3, 0, 0, 0], [0; 2]).expect("a change");
        assert_eq!((answered.turn, answered.granted_address()), (PoolTurn::Answered(3), Some(3)));
        let nothing = change(76, 0, [0; 6], [0; 2]).expect("a change");
        assert_eq!(nothing.granted_address(), None);
    }
}
