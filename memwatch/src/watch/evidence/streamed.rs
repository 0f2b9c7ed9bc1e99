//! A watch by the agent of this machine, for users that may not trace: its recording is read as any
//! other, and the report is of this moment.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use memwatch_core::attribution::price::Budget;
use memwatch_core::input::StackSelection;
use memwatch_core::recording::Stopped;
use memwatch_core::words::Tgid;

use super::agent::agent_to_ask;
use crate::client::protocol::HistoryFiles;
use crate::client::protocol::watch::{PastRequest, WatchRequest, WatchedTensors};
use crate::client::{AgentWatching, NoAgent, WatchNews};
use crate::exit::{Exit, ExitFailure};
use crate::frameworks::watch::{TensorLevel, TensorRequest};
use crate::options::{CommonArgs, RecordingTime, TimeWindow};
use crate::sources::clock;
use crate::watch::recorded;
use crate::watch::recorded_period::RecordedPeriod;
use crate::watch::recording::Recorded;
use crate::watch::signals::TerminationSignals;

/// Duration of a watch without a limit, which a signal ends.
const ENDLESS: Duration = Duration::from_hours(24);

/// Duration of a watch for a report of one moment: readings take place at its beginning and its end.
pub(crate) const STREAMED: Duration = Duration::from_secs(2);

/// Shortest watch of which the user is told how to end it.
const LONG: Duration = Duration::from_secs(5);

/// What the agent is to watch.
#[derive(Clone, Debug)]
pub(crate) struct Streamed<'a> {
    /// The processes.
    pub(crate) tgids: &'a [Tgid],
    /// What is traced of PyTorch.
    pub(crate) tensors: TensorRequest,
    /// How long; `None` until a signal, or until no process is left.
    pub(crate) duration: Option<Duration>,
}

/// What is traced of PyTorch for a report that only reads: nothing.
pub(crate) fn read_only() -> TensorRequest {
    TensorRequest { budget: Some(Budget::Part(0)), ..TensorRequest::of(TensorLevel::Modules) }
}

/// A watch by the agent, and what has arrived of its recording.
pub(crate) struct AgentRecording {
    watching: AgentWatching,
    file: File,
    socket: PathBuf,
    /// Whether the user is told how to end it.
    is_long: bool,
}

/// Returns a request in the form of the protocol.
pub(crate) fn watched(request: TensorRequest) -> WatchedTensors {
    let TensorRequest { level, reports_only, stacks, budget } = request;
    let budget_ns = match budget {
        Some(Budget::Part(ns)) => Some(ns),
        Some(Budget::None) | None => None,
    };
    WatchedTensors { level, reports_only, all_stacks: stacks == StackSelection::All, budget_ns }
}

impl Streamed<'_> {
    /// Has the agent watch the processes, where a session was refused for want of rights, and returns
    /// the recording. Ends early on a signal.
    ///
    /// # Errors
    /// `refused` if no agent may be asked or none runs, otherwise the agent's reason.
    pub(crate) async fn instead(
        self,
        refused: ExitFailure,
        common: &CommonArgs,
    ) -> Result<RecordedPeriod, ExitFailure> {
        Box::pin(self.begin(None, refused, common)).await?.follow().await
    }

    /// Has the agent begin a watch. `program`: the one process waits for it, and then starts this
    /// program.
    ///
    /// # Errors
    /// As [`Self::instead`].
    pub(crate) async fn begin(
        self,
        program: Option<&[OsString]>,
        refused: ExitFailure,
        common: &CommonArgs,
    ) -> Result<AgentRecording, ExitFailure> {
        let socket = agent_to_ask(common).filter(|_| refused.exit == Exit::NotPermitted && !self.tgids.is_empty());
        let Some(socket) = socket else { return Err(refused) };
        let duration_ms = u64::try_from(self.duration.unwrap_or(ENDLESS).as_millis()).unwrap_or(u64::MAX);
        let is_long = self.duration.is_none_or(|duration| duration >= LONG);
        let tgids = self.tgids.iter().map(|tgid| tgid.0).collect();
        let program = program.map(beginning_of);
        let request = WatchRequest { tgids, tensors: watched(self.tensors), duration_ms, program };
        let file = memory_file().map_err(|error| anyhow::Error::from(error).context("the agent's recording"))?;
        match AgentWatching::begin(socket, request).await {
            Ok(watching) => Ok(AgentRecording { watching, file, socket: socket.to_owned(), is_long }),
            Err(NoAgent::Absent) => Err(refused),
            Err(NoAgent::Unusable(why)) => Err(of_agent(socket, &why, refused.exit)),
        }
    }
}

