//! Arguments of `memwatch explain`.

use std::time::Duration;

use clap::ValueEnum;

use crate::commands::holdings::args::{HoldingsArgs, HoldingsRowKind};
use crate::commands::places::args::{AttributionArgs, Where, WhereRowKind};
use crate::options::moment::PAST;
use crate::options::{Checked, ReportSubject, values};

/// What a row of `memwatch explain` is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExplainRowKind {
    /// Weights, gradients, caches, context and libraries, adding up to what NVML charges
    #[default]
    Role,
    /// Context, code, libraries and what programs allocate
    Part,
    /// What a PyTorch process holds, as `memwatch holdings`
    Name,
    /// Lines of Python, as `memwatch where`
    Line,
    /// Modules of the model, as `memwatch where --by module`
    Module,
    /// Phases of a training step, as `memwatch where --by phase`
    Phase,
}

/// `memwatch explain`.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Explain {
    #[command(flatten)]
    pub(crate) subject: ReportSubject,
    /// Watch for this time first; without it until NVML was compared twice, 5 s at most
    #[arg(short, long, value_name = "TIME", conflicts_with_all = PAST)]
    #[arg(value_parser = values::duration, allow_negative_numbers = true)]
    pub(crate) duration: Option<Duration>,
    /// What a row is: role or part (both of all that NVML charges), name (what PyTorch holds), line, module or phase
    #[arg(long, value_enum, default_value_t, hide_possible_values = true)]
    pub(crate) by: ExplainRowKind,
    /// Maximum number of rows, except with --by role and part
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    pub(crate) top: usize,
}

impl Explain {
    /// Returns the same question to `memwatch holdings`.
    pub(crate) fn by_name(&self) -> HoldingsArgs {
        HoldingsArgs { subject: self.subject.clone(), by: HoldingsRowKind::Name, top: self.top }
    }

    /// Returns the same question to `memwatch where`.
    pub(crate) fn by_code(&self, by: WhereRowKind) -> Where {
        let usual = AttributionArgs::of(self.subject.clone());
        let duration = self.duration.unwrap_or(usual.duration);
        Where { by, ..Where::of(AttributionArgs { duration, top: self.top, ..usual }) }
    }
}

impl Checked for Explain {
    fn check(&self) -> Result<(), String> {
        if self.by == ExplainRowKind::Name && self.duration.is_some() {
            return Err("--by name reads once: it has no --duration".to_owned());
        }
        self.subject.check()
    }
}
