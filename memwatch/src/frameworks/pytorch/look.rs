//! The slow part of finding PyTorch in a process, in a thread of its own: reading its mappings and the symbols of its libraries.

use std::fs::File;
use std::sync::mpsc::{Receiver, Sender, channel};

use memwatch_common::tensor::TorchLibrary;

use super::symbols::{TensorPoint, points};
use crate::sources::kernel::attach::chain;
use crate::sources::kernel::site::KernelVersion;
use crate::sources::library::{FileIdentity, LibraryFile, LibraryScan, is_library};

/// The libraries by the stem of their file's name: small ones first, whose probes are wanted soonest.
const LIBRARIES: [(&str, TorchLibrary); 5] = [
    ("libc10.so", TorchLibrary::C10),
    ("libc10_cuda.so", TorchLibrary::C10Cuda),
    ("libtorch_python.so", TorchLibrary::TorchPython),
    ("libtorch_cuda.so", TorchLibrary::TorchCuda),
    ("libtorch_cpu.so", TorchLibrary::TorchCpu),
];

/// How many libraries there are.
pub(crate) const LIBRARY_COUNT: usize = LIBRARIES.len();

/// What the thread says.
pub(crate) enum LookResult {
    /// A process has mapped this library.
    Found(Box<FoundLibrary>),
    /// All that this process has mapped was stated.
    Done(u32),
}

/// A library of PyTorch in a process.
#[derive(Clone)]
pub(crate) struct FoundLibrary {
    /// The process.
    pub(crate) tgid: u32,
    /// Which.
    pub(crate) library: TorchLibrary,
    /// Its file.
    pub(crate) file: LibraryFile,
    /// Where the rows are in it; or why nobody knows.
    pub(crate) points: Result<Vec<TensorPoint>, String>,
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
    /// Files looked into before; few, since machines have few versions of PyTorch.
    known: Vec<(FileIdentity, Result<Vec<TensorPoint>, String>)>,
}

impl Eyes {
    fn look(&mut self, tgid: u32, say: &Sender<LookResult>) -> Option<()> {
        let found = self.scan.scan_process(tgid).files;
        for (stem, library) in LIBRARIES {
            let name = |file: &&LibraryFile| is_library(file.display.trim_end_matches(" (deleted)").as_bytes(), stem);
            let Some(file) = found.iter().find(name) else { continue };
            let points = self.points(file, library);
            say.send(LookResult::Found(Box::new(FoundLibrary { tgid, library, file: file.clone(), points }))).ok()?;
        }
        say.send(LookResult::Done(tgid)).ok()
    }

    fn points(&mut self, file: &LibraryFile, library: TorchLibrary) -> Result<Vec<TensorPoint>, String> {
        if let Some((_, points)) = self.known.iter().find(|(identity, _)| identity.is_same_file(&file.identity)) {
            return points.clone();
        }
        let opened = File::open(file.path()).map_err(|error| error.to_string());
        let found = opened.and_then(|opened| points(&opened, library, self.version).map_err(|error| chain(&error)));
        self.known.push((file.identity.clone(), found.clone()));
        found
    }
}
