//! Client of this machine's agent. It needs no privileges.

pub(crate) mod events;
pub(crate) mod protocol;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use memwatch_core::snapshot::{Snapshot, Viewer};
use memwatch_core::words::Tgid;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use protocol::{
    ANSWER_BYTES, AgentAnswer, AgentRequest, HISTORY_SINCE_MINOR, HistoryFiles, Inbox, OUTLOOK_SINCE_MINOR,
    OutlookMessage, PAGE_SINCE_MINOR, PEAKS_SINCE_MINOR, PROTOCOL, PageLink, SnapshotMessage, WATCH_SINCE_MINOR,
    Welcome,
    watch::{self, PastRequest, WatchRequest},
};

/// Timeout for the agent's welcome. The agent may be attaching its probes.
const WELCOME: Duration = Duration::from_secs(5);
/// Timeout for a snapshot.
const ANSWER: Duration = Duration::from_secs(10);
/// Timeout for the beginning of a watch. The agent attaches its probes, and has users wait that have
/// begun many watches.
const WATCHING: Duration = Duration::from_secs(60);
/// Time after which a client gives up on an agent that is gone. A restart takes less.
const GONE: Duration = Duration::from_secs(15);
const RETRY: Duration = Duration::from_millis(250);
/// Delay before connecting again when the agent's queue is full.
const QUEUE: Duration = Duration::from_millis(10);
/// Maximum age of an outlook. Outlooks are computed over windows of seconds.
const OUTLOOK: Duration = Duration::from_secs(1);

/// Why no agent can be queried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoAgent {
    /// No agent is running.
    Absent,
    /// An agent exists but cannot be used; the reason, as a sentence.
    Unusable(String),
}

impl fmt::Display for NoAgent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => formatter.write_str("there is none"),
            Self::Unusable(why) => formatter.write_str(why),
        }
    }
}

impl From<io::Error> for NoAgent {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Absent,
            io::ErrorKind::ConnectionRefused => Self::Unusable("nothing is listening on it (stale socket)".to_owned()),
            io::ErrorKind::WouldBlock => Self::Unusable("it does not accept clients".to_owned()),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                Self::Unusable("it closed the connection".to_owned())
            }
            _ => Self::Unusable(error.to_string()),
        }
    }
}

/// A snapshot and the offset of its clock.
#[derive(Clone, Debug)]
pub(crate) struct TimedSnapshot {
    /// The snapshot.
    pub(crate) snapshot: Snapshot,
    /// Offset from its `CLOCK_BOOTTIME` values to nanoseconds since 1970.
    pub(crate) boottime_to_unix_ns: i128,
    /// Number of contradictions in the reports of the snapshot's source.
    pub(crate) contradictions: u64,
}

/// Connection to an agent that has accepted this client.
#[derive(Debug)]
pub(crate) struct AgentClient {
    path: PathBuf,
    connection: Option<AgentConnection>,
    viewer: Viewer,
    /// Time since which there is no connection.
    lost: Option<Instant>,
    /// Maximum time without a connection.
    gone: Duration,
    /// Last outlook; `None` if outlooks are not requested.
    outlook: Option<OutlookMessage>,
}

#[derive(Debug)]
struct AgentConnection {
    stream: UnixStream,
    inbox: Inbox,
    /// Deadline of the pending snapshot request.
    asked: Option<Instant>,
    /// Earliest time of the next outlook request; `None` if the agent does not support outlooks.
    outlook_due: Option<Instant>,
}

impl AgentClient {
    /// Connects to the agent that listens on `path`.
    ///
    /// # Errors
    /// If no agent is there, or it cannot be used.
    pub(crate) async fn meet(path: &Path) -> Result<Self, NoAgent> {
        let (connection, welcome) = AgentConnection::open(path).await?;
        let (path, viewer) = (path.to_owned(), welcome.viewer);
        Ok(Self { path, connection: Some(connection), viewer, lost: None, gone: Duration::ZERO, outlook: None })
    }

