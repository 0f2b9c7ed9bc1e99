//! What `memwatch ps` takes.

use crate::options::{Past, Rows, Targets};

/// One report.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Ps {
    #[command(flatten)]
    pub(crate) targets: Targets,
    /// What a row is: sums by owner add up to each GPU's used bytes, with a row for what is charged to nobody
    #[arg(long = "by", value_name = "OWNER", value_enum, default_value_t)]
    pub(crate) rows: Rows,
    #[command(flatten)]
    pub(crate) past: Past,
}
