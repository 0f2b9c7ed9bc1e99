//! Arguments of `memwatch report`.

use crate::options::{Checked, TimeWindow};
use std::path::PathBuf;

/// `memwatch report`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct Replayed {
    /// The recording; without it, --since or --until read the agent's history
    #[arg(value_name = "FILE", required_unless_present_any = ["in_file", "since", "until"])]
    pub(crate) recording: Option<PathBuf>,
    /// The recording, as other commands take it
    #[arg(long = "in", value_name = "FILE", conflicts_with = "recording", hide = true)]
    pub(crate) in_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) window: TimeWindow,
    /// Maximum number of rows of each list
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    pub(crate) top: usize,
    /// Temporary is what is freed before N more allocations of its process
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) temporary: u64,
}

impl Checked for Replayed {}
