//! What `memwatch stats` takes.

use crate::options::moment::PAST;
use crate::options::{Subject, values};
use std::time::Duration;

/// `memwatch stats`.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Stats {
    #[command(flatten)]
    pub(crate) subject: Subject,
    /// Print them at this interval until Ctrl-C or the end of the program
    #[arg(short, long, value_name = "TIME", value_parser = values::interval, allow_negative_numbers = true)]
    #[arg(conflicts_with_all = PAST)]
    pub(crate) interval: Option<Duration>,
    /// Reset memwatch's peak counters with each report: each then has the peaks of its interval
    #[arg(long, requires = "interval")]
    pub(crate) reset_peaks: bool,
}
