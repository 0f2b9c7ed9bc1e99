//! The drivers whose memory is watched: what a session asks of one, and CUDA's, which is the only one.

pub(crate) mod cuda;
pub(crate) mod library_watch;
pub(crate) mod readings;

use std::path::Path;
use std::time::Instant;

use memwatch_common::probes::Probe;
use memwatch_core::Pipeline;
use memwatch_core::input::DeviceReading;

use self::cuda::Cuda;
use self::library_watch::LibraryWatch;
use self::readings::{DeviceLibrary, Readings};
use crate::sources::kernel::load::Kernel;
use crate::sources::library::LibraryScan;

/// A driver: which files it is, which of its functions are probed, who reads its devices, and what its answers are called.
pub(crate) trait Backend: Sync {
    /// How the names of its library files begin, such as `libcuda.so`.
    fn libraries(&self) -> &'static [&'static str];

    /// Its functions: rows of the table that the kernel half knows by their numbers.
    fn probes(&self) -> &'static [Probe];

    /// Functions of it that are probed in single processes, while something has to be learned there.
    fn probes_on_demand(&self) -> Vec<Box<dyn ProbesOnDemand>>;

    /// Begins to read its devices, until the readings are dropped.
    fn readings(&self, library: DeviceLibrary) -> Readings;

    /// Reads its devices once, with this library or the system's; else a sentence on why not.
    fn reading(&self, library: Option<&Path>) -> Result<DeviceReading, String>;

    /// What a status means that one of its functions answers; `None` for numbers that say nothing about memory.
    fn error_name(&self, status: i32) -> Option<&'static str>;
}

/// Functions that programs call too often to probe them in all, for a reason that only some processes have.
pub(crate) trait ProbesOnDemand: Send {
    /// Puts them into the processes that have the reason now, and takes them out of the others.
    fn update(&mut self, kernel: &mut Kernel, libraries: &mut LibraryWatch, pipeline: &Pipeline);

    /// When there is something to do that no record announces.
    fn due(&self, now: Instant) -> Option<Instant>;
}

/// The driver of this machine's GPUs.
pub(crate) fn backend() -> &'static dyn Backend {
    &Cuda
}

/// Where its libraries are looked for.
pub(crate) fn scan() -> LibraryScan {
    LibraryScan::new("/proc").with_stems(backend().libraries()).with_probes(backend().probes())
}

/// What a status means, or its number.
pub(crate) fn error_words(status: i32) -> String {
    backend().error_name(status).map_or_else(|| format!("error {status}"), str::to_owned)
}
