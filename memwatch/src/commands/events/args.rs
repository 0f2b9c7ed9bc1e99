//! Arguments of `memwatch events`.

use crate::options::{Checked, ReportSubject};

/// Events: failed allocations, forecasts, memory left behind.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub(crate) struct Events {
    #[command(flatten)]
    pub(crate) subject: ReportSubject,
    /// Keep printing events as they come, from the agent or else from a session of its own; with
    /// --since also those that the agent has kept since then
    #[arg(long, conflicts_with_all = ["recording", "until"])]
    pub(crate) follow: bool,
}

impl Checked for Events {}
