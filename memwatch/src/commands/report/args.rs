//! What `memwatch report` takes.

use crate::options::Window;
use std::path::PathBuf;

/// `memwatch report`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct Replayed {
    /// The recording (with --since or --until it may be left away: then it is the history of the agent)
    #[arg(value_name = "FILE", required_unless_present_any = ["since", "until"])]
    pub(crate) recording: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) window: Window,
    /// Show so many rows of each list at most
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    pub(crate) top: usize,
    /// Call temporary what is freed before so many more of its kind are allocated in its process
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) temporary: u64,
}
