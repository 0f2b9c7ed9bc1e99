//! Arguments of `memwatch run`.

use crate::options::{Checked, RecorderArgs, TensorArgs, values};
use std::path::PathBuf;

/// A program to be started.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
#[command(override_usage = "memwatch run [OPTIONS] -- <CMD>...")]
pub(crate) struct RunArgs {
    /// Show only these GPUs: index, UUID (or its beginning) or PCI bus id; 0:1 is a MIG instance of GPU 0
    #[arg(short, long = "gpu", value_name = "GPU", value_delimiter = ',', value_parser = values::gpu)]
    #[arg(help_heading = "Which processes")]
    pub(crate) gpus: Vec<String>,
    #[command(flatten)]
    pub(crate) tensors: TensorArgs,
    #[command(flatten)]
    pub(crate) recorder: RecorderArgs,
    /// Record to this file, for --in
    #[arg(short, long, value_name = "FILE", help_heading = "Recording")]
    pub(crate) output: Option<PathBuf>,
    /// The program and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    #[arg(help_heading = "Arguments")]
    pub(crate) program: Vec<std::ffi::OsString>,
}

impl Checked for RunArgs {
    fn check(&self) -> Result<(), String> {
        self.tensors.check()
    }
}
