//! CUDA: its libraries, NVML, and probes that are attached for a while.

pub(crate) mod context_probes;
pub(crate) mod graph_probes;
pub(crate) mod library_watch;
pub(crate) mod nvml;
pub(crate) mod process_probes;
