//! What enters the pipeline: and the recording and the journal, where these are made. Nothing enters one without the others.

use std::ops::{Deref, DerefMut};
use std::time::Instant;

use memwatch_common::record::{CallRecord, Record};
use memwatch_core::Pipeline;
use memwatch_core::input::Input;

use crate::sources::clock::boottime_to_unix_ns;
use crate::sources::kernel::ring::Reached;
use crate::watch::journal::Journal;
use crate::watch::recording::Tape;

/// A pipeline whose inputs may be recorded.
pub(crate) struct Intake {
    pipeline: Pipeline,
    pub(crate) tape: Option<Tape>,
    pub(crate) journal: Option<Journal>,
    /// Something has entered since the last call of [`Self::take_news`].
    has_news: bool,
}

impl Intake {
    pub(crate) const fn new(pipeline: Pipeline, tape: Option<Tape>) -> Self {
        Self { pipeline, tape, journal: None, has_news: false }
    }

    /// Takes one input into account.
    pub(crate) fn step(&mut self, input: Input) {
        // Time alone changes nothing that is looked at.
        self.has_news |= !matches!(input, Input::Tick { .. });
        if let Some(tape) = &mut self.tape {
            tape.note(&input, boottime_to_unix_ns);
        }
        if let Some(journal) = &mut self.journal {
            journal.note(&input);
        }
        self.pipeline.step(input);
    }

    /// Takes calls into account, in their order.
    pub(crate) fn step_calls(&mut self, calls: &[CallRecord]) {
        self.has_news |= !calls.is_empty();
        if let Some(tape) = &mut self.tape {
            for call in calls {
                tape.note(&Input::Record(Record::Call(*call)), boottime_to_unix_ns);
            }
        }
        if let Some(journal) = &mut self.journal {
            journal.note_calls(calls);
        }
        self.pipeline.step_calls(calls);
    }

    /// Everything up to here in the ring has entered: from now on that outlives this process, where it is to.
    pub(crate) fn commit(&mut self, reached: Reached) {
        if let Some(journal) = &mut self.journal {
            journal.commit(reached);
        }
    }

    /// Forgets that something has entered: what follows from it is looked at now.
    pub(crate) const fn take_news(&mut self) {
        self.has_news = false;
    }

    /// When there is something to do here: what has entered is to be looked at, at once, and what was recorded is to be written.
    pub(crate) fn due(&self, now: Instant) -> Option<Instant> {
        if self.has_news { Some(now) } else { self.tape.as_ref().and_then(Tape::due) }
    }

    /// Writes what was recorded, now and then.
    pub(crate) fn write_if_due(&mut self) {
        if let Some(tape) = &mut self.tape {
            tape.keep_if_wanted(&self.pipeline, boottime_to_unix_ns);
            tape.write_if_due(boottime_to_unix_ns);
        }
    }

    /// Writes into the journal what is to outlive this process, now and then.
    pub(crate) fn tend_journal(&mut self) {
        if let Some(journal) = &mut self.journal {
            journal.tend(&self.pipeline);
        }
    }
}

impl Deref for Intake {
    type Target = Pipeline;

    fn deref(&self) -> &Pipeline {
        &self.pipeline
    }
}

impl DerefMut for Intake {
    fn deref_mut(&mut self) -> &mut Pipeline {
        &mut self.pipeline
    }
}
