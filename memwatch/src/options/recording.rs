//! Options for writing recordings, and for selecting the one to read.

use clap::ValueEnum;

use super::{Checked, Past, Selected, values};

/// How a recording is written.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Recording")]
pub(crate) struct RecorderArgs {
    /// Replace an existing file
    #[arg(long)]
    pub(crate) force: bool,
    /// Maximum file size: 500M, 2G; a bare number is bytes (default: no limit)
    #[arg(long, value_name = "SIZE", value_parser = values::size_bytes)]
    pub(crate) max_size: Option<u64>,
    /// At --max-size: oldest stops the recording there, newest drops the oldest events and continues
    #[arg(long, value_name = "PART", value_enum, default_value_t, hide_possible_values = true)]
    #[arg(requires_if("newest", "max_size"))]
    pub(crate) keep: Keep,
}

/// Events to keep when a recording reaches its maximum size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Keep {
    /// End the recording
    #[default]
    Oldest,
    /// Continue, and drop the oldest events; sums still include them
    Newest,
}

impl RecorderArgs {
    /// Returns whether the recording drops its oldest events at the size limit and continues.
    ///
    /// # Errors
    /// If the limit is too small for that.
    pub(crate) fn keeps_newest(&self) -> Result<bool, String> {
        match (self.keep, self.max_size) {
            (Keep::Newest, Some(bytes)) if bytes < values::LEAST_RING_BYTES => {
                Err("--keep newest needs a --max-size of 1M or more: the complete state has to fit several times"
                    .to_owned())
            }
            (keep, _) => Ok(keep == Keep::Newest),
        }
    }
}

/// The processes of a report, watched now or read from a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct ReportSubject {
    #[command(flatten)]
    pub(crate) selected: Selected,
    #[command(flatten)]
    pub(crate) past: Past,
}

impl Checked for ReportSubject {
    fn check(&self) -> Result<(), String> {
        if self.past.is_meant() {
            return Ok(());
        }
        if self.selected.choice.no_children {
            return Err("a live report includes child processes: --no-children needs --in".to_owned());
        }
        if self.selected.is_everybody() { Err(WHICH.to_owned()) } else { Ok(()) }
    }
}

/// Error message if a command needs a process and none is named.
pub(crate) const WHICH: &str =
    "name a process: PID or NAME, --pid <PID>, --container, --pod, --user, --slurm-job; or a recording: --in FILE";
