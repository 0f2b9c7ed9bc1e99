//! Completes the probe points of RMM's and CuPy's pools in a file, with the offsets of the pools'
//! counters.
//!
//! Pools that a build does not show as expected are left out and logged; the rest is traced.

mod chunks;

use std::fs::File;

use memwatch_common::tensor::{BlockPlan, FrameworkLibrary, PoolPlan, PoolShape, TENSOR_PROBES, TensorMeaning};

use crate::frameworks::getter::{code_of, returned};
use crate::frameworks::points::TensorPoint;
use crate::frameworks::symbols::{SymbolName, symbols};
use crate::sources::kernel::resolve::{ResolveError, SymbolLayout};
use crate::stranger_file::ElfReader;

/// A kind of pool: its displayed name, and the ids of the probes without which its events would be
/// misread.
struct PoolFamily {
    name: &'static str,
    rows: &'static [u16],
    /// Getter of the pool's counter and a description of that counter; `None` if the pool has none.
    counter: Option<(&'static str, &'static str)>,
    shapes: &'static [PoolShape],
}

const POOL: PoolFamily = PoolFamily {
    name: "pool_memory_resource",
    rows: &[67, 68, 70],
    counter: Some(("_ZNK3rmm*2mr6detail25pool_memory_resource_impl9pool_sizeE", "the pool size")),
    shapes: &[PoolShape::FromBlock, PoolShape::IntoBlock],
};
const FIXED: PoolFamily = PoolFamily {
    name: "fixed_size_memory_resource",
    rows: &[71, 72, 74],
    counter: Some(("_ZNK3rmm*2mr6detail31fixed_size_memory_resource_impl14get_block_sizeE", "the block size")),
    shapes: &[PoolShape::FromFixed, PoolShape::IntoFixed],
};
const ARENA: PoolFamily = PoolFamily { name: "arena_memory_resource", rows: &[75, 76, 77], counter: None, shapes: &[] };
/// CuPy's pool. Its counter is the bytes obtained from the driver; the bytes in use follow.
const MEMORY_POOL: PoolFamily = PoolFamily {
    name: "SingleDeviceMemoryPool",
    rows: &[78, 79],
    counter: Some((
        "_ZL64__pyx_f_4cupy_4cuda_6memory_22SingleDeviceMemoryPool_total_bytesP",
        "the pool's total and used bytes",
    )),
    shapes: &[PoolShape::ChunkGranted, PoolShape::ChunkFreed],
};
const USED_BYTES: &str = "_ZL63__pyx_f_4cupy_4cuda_6memory_22SingleDeviceMemoryPool_used_bytesP";
const WORD_BYTES: u32 = 8;

/// Returns the points of RMM's library, for each kind of pool that is complete.
///
/// # Errors
/// A message that explains why no pool can be traced.
pub(crate) fn complete_rmm(file: &File, mut points: Vec<TensorPoint>) -> Result<Vec<TensorPoint>, String> {
    for sort in [POOL, FIXED, ARENA] {
        sort.complete(file, &mut points);
    }
    if points.is_empty() {
        return Err("no pool of a known layout in this library (before RMM 26.04 it has none)".to_owned());
    }
    Ok(points)
}

/// Returns the points of CuPy's module, if its chunks are as expected.
///
/// # Errors
/// A message that explains why the pools cannot be traced.
pub(crate) fn complete_cupy(file: &File, mut points: Vec<TensorPoint>) -> Result<Vec<TensorPoint>, String> {
    let are_known = function(file, "_ZL48__pyx_f_4cupy_4cuda_6memory_12PooledMemory__initP")
        .is_some_and(|code| chunks::are_as_expected(&code));
    if !are_known {
        return Err("unknown chunk layout: only that of CuPy 14.2 is supported".to_owned());
    }
    MEMORY_POOL.complete(file, &mut points);
    if points.is_empty() {
        Err("unknown pool layout: only that of CuPy 14.2 is supported".to_owned())
    } else {
        Ok(points)
    }
}

impl PoolFamily {
    /// Adds the counter's offset to the pool's points. Removes all of them if one is missing.
    fn complete(&self, file: &File, points: &mut Vec<TensorPoint>) {
        let has = |row: &u16| points.iter().any(|point| point.row.id == *row);
        if !self.rows.iter().all(has) {
            let missing = self.rows.iter().filter(|row| !has(row)).filter_map(|row| symbol_of(*row));
            log::info!("{} is not followed: no {}", self.name, missing.collect::<Vec<_>>().join(", "));
            points.retain(|point| !self.owns(point));
            return;
        }
        let Some((getter, fact)) = self.counter else { return };
        let Some(counter_bytes) = self.counter_at(file, getter) else {
            log::info!("{}: this build does not show {fact}", self.name);
            return;
        };
        for point in points {
            if let BlockPlan::Pool(PoolPlan { shape, .. }) = point.plan.block
                && self.shapes.contains(&shape)
            {
                point.plan.block = BlockPlan::Pool(PoolPlan { shape, counter_bytes });
            }
        }
    }

    fn owns(&self, point: &TensorPoint) -> bool {
        let is_begin = point.row.meaning == TensorMeaning::PoolBegins && point.row.symbol.contains(self.name);
        is_begin || self.rows.contains(&point.row.id)
    }

    /// Returns the offset of the pool's counter. CuPy's pool must have the bytes in use in the next
    /// word.
    fn counter_at(&self, file: &File, getter: &'static str) -> Option<u16> {
        let offset = |name| returned(&function(file, name)?, true);
        let counter = offset(getter)?;
        let is_alone = self.name != MEMORY_POOL.name || offset(USED_BYTES) == Some(counter + WORD_BYTES);
        u16::try_from(counter).ok().filter(|counter| *counter > 0 && is_alone)
    }
}

fn symbol_of(row: u16) -> Option<&'static str> {
    let own = [FrameworkLibrary::Rmm, FrameworkLibrary::CuPy];
    TENSOR_PROBES.iter().find(|probe| probe.id == row && own.contains(&probe.library)).map(|probe| probe.symbol)
}

/// Reads the first bytes of the function whose name begins with `beginning`; `None` if there is
/// none.
fn function(file: &File, beginning: &'static str) -> Option<Vec<u8>> {
    let of = || -> Result<Option<Vec<u8>>, ResolveError> {
        let clone = file.try_clone().map_err(|_unreadable| ResolveError::Damaged { what: "file" })?;
        let cache = ElfReader::new(clone);
        let layout = SymbolLayout::parse(&cache)?;
        let found = symbols(file, &layout, &[SymbolName { key: 0, beginning, ending: "" }])?;
        Ok(found.functions.get(&0).and_then(|location| code_of(file, location)))
    };
    of().inspect_err(|error| log::info!("{error}")).ok().flatten()
}

#[cfg(test)]
mod tests;
