//! What of a PyTorch program is watched, and the reports on it.

use std::path::PathBuf;

use crate::frameworks::pytorch::{TensorLevel, TensorRequest};

/// How much of PyTorch is watched.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "PyTorch")]
pub(crate) struct Tensors {
    /// How much of PyTorch is traced in named processes: off, blocks (its allocator), sites (and the lines), layers (and
    /// phases and modules: the default, unless that would slow a process by more than 5 %)
    #[arg(long = "tensors", value_name = "LEVEL", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "layers", value_parser = level)]
    pub(crate) level: Option<TensorLevel>,
    /// Log each change of module or phase to this file, one per process, such as mem_trace_rank_{rank}.log; {pid} is the PID
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
}

impl Tensors {
    /// Whether the command line asks for what only an own watch sees: the agent watches no tensors.
    pub(crate) fn is_asked_for(&self) -> bool {
        self.level.is_some_and(|level| level != TensorLevel::Off) || self.log.is_some()
    }

    /// Whether nobody asked for a level by name, or for what takes all of it.
    pub(crate) const fn is_default(&self) -> bool {
        self.level.is_none() && self.log.is_none()
    }

    /// The level for a watch: everything in processes that were named, nothing in all others.
    pub(crate) fn request(&self, named: bool) -> TensorRequest {
        let level = self.level.unwrap_or(if named { TensorLevel::Layers } else { TensorLevel::Off });
        TensorRequest { level, reports_only: false }
    }
}

pub(crate) fn level(text: &str) -> Result<TensorLevel, String> {
    match text {
        "off" => Ok(TensorLevel::Off),
        "blocks" => Ok(TensorLevel::Blocks),
        "sites" => Ok(TensorLevel::Sites),
        "layers" => Ok(TensorLevel::Layers),
        _ => Err("off, blocks, sites or layers".to_owned()),
    }
}
