//! Rows of the functions of RAPIDS' memory manager (RMM) and of CuPy.
//!
//! RMM throws through its callers if it cannot grant a request, so no return probe is used here.
//! The result is read on the function's `ret` instructions, which exceptions do not pass.

use super::plan::{BlockPlan, TensorPlan, Walk};
use super::pool_plan::{PoolPlan, PoolShape};
use super::table::{FrameworkLibrary, ProbePoint, Purpose, TensorMeaning, TensorProbe};

/// Placeholder in a symbol for the namespace with the library's version, which may be absent:
/// `10_RMM_26_10` in `_ZN3rmm10_RMM_26_10…`.
pub const VERSION: char = '*';

macro_rules! pool {
    ($rest:literal) => {
        concat!("_ZN3rmm*2mr6detail25pool_memory_resource_impl", $rest)
    };
}
macro_rules! fixed {
    ($rest:literal) => {
        concat!("_ZN3rmm*2mr6detail31fixed_size_memory_resource_impl", $rest)
    };
}
macro_rules! arena {
    ($rest:literal) => {
        concat!("_ZN3rmm*2mr6detail26arena_memory_resource_impl", $rest)
    };
}

macro_rules! cupy {
    ($length:literal, $rest:literal) => {
        concat!("_ZL", $length, "__pyx_f_4cupy_4cuda_6memory_", $rest)
    };
}

/// RMM from 26.04 on, which has the pools in its library, and CuPy.
pub(super) const ROWS: [TensorProbe; 13] = [
    granted(67, RMM, pool!("19allocate_from_blockE"), PoolShape::FromBlock),
    freed(68, RMM, pool!("10free_blockE"), PoolShape::IntoBlock),
    row(69, RMM, pool!("15initialize_poolE"), TensorMeaning::PoolBegins, REGISTERS),
    row(70, RMM, pool!("7releaseE"), TensorMeaning::PoolEnds, REGISTERS),
    granted(71, RMM, fixed!("19allocate_from_blockE"), PoolShape::FromFixed),
    freed(72, RMM, fixed!("10free_blockE"), PoolShape::IntoFixed),
    row(73, RMM, fixed!("C1E"), TensorMeaning::PoolBegins, REGISTERS),
    row(74, RMM, fixed!("7releaseE"), TensorMeaning::PoolEnds, REGISTERS),
    row(75, RMM, arena!("8allocateE"), TensorMeaning::PoolWanted, plan(PoolShape::Wanted).walk(Walk::Grants)),
    at_answers(row(76, RMM, arena!("8allocateE"), TensorMeaning::PoolAnswered, plan(PoolShape::Answered))),
    freed(77, RMM, arena!("10deallocateE"), PoolShape::IntoArena),
    ending("P7_object", granted(78, CUPY, cupy!("48", "12PooledMemory__initP"), PoolShape::ChunkGranted)),
    // In 14.0 the function takes an address.
    ending("_Chunk", freed(79, CUPY, cupy!("57", "22SingleDeviceMemoryPool_freeP"), PoolShape::ChunkFreed)),
];

const RMM: FrameworkLibrary = FrameworkLibrary::Rmm;
const CUPY: FrameworkLibrary = FrameworkLibrary::CuPy;
const REGISTERS: TensorPlan = TensorPlan::registers();

const fn plan(shape: PoolShape) -> TensorPlan {
    REGISTERS.block(BlockPlan::Pool(PoolPlan::of(shape)))
}

const fn granted(id: u16, library: FrameworkLibrary, symbol: &'static str, shape: PoolShape) -> TensorProbe {
    row(id, library, symbol, TensorMeaning::PoolGranted, plan(shape).walk(Walk::Grants))
}

const fn freed(id: u16, library: FrameworkLibrary, symbol: &'static str, shape: PoolShape) -> TensorProbe {
    row(id, library, symbol, TensorMeaning::PoolFreed, plan(shape))
}

const fn ending(ending: &'static str, mut probe: TensorProbe) -> TensorProbe {
    probe.ending = ending;
    probe
}

const fn at_answers(mut probe: TensorProbe) -> TensorProbe {
    probe.point = ProbePoint::Answers;
    probe
}

const fn row(
    id: u16,
    library: FrameworkLibrary,
    symbol: &'static str,
    meaning: TensorMeaning,
    plan: TensorPlan,
) -> TensorProbe {
    let purpose = Purpose::Pools;
    TensorProbe { id, library, symbol, ending: "", point: ProbePoint::Entry, plan, meaning, purpose }
}
