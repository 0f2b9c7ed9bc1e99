//! What `memwatch reset-peaks` takes: the former name of `memwatch stats --reset-peaks`.

use crate::options::recording::WHICH;
use crate::options::{Checked, Whom};

/// Which processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct ResetPeaks {
    #[command(flatten)]
    pub(crate) whom: Whom,
}

impl Checked for ResetPeaks {
    fn check(&self) -> Result<(), String> {
        if self.whom.is_everybody() { Err(WHICH.to_owned()) } else { Ok(()) }
    }
}
