//! One reading: a worker reads the process, and a thread waits for its answer.

use std::ffi::OsString;
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use memwatch_core::input::held_names::HeldNames;
use serde::{Deserialize, Serialize};

use super::schedule::PlannedReading;
use crate::agent::watches::WatchPermit;
use crate::agent::watches::worker::WorkerOrder;
use crate::agent::watches::worker_process::{WorkerProcess, ready};

/// Time for a worker to answer. Names of the largest programs take ten seconds.
const LONGEST: Duration = Duration::from_secs(20);
/// Maximum bytes of an answer.
const ANSWER_BYTES: usize = 1 << 20;
/// Bytes of a worker's last message that are used.
const MESSAGE_BYTES: u64 = 4096;

/// The process that a worker is to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::agent) struct NamesOrder {
    /// Process id.
    pub(in crate::agent) tgid: u32,
    /// Start of the process: `CLOCK_BOOTTIME`, nanoseconds.
    pub(in crate::agent) start_ns: u64,
}

/// A worker's answer.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::agent) struct NamesAnswer {
    /// The live objects, summed by name; `None` if the process has no allocator of PyTorch.
    pub(in crate::agent) names: Option<Box<HeldNames>>,
    /// Processor time of the worker, in nanoseconds.
    pub(in crate::agent) processor_ns: u64,
}

/// Why there is no answer, and what the attempt has cost at most, in nanoseconds of a processor.
pub(super) type Refusal = (String, u64);

/// A reading in progress.
pub(super) struct RunningReading {
    pub(super) planned: PlannedReading,
    answer: Receiver<Result<NamesAnswer, Refusal>>,
    thread: Option<JoinHandle<()>>,
}

impl RunningReading {
    /// Begins a reading, which occupies `place` until its worker has ended.
    pub(super) fn begin(planned: PlannedReading, options: Vec<OsString>, place: WatchPermit) -> Self {
        let order = NamesOrder { tgid: planned.tgid.0, start_ns: planned.start_ns };
        let (sender, answer) = channel();
        let thread = thread::Builder::new().name(format!("names {}", order.tgid)).spawn(move || {
            let _place = place;
            let begun = Instant::now();
            let (answer, worker) = read(order, &options);
            // A worker has one thread that works.
            let most_ns = |why| (why, u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
            // The receiver is gone if the agent ends.
            let _ = sender.send(answer.map_err(most_ns));
            // Memory mapped from a file system without an answering server keeps a worker from ending.
            drop(worker);
        });
        if let Err(error) = &thread {
            // The sender is gone, which says that there is no answer.
            log::warn!("a reading cannot be started: {error}");
        }
        Self { planned, answer, thread: thread.ok() }
    }

    /// Takes a reading with its answer once that is there. A reading without one goes on.
    pub(super) fn take_finished(running: &mut Option<Self>) -> Option<(Self, Result<NamesAnswer, Refusal>)> {
        let answer = running.as_ref()?.answer()?;
        Some((running.take()?, answer))
    }

    /// Returns the answer once it is there.
    fn answer(&self) -> Option<Result<NamesAnswer, Refusal>> {
        match self.answer.try_recv() {
            Ok(answer) => Some(answer),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(("the reading was not made".to_owned(), 0))),
        }
    }

    /// Returns the thread, which ends with its worker.
    pub(super) fn into_thread(self) -> Option<JoinHandle<()>> {
        self.thread
    }
}

/// Returns the answer, and the worker if there is one: it may take long to end.
fn read(order: NamesOrder, options: &[OsString]) -> (Result<NamesAnswer, String>, Option<WorkerProcess>) {
    match WorkerProcess::start(options, &WorkerOrder::Names(order)) {
        Ok(mut worker) => (answer_of(&mut worker, order), Some(worker)),
        Err(error) => (Err(format!("the worker: {error}")), None),
    }
}

fn answer_of(worker: &mut WorkerProcess, order: NamesOrder) -> Result<NamesAnswer, String> {
    let failed = |error: std::io::Error| format!("the worker: {error}");
    let mut output = worker.0.stdout.take().ok_or("the worker has no output")?;
    let until = Instant::now() + LONGEST;
    let mut answer = Vec::new();
    let mut bytes = [0; 16 << 10];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let [is_written] = ready([output.as_raw_fd()], left).map_err(failed)?;
        if left.is_zero() || answer.len() > ANSWER_BYTES {
            return Err("the worker did not answer in time, or said too much".to_owned());
        }
        if is_written {
            match output.read(&mut bytes).map_err(failed)? {
                0 => break,
                length => answer.extend_from_slice(&bytes[..length]),
            }
        }
    }
    let answer: NamesAnswer = match serde_json::from_slice(&answer) {
        Ok(answer) => answer,
        Err(_) => return Err(last_message(worker)),
    };
    let is_of_order = answer.names.as_ref().is_none_or(|names| names.tgid.0 == order.tgid);
    is_of_order.then_some(answer).ok_or_else(|| "the worker has read another process".to_owned())
}

/// Returns why a worker ended that has closed its output.
fn last_message(worker: &mut WorkerProcess) -> String {
    let mut message = Vec::new();
    if let Some(errors) = worker.0.stderr.take() {
        let _ = errors.take(MESSAGE_BYTES).read_to_end(&mut message);
    }
    let message = String::from_utf8_lossy(&message);
    let why = message.lines().rev().find_map(|line| line.strip_prefix("memwatch: ")).unwrap_or("it ended early");
    why.escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use memwatch_core::state::AllocatedBytes;
    use memwatch_core::words::Tgid;

    use super::*;
    use crate::agent::flight_recorder::schedule::{Due, NamesSchedule};

    #[test]
    fn reading_goes_on_until_its_answer_is_there() {
        let (sender, answer) = channel();
        let (mut schedule, now) = (NamesSchedule::new(Instant::now()), Instant::now());
        schedule.note_failure(AllocatedBytes { tgid: Tgid(7), start_ns: 1, user: Some(1000), bytes: 0 }, now);
        let planned = schedule.next(Due::AfterFailure, now).expect("it has failed");
        let mut running = Some(RunningReading { planned, answer, thread: None });
        assert!(RunningReading::take_finished(&mut running).is_none() && running.is_some(), "it has none yet");
        sender.send(Ok(NamesAnswer { names: None, processor_ns: 5 })).expect("it is waited for");
        let (finished, answer) = RunningReading::take_finished(&mut running).expect("it is there");
        assert_eq!((finished.planned.tgid, answer.expect("it was read").processor_ns), (Tgid(7), 5));
        assert!(running.is_none());
    }
}
