//! Arguments of `memwatch stats`.

use crate::options::moment::PAST;
use crate::options::{Checked, ReportSubject, values};
use std::time::Duration;

/// `memwatch stats`.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Stats {
    #[command(flatten)]
    pub(crate) subject: ReportSubject,
    /// Print them every TIME, until Ctrl-C or the end of the program
    #[arg(short, long, value_name = "TIME", value_parser = values::interval, allow_negative_numbers = true)]
    #[arg(conflicts_with_all = PAST)]
    pub(crate) interval: Option<Duration>,
    /// Watch for this time first; without it they are printed once PyTorch's own counters are found
    #[arg(short, long, value_name = "TIME", conflicts_with_all = PAST)]
    #[arg(value_parser = values::duration, allow_negative_numbers = true)]
    pub(crate) duration: Option<Duration>,
    /// Reset the agent's peak counters for the process; with --interval, memwatch's own after each report
    #[arg(long, conflicts_with_all = PAST)]
    pub(crate) reset_peaks: bool,
}

impl Checked for Stats {
    fn check(&self) -> Result<(), String> {
        if self.reset_peaks && self.duration.is_some() && self.interval.is_none() {
            return Err("--reset-peaks goes with --interval, or resets the agent's peak counters at once".to_owned());
        }
        self.subject.check()
    }
}
