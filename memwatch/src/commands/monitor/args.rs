//! Arguments of `memwatch monitor`.

use std::time::Duration;

use crate::commands::monitor::{DETECTORS, Detector};
use crate::options::{Checked, Looks, values};

/// All that is looked for, at once.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Monitor {
    #[command(flatten)]
    pub(crate) looks: Looks,
    /// Run every check (the default)
    #[arg(long, conflicts_with = "only")]
    pub(crate) all: bool,
    /// Run only these checks: forecast, oom, leak, profile, fragment, churn
    #[arg(long, value_name = "WHAT", value_delimiter = ',', value_parser = detector)]
    pub(crate) only: Vec<&'static str>,
    /// Sampling interval: 100ms, 2s, 1m; a bare number is seconds; at least 100ms
    #[arg(short, long, value_name = "TIME", default_value = "1s", help_heading = "Time")]
    #[arg(value_parser = values::interval, allow_negative_numbers = true)]
    pub(crate) interval: Duration,
    /// Growth per minute that counts as a leak: 500K, 10M; less is reported as slow
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = values::size_bytes)]
    pub(crate) threshold: u64,
    /// Maximum number of rows of each list
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    pub(crate) top: usize,
}

impl Monitor {
    /// Returns the selected detectors.
    pub(crate) fn detectors(&self) -> impl Iterator<Item = &'static Detector> {
        DETECTORS.iter().filter(|detector| self.only.is_empty() || self.only.contains(&detector.name))
    }
}

fn detector(text: &str) -> Result<&'static str, String> {
    let found = DETECTORS.iter().find(|detector| detector.name == text);
    let names = || DETECTORS.iter().map(|detector| detector.name).collect::<Vec<_>>().join(", ");
    found.map(|detector| detector.name).ok_or_else(|| format!("there is {}", names()))
}

impl Checked for Monitor {}
