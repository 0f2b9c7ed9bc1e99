//! What `memwatch sites`, `stages` and `layers` take.

use crate::options::moment::PAST;
use crate::options::{Subject, values};
use std::time::Duration;

/// `memwatch stages`, and what `memwatch sites` and `memwatch layers` have in common with it.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct Places {
    #[command(flatten)]
    pub(crate) subject: Subject,
    /// Watch so long before the report (ended earlier by Ctrl-C, or when the program ends)
    #[arg(short, long, value_name = "TIME", default_value = "10s", conflicts_with_all = PAST)]
    #[arg(value_parser = values::duration, allow_negative_numbers = true)]
    pub(crate) duration: Duration,
    /// Show so many rows at most
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    pub(crate) top: usize,
    /// List blocks of this size and above one by one: 500M, 2G; a bare number is bytes
    #[arg(short = 'z', long, value_name = "SIZE", default_value = "100M", value_parser = values::size_bytes)]
    pub(crate) min_size: u64,
}

/// `memwatch sites`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct Sites {
    #[command(flatten)]
    pub(crate) places: Places,
    /// Show the stacks that hold most, with native frames
    #[arg(long)]
    pub(crate) native: bool,
}

/// `memwatch layers`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct Layers {
    #[command(flatten)]
    pub(crate) places: Places,
    /// Say also what rounding and splitting waste of each: three probes for a tensor instead of one
    #[arg(long)]
    pub(crate) fragmentation: bool,
}
