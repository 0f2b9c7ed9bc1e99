use memwatch_common::tensor::TensorProbe;

use super::*;

fn own_file() -> File {
    File::open(std::env::current_exe().expect("a path")).expect("the tests' own program")
}

/// Returns the rows of a library at invented offsets.
fn points_of(library: FrameworkLibrary) -> Vec<TensorPoint> {
    let own = TENSOR_PROBES.iter().filter(|row: &&TensorProbe| row.library == library);
    own.map(|row| TensorPoint::new(row, u64::from(row.id) * 16)).collect()
}

fn rows(points: &[TensorPoint]) -> Vec<u16> {
    points.iter().map(|point| point.row.id).collect()
}

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
        assert_eq!(rows(&complete_rmm(&own_file(), points).expect("some are there")), left, "without {missing}");
    }
}

#[test]
fn pool_library_without_known_functions_states_why() {
    let why = complete_rmm(&own_file(), Vec::new()).expect_err("there is none");
    assert!(why.contains("before RMM 26.04"), "{why}");
    let why = complete_cupy(&own_file(), points_of(FrameworkLibrary::CuPy)).expect_err("its chunks are not known");
    assert!(why.contains("CuPy 14.2"), "{why}");
}

#[test]
fn no_point_of_a_pool_is_where_a_function_returns_to() {
    for library in [FrameworkLibrary::Rmm, FrameworkLibrary::CuPy] {
        assert!(points_of(library).iter().all(|point| !point.is_return()));
    }
}

#[test]
fn pool_kind_rows_exist_in_the_probe_table() {
    for sort in [POOL, FIXED, ARENA, MEMORY_POOL] {
        assert!(sort.rows.iter().all(|row| symbol_of(*row).is_some()), "{}", sort.name);
    }
}
