//! ggml: probe points and field offsets of a build's buffers and pool.

mod layout;
mod scratch;

use std::fs::File;

use memwatch_common::tensor::{FrameworkLibrary, TENSOR_PROBES, TensorMeaning, TensorProbe};

use self::layout::GgmlLayout;
pub(crate) use self::scratch::points as scratch;
use super::points::TensorPoint;
use crate::sources::kernel::load::chain;

/// Completes the probe points of ggml's library with field offsets. All points for buffers are
/// required, since events would be misread if one were missing. The point for tensor names is
/// optional.
///
/// # Errors
/// A message that explains why buffers cannot be traced.
pub(crate) fn complete(file: &File, mut points: Vec<TensorPoint>) -> Result<Vec<TensorPoint>, String> {
    let is_needed = |row: &TensorProbe| row.meaning != TensorMeaning::BufferTensor;
    let rows = TENSOR_PROBES.iter().filter(|row| row.library == FrameworkLibrary::GgmlBase && is_needed(row)).count();
    let found = points.iter().filter(|point| is_needed(point.row)).count();
    let layout = GgmlLayout::of(file).map_err(|error| chain(&error))?;
    let layout =
        layout.filter(|_| found == rows).ok_or("missing buffer functions or unknown buffer layout in this build")?;
    layout.complete(&mut points);
    Ok(points)
}
