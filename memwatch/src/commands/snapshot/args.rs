//! What `memwatch snapshot` takes.

use crate::options::moment::PAST;
use crate::options::{Past, values};
use memwatch_core::words::Tgid;
use std::path::PathBuf;
use std::time::Duration;

/// `memwatch snapshot`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct Pickle {
    /// The process; may be left out for a recording with one PyTorch process
    #[arg(short = 'p', long = "pid", value_name = "PID", value_parser = values::tgid, allow_negative_numbers = true)]
    #[arg(required_unless_present_any = PAST)]
    pub(crate) tgid: Option<Tgid>,
    #[command(flatten)]
    pub(crate) past: Past,
    /// The file, which pytorch.org/memory_viz reads
    #[arg(short, long, value_name = "FILE", default_value = "snapshot.pickle")]
    pub(crate) output: PathBuf,
    /// Replace a file that is there
    #[arg(long)]
    pub(crate) force: bool,
    /// Watch so long before it is written (ended earlier by Ctrl-C, or when the program ends)
    #[arg(short, long, value_name = "TIME", default_value = "10s", conflicts_with_all = PAST)]
    #[arg(value_parser = values::duration, allow_negative_numbers = true)]
    pub(crate) duration: Duration,
    /// Write native frames, too, as torch.cuda.memory._record_memory_history(stacks="all") does
    #[arg(long)]
    pub(crate) native: bool,
}