    /// Reconnects from here on if the agent is gone, because it may be restarting.
    pub(crate) fn persist(&mut self) {
        self.gone = GONE;
    }

    /// Requests outlooks along with snapshots from here on.
    pub(crate) fn want_outlook(&mut self) {
        self.outlook.get_or_insert_default();
    }

    /// Returns the outlook of the last snapshot; empty if the agent is too old to provide one.
    pub(crate) fn outlook(&self) -> OutlookMessage {
        self.outlook.clone().unwrap_or_default()
    }

    /// Returns the visibility that the agent grants this client.
    pub(crate) fn viewer(&self) -> Viewer {
        self.viewer
    }

    /// Returns the path of the agent's socket.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Requests a reset of a process's peaks over a separate connection to the agent on `path`.
    ///
    /// # Errors
    /// If the agent does not reset them.
    pub(crate) async fn reset_peaks(path: &Path, tgid: Tgid) -> Result<(), NoAgent> {
        let (mut connection, welcome) = AgentConnection::open(path).await?;
        welcome.check(PEAKS_SINCE_MINOR, "resets no peaks")?;
        match connection.ask(&AgentRequest::ResetPeaks { tgid: tgid.0 }).await? {
            AgentAnswer::PeaksReset => Ok(()),
            _ => Err(NoAgent::Unusable("it sent an unexpected answer".to_owned())),
        }
    }

    /// Requests the location of the history of the agent on `path`, and this client's visibility.
    /// The location is `None` if the agent keeps no history or the client may not see everything.
    ///
    /// # Errors
    /// If the agent does not answer.
    pub(crate) async fn history(path: &Path) -> Result<(Option<HistoryFiles>, Viewer), NoAgent> {
        let (mut connection, welcome) = AgentConnection::open(path).await?;
        welcome.check(HISTORY_SINCE_MINOR, "keeps no history")?;
        if welcome.viewer != Viewer::Everything {
            return Ok((None, welcome.viewer));
        }
        match connection.ask(&AgentRequest::History).await? {
            AgentAnswer::History(kept) => Ok((kept, welcome.viewer)),
            _ => Err(NoAgent::Unusable("it sent an unexpected answer".to_owned())),
        }
    }

    /// Requests a link to the web page of the agent on `path`, restricted to what this client may
    /// see, and the client's visibility.
    ///
    /// # Errors
    /// If the agent does not answer.
    pub(crate) async fn page(path: &Path) -> Result<(PageLink, Viewer), NoAgent> {
        let (mut connection, welcome) = AgentConnection::open(path).await?;
        welcome.check(PAGE_SINCE_MINOR, "has no page")?;
        match connection.ask(&AgentRequest::Page).await? {
            AgentAnswer::Page(link) => Ok((link, welcome.viewer)),
            _ => Err(NoAgent::Unusable("it sent an unexpected answer".to_owned())),
        }
    }

    /// Requests a current snapshot.
    ///
    /// Cancel safe: if the future is dropped, the next call continues to wait for the same answer.
    ///
    /// # Errors
    /// If the agent stays away or does not answer.
    pub(crate) async fn snapshot(&mut self) -> Result<TimedSnapshot, NoAgent> {
        loop {
            let why = match &mut self.connection {
                Some(connection) => match connection.snapshot(self.outlook.as_mut()).await {
                    Ok(seen) => return Ok(seen),
                    Err(why) => why,
                },
                None => match AgentConnection::open(&self.path).await {
                    Ok((connection, welcome)) => {
                        (self.viewer, self.lost) = (welcome.viewer, None);
                        self.connection = Some(connection);
                        continue;
                    }
                    Err(why) => why,
                },
            };
            self.connection = None;
            let lost = *self.lost.get_or_insert_with(Instant::now);
            if lost.elapsed() >= self.gone {
                return Err(why);
            }
            sleep(RETRY).await;
        }
    }
}

/// A watch by the agent, of which the recording arrives in parts.
#[derive(Debug)]
pub(crate) struct AgentWatching {
    connection: AgentConnection,
}

