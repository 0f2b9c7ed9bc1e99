//! Arguments of `memwatch explain`.

use std::time::Duration;

use crate::options::moment::PAST;
use crate::options::{Checked, ReportSubject, values};

/// `memwatch explain`.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Explain {
    #[command(flatten)]
    pub(crate) subject: ReportSubject,
    /// Watch for this time first; without it until NVML was compared twice, 5 s at most
    #[arg(short, long, value_name = "TIME", conflicts_with_all = PAST)]
    #[arg(value_parser = values::duration, allow_negative_numbers = true)]
    pub(crate) duration: Option<Duration>,
}

impl Checked for Explain {
    fn check(&self) -> Result<(), String> {
        self.subject.check()
    }
}
