//! The processes of a report over time, and for how long.

use crate::options::moment::PAST;
use crate::options::{Past, Targets, values};
use std::time::Duration;

/// Who is looked at, how often and how long.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Looks {
    #[command(flatten)]
    pub(crate) targets: Targets,
    #[command(flatten)]
    pub(crate) past: Past,
    /// Watch so long (default: until Ctrl-C, or the end of the programs that are named)
    #[arg(short, long, value_name = "TIME", conflicts_with_all = PAST, help_heading = "Time")]
    #[arg(value_parser = values::duration, allow_negative_numbers = true)]
    pub(crate) duration: Option<Duration>,
}
