//! Recordings: how they are made, and which is read.

use clap::ValueEnum;
use memwatch_core::words::Tgid;

use super::moment::PAST;
use super::{Past, values};

/// How a recording is written.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Recording")]
pub(crate) struct TapeArgs {
    /// Replace a file that is there
    #[arg(long)]
    pub(crate) force: bool,
    /// Let the recording become no larger than this: 500M, 2G; a bare number is bytes (default: no limit)
    #[arg(long, value_name = "SIZE", value_parser = values::size_bytes)]
    pub(crate) max_size: Option<u64>,
    /// What stays when --max-size is reached: the oldest, and the recording ends; or the newest, and it goes on
    #[arg(long, value_name = "PART", value_enum, default_value_t, hide_possible_values = true)]
    #[arg(requires_if("newest", "max_size"))]
    pub(crate) keep: Keep,
}

/// What of a recording stays when it is as large as it may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Keep {
    /// The recording ends
    #[default]
    Oldest,
    /// It goes on, and its oldest events go; sums go on counting them
    Newest,
}

/// The least that keeps anything of the newest.
pub(crate) const LEAST_RING_BYTES: u64 = 1 << 20;

impl TapeArgs {
    /// Whether it goes on at its limit.
    ///
    /// # Errors
    /// When there is too little room for that.
    pub(crate) fn keeps_newest(&self) -> Result<bool, String> {
        match (self.keep, self.max_size) {
            (Keep::Newest, Some(bytes)) if bytes < LEAST_RING_BYTES => {
                Err("--keep newest needs a --max-size of 1M or more: all that is known has to fit several times"
                    .to_owned())
            }
            (keep, _) => Ok(keep == Keep::Newest),
        }
    }
}

/// Whose tensors a report is on, and where they are seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Subject {
    /// The process, and its children; may be repeated
    #[arg(short = 'p', long = "pid", value_name = "PID", value_delimiter = ',', required_unless_present_any = PAST)]
    #[arg(value_parser = values::tgid, allow_negative_numbers = true)]
    pub(crate) tgids: Vec<Tgid>,
    #[command(flatten)]
    pub(crate) past: Past,
}
