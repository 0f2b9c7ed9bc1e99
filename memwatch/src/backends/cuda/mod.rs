//! CUDA: its libraries, NVML, and temporary probes in single processes.

mod context_probes;
mod graph_probes;
pub(crate) mod nvml;
mod process_probes;
mod status;

use std::path::Path;

use memwatch_common::probes::{PROBES, Probe};
use memwatch_core::input::DeviceReading;

use self::context_probes::ContextProbes;
use self::graph_probes::GraphProbes;
use super::readings::{DeviceLibrary, Readings};
use super::{Backend, ProbesOnDemand};
use crate::sources::library::LIBRARY_STEM;

/// NVIDIA's CUDA driver.
pub(crate) struct Cuda;

impl Backend for Cuda {
    fn libraries(&self) -> &'static [&'static str] {
        &[LIBRARY_STEM]
    }

    fn probes(&self) -> &'static [Probe] {
        PROBES
    }

    fn probes_on_demand(&self) -> Vec<Box<dyn ProbesOnDemand>> {
        vec![Box::new(ContextProbes::default()), Box::new(GraphProbes::default())]
    }

    fn readings(&self, library: DeviceLibrary) -> Readings {
        nvml::start(library)
    }

    fn reading(&self, library: Option<&Path>) -> Result<DeviceReading, String> {
        nvml::open(library).map(|nvml| nvml::read(&nvml))
    }

    fn error_name(&self, status: i32) -> Option<&'static str> {
        status::name(status)
    }
}
