//! `memwatch leak`.

use std::time::Duration;

use clap::ValueEnum;

use crate::options::moment::PAST;
use crate::options::{Subject, values};

/// What keeps growing.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct Leak {
    #[command(flatten)]
    pub(crate) subject: Subject,
    /// Watch so long before the report (ended earlier by Ctrl-C, or when the program ends)
    #[arg(short, long, value_name = "TIME", default_value = "1m", conflicts_with_all = PAST)]
    #[arg(value_parser = values::duration, allow_negative_numbers = true)]
    pub(crate) duration: Duration,
    /// Growth of so many bytes a minute is a leak: 500K, 10M; less is called slow
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = values::size_bytes)]
    pub(crate) threshold: u64,
    /// Show so many rows at most
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    pub(crate) top: usize,
    /// End with code 3 where a leak is found; with slow, also where there is slow growth
    #[arg(long, value_name = "VERDICT", value_enum)]
    pub(crate) fail_on: Option<FailOn>,
}

/// What ends `memwatch leak` with 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FailOn {
    /// Growth above the threshold
    Leak,
    /// Any growth that goes on
    Slow,
}

impl FailOn {
    /// Whether this verdict is meant.
    pub(crate) fn is_of(self, verdict: &str) -> bool {
        verdict == "leak" || (self == Self::Slow && verdict == "slow")
    }
}
