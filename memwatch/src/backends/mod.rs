//! Interface between a session and a GPU driver. CUDA's is the only driver.

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
use crate::sources::kernel::load::KernelHalf;
use crate::sources::library::LibraryScan;

/// A GPU driver: its library files, probed functions, device readings and error names.
pub(crate) trait Backend: Sync {
    /// Returns the stems of its library files' names, such as `libcuda.so`.
    fn libraries(&self) -> &'static [&'static str];

    /// Returns its probes: entries of the table that the kernel half knows by their ids.
    fn probes(&self) -> &'static [Probe];

    /// Returns the probes that are attached to single processes while some fact about them is
    /// unknown.
    fn probes_on_demand(&self) -> Vec<Box<dyn ProbesOnDemand>>;

    /// Starts to read its devices periodically, until the returned value is dropped.
    fn readings(&self, library: DeviceLibrary) -> Readings;

    /// Reads its devices once, with this library or the system's. The error is a message that
    /// explains the failure.
    fn reading(&self, library: Option<&Path>) -> Result<DeviceReading, String>;

    /// Returns the meaning of a driver function's status; `None` for a status unrelated to memory.
    fn error_name(&self, status: i32) -> Option<&'static str>;
}

/// Probes on functions that are called too often to be probed in all processes. They are attached
/// only to processes that need them.
pub(crate) trait ProbesOnDemand: Send {
    /// Attaches the probes to processes that need them now, and detaches them from all others.
    fn update(&mut self, kernel: &mut KernelHalf, libraries: &mut LibraryWatch, pipeline: &Pipeline);

    /// Returns when there is work that no record announces.
    fn due(&self, now: Instant) -> Option<Instant>;
}

/// Returns the driver of this machine's GPUs.
pub(crate) fn backend() -> &'static dyn Backend {
    &Cuda
}

/// Returns the scan for the driver's libraries.
pub(crate) fn scan() -> LibraryScan {
    LibraryScan::new("/proc").with_stems(backend().libraries()).with_probes(backend().probes())
}

/// Returns the meaning of a status, or its number.
pub(crate) fn error_words(status: i32) -> String {
    backend().error_name(status).map_or_else(|| format!("error {status}"), str::to_owned)
}
