//! Arguments of `memwatch snapshot`.

use crate::options::moment::PAST;
use crate::options::{Checked, ReportSubject, values};
use std::path::PathBuf;
use std::time::Duration;

/// `memwatch snapshot`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct Pickle {
    #[command(flatten)]
    pub(crate) subject: ReportSubject,
    /// The file, for pytorch.org/memory_viz
    #[arg(short, long, value_name = "FILE", default_value = "snapshot.pickle")]
    pub(crate) output: PathBuf,
    /// Replace an existing file
    #[arg(long)]
    pub(crate) force: bool,
    /// Watch for this time first; ends earlier on Ctrl-C or when the program ends
    #[arg(short, long, value_name = "TIME", default_value = "10s", conflicts_with_all = PAST)]
    #[arg(value_parser = values::duration, allow_negative_numbers = true)]
    pub(crate) duration: Duration,
    /// Include native frames, as torch.cuda.memory._record_memory_history(stacks="all") does
    #[arg(long)]
    pub(crate) native: bool,
}

impl Checked for Pickle {
    fn check(&self) -> Result<(), String> {
        if self.subject.selected.tgids.len() > 1 {
            return Err("a snapshot has one process: name one PID".to_owned());
        }
        self.subject.check()
    }
}
