//! `memwatch oom`.

use std::time::Duration;

use super::{Subject, values};

/// Why allocations failed.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct Oom {
    #[command(flatten)]
    pub(crate) subject: Subject,
    /// Watch so long (default: until Ctrl-C, or the end of the program)
    #[arg(short, long, value_name = "TIME", conflicts_with = "recording")]
    #[arg(value_parser = values::duration, allow_negative_numbers = true)]
    pub(crate) duration: Option<Duration>,
    /// End with code 3 where an allocation failed
    #[arg(long = "fail-on-oom")]
    pub(crate) fail_on_oom: bool,
}
