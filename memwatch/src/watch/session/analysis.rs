//! Access to the pipeline of a session, for commands that enable a detector and read its results.

use memwatch_core::Pipeline;

use super::Session;

impl Session {
    /// The pipeline, for enabling detectors before the session begins.
    pub(crate) fn pipeline_mut(&mut self) -> &mut Pipeline {
        self.sink.pipeline_mut()
    }

    /// The pipeline, for reading results as of the last snapshot.
    pub(crate) fn pipeline(&self) -> &Pipeline {
        self.sink.pipeline()
    }
}
