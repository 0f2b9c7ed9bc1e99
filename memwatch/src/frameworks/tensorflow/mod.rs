//! TensorFlow: its arenas, and the names of the operators that allocate from them.

mod operators;

use std::fs::File;

use memwatch_common::tensor::{FrameworkLibrary, TensorMeaning};
use memwatch_core::words::Framework;

use super::bfc::tsl;
use super::descriptor::{Contents, FrameworkDescriptor, LibraryName, LibraryRow};
use crate::sources::kernel::load::chain;
use crate::sources::kernel::site::KernelVersion;

const LIBRARY: &str = "libtensorflow_framework.so";

/// TensorFlow.
pub(crate) const DESCRIPTOR: FrameworkDescriptor = FrameworkDescriptor::new(
    Framework::TensorFlow,
    &[tsl::library(LIBRARY, FrameworkLibrary::TensorFlow).inspected_by(inspect)],
    &[LibraryName::new(LIBRARY)],
);

/// As [`tsl::inspect`], and finds where the names of operators are passed.
fn inspect(file: &File, row: &LibraryRow, kernel: KernelVersion) -> Contents {
    let mut contents = tsl::inspect(file, row, kernel);
    let Ok(points) = &mut contents.points else { return contents };
    let reported = points.iter().find(|point| point.row.meaning == TensorMeaning::Chunk);
    match reported.map(|point| operators::beside(file, point)) {
        Some(Ok(Some(point))) => points.push(point),
        Some(Err(error)) => log::warn!("{}: {}", row.name.stem, chain(&error)),
        Some(Ok(None)) | None => log::info!("cannot find the operator names in this build of TensorFlow"),
    }
    contents
}
