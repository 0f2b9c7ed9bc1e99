//! ONNX Runtime: its arenas, in files without any symbol of their class.

mod arena;

use std::fs::File;

use memwatch_common::tensor::FrameworkLibrary;
use memwatch_core::words::Framework;

use self::arena::OnnxRuntimeBuild;
use super::descriptor::{Contents, FrameworkDescriptor, Keeps, LibraryName, LibraryRow};
use crate::sources::kernel::site::KernelVersion;

const PYTHON_MODULE: LibraryName = LibraryName::new("onnxruntime_pybind11_state");
const LIBRARY: LibraryName = LibraryName::new("libonnxruntime.so");
const CUDA_PROVIDER: LibraryName = LibraryName::new("libonnxruntime_providers_cuda.so");

/// ONNX Runtime.
pub(crate) const DESCRIPTOR: FrameworkDescriptor = FrameworkDescriptor::new(
    Framework::OnnxRuntime,
    &[library(PYTHON_MODULE), library(LIBRARY)],
    &[PYTHON_MODULE, LIBRARY, CUDA_PROVIDER],
);

const fn library(name: LibraryName) -> LibraryRow {
    LibraryRow::new(name, FrameworkLibrary::OnnxRuntime, Keeps::Arenas).inspected_by(inspect)
}

/// Finds functions without symbols through the vtable of their class.
fn inspect(file: &File, _row: &LibraryRow, kernel: KernelVersion) -> Contents {
    match OnnxRuntimeBuild::of(file, kernel) {
        Some(build) => Contents { points: Ok(build.points), arenas: Some(build.layout) },
        None => Contents::of_points(Err("unknown arena layout in this build".to_owned())),
    }
}
