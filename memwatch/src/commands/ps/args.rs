//! Arguments of `memwatch ps`.

use clap::ValueEnum;

use crate::options::{Checked, Past, RowKind, TargetArgs};
use crate::render::text::columns::{ProcessSort, TableSelection, named};

/// One report.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Ps {
    #[command(flatten)]
    pub(crate) targets: TargetArgs,
    /// One row per: process, container, pod, job, user or gpu
    #[arg(long = "by", value_name = "OWNER", value_enum, default_value_t, hide_possible_values = true)]
    pub(crate) rows: RowKind,
    /// Sort by: used, driver, peak, failed, pid, user or command
    #[arg(
        long,
        value_name = "COLUMN",
        value_enum,
        default_value_t,
        hide_possible_values = true,
        conflicts_with = "rows"
    )]
    pub(crate) sort: ProcessSort,
    /// Only these columns, in this order: pid, user, workload, gpu, used, driver, peak,
    /// pre-existing, unattributed, kinds, alloc, free, failed, command
    #[arg(long, value_name = "COLUMN", value_delimiter = ',', value_parser = named, conflicts_with = "rows")]
    pub(crate) columns: Vec<&'static str>,
    /// Format: table or csv (one row per process and GPU, in bytes)
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        value_enum,
        default_value_t,
        hide_possible_values = true,
        conflicts_with = "rows"
    )]
    pub(crate) format: PsFormat,
    #[command(flatten)]
    pub(crate) past: Past,
}

/// How it is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum PsFormat {
    /// A table for people
    #[default]
    Table,
    /// A table for programs
    Csv,
}

impl Ps {
    /// Makes the arguments for a report on the current state of these targets.
    pub(crate) fn of(targets: &TargetArgs) -> Self {
        Self { targets: targets.clone(), ..Self::default() }
    }

    /// Returns the columns and the sort order.
    pub(crate) fn shown(&self) -> TableSelection {
        TableSelection { columns: self.columns.clone(), sort: self.sort }
    }
}

impl Checked for Ps {}