impl AgentRecording {
    /// Waits for the whole recording. Ends the watch on a signal.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub(crate) async fn follow(mut self) -> Result<RecordedPeriod, ExitFailure> {
        if self.is_long {
            eprintln!("memwatch: the agent watches for you; press Ctrl-C to stop and print the report");
        }
        let mut signals = TerminationSignals::listen()?;
        loop {
            tokio::select! {
                is_over = self.next() => if is_over? {
                    return Ok(self.recording());
                },
                _ = signals.any() => self.end()?,
            }
        }
    }

    /// Waits for the next part of the recording. Returns whether the watch has ended. Cancel safe.
    ///
    /// # Errors
    /// The agent is gone, or has ended the watch early.
    pub(crate) async fn next(&mut self) -> Result<bool, ExitFailure> {
        match self.watching.next().await {
            Ok(WatchNews::Recorded(bytes)) => {
                self.file.write_all(&bytes).map_err(anyhow::Error::from)?;
                Ok(false)
            }
            Ok(WatchNews::Ended(None)) => Ok(true),
            Ok(WatchNews::Ended(Some(why))) => Err(of_agent(&self.socket, &why, Exit::Error)),
            Err(why) => Err(of_agent(&self.socket, &why.to_string(), Exit::Error)),
        }
    }

    /// Has the watch end. What it has still arrives.
    ///
    /// # Errors
    /// The agent is gone.
    pub(crate) fn end(&self) -> Result<(), ExitFailure> {
        self.watching.end().map_err(|why| of_agent(&self.socket, &why.to_string(), Exit::Error))
    }

    /// Returns what has arrived.
    pub(crate) fn recording(self) -> RecordedPeriod {
        let path = PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        RecordedPeriod { path, window: TimeWindow::default(), history: None, streamed: Some(Arc::new(self.file)) }
    }
}

/// Has the agent on this socket send the user's part of its history.
///
/// # Errors
/// The agent's reason.
pub(crate) async fn past(socket: &Path, window: TimeWindow) -> Result<RecordedPeriod, ExitFailure> {
    let now_unix_ns = clock::boottime_to_unix_ns() + i128::from(clock::boottime_ns());
    let at = |time: RecordingTime| i64::try_from(time.unix_ns(now_unix_ns)).ok();
    let request = PastRequest { since_unix_ns: window.since.and_then(at), until_unix_ns: window.until.and_then(at) };
    let file = memory_file().map_err(|error| anyhow::Error::from(error).context("the agent's history"))?;
    let watching = AgentWatching::past(socket, request).await;
    let watching = watching.map_err(|why| of_agent(socket, &why.to_string(), Exit::Error))?;
    let recording = AgentRecording { watching, file, socket: socket.to_owned(), is_long: false }.follow().await?;
    let history = Some(HistoryFiles { file: recording.path.clone(), ..HistoryFiles::default() });
    Ok(RecordedPeriod { window, history, ..recording })
}

/// Returns as many words of a command as fit into a request. They are its name until it has started.
fn beginning_of(program: &[OsString]) -> Vec<String> {
    /// Maximum bytes of the words.
    const WORDS_BYTES: usize = 1024;
    let mut room = WORDS_BYTES;
    let words = program.iter().map(|word| word.to_string_lossy().into_owned());
    words
        .take_while(|word| {
            let fits = word.len() <= room;
            room = room.saturating_sub(word.len());
            fits
        })
        .collect()
}

/// Writes the agent's recording to a file, which was created at `path`, and says so. Returns its size
/// in bytes.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn keep(recording: &RecordedPeriod, mut file: &File, path: &Path) -> Result<u64, ExitFailure> {
    let failed = |error: io::Error| ExitFailure::cannot_make(path, &error);
    let mut source = File::open(&recording.path).map_err(failed)?;
    let bytes = io::copy(&mut source, &mut file).map_err(failed)?;
    let end = Ok(Stopped::Asked);
    recorded::reported(&Recorded { path: path.to_owned(), bytes, inputs: 0, end, events_since_ns: None })?;
    Ok(bytes)
}

fn of_agent(socket: &Path, why: &str, exit: Exit) -> ExitFailure {
    ExitFailure::new(exit, format_args!("the agent on {}: {why}", socket.display()))
}

/// Creates a file in memory (`memfd_create(2)`).
fn memory_file() -> io::Result<File> {
    // SAFETY: the name is a C string that lives until the call returns.
    let fd = unsafe { libc::memfd_create(c"memwatch".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened, and nothing else owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}
