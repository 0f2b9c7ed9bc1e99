//! The outside world: each source turns what it sees into [`memwatch_core::input::Input`].

pub(crate) mod cgroup;
pub(crate) mod clock;
pub(crate) mod containers;
pub(crate) mod context_probes;
pub(crate) mod graph_probes;
pub(crate) mod kernel;
pub(crate) mod library;
mod library_look;
pub(crate) mod library_sweep;
pub(crate) mod library_watch;
pub(crate) mod mappings;
pub(crate) mod namespace;
pub(crate) mod native;
pub(crate) mod nvml;
pub(crate) mod own;
pub(crate) mod presence;
mod process_probes;
pub(crate) mod procfs;
pub(crate) mod python;
pub(crate) mod replay;
pub(crate) mod torch;
