use memwatch_common::tensor::{FrameworkLibrary, TENSOR_PROBES, TensorProbe};

use super::*;

/// A file without any function of a pool.
pub(crate) fn own_file() -> File {
    File::open(std::env::current_exe().expect("a path")).expect("the tests' own program")
}

/// Returns the rows of a library at invented offsets.
pub(crate) fn points_of(library: FrameworkLibrary) -> Vec<TensorPoint> {
    let own = TENSOR_PROBES.iter().filter(|row: &&TensorProbe| row.library == library);
    own.map(|row| TensorPoint::new(row, u64::from(row.id) * 16)).collect()
}

/// Returns the ids of the points' rows.
pub(crate) fn rows_of(points: &[TensorPoint]) -> Vec<u16> {
    points.iter().map(|point| point.row.id).collect()
}

#[test]
fn no_point_of_a_pool_is_where_a_function_returns_to() {
    for library in [FrameworkLibrary::Rmm, FrameworkLibrary::CuPy] {
        assert!(points_of(library).iter().all(|point| !point.is_return()));
    }
}
