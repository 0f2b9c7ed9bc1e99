//! What `memwatch reset-peaks` takes.

use crate::options::values;
use memwatch_core::words::Tgid;

/// Whose tensors a report is on.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Whose {
    /// The process, and its children; may be repeated
    #[arg(short = 'p', long = "pid", value_name = "PID", value_delimiter = ',', required = true)]
    #[arg(value_parser = values::tgid, allow_negative_numbers = true)]
    pub(crate) tgids: Vec<Tgid>,
}
