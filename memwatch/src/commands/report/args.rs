//! Arguments of `memwatch report`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::commands::timeline::args::{TimelineFormat, by_name};
use crate::options::{Checked, Looks, Past, TargetArgs, values};

/// Names of the sections, in the order of the report.
pub(crate) const SECTION_NAMES: [&str; 7] = ["where", "oom", "leak", "forecast", "fragment", "profile", "churn"];

/// `memwatch report`.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    pub(crate) looks: Looks,
    /// Only these sections: where, oom, leak, forecast, fragment, profile, churn
    #[arg(long, value_name = "WHAT", value_delimiter = ',', value_parser = section)]
    pub(crate) only: Vec<&'static str>,
    /// Sampling interval of the profile: 100ms, 2s, 1m; a bare number is seconds; at least 100ms
    #[arg(short, long, value_name = "TIME", default_value = "1s", help_heading = "Time")]
    #[arg(value_parser = values::interval, allow_negative_numbers = true)]
    pub(crate) interval: Duration,
    /// Growth per minute that counts as a leak: 500K, 10M; less is reported as slow
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = values::size_bytes)]
    pub(crate) threshold: u64,
    /// Maximum number of rows of each list
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    pub(crate) top: usize,
    /// Temporary is what is freed before N more allocations of its process
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) temporary: u64,
    /// Also draw memory over time, as .svg or .html
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    /// Replace an existing file
    #[arg(long, requires = "plot")]
    pub(crate) force: bool,
}

impl ReportArgs {
    /// Whether a section is selected.
    pub(crate) fn wants(&self, section: &str) -> bool {
        self.only.is_empty() || self.only.contains(&section)
    }

    /// Returns the processes and the period, where a recording may be named like a process:
    /// `memwatch report job.mwr`.
    pub(crate) fn looks(&self) -> Looks {
        let mut looks = self.looks.clone();
        let Looks { targets: TargetArgs { selected, .. }, past: Past { recording, .. }, .. } = &mut looks;
        if let (None, [word]) = (&recording, &selected.choice.names[..])
            && names_a_file(word)
        {
            *recording = selected.choice.names.pop().map(PathBuf::from);
        }
        looks
    }

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

/// Whether a bare word is a recording and not the name of a process: a path with a directory, or a
/// file name with the extension of recordings.
fn names_a_file(word: &str) -> bool {
    let is_recording = Path::new(word).extension().is_some_and(|extension| extension == "mwr");
    is_recording || word.contains('/')
}

fn section(text: &str) -> Result<&'static str, String> {
    let found = SECTION_NAMES.into_iter().find(|name| *name == text);
    found.ok_or_else(|| format!("there is {}", SECTION_NAMES.join(", ")))
}

impl Checked for ReportArgs {
    fn check(&self) -> Result<(), String> {
        self.drawn().map(drop)
    }
}
