//! Table of the libraries that contain framework allocators, by file name, with the kind of
//! allocator and the function that inspects the file.

use std::fs::File;

use memwatch_common::tensor::{FrameworkLibrary, TensorMeaning};
use memwatch_core::words::Framework;

use super::bfc::{ArenaLayout, CounterLayout, OnnxRuntime, operators};
use super::ggml;
use super::points::{TensorPoint, points};
use super::pools;
use super::pytorch::allocator_points;
use crate::sources::kernel::load::chain;
use crate::sources::kernel::site::KernelVersion;
use crate::sources::library::is_library;

/// Kind of memory that a library's allocator manages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeps {
    /// Blocks of PyTorch. Its allocator spans several libraries.
    Blocks,
    /// Arenas that keep their own allocator state.
    Arenas,
    /// Buffers. The allocator keeps no list of them.
    Buffers,
    /// Pools. The allocator keeps no list of them.
    Pools,
}

impl Keeps {
    /// Whether allocations made before the attach cannot be read because no list of them exists.
    pub(crate) const fn has_no_allocator_state(self) -> bool {
        matches!(self, Self::Buffers | Self::Pools)
    }
}

/// Probe points and layout found in a library's file.
#[derive(Clone)]
pub(crate) struct Contents {
    /// Probe points of the library's functions, or a message that explains why they are unknown.
    pub(crate) points: Result<Vec<TensorPoint>, String>,
    /// Field offsets of the library's arenas, if it has any.
    pub(crate) arenas: Option<ArenaLayout>,
}

/// A library that contains a framework's allocator.
pub(crate) struct LibraryRow {
    /// Stem of the file name.
    pub(crate) stem: &'static str,
    /// Text the path must contain, for file names that other packages use too; empty otherwise.
    folder: &'static str,
    /// The library's identifier.
    pub(crate) library: FrameworkLibrary,
    keeps: Keeps,
    look: fn(&File, FrameworkLibrary, KernelVersion) -> Contents,
}

/// All libraries. Small ones come first because their probes are needed soonest.
pub(crate) const LIBRARIES: [LibraryRow; 13] = [
    LibraryRow { keeps: Keeps::Pools, look: rmm, ..row("librmm.so", FrameworkLibrary::Rmm) },
    LibraryRow { keeps: Keeps::Pools, look: cupy, folder: CUPY, ..row("memory", FrameworkLibrary::CuPy) },
    LibraryRow { keeps: Keeps::Buffers, look: buffers, ..row("libggml-base.so", FrameworkLibrary::GgmlBase) },
    LibraryRow { keeps: Keeps::Buffers, look: scratch, ..row("libggml-cuda.so", FrameworkLibrary::GgmlCuda) },
    LibraryRow { look: classes, ..arenas("onnxruntime_pybind11_state", FrameworkLibrary::OnnxRuntime) },
    LibraryRow { look: classes, ..arenas("libonnxruntime.so", FrameworkLibrary::OnnxRuntime) },
    arenas("xla_cuda_plugin.so", FrameworkLibrary::Xla),
    LibraryRow { look: tensorflow, ..arenas("libtensorflow_framework.so", FrameworkLibrary::TensorFlow) },
    row("libc10.so", FrameworkLibrary::C10),
    LibraryRow { look: allocator, ..row("libc10_cuda.so", FrameworkLibrary::C10Cuda) },
    row("libtorch_python.so", FrameworkLibrary::TorchPython),
    row("libtorch_cuda.so", FrameworkLibrary::TorchCuda),
    row("libtorch_cpu.so", FrameworkLibrary::TorchCpu),
];

/// Path part that identifies CuPy's `memory` among many files of that name.
pub(crate) const CUPY: &str = "/cupy/cuda/memory.";

/// Entry of a PyTorch library; the base of the other entries.
const fn row(stem: &'static str, library: FrameworkLibrary) -> LibraryRow {
    LibraryRow { stem, folder: "", library, keeps: Keeps::Blocks, look: symbols }
}

/// Entry of a library with XLA's arenas.
const fn arenas(stem: &'static str, library: FrameworkLibrary) -> LibraryRow {
    LibraryRow { keeps: Keeps::Arenas, look: tsl, ..row(stem, library) }
}

impl LibraryRow {
    /// Whether a path is that of this library.
    pub(crate) fn is_at(&self, path: &[u8]) -> bool {
        let is_there = || memchr::memmem::find(path, self.folder.as_bytes()).is_some();
        is_library(path.strip_suffix(b" (deleted)").unwrap_or(path), self.stem) && is_there()
    }

    /// Inspects the library's file.
    pub(crate) fn look_into(&self, file: &File, kernel: KernelVersion) -> Contents {
        (self.look)(file, self.library, kernel)
    }
}

/// Returns the kind of memory that a library's allocator manages; `None` for the interpreter's
/// library, which has no allocator.
pub(crate) fn keeps(library: FrameworkLibrary) -> Option<Keeps> {
    LIBRARIES.iter().find(|row| row.library == library).map(|row| row.keeps)
}

