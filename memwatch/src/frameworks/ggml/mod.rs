//! ggml: probe points and field offsets of a build's buffers and pool for temporaries.

mod layout;
mod scratch;

use std::fs::File;

use memwatch_common::tensor::{FrameworkLibrary, TENSOR_PROBES, TensorMeaning, TensorProbe};
use memwatch_core::input::Input;
use memwatch_core::words::Framework;

use self::layout::GgmlLayout;
use super::descriptor::{Contents, FrameworkDescriptor, Keeps, LibraryName, LibraryRow};
use super::points::TensorPoint;
use crate::sources::kernel::load::chain;
use crate::sources::kernel::site::KernelVersion;

const BASE: LibraryName = LibraryName::new("libggml-base.so");
const CUDA: LibraryName = LibraryName::new("libggml-cuda.so");

/// ggml: llama.cpp and related programs.
pub(crate) const DESCRIPTOR: FrameworkDescriptor = FrameworkDescriptor::new(
    Framework::Ggml,
    &[
        LibraryRow::new(BASE, FrameworkLibrary::GgmlBase, Keeps::Buffers).inspected_by(inspect_buffers),
        LibraryRow::new(CUDA, FrameworkLibrary::GgmlCuda, Keeps::Buffers)
            .inspected_by(inspect_scratch)
            .announced_by(Input::ScratchWatched),
    ],
    &[CUDA],
);

/// Finds functions by symbol name and the offsets that their probes read in a buffer.
fn inspect_buffers(file: &File, row: &LibraryRow, kernel: KernelVersion) -> Contents {
    Contents::of_points(row.points(file, kernel).and_then(|points| complete(file, points)))
}

/// Finds the calls that grow and free the pool for temporaries. If they are not found, buffers are
/// traced without them.
fn inspect_scratch(file: &File, row: &LibraryRow, _kernel: KernelVersion) -> Contents {
    let unknown = |error: &String| log::info!("{}: {error}", row.name.stem);
    Contents::of_points(Ok(scratch::points(file).inspect_err(unknown).unwrap_or_default()))
}

/// Completes the probe points of ggml's library with field offsets. All points for buffers are
/// required, since events would be misread if one were missing. The point for tensor names is
/// optional.
///
/// # Errors
/// A message that explains why buffers cannot be traced.
fn complete(file: &File, mut points: Vec<TensorPoint>) -> Result<Vec<TensorPoint>, String> {
    let is_needed = |row: &TensorProbe| row.meaning != TensorMeaning::BufferTensor;
    let rows = TENSOR_PROBES.iter().filter(|row| row.library == FrameworkLibrary::GgmlBase && is_needed(row)).count();
    let found = points.iter().filter(|point| is_needed(point.row)).count();
    let layout = GgmlLayout::of(file).map_err(|error| chain(&error))?;
    let layout =
        layout.filter(|_| found == rows).ok_or("missing buffer functions or unknown buffer layout in this build")?;
    layout.complete(&mut points);
    Ok(points)
}
