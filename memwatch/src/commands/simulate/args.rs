//! Arguments of `memwatch simulate`.

use std::time::Duration;

use memwatch_core::features::simulate::model::{PolicyPlan, Settings};

use crate::options::moment::PAST;
use crate::options::{Checked, ReportSubject, values};

/// What other settings would have taken.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub(crate) struct Simulate {
    #[command(flatten)]
    pub(crate) subject: ReportSubject,
    /// Watch for this time (default: until Ctrl-C or the end of the program)
    #[arg(short, long, value_name = "TIME", conflicts_with_all = PAST)]
    #[arg(value_parser = values::duration, allow_negative_numbers = true)]
    pub(crate) duration: Option<Duration>,
    /// A value of PYTORCH_CUDA_ALLOC_CONF to try, such as max_split_size_mb:256; may be repeated
    /// (default: the usual ones)
    #[arg(short, long = "setting", value_name = "CONF", value_parser = values::setting)]
    settings: Vec<Settings>,
    /// Try it on a GPU with this much memory: 24G
    #[arg(long, value_name = "SIZE", value_parser = values::size_bytes)]
    pub(crate) capacity: Option<u64>,
}

impl Simulate {
    /// Returns the question with these settings. Without settings, and for empty ones, the usual ones
    /// are tried.
    pub(crate) fn of(subject: ReportSubject, duration: Duration, settings: &[Settings]) -> Self {
        let settings = settings.iter().filter(|typed| **typed != Settings::default()).cloned().collect();
        let duration = (!subject.past.is_meant()).then_some(duration);
        Self { subject, duration, settings, capacity: None }
    }

    /// Returns the settings to try: PyTorch's default, and those of the command line.
    pub(crate) fn plans(&self) -> Vec<PolicyPlan> {
        if self.settings.is_empty() {
            return PolicyPlan::usual();
        }
        let mut all = vec![Settings::default()];
        all.extend(self.settings.iter().filter(|typed| **typed != Settings::default()).cloned());
        all.into_iter().map(PolicyPlan::PyTorch).collect()
    }
}

impl Checked for Simulate {
    fn check(&self) -> Result<(), String> {
        self.subject.check()
    }
}
