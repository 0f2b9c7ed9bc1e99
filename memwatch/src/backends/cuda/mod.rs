//! CUDA: its libraries, NVML, and probes that are attached for a while.

pub(crate) mod context_probes;
pub(crate) mod graph_probes;
pub(crate) mod library_watch;
pub(crate) mod nvml;
pub(crate) mod process_probes;
mod status;

use memwatch_common::probes::{PROBES, Probe};

use self::nvml::NvmlLibrary;
use super::Backend;
use super::readings::Readings;
use crate::sources::library::LIBRARY_STEM;

/// NVIDIA's driver.
pub(crate) struct Cuda;

impl Backend for Cuda {
    fn libraries(&self) -> &'static [&'static str] {
        &[LIBRARY_STEM]
    }

    fn probes(&self) -> &'static [Probe] {
        PROBES
    }

    fn readings(&self, library: NvmlLibrary) -> Readings {
        nvml::start(library)
    }

    fn error_name(&self, status: i32) -> Option<&'static str> {
        status::name(status)
    }
}