/// The next of a watch.
#[derive(Debug)]
pub(crate) enum WatchNews {
    /// The next part of the recording.
    Recorded(Vec<u8>),
    /// The end; the reason if it came early.
    Ended(Option<String>),
}

impl AgentWatching {
    /// Has the agent on `path` watch processes.
    ///
    /// # Errors
    /// If there is no agent, or it refuses.
    pub(crate) async fn begin(path: &Path, request: WatchRequest) -> Result<Self, NoAgent> {
        Self::ask(path, &AgentRequest::Watch(request)).await
    }

    /// Requests this user's part of the history of the agent on `path`.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub(crate) async fn past(path: &Path, request: PastRequest) -> Result<Self, NoAgent> {
        Self::ask(path, &AgentRequest::Past(request)).await
    }

    async fn ask(path: &Path, request: &AgentRequest) -> Result<Self, NoAgent> {
        let (mut connection, welcome) = AgentConnection::open(path).await?;
        welcome.check(WATCH_SINCE_MINOR, "watches nothing for its clients")?;
        connection.say(request)?;
        let silent = |_elapsed| NoAgent::Unusable(format!("it has begun no watch in {} s", WATCHING.as_secs()));
        match timeout(WATCHING, connection.answer()).await.map_err(silent)?? {
            AgentAnswer::Watching => Ok(Self { connection }),
            AgentAnswer::WatchEnded { why } => Err(NoAgent::Unusable(why.unwrap_or_else(|| "no watch".to_owned()))),
            _ => Err(NoAgent::Unusable("it sent an unexpected answer".to_owned())),
        }
    }

    /// Has the watch end. What it has still arrives.
    ///
    /// # Errors
    /// If the agent is gone.
    pub(crate) fn end(&self) -> Result<(), NoAgent> {
        self.connection.say(&AgentRequest::EndWatch)
    }

    /// Waits for the next part. Cancel safe.
    ///
    /// # Errors
    /// If the agent is gone.
    pub(crate) async fn next(&mut self) -> Result<WatchNews, NoAgent> {
        let frame = self.connection.frame().await?;
        if let Some(bytes) = watch::recorded(&frame) {
            return Ok(WatchNews::Recorded(bytes.to_vec()));
        }
        match understand(&frame)? {
            AgentAnswer::WatchEnded { why } => Ok(WatchNews::Ended(why)),
            _ => Err(NoAgent::Unusable("it sent an unexpected answer".to_owned())),
        }
    }
}

impl Welcome {
    /// Checks that the agent supports a feature of this minor version.
    fn check(&self, since_minor: u32, lacks: &str) -> Result<(), NoAgent> {
        if self.protocol.minor >= since_minor {
            return Ok(());
        }
        let program = self.program.escape_debug();
        Err(NoAgent::Unusable(format!("it is memwatch {program} and {lacks}: use the same version of both")))
    }
}

/// Connects as soon as the agent has room in its queue. Other clients may have filled it.
async fn connect(path: &Path) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect(path).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(QUEUE).await,
            connected => return connected,
        }
    }
}

impl AgentConnection {
    async fn open(path: &Path) -> Result<(Self, Welcome), NoAgent> {
        let greet = async {
            let stream = connect(path).await?;
            let mut connection = Self { stream, inbox: Inbox::new(ANSWER_BYTES), asked: None, outlook_due: None };
            let hello = AgentRequest::Hello { protocol: PROTOCOL, program: env!("CARGO_PKG_VERSION").to_owned() };
            // An agent without room may have hung up already. Its answer is still in the socket.
            let _ = connection.say(&hello);
            let welcome = connection.answer().await?;
            Ok::<_, NoAgent>((connection, welcome))
        };
        let silent = |_elapsed| NoAgent::Unusable(format!("it has not answered in {} s", WELCOME.as_secs()));
        let (mut connection, answer) = timeout(WELCOME, greet).await.map_err(silent)??;
        match answer {
            AgentAnswer::Welcome(welcome) if welcome.protocol.major == PROTOCOL.major => {
                connection.outlook_due = (welcome.protocol.minor >= OUTLOOK_SINCE_MINOR).then(Instant::now);
                Ok((connection, welcome))
            }
            AgentAnswer::Welcome(welcome) => Err(NoAgent::Unusable(format!(
                "it is memwatch {} and speaks protocol {}, this is {} and speaks {}: use the same version of both",
                welcome.program.escape_debug(),
                welcome.protocol.major,
                env!("CARGO_PKG_VERSION"),
                PROTOCOL.major
            ))),
            _ => Err(NoAgent::Unusable("it sent an unexpected answer instead of a welcome".to_owned())),
        }
    }

