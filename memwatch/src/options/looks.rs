//! Options of reports that poll processes over time.

use crate::options::moment::PAST;
use crate::options::{Past, TargetArgs, values};
use std::time::Duration;

/// Which processes, and how long.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Looks {
    #[command(flatten)]
    pub(crate) targets: TargetArgs,
    #[command(flatten)]
    pub(crate) past: Past,
    /// Watch for this time (default: until Ctrl-C, or until the named processes have ended)
    #[arg(short, long, value_name = "TIME", conflicts_with_all = PAST, help_heading = "Time")]
    #[arg(value_parser = values::duration, allow_negative_numbers = true)]
    pub(crate) duration: Option<Duration>,
}
