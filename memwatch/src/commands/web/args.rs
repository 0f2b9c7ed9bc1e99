//! Arguments of `memwatch web`.

use crate::options::Checked;

/// How the page is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Web {
    /// Print the link, and start no browser
    #[arg(long)]
    pub(crate) no_open: bool,
}

impl Checked for Web {}
