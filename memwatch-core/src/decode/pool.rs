//! What the pools of RAPIDS' memory manager and of CuPy report of a block.

use memwatch_common::tensor::{
    BlockPlan, FrameworkLibrary, PoolPlan, PoolShape, TensorMeaning, TensorProbe, TensorRecord, tensor_probe,
};
use serde::{Deserialize, Serialize};

use crate::words::{Framework, Ordinal};

/// What becomes of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolChange {
    /// Which sort of pool it is.
    pub kind: PoolKind,
    /// What.
    pub turn: PoolTurn,
}

/// A sort of pool, by how it hands out its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolKind {
    /// RAPIDS' `pool_memory_resource`: blocks as large as asked for.
    Pool,
    /// Its `fixed_size_memory_resource`: blocks of one size.
    FixedSize,
    /// Its `arena_memory_resource`: a pool for each thread or stream, of which nothing is counted.
    Arena,
    /// CuPy's `SingleDeviceMemoryPool`.
    MemoryPool,
}

impl PoolKind {
    /// Its name, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::FixedSize => "fixed_size",
            Self::Arena => "arena",
            Self::MemoryPool => "memory_pool",
        }
    }

    /// Whose it is.
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

/// What becomes of a pool, without which sort it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PoolTurn {
    /// The pool at this address is made: it has nothing yet.
    Begins(u64),
    /// It gives back all that it has.
    Ends(u64),
    /// It grants a block, which it has counted.
    Granted(PoolBlock),
    /// It takes one back, and has not counted that.
    Freed(PoolBlock),
    /// The pool is asked for so many bytes by this thread.
    Wanted {
        /// The pool.
        pool: u64,
        /// As the program asked for it.
        bytes: u64,
    },
    /// What the thread has asked for last is at this address; 0 for nothing.
    Answered(u64),
}

/// A block of a pool's, and what the pool counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolBlock {
    /// The pool.
    pub pool: u64,
    /// Where the block begins.
    pub address: u64,
    /// Its size in bytes, as the pool has rounded it; of a pool with blocks of one size less than that.
    pub bytes: u64,
    /// What [`PoolCounter`] says; `None` where this build does not show it.
    pub counter: Option<PoolCounter>,
    /// The device by CUDA's number, where the pool says it.
    pub ordinal: Option<Ordinal>,
}

/// What a pool counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PoolCounter {
    /// What it has of the memory above it, in bytes.
    Size(u64),
    /// How large each block is, in bytes.
    BlockSize(u64),
    /// What it has of the driver, and what of that it has granted, in bytes.
    SizeAndUse(u64, u64),
}

impl PoolChange {
    /// What a record says; `None` where it is of no pool, or could not be read.
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

    /// Where the block is that it grants, if it does.
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
    // A pool that grants something has something: 0 is a word that was not asked for.
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
    use memwatch_common::record::Record;
    use memwatch_common::tensor::{FLAG_EXTRA_UNREADABLE, TensorRecord};

    use super::{PoolBlock, PoolChange, PoolCounter, PoolKind, PoolTurn};
    use crate::decode::{TensorChange, decode_tensor};
    use crate::words::{Framework, Ordinal};

    fn change(probe: u16, flags: u8, args: [u64; 6], extra: [u64; 2]) -> Option<PoolChange> {
        let record = TensorRecord { kind: 3, probe, flags, tgid: 7, tid: 8, args, extra, ..TensorRecord::default() };
        match decode_tensor(&Record::Tensor(record))?.what {
            TensorChange::Pool(change) => Some(change),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_row_is_of_its_sort_of_pool() {
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
    fn what_could_not_be_read_is_no_block_and_still_a_beginning() {
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
