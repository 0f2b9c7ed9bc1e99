//! What commands ask of a running session: access to its pipeline, the recording, the logs, peaks,
//! and readings of live objects.

use std::collections::BTreeSet;

use memwatch_core::Pipeline;
use memwatch_core::input::Input;
use memwatch_core::recording::Stopped;
use memwatch_core::snapshot::{MemoryHistory, Snapshot};
use memwatch_core::state::tensors::TensorLog;
use memwatch_core::words::{Framework, Tgid};

use super::Session;
use super::holdings::LONGEST_READING;
use crate::exit::ExitFailure;
use crate::sources::clock;
use crate::watch::recording::{Recorded, Recorder, RecorderOptions};
use crate::watch::signals::TerminationSignals;

impl Session {
    /// The pipeline, for enabling detectors before the session begins.
    pub(crate) fn pipeline_mut(&mut self) -> &mut Pipeline {
        self.parts.sink.pipeline_mut()
    }

    /// The pipeline, for reading results as of the last snapshot.
    pub(crate) fn pipeline(&self) -> &Pipeline {
        self.parts.sink.pipeline()
    }

    /// Returns the number of watched processes and the number of GPUs that NVML lists.
    pub(crate) fn extent(&self) -> (usize, usize) {
        (self.pipeline().state.watched().count(), self.pipeline().state.gpus())
    }

    /// Whether a target or a child of one is alive. Always true in a machine-wide session.
    pub(crate) fn is_anybody_left(&self) -> bool {
        self.parts.scope.everybody || self.pipeline().state.watched().next().is_some()
    }

    /// Returns the targets that have not mapped a driver library.
    pub(crate) fn targets_without_library(&self) -> Vec<u32> {
        let targets = self.parts.scope.targets.iter().copied();
        targets.filter(|tgid| self.parts.libraries.is_expected(*tgid)).collect()
    }

    /// Whether every runtime that may know a container of this session has been asked for names.
    pub(crate) fn has_asked_for_names(&self) -> bool {
        self.collectors.is_settled(&self.parts)
    }

    /// Resets the peaks of one process, or of all.
    pub(crate) fn reset_peaks(&mut self, tgid: Option<Tgid>) {
        self.parts.pump();
        self.parts.sink.step(Input::PeaksReset { tgid, time_ns: clock::boottime_ns() });
    }

    /// Resets all peaks as of `last`, which is the latest snapshot. Changes since then count for
    /// the new peaks.
    pub(crate) fn reset_peaks_after(&mut self, last: &Snapshot) {
        self.parts.sink.step(Input::PeaksReset { tgid: None, time_ns: last.time_ns });
    }

    /// Takes in what was learned about a process outside of this session.
    pub(crate) fn learn(&mut self, input: Input) {
        self.parts.sink.step(input);
    }

    /// Reports blocks of at least this size in bytes one by one, in processes where PyTorch is
    /// found from now on.
    pub(crate) fn list_tensors_from(&mut self, least_bytes: u64) {
        self.parts.sink.state_mut().list_tensors_from(least_bytes);
        self.parts.tensors.list_from(least_bytes);
    }

    /// Records the history of a process's caching allocators from now on, up to `lines` lines.
    pub(crate) fn keep_history(&mut self, tgid: Tgid, lines: usize) {
        self.parts.sink.state_mut().keep_history(tgid, lines);
    }

    /// Returns the history and the current state of a process's caching allocators, on stacks with
    /// or without native frames; `None` if no PyTorch event of the process was seen.
    pub(crate) fn history(&self, tgid: Tgid, with_native: bool) -> Option<MemoryHistory> {
        self.parts.sink.state().history(tgid, with_native)
    }

    /// Returns new lines of the logs of modules and phases.
    pub(crate) fn take_tensor_logs(&mut self) -> Vec<TensorLog> {
        self.parts.pump();
        self.parts.sink.state_mut().take_tensor_logs()
    }

    /// Returns the frameworks found once everything requested of them is traced, and an empty set
    /// before.
    pub(crate) fn seen_frameworks(&self) -> BTreeSet<Framework> {
        let tensors = &self.parts.tensors;
        if tensors.is_settled() { tensors.frameworks() } else { BTreeSet::new() }
    }

    /// Whether any reading of live objects is running or waiting.
    pub(crate) fn is_reading_holdings(&self) -> bool {
        self.parts.tensors.processes.values().any(|process| process.holdings.is_reading())
    }

    /// Reads the live objects of all processes once more. Returns when all are read, after
    /// [`LONGEST_READING`], or on a signal.
    pub(crate) async fn read_holdings(&mut self, signals: &mut TerminationSignals) {
        self.parts.tensors.processes.values_mut().for_each(|process| process.holdings.request());
        let until = tokio::time::Instant::now() + LONGEST_READING;
        while self.is_reading_holdings() && self.is_anybody_left() {
            tokio::select! {
                () = self.advance() => {}
                () = tokio::time::sleep_until(until) => return,
                _ = signals.any() => return,
            }
        }
    }

    /// Enables the detectors (growth, forecast, causes of failed allocations) that a recording of
    /// the newest inputs needs: without all inputs it cannot be analysed later.
    pub(super) fn enable_detectors(&mut self) {
        self.pipeline_mut().watch_forecasts(&[]);
        self.pipeline_mut().watch_ooms();
    }

    /// Starts a recording that keeps only the newest inputs and begins with the current state.
    ///
    /// # Errors
    /// The file cannot be created.
    pub(crate) fn begin_recording(&mut self, options: &RecorderOptions) -> Result<(), ExitFailure> {
        let recorder = Recorder::create(options)?;
        self.enable_detectors();
        self.tick();
        let pipeline = self.pipeline();
        recorder.keep(pipeline, pipeline.state.now_ns(), clock::boottime_to_unix_ns());
        self.parts.sink.recorder = Some(recorder);
        Ok(())
    }

    /// Takes a recording that has ended because of a write error.
    pub(crate) fn take_ended_recording(&mut self) -> Option<Recorder> {
        self.parts.sink.recorder.take_if(|recorder| !recorder.is_going())
    }

    /// Number of files of the recording that are complete.
    pub(crate) fn complete_files(&self) -> u64 {
        self.parts.sink.recorder.as_ref().map_or(0, Recorder::complete_files)
    }

    /// Whether a requested recording has ended: the file is full, or a write failed.
    pub(crate) fn has_recording_ended(&self) -> bool {
        self.parts.sink.recorder.as_ref().is_some_and(|recorder| !recorder.is_going())
    }

    /// Finishes the recording with a last snapshot and the offset to wall-clock time. Returns the
    /// snapshot, the offset and the outcome of the recording.
    pub(crate) fn end_recording(&mut self, stopped: Stopped) -> (Snapshot, i128, Option<Recorded>) {
        let snapshot = self.snapshot();
        let boottime_to_unix_ns = clock::boottime_to_unix_ns();
        let recorder = self.parts.sink.recorder.take();
        (snapshot, boottime_to_unix_ns, recorder.map(|recorder| recorder.end(stopped, boottime_to_unix_ns)))
    }
}
