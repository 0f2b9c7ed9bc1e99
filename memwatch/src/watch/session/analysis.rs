//! The pipeline of a watch, for those who have it look for something and ask what it has found.

use memwatch_core::Pipeline;

use super::Session;

impl Session {
    /// What to look for is set here, before it is watched.
    pub(crate) fn pipeline_mut(&mut self) -> &mut Pipeline {
        &mut self.pipeline
    }

    /// What it has found, as of the last snapshot.
    pub(crate) fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }
}
