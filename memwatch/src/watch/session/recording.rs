//! Starts, checks and ends the recording of a session.

use memwatch_core::recording::Stopped;
use memwatch_core::snapshot::Snapshot;

use super::{Session, SessionOptions};
use crate::exit::ExitFailure;
use crate::sources::clock;
use crate::watch::recording::{Recorded, Recorder, RecorderOptions};

impl Session {
    /// Enables the detectors (growth, forecast, causes of failed allocations) if the recording
    /// keeps only the newest inputs: without all inputs it cannot be analysed later.
    pub(crate) fn prepare_recording(&mut self, options: &SessionOptions) {
        if options.recorder.as_ref().is_some_and(|recorder| recorder.keeps_newest) {
            self.look_for_all();
        }
    }

    fn look_for_all(&mut self) {
        self.sink.pipeline_mut().watch_forecasts(&[]);
        self.sink.pipeline_mut().watch_ooms();
    }

    /// Starts a recording that keeps only the newest inputs and begins with the current state.
    ///
    /// # Errors
    /// The file cannot be created.
    pub(crate) fn begin_recording(&mut self, options: &RecorderOptions) -> Result<(), ExitFailure> {
        let recorder = Recorder::create(options)?;
        self.look_for_all();
        self.tick();
        recorder.keep(self.sink.pipeline(), self.sink.state().now_ns(), clock::boottime_to_unix_ns());
        self.sink.recorder = Some(recorder);
        Ok(())
    }

    /// Takes a recording that has ended because of a write error.
    pub(crate) fn take_ended_recording(&mut self) -> Option<Recorder> {
        self.sink.recorder.take_if(|recorder| !recorder.is_going())
    }

    /// Whether a requested recording has ended: the file is full, or a write failed.
    pub(crate) fn has_recording_ended(&self) -> bool {
        self.sink.recorder.as_ref().is_some_and(|recorder| !recorder.is_going())
    }

    /// Finishes the recording with a last snapshot and the offset to wall-clock time. Returns the
    /// snapshot, the offset and the outcome of the recording.
    pub(crate) fn end_recording(&mut self, stopped: Stopped) -> (Snapshot, i128, Option<Recorded>) {
        let snapshot = self.snapshot();
        let boottime_to_unix_ns = clock::boottime_to_unix_ns();
        let recorder = self.sink.recorder.take();
        (snapshot, boottime_to_unix_ns, recorder.map(|recorder| recorder.end(stopped, boottime_to_unix_ns)))
    }
}
