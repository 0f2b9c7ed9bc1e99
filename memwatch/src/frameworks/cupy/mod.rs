//! CuPy: its pool of each device, and the chunks in it.

mod chunks;

use std::fs::File;

use memwatch_common::tensor::{FrameworkLibrary, PoolShape};
use memwatch_core::words::Framework;

use super::descriptor::{Contents, FrameworkDescriptor, Keeps, LibraryName, LibraryRow};
use super::points::TensorPoint;
use super::pools::{PoolCounterGetter, PoolFamily, function};
use crate::sources::kernel::site::KernelVersion;

/// The module of the pools. Its folder identifies it among many files of that name.
const MODULE: LibraryName = LibraryName::below("memory", "/cupy/cuda/memory.");

/// CuPy.
pub(crate) const DESCRIPTOR: FrameworkDescriptor = FrameworkDescriptor::new(
    Framework::CuPy,
    &[LibraryRow::new(MODULE, FrameworkLibrary::CuPy, Keeps::Pools).inspected_by(inspect)],
    &[MODULE],
);

/// The pool. Its counter is the bytes obtained from the driver; the bytes in use follow.
const MEMORY_POOL: PoolFamily = PoolFamily {
    name: "SingleDeviceMemoryPool",
    rows: &[78, 79],
    counter: Some(PoolCounterGetter {
        symbol: "_ZL64__pyx_f_4cupy_4cuda_6memory_22SingleDeviceMemoryPool_total_bytesP",
        fact: "the pool's total and used bytes",
        next: Some("_ZL63__pyx_f_4cupy_4cuda_6memory_22SingleDeviceMemoryPool_used_bytesP"),
    }),
    shapes: &[PoolShape::ChunkGranted, PoolShape::ChunkFreed],
};
/// The function that copies all fields of a chunk.
const CHUNK_INIT: &str = "_ZL48__pyx_f_4cupy_4cuda_6memory_12PooledMemory__initP";

/// Finds functions by symbol name and the counters of a pool.
fn inspect(file: &File, row: &LibraryRow, kernel: KernelVersion) -> Contents {
    Contents::of_points(row.points(file, kernel).and_then(|points| complete(file, points)))
}

/// Returns the points of the module, if its chunks are as expected.
///
/// # Errors
/// A message that explains why the pools cannot be traced.
fn complete(file: &File, mut points: Vec<TensorPoint>) -> Result<Vec<TensorPoint>, String> {
    let are_known = function(file, CHUNK_INIT).is_some_and(|code| chunks::are_as_expected(&code));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frameworks::pools::{own_file, points_of};

    #[test]
    fn cupy_module_without_known_functions_states_why() {
        let why = complete(&own_file(), points_of(FrameworkLibrary::CuPy)).expect_err("its chunks are not known");
        assert!(why.contains("CuPy 14.2"), "{why}");
    }

    #[test]
    fn cupy_pool_rows_exist_in_the_probe_table() {
        assert!(MEMORY_POOL.is_in_table());
    }
}
