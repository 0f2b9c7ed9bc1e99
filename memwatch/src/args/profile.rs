//! `memwatch profile`, and what it has in common with `memwatch timeline`.

use std::path::PathBuf;
use std::time::Duration;

use super::{Targets, values};

/// Who is looked at, how often and how long.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Looks {
    #[command(flatten)]
    pub(crate) targets: Targets,
    /// Look at this recording, instead of watching; without --pid at every process in it
    #[arg(long = "in", value_name = "FILE", help_heading = "What to watch")]
    pub(crate) recording: Option<PathBuf>,
    /// Watch so long (default: until Ctrl-C, or the end of the programs that are named)
    #[arg(short, long, value_name = "TIME", conflicts_with = "recording", help_heading = "Time")]
    #[arg(value_parser = values::duration, allow_negative_numbers = true)]
    pub(crate) duration: Option<Duration>,
}

/// `memwatch profile`.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Profile {
    #[command(flatten)]
    pub(crate) looks: Looks,
    /// Time between two looks: 100ms, 2s, 1m; a bare number is seconds; at least 100ms
    #[arg(short, long, value_name = "TIME", default_value = "1s", help_heading = "Time")]
    #[arg(value_parser = values::interval, allow_negative_numbers = true)]
    pub(crate) interval: Duration,
}
