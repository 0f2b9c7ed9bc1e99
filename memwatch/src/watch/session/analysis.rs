//! Access to the pipeline of a watch, for commands that enable a detector and read its results.

use memwatch_core::Pipeline;

use super::Session;

impl Session {
    /// For enabling detectors before the watch begins.
    pub(crate) fn pipeline_mut(&mut self) -> &mut Pipeline {
        &mut self.pipeline
    }

    /// For results as of the last snapshot.
    pub(crate) fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }
}
