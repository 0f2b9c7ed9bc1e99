//! The recording of a watch.

use memwatch_core::recording::Stopped;
use memwatch_core::snapshot::Snapshot;

use super::Session;
use crate::sinks::recording::Recorded;
use crate::sources::clock;

impl Session {
    /// How long the recording is in bytes, and how many inputs it has; `None` where none is made, or it has come to an end.
    pub(crate) fn recording(&self) -> Option<(u64, u64)> {
        self.pipeline.tape.as_ref().filter(|tape| tape.is_going()).map(crate::sinks::recording::Tape::extent)
    }

    /// Ends the recording: everything known now, which is its last, what people's clocks add to its times, and what became of it.
    pub(crate) fn end_recording(&mut self, stopped: Stopped) -> (Snapshot, i128, Option<Recorded>) {
        let snapshot = self.snapshot();
        let boottime_to_unix_ns = clock::boottime_to_unix_ns();
        let tape = self.pipeline.tape.take();
        (snapshot, boottime_to_unix_ns, tape.map(|tape| tape.end(stopped, boottime_to_unix_ns)))
    }
}
