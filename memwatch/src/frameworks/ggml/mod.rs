//! ggml in a process: where things lie in a build's buffers.

mod layout;
mod scratch;

use std::fs::File;

use memwatch_common::tensor::{FrameworkLibrary, TENSOR_PROBES, TensorMeaning, TensorProbe};

use self::layout::GgmlLayout;
pub(crate) use self::scratch::points as scratch;
use super::pytorch::TensorPoint;
use crate::sources::kernel::load::chain;

/// The points of its library, each with what it looks at. All that are about buffers, since without one the others would be misread; tensors by name only where
/// it shows where a tensor has its name.
///
/// # Errors
/// A sentence that says why its buffers cannot be followed.
pub(crate) fn complete(file: &File, mut points: Vec<TensorPoint>) -> Result<Vec<TensorPoint>, String> {
    let is_needed = |row: &TensorProbe| row.meaning != TensorMeaning::BufferTensor;
    let rows = TENSOR_PROBES.iter().filter(|row| row.library == FrameworkLibrary::GgmlBase && is_needed(row)).count();
    let found = points.iter().filter(|point| is_needed(point.row)).count();
    let layout = GgmlLayout::of(file).map_err(|error| chain(&error))?;
    let layout = layout.filter(|_| found == rows).ok_or("the buffers of this build are not as expected")?;
    layout.complete(&mut points);
    Ok(points)
}
