//! Recordings: how they are made, and which is read.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use memwatch_core::words::Tgid;

use super::moment::PAST;
use super::{Past, Tensors, Window, values};

/// `memwatch record`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct Record {
    /// Record only these processes, and their children (default: every process that uses a GPU); may be repeated
    #[arg(short = 'p', long = "pid", value_name = "PID", value_delimiter = ',')]
    #[arg(value_parser = values::tgid, allow_negative_numbers = true, help_heading = "What to watch")]
    pub(crate) tgids: Vec<Tgid>,
    #[command(flatten)]
    pub(crate) tensors: Tensors,
    /// The file, such as job.mwr
    #[arg(short, long, value_name = "FILE", help_heading = "Recording")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) tape: TapeArgs,
    /// Stop after this time (default: at Ctrl-C, or when the recorded processes have ended)
    #[arg(short, long, value_name = "TIME", value_parser = values::duration, allow_negative_numbers = true)]
    #[arg(help_heading = "Time")]
    pub(crate) duration: Option<Duration>,
}

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
pub(super) const LEAST_RING_BYTES: u64 = 1 << 20;

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

/// `memwatch report`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct Replayed {
    /// The recording (with --since or --until it may be left away: then it is the history of the agent)
    #[arg(value_name = "FILE", required_unless_present_any = ["since", "until"])]
    pub(crate) recording: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) window: Window,
    /// Show so many rows of each list at most
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    pub(crate) top: usize,
    /// Call temporary what is freed before so many more of its kind are allocated in its process
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) temporary: u64,
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
