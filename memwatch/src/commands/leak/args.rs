//! Arguments of `memwatch leak`.

use std::time::Duration;

use clap::ValueEnum;
use memwatch_core::features::leak::model::Verdict;

use crate::options::moment::PAST;
use crate::options::tensors::BudgetArgs;
use crate::options::{Checked, ReportSubject, values};

/// What keeps growing.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct Leak {
    #[command(flatten)]
    pub(crate) subject: ReportSubject,
    /// Watch for this time before the report; ends earlier on Ctrl-C or when the program ends
    #[arg(short, long, value_name = "TIME", default_value = "1m", conflicts_with_all = PAST)]
    #[arg(value_parser = values::duration, allow_negative_numbers = true)]
    pub(crate) duration: Duration,
    #[command(flatten)]
    pub(crate) price: BudgetArgs,
    /// Only read the process's memory, repeatedly: no probe, no eBPF; names what grows by what
    /// keeps it (PyTorch only)
    #[arg(long, conflicts_with_all = PAST, conflicts_with = "budget")]
    pub(crate) read_only: bool,
    /// Time from one reading to the next (default: so that reading takes a tenth of a processor, or as often as ten readings need)
    #[arg(short, long, value_name = "TIME", requires = "read_only")]
    #[arg(value_parser = values::interval, allow_negative_numbers = true)]
    pub(crate) interval: Option<Duration>,
    /// Growth per minute that counts as a leak: 500K, 10M; less is reported as slow
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = values::size_bytes)]
    pub(crate) threshold: u64,
    /// Maximum number of rows
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    pub(crate) top: usize,
    /// Exit with code 3 when a leak is found; slow: also on slow growth
    #[arg(long, value_name = "VERDICT", value_enum)]
    pub(crate) fail_on: Option<FailOn>,
}

/// What ends `memwatch leak` with 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FailOn {
    /// Growth above the threshold
    Leak,
    /// Any growth that continues
    Slow,
}

impl FailOn {
    /// Whether this verdict sets the exit code.
    pub(crate) fn is_of(self, verdict: Verdict) -> bool {
        verdict == Verdict::Leak || (self == Self::Slow && verdict == Verdict::Slow)
    }
}

impl Checked for Leak {
    fn check(&self) -> Result<(), String> {
        self.price.check("memwatch leak --read-only")?;
        self.subject.check()
    }
}
