//! RAPIDS Memory Manager: the kinds of pools in its library.

use std::fs::File;

use memwatch_common::tensor::{FrameworkLibrary, PoolShape};
use memwatch_core::words::Framework;

use super::descriptor::{Contents, FrameworkDescriptor, Keeps, LibraryName, LibraryRow};
use super::points::TensorPoint;
use super::pools::{PoolCounterGetter, PoolFamily};
use crate::sources::kernel::site::KernelVersion;

const LIBRARY: LibraryName = LibraryName::new("librmm.so");

/// RAPIDS Memory Manager.
pub(crate) const DESCRIPTOR: FrameworkDescriptor = FrameworkDescriptor::new(
    Framework::Rmm,
    &[LibraryRow::new(LIBRARY, FrameworkLibrary::Rmm, Keeps::Pools).inspected_by(inspect)],
    &[LIBRARY],
);

const POOL: PoolFamily = PoolFamily {
    name: "pool_memory_resource",
    rows: &[67, 68, 70],
    counter: Some(PoolCounterGetter {
        symbol: "_ZNK3rmm*2mr6detail25pool_memory_resource_impl9pool_sizeE",
        fact: "the pool size",
        next: None,
    }),
    shapes: &[PoolShape::FromBlock, PoolShape::IntoBlock],
};
const FIXED: PoolFamily = PoolFamily {
    name: "fixed_size_memory_resource",
    rows: &[71, 72, 74],
    counter: Some(PoolCounterGetter {
        symbol: "_ZNK3rmm*2mr6detail31fixed_size_memory_resource_impl14get_block_sizeE",
        fact: "the block size",
        next: None,
    }),
    shapes: &[PoolShape::FromFixed, PoolShape::IntoFixed],
};
const ARENA: PoolFamily = PoolFamily { name: "arena_memory_resource", rows: &[75, 76, 77], counter: None, shapes: &[] };

/// Finds functions by symbol name and the counters of a pool.
fn inspect(file: &File, row: &LibraryRow, kernel: KernelVersion) -> Contents {
    Contents::of_points(row.points(file, kernel).and_then(|points| complete(file, points)))
}

/// Returns the points of the library, for each kind of pool that is complete.
///
/// # Errors
/// A message that explains why no pool can be traced.
fn complete(file: &File, mut points: Vec<TensorPoint>) -> Result<Vec<TensorPoint>, String> {
    for family in [POOL, FIXED, ARENA] {
        family.complete(file, &mut points);
    }
    if points.is_empty() {
        return Err("no pool of a known layout in this library (before RMM 26.04 it has none)".to_owned());
    }
    Ok(points)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frameworks::pools::{own_file, points_of, rows_of};

    #[test]
    fn pool_type_with_a_missing_function_is_skipped_without_the_others() {
        for (missing, left) in [
            (68, vec![71, 72, 73, 74, 75, 76, 77]),
            (69, (67..=77).filter(|row| *row != 69).collect()),
            (74, vec![67, 68, 69, 70, 75, 76, 77]),
            (76, (67..=74).collect()),
        ] {
            let mut points = points_of(FrameworkLibrary::Rmm);
            points.retain(|point| point.row.id != missing);
            assert_eq!(rows_of(&complete(&own_file(), points).expect("some are there")), left, "without {missing}");
        }
    }

    #[test]
    fn rmm_library_without_known_functions_states_why() {
        let why = complete(&own_file(), Vec::new()).expect_err("there is none");
        assert!(why.contains("before RMM 26.04"), "{why}");
    }

    #[test]
    fn rmm_pool_rows_exist_in_the_probe_table() {
        assert!([POOL, FIXED, ARENA].iter().all(PoolFamily::is_in_table));
    }
}
