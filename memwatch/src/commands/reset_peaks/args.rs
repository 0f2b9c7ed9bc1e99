//! Arguments of `memwatch reset-peaks`, the former name of `memwatch stats --reset-peaks`.

use crate::options::recording::WHICH;
use crate::options::{Checked, Selected};

/// Which processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct ResetPeaks {
    #[command(flatten)]
    pub(crate) selected: Selected,
}

impl Checked for ResetPeaks {
    fn check(&self) -> Result<(), String> {
        if self.selected.is_everybody() { Err(WHICH.to_owned()) } else { Ok(()) }
    }
}
