//! Arguments of `memwatch holdings`.

use clap::ValueEnum;
use memwatch_core::features::holdings::view;

use crate::options::{Checked, ReportSubject};

/// What a row of `memwatch holdings` is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum HoldingsRowKind {
    /// Names that differ only in their indices
    #[default]
    Name,
    /// Parameters, gradients, optimizer state and so on
    Class,
    /// Types of elements
    Dtype,
    /// Modules of the model
    Module,
    /// What keeps the memory, with what its autograd graph has saved
    #[value(alias = "keeper")]
    Retainer,
}

impl From<HoldingsRowKind> for view::HoldingGrouping {
    fn from(by: HoldingsRowKind) -> Self {
        match by {
            HoldingsRowKind::Name => Self::Name,
            HoldingsRowKind::Class => Self::Class,
            HoldingsRowKind::Dtype => Self::Dtype,
            HoldingsRowKind::Module => Self::Module,
            HoldingsRowKind::Retainer => Self::Retainer,
        }
    }
}

/// `memwatch holdings`.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct HoldingsArgs {
    #[command(flatten)]
    pub(crate) subject: ReportSubject,
    /// What a row is: name (with * for indices), class, dtype, module or retainer
    #[arg(long, value_enum, default_value_t, hide_possible_values = true)]
    pub(crate) by: HoldingsRowKind,
    /// Maximum number of rows
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    pub(crate) top: usize,
}

impl Checked for HoldingsArgs {
    fn check(&self) -> Result<(), String> {
        self.subject.check()
    }
}
