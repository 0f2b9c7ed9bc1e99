//! The recording of a watch.

use memwatch_core::recording::Stopped;
use memwatch_core::snapshot::Snapshot;

use super::{Session, SessionOptions};
use crate::exit::Failure;
use crate::sources::clock;
use crate::watch::recording::{Recorded, Tape, TapeOptions};

impl Session {
    /// What a recording will be asked that has not all events must be known before it is asked: what grows, whether it runs out,
    /// and why allocations failed.
    pub(crate) fn prepare_recording(&mut self, options: &SessionOptions) {
        if options.tape.as_ref().is_some_and(|tape| tape.keeps_newest) {
            self.look_for_all();
        }
    }

    fn look_for_all(&mut self) {
        self.pipeline.watch_forecasts(&[]);
        self.pipeline.watch_ooms();
    }

    /// Records what comes from now on, into a file that keeps the newest and begins with all that is known now.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(crate) fn begin_recording(&mut self, options: &TapeOptions) -> Result<(), Failure> {
        let tape = Tape::create(options)?;
        self.look_for_all();
        self.tick();
        tape.keep(&self.pipeline, self.pipeline.now_ns(), clock::boottime_to_unix_ns());
        self.pipeline.tape = Some(tape);
        Ok(())
    }

    /// A recording that has come to an end by itself: it could not be written on.
    pub(crate) fn take_ended_recording(&mut self) -> Option<Tape> {
        self.pipeline.tape.take_if(|tape| !tape.is_going())
    }

    /// Whether a recording that was to be made has come to an end: it is full, or could not be written on.
    pub(crate) fn has_recording_ended(&self) -> bool {
        self.pipeline.tape.as_ref().is_some_and(|tape| !tape.is_going())
    }

    /// Ends the recording: everything known now, which is its last, what people's clocks add to its times, and what became of it.
    pub(crate) fn end_recording(&mut self, stopped: Stopped) -> (Snapshot, i128, Option<Recorded>) {
        let snapshot = self.snapshot();
        let boottime_to_unix_ns = clock::boottime_to_unix_ns();
        let tape = self.pipeline.tape.take();
        (snapshot, boottime_to_unix_ns, tape.map(|tape| tape.end(stopped, boottime_to_unix_ns)))
    }
}
