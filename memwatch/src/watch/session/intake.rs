//! Input sink: passes each input to the pipeline and to the recording and the journal, where these
//! exist, so that none of them misses an input.

use std::ops::{Deref, DerefMut};
use std::time::Instant;

use memwatch_common::record::{CallRecord, RingRecord};
use memwatch_core::Pipeline;
use memwatch_core::input::Input;

use crate::sources::clock::boottime_to_unix_ns;
use crate::sources::kernel::ring::Reached;
use crate::watch::journal::Journal;
use crate::watch::recording::Recorder;

/// A pipeline with its optional recording and journal.
pub(crate) struct InputSink {
    pipeline: Pipeline,
    pub(crate) recorder: Option<Recorder>,
    pub(crate) journal: Option<Journal>,
    /// Whether an input has arrived since the last call of [`Self::take_news`].
    has_news: bool,
}

impl InputSink {
    pub(crate) const fn new(pipeline: Pipeline, recorder: Option<Recorder>) -> Self {
        Self { pipeline, recorder, journal: None, has_news: false }
    }

    /// Passes on one input.
    pub(crate) fn step(&mut self, input: Input) {
        // A tick alone creates no work for the next poll.
        self.has_news |= !matches!(input, Input::Tick { .. });
        if let Some(recorder) = &mut self.recorder {
            recorder.note(&input, boottime_to_unix_ns);
        }
        if let Some(journal) = &mut self.journal {
            journal.note(&input);
        }
        self.pipeline.step(input);
    }

    /// Passes on calls in their order.
    pub(crate) fn step_calls(&mut self, calls: &[CallRecord]) {
        self.has_news |= !calls.is_empty();
        if let Some(recorder) = &mut self.recorder {
            for call in calls {
                recorder.note(&Input::Record(RingRecord::Call(*call)), boottime_to_unix_ns);
            }
        }
        if let Some(journal) = &mut self.journal {
            journal.note_calls(calls);
        }
        self.pipeline.step_calls(calls);
    }

    /// Marks everything up to this ring position as consumed. With a journal, the position survives
    /// this memwatch process.
    pub(crate) fn commit(&mut self, reached: Reached) {
        if let Some(journal) = &mut self.journal {
            journal.commit(reached);
        }
    }

    /// Clears the mark of new inputs. The caller handles their consequences.
    pub(crate) const fn take_news(&mut self) {
        self.has_news = false;
    }

    /// Returns when work is due: at once after new inputs, later for buffered recording data.
    pub(crate) fn due(&self, now: Instant) -> Option<Instant> {
        if self.has_news { Some(now) } else { self.recorder.as_ref().and_then(Recorder::due) }
    }

    /// Writes buffered recording data when due.
    pub(crate) fn write_if_due(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.keep_if_wanted(&self.pipeline, boottime_to_unix_ns);
            recorder.write_if_due(boottime_to_unix_ns);
        }
    }

    /// Writes buffered journal data when due.
    pub(crate) fn tend_journal(&mut self) {
        if let Some(journal) = &mut self.journal {
            journal.tend(&self.pipeline);
        }
    }
}

impl Deref for InputSink {
    type Target = Pipeline;

    fn deref(&self) -> &Pipeline {
        &self.pipeline
    }
}

impl DerefMut for InputSink {
    fn deref_mut(&mut self) -> &mut Pipeline {
        &mut self.pipeline
    }
}
