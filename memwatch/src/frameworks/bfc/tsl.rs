//! Libraries that contain `tsl::BFCAllocator` with its symbols.

use std::fs::File;

use memwatch_common::tensor::{FrameworkLibrary, TensorMeaning};

use super::layout::{ArenaLayout, CounterLayout};
use crate::frameworks::descriptor::{Contents, Keeps, LibraryName, LibraryRow};
use crate::sources::kernel::load::chain;
use crate::sources::kernel::site::KernelVersion;

/// Returns the entry of a library with arenas of this class.
pub(in crate::frameworks) const fn library(stem: &'static str, library: FrameworkLibrary) -> LibraryRow {
    LibraryRow::new(LibraryName::new(stem), library, Keeps::Arenas).inspected_by(inspect)
}

/// Finds functions by symbol name and the field offsets of the arena class.
pub(in crate::frameworks) fn inspect(file: &File, row: &LibraryRow, kernel: KernelVersion) -> Contents {
    let mut points = row.points(file, kernel);
    let arenas = ArenaLayout::of(file).inspect_err(|error| log::warn!("{}: {}", row.name.stem, chain(error)));
    let arenas = arenas.unwrap_or_default();
    if arenas.is_inlined {
        let why = "AddTraceMe, which reports chunks, is inlined into its callers in this build";
        return Contents { points: Err(why.to_owned()), arenas: Some(arenas) };
    }
    if let (Some(CounterLayout { offset_bytes, .. }), Ok(points)) = (arenas.counters, &mut points) {
        let of_chunks = points.iter_mut().filter(|point| point.row.meaning == TensorMeaning::Chunk);
        of_chunks.for_each(|point| point.plan = point.plan.counters_at(offset_bytes));
    }
    Contents { points, arenas: Some(arenas) }
}
