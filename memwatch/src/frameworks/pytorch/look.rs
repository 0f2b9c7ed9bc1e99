//! The slow part of finding a framework in a process, in a thread of its own: reading its mappings and the symbols of its libraries.

use std::fs::File;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use memwatch_common::tensor::{FrameworkLibrary, TENSOR_PROBES, TensorMeaning};
use memwatch_core::words::Framework;

use super::points::points;
use super::symbols::TensorPoint;
use crate::frameworks::bfc::{ArenaLayout, CounterLayout, OnnxRuntime};
use crate::frameworks::ggml::BufferLayout;
use crate::sources::kernel::load::chain;
use crate::sources::kernel::site::KernelVersion;
use crate::sources::library::{FileIdentity, LibraryFile, LibraryScan, is_library};

/// The libraries by the stem of their file's name: small ones first, whose probes are wanted soonest.
const LIBRARIES: [(&str, FrameworkLibrary); 10] = [
    ("libggml-base.so", FrameworkLibrary::GgmlBase),
    ("onnxruntime_pybind11_state", FrameworkLibrary::OnnxRuntime),
    ("libonnxruntime.so", FrameworkLibrary::OnnxRuntime),
    ("xla_cuda_plugin.so", FrameworkLibrary::Xla),
    ("libtensorflow_framework.so", FrameworkLibrary::TensorFlow),
    ("libc10.so", FrameworkLibrary::C10),
    ("libc10_cuda.so", FrameworkLibrary::C10Cuda),
    ("libtorch_python.so", FrameworkLibrary::TorchPython),
    ("libtorch_cuda.so", FrameworkLibrary::TorchCuda),
    ("libtorch_cpu.so", FrameworkLibrary::TorchCpu),
];

/// How many libraries PyTorch has.
pub(crate) const LIBRARY_COUNT: usize = 5;

/// Whether a path is that of a library of a framework.
pub(crate) fn is_of(framework: Framework, path: &[u8]) -> bool {
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    let mut own = LIBRARIES.iter().filter(|(_, library)| Framework::of_library(*library) == Some(framework));
    own.any(|(stem, _)| is_library(path, stem))
}

/// Whether a library has an allocator of its own beside PyTorch's.
pub(crate) const fn is_of_others(library: FrameworkLibrary) -> bool {
    has_arenas(library) || matches!(library, FrameworkLibrary::GgmlBase)
}

const fn has_arenas(library: FrameworkLibrary) -> bool {
    matches!(library, FrameworkLibrary::Xla | FrameworkLibrary::TensorFlow | FrameworkLibrary::OnnxRuntime)
}

/// What the thread says.
pub(crate) enum LookResult {
    /// A process has mapped this library.
    Found(Box<FoundLibrary>),
    /// All that this process has mapped was stated.
    Done(u32),
}

/// A framework's library in a process.
#[derive(Clone)]
pub(crate) struct FoundLibrary {
    /// The process.
    pub(crate) tgid: u32,
    /// Which.
    pub(crate) library: FrameworkLibrary,
    /// Its file.
    pub(crate) file: LibraryFile,
    /// Where the rows are in it; or why nobody knows.
    pub(crate) points: Result<Vec<TensorPoint>, String>,
    /// Where things lie in its arenas, where it has any.
    pub(crate) arenas: Option<ArenaLayout>,
}

/// What is known of a file.
#[derive(Clone)]
struct Known {
    points: Result<Vec<TensorPoint>, String>,
    arenas: Option<ArenaLayout>,
}

/// The thread, seen from outside. It ends with this.
pub(crate) struct Looker {
    orders: Sender<u32>,
    stated: Receiver<LookResult>,
}

impl Looker {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub(crate) fn start(version: KernelVersion) -> std::io::Result<Self> {
        let (orders, ordered) = channel();
        let (say, stated) = channel();
        std::thread::Builder::new().name("pytorch".to_owned()).spawn(move || {
            let stems = LIBRARIES.map(|(stem, _)| stem);
            let mut eyes = Eyes { scan: LibraryScan::new("/proc").with_stems(&stems), version, known: Vec::new() };
            for tgid in ordered {
                // Nobody listens any more once the watch has ended.
                if eyes.look(tgid, &say).is_none() {
                    return;
                }
            }
        })?;
        Ok(Self { orders, stated })
    }

