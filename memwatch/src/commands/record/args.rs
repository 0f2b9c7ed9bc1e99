//! Arguments of `memwatch record`.

use crate::options::recording::RecorderArgs;
use crate::options::{Checked, Selected, TensorArgs, values};
use std::path::PathBuf;
use std::time::Duration;

/// `memwatch record`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct RecordArgs {
    #[command(flatten)]
    pub(crate) selected: Selected,
    #[command(flatten)]
    pub(crate) tensors: TensorArgs,
    /// The file, such as job.mwr
    #[arg(short, long, value_name = "FILE", help_heading = "Recording")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) recorder: RecorderArgs,
    /// Stop after this time (default: at Ctrl-C, or when the named processes have ended)
    #[arg(short, long, value_name = "TIME", value_parser = values::duration, allow_negative_numbers = true)]
    #[arg(help_heading = "Time")]
    pub(crate) duration: Option<Duration>,
}

impl Checked for RecordArgs {
    fn check(&self) -> Result<(), String> {
        self.tensors.check()
    }
}