    /// Requests a snapshot, and before it an outlook if one is due.
    async fn snapshot(&mut self, mut outlook: Option<&mut OutlookMessage>) -> Result<TimedSnapshot, NoAgent> {
        let until = if let Some(until) = self.asked {
            until
        } else {
            self.ask_outlook(outlook.is_some())?;
            self.say(&AgentRequest::Snapshot)?;
            *self.asked.insert(Instant::now() + ANSWER)
        };
        let silent = |_elapsed| NoAgent::Unusable(format!("it has not answered in {} s", ANSWER.as_secs()));
        loop {
            match timeout_at(until, self.answer()).await.map_err(silent)?? {
                AgentAnswer::Outlook(fresh) => {
                    if let Some(outlook) = &mut outlook {
                        **outlook = fresh;
                    }
                }
                AgentAnswer::Snapshot(SnapshotMessage { snapshot, boottime_to_unix_ns, contradictions }) => {
                    self.asked = None;
                    return Ok(TimedSnapshot { snapshot: snapshot.into_owned(), boottime_to_unix_ns, contradictions });
                }
                _ => return Err(NoAgent::Unusable("it sent an unexpected answer".to_owned())),
            }
        }
    }

    fn ask_outlook(&mut self, is_wanted: bool) -> Result<(), NoAgent> {
        let now = Instant::now();
        if is_wanted && self.outlook_due.is_some_and(|due| due <= now) {
            self.say(&AgentRequest::Outlook)?;
            self.outlook_due = Some(now + OUTLOOK);
        }
        Ok(())
    }

    /// Sends a request and waits for the answer.
    async fn ask(&mut self, request: &AgentRequest) -> Result<AgentAnswer<'static>, NoAgent> {
        self.say(request)?;
        let silent = |_elapsed| NoAgent::Unusable(format!("it has not answered in {} s", ANSWER.as_secs()));
        timeout(ANSWER, self.answer()).await.map_err(silent)?
    }

    /// Sends a request without waiting. A request fits into any socket's buffer unless the agent
    /// has stopped reading.
    fn say(&self, request: &AgentRequest) -> Result<(), NoAgent> {
        let frame = protocol::frame(request)?;
        match self.stream.try_write(&frame) {
            Ok(length) if length == frame.len() => Ok(()),
            Ok(_) => Err(NoAgent::Unusable("it does not read".to_owned())),
            Err(error) => Err(error.into()),
        }
    }

    async fn answer(&mut self) -> Result<AgentAnswer<'static>, NoAgent> {
        understand(&self.frame().await?)
    }

    async fn frame(&mut self) -> Result<Vec<u8>, NoAgent> {
        let frame = self.inbox.receive(&self.stream).await?;
        frame.ok_or_else(|| NoAgent::from(io::Error::from(io::ErrorKind::UnexpectedEof)))
    }
}

/// # Errors
/// If the agent refuses, or sent something else than an answer.
fn understand(frame: &[u8]) -> Result<AgentAnswer<'static>, NoAgent> {
    let answer: AgentAnswer<'static> = serde_json::from_slice(frame).map_err(|error| {
        NoAgent::Unusable(format!("its answer is not understood ({error}): use the same version of both"))
    })?;
    match answer {
        AgentAnswer::Refused { why } => Err(NoAgent::Unusable(format!("it refused: {}", why.escape_debug()))),
        answer => Ok(answer),
    }
}
