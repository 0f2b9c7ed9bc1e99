//! Input sink: the way of a session's inputs into the pipeline. The recording and the journal,
//! where these exist, are tees on that way, so that none of the three misses an input.

use std::time::Instant;

use memwatch_common::record::{CallRecord, RingRecord};
use memwatch_core::Pipeline;
use memwatch_core::input::Input;
use memwatch_core::state::State;

use crate::sources::clock::boottime_to_unix_ns;
use crate::sources::kernel::ring::Reached;
use crate::watch::journal::Journal;
use crate::watch::recording::Recorder;

/// A pipeline and the tees on the way to it.
pub(crate) struct InputSink {
    pipeline: Pipeline,
    /// The recording.
    pub(crate) recorder: Option<Recorder>,
    /// The journal, from which a restart resumes.
    pub(crate) journal: Option<Journal>,
    /// Whether an input has arrived since the last call of [`Self::take_news`].
    has_news: bool,
}

impl InputSink {
    /// Creates the sink without a journal.
    pub(crate) const fn new(pipeline: Pipeline, recorder: Option<Recorder>) -> Self {
        Self { pipeline, recorder, journal: None, has_news: false }
    }

    /// The pipeline with all inputs so far.
    pub(crate) const fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// The pipeline, for settings and results. Inputs go through [`Self::step`].
    pub(crate) const fn pipeline_mut(&mut self) -> &mut Pipeline {
        &mut self.pipeline
    }

    /// The state after all inputs so far.
    pub(crate) const fn state(&self) -> &State {
        &self.pipeline.state
    }

    /// The state, for settings and for results that are taken once.
    pub(crate) const fn state_mut(&mut self) -> &mut State {
        &mut self.pipeline.state
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