/// Whether a path is that of one of the framework's libraries.
pub(crate) fn is_of(framework: Framework, path: &[u8]) -> bool {
    let mut own = LIBRARIES.iter().filter(|row| Framework::of_library(row.library) == Some(framework));
    own.any(|row| row.is_at(path))
}

/// Finds functions by symbol name.
fn symbols(file: &File, library: FrameworkLibrary, kernel: KernelVersion) -> Contents {
    Contents { points: points(file, library, kernel).map_err(|error| chain(&error)), arenas: None }
}

/// Finds functions by symbol name and the calls that show everything about a block of PyTorch.
fn allocator(file: &File, library: FrameworkLibrary, kernel: KernelVersion) -> Contents {
    Contents { points: allocator_points(file, library, kernel).map_err(|error| chain(&error)), arenas: None }
}

/// Finds functions by symbol name and the field offsets of XLA's arena class.
fn tsl(file: &File, library: FrameworkLibrary, kernel: KernelVersion) -> Contents {
    let mut points = symbols(file, library, kernel).points;
    let arenas = ArenaLayout::of(file).inspect_err(|error| log::warn!("{}: {}", library_name(library), chain(error)));
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

/// As [`tsl`], and finds where TensorFlow passes the names of operators.
fn tensorflow(file: &File, library: FrameworkLibrary, kernel: KernelVersion) -> Contents {
    let mut contents = tsl(file, library, kernel);
    let Ok(points) = &mut contents.points else { return contents };
    let reported = points.iter().find(|point| point.row.meaning == TensorMeaning::Chunk);
    match reported.map(|point| operators::beside(file, point)) {
        Some(Ok(Some(point))) => points.push(point),
        Some(Err(error)) => log::warn!("{}: {}", library_name(library), chain(&error)),
        Some(Ok(None)) | None => log::info!("cannot find the operator names in this build of TensorFlow"),
    }
    contents
}

/// Finds functions without symbols through the vtable of their class.
fn classes(file: &File, _library: FrameworkLibrary, kernel: KernelVersion) -> Contents {
    match OnnxRuntime::of(file, kernel) {
        Some(build) => Contents { points: Ok(build.points), arenas: Some(build.layout) },
        None => Contents { points: Err("unknown arena layout in this build".to_owned()), arenas: None },
    }
}

/// Finds functions by symbol name and the offsets that their probes read in a buffer.
fn buffers(file: &File, library: FrameworkLibrary, kernel: KernelVersion) -> Contents {
    let points = symbols(file, library, kernel).points;
    Contents { points: points.and_then(|points| ggml::complete(file, points)), arenas: None }
}

/// Finds the calls that grow and free ggml's pool for temporaries. If they are not found, buffers
/// are traced without them.
fn scratch(file: &File, library: FrameworkLibrary, _kernel: KernelVersion) -> Contents {
    let unknown = |error: &String| log::info!("{}: {error}", library_name(library));
    Contents { points: Ok(ggml::scratch(file).inspect_err(unknown).unwrap_or_default()), arenas: None }
}

/// Finds functions by symbol name and the counters of an RMM pool.
fn rmm(file: &File, library: FrameworkLibrary, kernel: KernelVersion) -> Contents {
    let points = symbols(file, library, kernel).points;
    Contents { points: points.and_then(|points| pools::complete_rmm(file, points)), arenas: None }
}

/// Finds functions by symbol name and the counters of a CuPy pool.
fn cupy(file: &File, library: FrameworkLibrary, kernel: KernelVersion) -> Contents {
    let points = symbols(file, library, kernel).points;
    Contents { points: points.and_then(|points| pools::complete_cupy(file, points)), arenas: None }
}

fn library_name(library: FrameworkLibrary) -> &'static str {
    LIBRARIES.iter().find(|row| row.library == library).map_or("a library", |row| row.stem)
}

#[cfg(test)]
mod tests {
    use super::{LIBRARIES, is_of, keeps};
    use memwatch_common::tensor::{FrameworkLibrary, TENSOR_PROBES};
    use memwatch_core::words::Framework;

    #[test]
    fn every_library_of_the_table_of_functions_has_a_row_but_the_interpreters() {
        for probe in TENSOR_PROBES {
            let has_row = keeps(probe.library).is_some();
            assert_eq!(has_row, probe.library != FrameworkLibrary::Python, "{:?}", probe.library);
        }
    }

    #[test]
    fn a_library_is_known_by_the_name_of_its_file() {
        assert!(is_of(Framework::Ggml, b"/opt/llama/libggml-base.so.0 (deleted)"));
        assert!(!is_of(Framework::Ggml, b"/opt/llama/libggml.so"), "its functions are in the others");
        assert!(!is_of(Framework::PyTorch, b"/opt/llama/libggml-base.so"));
        assert!(is_of(Framework::CuPy, b"/s/cupy/cuda/memory.cpython-313-x86_64-linux-gnu.so"));
        assert!(!is_of(Framework::CuPy, b"/s/other/cuda/memory.cpython-313-x86_64-linux-gnu.so"), "of another package");
        assert!(LIBRARIES.iter().all(|row| Framework::of_library(row.library).is_some()));
    }
}
