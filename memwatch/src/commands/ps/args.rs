//! What `memwatch ps` takes.

use crate::options::{Checked, Past, Rows, Targets};

/// One report.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Ps {
    #[command(flatten)]
    pub(crate) targets: Targets,
    /// One row per: process, container, pod, job, user or gpu
    #[arg(long = "by", value_name = "OWNER", value_enum, default_value_t)]
    pub(crate) rows: Rows,
    #[command(flatten)]
    pub(crate) past: Past,
}

impl Ps {
    /// All of these, as they are now.
    pub(crate) fn of(targets: &Targets) -> Self {
        Self { targets: targets.clone(), ..Self::default() }
    }
}

impl Checked for Ps {}
