//! Passes the recording of a worker on to a client, while the client has the right to it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use super::rights::Asker;
use super::worker::{ATTACHED, PastOrder, WatchOrder, WorkerOrder};
use super::worker_process::{WorkerProcess, ready};
use crate::client::protocol::watch::{PIECE_BYTES, WatchRequest, piece};
use crate::client::protocol::{AgentAnswer, AgentRequest, Inbox, REQUEST_BYTES, frame};
use crate::sources::process_handle::process_handle;
use crate::sources::procfs::ProcReader;

/// Interval of checks of the client's rights while nothing is recorded. What is recorded is passed
/// on after a check only.
const CHECK: Duration = Duration::from_millis(250);
/// Minimum pause between two checks of children, as a multiple of what the last one took.
const SPARING: u32 = 20;
/// Time for a client to read what it was sent.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum duration of a watch.
const LONGEST: Duration = Duration::from_hours(24);
/// Maximum bytes of a recording.
const MOST_BYTES: u64 = 1 << 30;
/// Maximum bytes kept of what a worker writes to standard error.
const MESSAGE_BYTES: usize = 4096;
/// Time for a worker to end after it was told to.
const END: Duration = Duration::from_secs(15);

/// How a watch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::agent) enum WatchEnd {
    /// The client has all of it.
    Sent,
    /// The client left, or did not read.
    ClientLeft,
}

/// What a client gets.
pub(super) enum ForwardOrder {
    /// A watch, while the client has the right to it.
    Watch {
        /// The client.
        asker: Asker,
        /// Its request.
        request: WatchRequest,
    },
    /// The client's part of the history.
    Past(PastOrder),
}

impl ForwardOrder {
    /// Returns the watched processes.
    pub(super) fn tgids(&self) -> &[u32] {
        match self {
            Self::Watch { request, .. } => &request.tgids,
            Self::Past(_) => &[],
        }
    }

    /// Returns what the worker is to do.
    fn of_worker(&self, targets: &Targets) -> WorkerOrder {
        match self {
            Self::Watch { request: WatchRequest { tensors, duration_ms, program, .. }, .. } => {
                WorkerOrder::Watch(WatchOrder {
                    processes: targets.all.iter().map(|target| (target.tgid, target.start_ns)).collect(),
                    tensors: *tensors,
                    program: program.clone(),
                    duration_ms: (*duration_ms).min(u64::try_from(LONGEST.as_millis()).unwrap_or(u64::MAX)),
                    most_bytes: MOST_BYTES,
                })
            }
            Self::Past(order) => WorkerOrder::Past(order.clone()),
        }
    }

    /// # Errors
    /// The client has no right to a process that is watched.
    fn check(&self, targets: &mut Targets) -> Result<(), Stop> {
        match self {
            Self::Watch { asker, .. } => targets.check(*asker),
            Self::Past(_) => Ok(()),
        }
    }
}

/// A worker's output on its way to a client.
pub(super) struct Forward {
    pub(super) order: ForwardOrder,
    pub(super) socket: UnixStream,
    pub(super) options: Vec<OsString>,
}

/// Why nothing more is passed on.
enum Stop {
    /// The client left, or did not read.
    Client,
    /// The reason, as a sentence for the client.
    Reason(String),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Reason(format!("the watch failed: {error}"))
    }
}

impl Forward {
    /// Runs the watch until its end, or until `is_over`. Blocks.
    ///
    /// # Errors
    /// The worker cannot be started; the reason is a sentence.
    pub(super) fn run(mut self, is_over: impl Fn() -> bool) -> Result<WatchEnd, String> {
        let mut targets = Targets::open(self.order.tgids())?;
        let order = self.order.of_worker(&targets);
        let started = WorkerProcess::start(&self.options, &order);
        let mut worker = started.map_err(|error| format!("a watch cannot be started: {error}"))?;
        let prepared = self.socket.set_nonblocking(false).and_then(|()| self.socket.set_write_timeout(Some(PATIENCE)));
        prepared.map_err(|error| format!("the connection: {error}"))?;
        let why = match self.pass_on(&mut worker, &mut targets, &is_over) {
            Ok(()) => None,
            Err(Stop::Client) => return Ok(WatchEnd::ClientLeft),
            Err(Stop::Reason(why)) => Some(why),
        };
        let last = frame(&AgentAnswer::WatchEnded { why }).map_err(|error| error.to_string())?;
        Ok(if self.socket.write_all(&last).is_ok() { WatchEnd::Sent } else { WatchEnd::ClientLeft })
    }