    /// Has a process looked at.
    pub(crate) fn order(&self, tgid: u32) {
        // The thread ends only with this.
        let _ = self.orders.send(tgid);
    }

    /// What it has reported since the last call.
    pub(crate) fn hear(&self) -> impl Iterator<Item = LookResult> {
        self.stated.try_iter()
    }
}

struct Eyes {
    scan: LibraryScan,
    version: KernelVersion,
    /// Files looked into before; few, since machines have few versions of a framework.
    known: Vec<(FileIdentity, Known)>,
}

impl Eyes {
    fn look(&mut self, tgid: u32, say: &Sender<LookResult>) -> Option<()> {
        let found = self.scan.scan_process(tgid).files;
        for (stem, library) in LIBRARIES {
            let name = |file: &&LibraryFile| is_library(file.display.trim_end_matches(" (deleted)").as_bytes(), stem);
            let Some(file) = found.iter().find(name) else { continue };
            let Known { points, arenas } = self.known(file, library);
            let found = FoundLibrary { tgid, library, file: file.clone(), points, arenas };
            say.send(LookResult::Found(Box::new(found))).ok()?;
        }
        say.send(LookResult::Done(tgid)).ok()
    }

    fn known(&mut self, file: &LibraryFile, library: FrameworkLibrary) -> Known {
        if let Some((_, known)) = self.known.iter().find(|(identity, _)| identity.is_same_file(&file.identity)) {
            return known.clone();
        }
        let begin = Instant::now();
        let known = self.look_into(file, library);
        log::info!("{}: its symbols were looked through in {} ms", file.display, begin.elapsed().as_millis());
        self.known.push((file.identity.clone(), known.clone()));
        known
    }

    fn look_into(&self, file: &LibraryFile, library: FrameworkLibrary) -> Known {
        let opened = match File::open(file.path()) {
            Ok(opened) => opened,
            Err(error) => return Known { points: Err(error.to_string()), arenas: None },
        };
        if library == FrameworkLibrary::OnnxRuntime {
            return self.look_into_classes(&opened);
        }
        let mut points = points(&opened, library, self.version).map_err(|error| chain(&error));
        if library == FrameworkLibrary::GgmlBase {
            return Known { points: points.and_then(|points| with_buffers(&opened, points)), arenas: None };
        }
        if !has_arenas(library) {
            return Known { points, arenas: None };
        }
        let arenas = ArenaLayout::of(&opened).inspect_err(|error| log::warn!("{}: {}", file.display, chain(error)));
        let arenas = arenas.unwrap_or_default();
        if let (Some(CounterLayout { offset_bytes, .. }), Ok(points)) = (arenas.counters, &mut points) {
            let of_chunks = points.iter_mut().filter(|point| point.row.meaning == TensorMeaning::Chunk);
            of_chunks.for_each(|point| point.plan = point.plan.counters_at(offset_bytes));
        }
        Known { points, arenas: Some(arenas) }
    }

    /// The same of a file whose functions have no names.
    fn look_into_classes(&self, file: &File) -> Known {
        match OnnxRuntime::of(file, self.version) {
            Some(build) => Known { points: Ok(build.points), arenas: Some(build.layout) },
            None => Known { points: Err("the arena of this build is not as expected".to_owned()), arenas: None },
        }
    }
}

/// The points of ggml's library, each with what it looks at; all of them, since without one the others would be misread.
fn with_buffers(file: &File, mut points: Vec<TensorPoint>) -> Result<Vec<TensorPoint>, String> {
    let rows = TENSOR_PROBES.iter().filter(|row| row.library == FrameworkLibrary::GgmlBase).count();
    let layout = BufferLayout::of(file).map_err(|error| chain(&error))?;
    let layout = layout.filter(|_| points.len() == rows).ok_or("the buffers of this build are not as expected")?;
    layout.complete(&mut points);
    Ok(points)
}
