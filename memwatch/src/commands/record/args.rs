//! What `memwatch record` takes.

use crate::options::recording::TapeArgs;
use crate::options::{Tensors, values};
use memwatch_core::words::Tgid;
use std::path::PathBuf;
use std::time::Duration;

/// `memwatch record`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct Record {
    /// Record only these processes, and their children (default: every process that uses a GPU); may be repeated
    #[arg(short = 'p', long = "pid", value_name = "PID", value_delimiter = ',')]
    #[arg(value_parser = values::tgid, allow_negative_numbers = true, help_heading = "What to watch")]
    pub(crate) tgids: Vec<Tgid>,
    #[command(flatten)]
    pub(crate) tensors: Tensors,
    /// The file, such as job.mwr
    #[arg(short, long, value_name = "FILE", help_heading = "Recording")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) tape: TapeArgs,
    /// Stop after this time (default: at Ctrl-C, or when the recorded processes have ended)
    #[arg(short, long, value_name = "TIME", value_parser = values::duration, allow_negative_numbers = true)]
    #[arg(help_heading = "Time")]
    pub(crate) duration: Option<Duration>,
}