    fn pass_on(
        &mut self,
        worker: &mut WorkerProcess,
        targets: &mut Targets,
        is_over: &impl Fn() -> bool,
    ) -> Result<(), Stop> {
        let (Some(mut output), Some(mut errors)) = (worker.0.stdout.take(), worker.0.stderr.take()) else {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        };
        let (mut inbox, mut read, mut messages) = (Inbox::new(REQUEST_BYTES), vec![0; PIECE_BYTES], Vec::new());
        self.order.check(targets)?;
        let mut ends_by: Option<Instant> = None;
        // A closed pipe is always ready.
        let (mut has_errors, mut is_attached) = (true, false);
        loop {
            // The recording waits in its pipe until the client knows that the watch has begun.
            let polled = |fd: i32, is_wanted: bool| if is_wanted { fd } else { -1 };
            let descriptors = [
                polled(output.as_raw_fd(), is_attached || !has_errors),
                self.socket.as_raw_fd(),
                polled(errors.as_raw_fd(), has_errors),
            ];
            let [is_recorded, is_asked, is_said] = ready(descriptors, CHECK)?;
            if is_over() {
                return Err(Stop::Reason("another user waits for its place, and it has had its turn".to_owned()));
            }
            if is_asked && self.is_to_end(&mut inbox)? {
                interrupt(worker);
                ends_by.get_or_insert_with(|| Instant::now() + END);
            }
            if is_said {
                let length = errors.read(&mut read)?;
                has_errors = length > 0;
                let room = MESSAGE_BYTES.saturating_sub(messages.len()).min(length);
                messages.extend_from_slice(&read[..room]);
                if !is_attached && String::from_utf8_lossy(&messages).lines().any(|line| line == ATTACHED) {
                    is_attached = true;
                    self.order.check(targets)?;
                    self.socket.write_all(&frame(&AgentAnswer::Watching)?).map_err(|_gone| Stop::Client)?;
                }
            }
            if is_recorded {
                let length = output.read(&mut read)?;
                // After the reading: what was read is of the processes that are checked now.
                self.order.check(targets)?;
                if length == 0 {
                    return outcome(worker, &messages);
                }
                // A worker that has failed at its start leaves the beginning of a recording.
                if is_attached {
                    self.socket.write_all(&piece(&read[..length])).map_err(|_gone| Stop::Client)?;
                }
            } else {
                self.order.check(targets)?;
            }
            if ends_by.is_some_and(|end| Instant::now() >= end) {
                return Err(Stop::Reason("the watch did not end in time".to_owned()));
            }
        }
    }

    /// Reads what the client sends: whether the watch is to end.
    fn is_to_end(&mut self, inbox: &mut Inbox) -> Result<bool, Stop> {
        let mut bytes = [0; REQUEST_BYTES];
        let length = self.socket.read(&mut bytes).map_err(|_gone| Stop::Client)?;
        if length == 0 {
            return Err(Stop::Client);
        }
        inbox.put(&bytes[..length]);
        let sent = inbox.take().map_err(|_gone| Stop::Client)?;
        match sent.map(|frame| serde_json::from_slice(&frame)) {
            None => Ok(false),
            Some(Ok(AgentRequest::EndWatch)) => Ok(true),
            Some(_) => Err(Stop::Client),
        }
    }
}

/// Returns how a worker ended that has closed its output, from its status and what it wrote to
/// standard error.
fn outcome(worker: &mut WorkerProcess, messages: &[u8]) -> Result<(), Stop> {
    let status = worker.0.wait()?;
    if status.success() {
        return Ok(());
    }
    let messages = String::from_utf8_lossy(messages);
    log::debug!("a worker ended with {status}: {}", messages.escape_debug());
    let mut said = messages.lines().rev().filter(|line| *line != ATTACHED);
    let own = said.find_map(|line| line.strip_prefix("memwatch: "));
    Err(Stop::Reason(match own.filter(|_| status.code().is_some()) {
        Some(why) => format!("the watch ended early: {}", why.escape_debug()),
        None => format!("the watch ended early ({status}): it may have needed more memory than it may take"),
    }))
}

fn interrupt(worker: &WorkerProcess) {
    if let Ok(tgid) = libc::pid_t::try_from(worker.0.id()) {
        // SAFETY: the child has not been waited for, so the number is still its own.
        unsafe { libc::kill(tgid, libc::SIGINT) };
    }
}

/// The processes of a watch.
struct Targets {
    all: Vec<Target>,
    /// Time of the next check of their children, which takes a look at all processes of the machine.
    children_due: Instant,
}

/// A process, with a handle that stays with it even if its number is reused.
struct Target {
    tgid: u32,
    start_ns: u64,
    handle: OwnedFd,
}

impl Targets {
    /// # Errors
    /// A process has ended; the reason is a sentence.
    fn open(tgids: &[u32]) -> Result<Self, String> {
        let mut processes = ProcReader::new("/proc");
        let mut open = |tgid: u32| {
            let target = Target { tgid, handle: process_handle(tgid)?, start_ns: processes.identity(tgid)?.start_ns };
            // The number was this process's when its start was read.
            target.is_alive().then_some(target)
        };
        let all = tgids.iter().map(|tgid| open(*tgid).ok_or_else(|| format!("process {tgid} has ended")));
        Ok(Self { all: all.collect::<Result<_, _>>()?, children_due: Instant::now() })
    }

    /// Checks the rights to all living processes and their children. A process that has ended was
    /// checked while it lived, and its number may be another's by now.
    fn check(&mut self, asker: Asker) -> Result<(), Stop> {
        if asker == Asker::Everybody {
            return Ok(());
        }
        let refused = |tgid: u32, why| Stop::Reason(format!("process {tgid} may not be watched for you: {why}"));
        let begun = Instant::now();
        if begun >= self.children_due {
            let living: BTreeSet<u32> = self.living().map(|target| target.tgid).collect();
            for child in ProcReader::new("/proc").descendants(&living).difference(&living) {
                match asker.check(*child) {
                    Err(why) if Path::new("/proc").join(child.to_string()).exists() => {
                        return Err(refused(*child, why));
                    }
                    _ => {}
                }
            }
            self.children_due = Instant::now() + SPARING * begun.elapsed();
        }
        for target in self.living() {
            match asker.check(target.tgid) {
                Err(why) if target.is_alive() => return Err(refused(target.tgid, why)),
                _ => {}
            }
        }
        Ok(())
    }

    fn living(&self) -> impl Iterator<Item = &Target> {
        self.all.iter().filter(|target| target.is_alive())
    }
}

impl Target {
    /// Whether the process has not ended: its handle becomes readable at the end (pidfd_open(2)).
    fn is_alive(&self) -> bool {
        !ready([self.handle.as_raw_fd()], Duration::ZERO).is_ok_and(|[has_ended]| has_ended)
    }
}
