//! Arguments of `memwatch profile`, and those it shares with `memwatch timeline`.

use crate::options::looks::Looks;

use std::path::PathBuf;
use std::time::Duration;

use crate::commands::timeline::args::{TimelineFormat, by_name};
use crate::options::{Checked, values};

/// `memwatch profile`.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct ProfileArgs {
    #[command(flatten)]
    pub(crate) looks: Looks,
    /// Sampling interval: 100ms, 2s, 1m; a bare number is seconds; at least 100ms
    #[arg(short, long, value_name = "TIME", default_value = "1s", help_heading = "Time")]
    #[arg(value_parser = values::interval, allow_negative_numbers = true)]
    pub(crate) interval: Duration,
    /// Also draw it, as .svg or .html
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    /// Replace an existing file
    #[arg(long)]
    pub(crate) force: bool,
}

impl ProfileArgs {
    /// Returns the format of the plot, if one is requested.
    ///
    /// # Errors
    /// The extension of the file is unknown.
    pub(crate) fn drawn(&self) -> Result<Option<TimelineFormat>, String> {
        let Some(plot) = &self.plot else { return Ok(None) };
        let format = by_name(plot).filter(|format| matches!(format, TimelineFormat::Svg | TimelineFormat::Html));
        format.map(Some).ok_or_else(|| "a plot needs a file name that ends in .svg or .html".to_owned())
    }
}

impl Checked for ProfileArgs {
    fn check(&self) -> Result<(), String> {
        self.drawn().map(drop)
    }
}
