//! The recordings of a real H100, and tables with the expected numbers of each.

use std::path::{Path, PathBuf};

/// Returns the folder of the recordings.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a crate of the workspace").join("tests/replays/h100")
}

/// Returns the rows of a table, split into columns.
pub(crate) fn rows<const COLUMNS: usize>(name: &str) -> Vec<[String; COLUMNS]> {
    let path = folder().join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let rows = text.lines().filter(|line| !line.starts_with('#'));
    rows.map(|row| {
        let columns: Vec<String> = row.split('\t').map(str::to_owned).collect();
        columns.try_into().unwrap_or_else(|columns| panic!("{COLUMNS} columns in {columns:?} of {name}"))
    })
    .collect()
}

/// Parses a number of a table.
pub(crate) fn number<N: std::str::FromStr>(text: &str) -> N {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is no such number"))
}
