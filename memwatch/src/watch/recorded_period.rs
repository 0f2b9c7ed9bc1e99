//! A recording and the period of it that a report is about.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::client::protocol::HistoryFiles;
use crate::options::TimeWindow;

/// A recording and the period to report.
#[derive(Clone, Debug)]
pub(crate) struct RecordedPeriod {
    /// The file.
    pub(crate) path: PathBuf,
    /// Start and end of the period.
    pub(crate) window: TimeWindow,
    /// Information from the agent if the recording is its history.
    pub(crate) history: Option<HistoryFiles>,
    /// The open file, if the agent has sent the recording.
    pub(crate) streamed: Option<Arc<File>>,
}

impl RecordedPeriod {
    /// Whether the agent has recorded it for a report of this moment.
    pub(crate) const fn is_of_now(&self) -> bool {
        self.streamed.is_some() && self.history.is_none()
    }

    /// Returns the name of the recording in messages.
    pub(crate) fn name(&self) -> String {
        match &self.streamed {
            Some(_) => "what the agent sent".to_owned(),
            None => self.path.display().to_string(),
        }
    }

    /// Selects a whole file.
    pub(crate) fn whole(path: &Path) -> Self {
        Self { path: path.to_owned(), window: TimeWindow::default(), history: None, streamed: None }
    }

    /// Prints the start of the data if it is later than requested.
    pub(crate) fn report_late(&self, begins: &str) {
        let name = if self.history.is_some() { "the agent's history".to_owned() } else { self.name() };
        eprintln!("memwatch: {name} starts at {begins}; the report covers the time from then on");
    }
}
