//! ggml in a process: where things lie in a build's buffers.

mod layout;

use std::fs::File;

use memwatch_common::tensor::{FrameworkLibrary, TENSOR_PROBES};

use self::layout::BufferLayout;
use super::pytorch::TensorPoint;
use crate::sources::kernel::load::chain;

/// The points of its library, each with what it looks at: all of them, since without one the others would be misread.
///
/// # Errors
/// A sentence that says why its buffers cannot be followed.
pub(crate) fn complete(file: &File, mut points: Vec<TensorPoint>) -> Result<Vec<TensorPoint>, String> {
    let rows = TENSOR_PROBES.iter().filter(|row| row.library == FrameworkLibrary::GgmlBase).count();
    let layout = BufferLayout::of(file).map_err(|error| chain(&error))?;
    let layout = layout.filter(|_| points.len() == rows).ok_or("the buffers of this build are not as expected")?;
    layout.complete(&mut points);
    Ok(points)
}
