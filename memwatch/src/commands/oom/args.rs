//! Arguments of `memwatch oom`.

use std::time::Duration;

use clap::ValueEnum;

use crate::options::moment::PAST;
use crate::options::{Checked, ReportSubject, values};

/// Whether memory runs out, and why allocations failed.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub(crate) struct Oom {
    #[command(flatten)]
    pub(crate) subject: ReportSubject,
    /// Watch for this time (default: until Ctrl-C or the end of the program)
    #[arg(short, long, value_name = "TIME", conflicts_with_all = PAST)]
    #[arg(value_parser = values::duration, allow_negative_numbers = true)]
    pub(crate) duration: Option<Duration>,
    /// Report when this part of a GPU is used, in percent: 85, or several as 80,90,95
    #[arg(long = "threshold", value_name = "PERCENT", value_delimiter = ',', value_parser = values::percent)]
    #[arg(allow_negative_numbers = true)]
    pub(crate) thresholds: Vec<f64>,
    /// Print each allocation that fails, and a line when the level of a forecast changes or a
    /// threshold is passed; of the whole machine where no process is named
    #[arg(long)]
    pub(crate) follow: bool,
    /// On each change and failure run this shell command, with it as JSON on its standard input
    #[arg(long, value_name = "CMD", conflicts_with_all = PAST)]
    pub(crate) exec: Option<String>,
    /// Timeout of that command
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = values::duration, allow_negative_numbers = true)]
    pub(crate) exec_timeout: Duration,
    /// Post each change and failure as JSON to this address: http://host:port/path
    #[arg(long, value_name = "URL", conflicts_with_all = PAST, value_parser = values::webhook)]
    pub(crate) webhook: Option<String>,
    /// Exit with code 3 on: forecast (level medium or above), oom (an allocation that failed)
    #[arg(long, value_name = "WHAT", value_enum, value_delimiter = ',')]
    pub(crate) fail_on: Vec<OomFound>,
    /// Same as --fail-on oom
    #[arg(long = "fail-on-oom")]
    pub(crate) fail_on_oom: bool,
}

/// What ends `memwatch oom` with 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OomFound {
    /// A forecast of level medium or above, or a threshold that was passed
    Forecast,
    /// An allocation that failed
    Oom,
}

impl Checked for Oom {
    fn check(&self) -> Result<(), String> {
        if self.is_of_machine() { Ok(()) } else { self.subject.check() }
    }
}

impl Oom {
    /// Whether the whole machine is traced: live reports need no named process.
    pub(crate) fn is_of_machine(&self) -> bool {
        let reports = self.follow || self.exec.is_some() || self.webhook.is_some();
        reports && self.subject.selected.is_everybody() && !self.subject.past.is_meant()
    }
}
