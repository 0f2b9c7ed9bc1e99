//! Server side of the socket protocol. Every step has a time limit, so that a slow, silent or
//! hostile client loses only its own answer and affects no other client.

mod events;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use memwatch_core::snapshot::Viewer;
use memwatch_core::words::Tgid;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Mutex;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep, sleep_until, timeout};

use super::credentials::Peer;
use super::publish::{Published, SnapshotSource};
use super::socket::AccessPolicy;
use super::watches::worker::PastOrder;
use super::watches::{WatchEnd, Watches};
use super::web::access::PageAccess;
use crate::client::protocol::watch::{PastRequest, WatchRequest};
use crate::client::protocol::{self, AgentAnswer, AgentRequest, Inbox, PROTOCOL, SnapshotMessage, Welcome};
use crate::sources::login_users::login_user;

/// Time limits of a client's steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    /// Time from connecting to the end of the client's hello.
    pub(super) hello: Duration,
    /// Time from one request to the next.
    pub(super) idle: Duration,
    /// Time for the client to read an answer.
    pub(super) answer: Duration,
}

/// Default limits.
pub(super) const TIMEOUT: Timeouts =
    Timeouts { hello: Duration::from_secs(2), idle: Duration::from_secs(60), answer: Duration::from_secs(5) };

/// Minimum interval between two answers to one client.
const CLOSEST: Duration = Duration::from_millis(50);
/// Minimum and maximum interval of snapshots for a following client.
const FOLLOW_MS: std::ops::RangeInclusive<u64> = 100..=3_600_000;
/// Pause after a failed accept, for example without a free descriptor.
const BREATH: Duration = Duration::from_millis(100);

/// State shared by the connections of all clients.
#[derive(Clone)]
pub(super) struct Reception {
    /// Source of snapshots.
    pub(super) source: SnapshotSource,
    /// Accounting of clients.
    pub(super) access: Arc<AccessPolicy>,
    /// Id of the group that sees everything, if it exists.
    pub(super) group: Option<u32>,
    /// The time limits.
    pub(super) timeouts: Timeouts,
    /// Cache of the last answers.
    pub(super) writer: Arc<FrameCache>,
    /// Access to the page.
    pub(super) page: Arc<PageAccess>,
    /// Watches for clients.
    pub(super) watches: Arc<Watches>,
}

/// Why a connection ends, other than by the client closing it.
enum ConnectionEnd {
    /// The client was refused, with this sentence as the reason.
    Refusal(String),
    /// The client took too long.
    TimedOut,
    /// The connection was lost.
    Disconnected,
}

impl From<io::Error> for ConnectionEnd {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::InvalidData => Self::Refusal(format!("not understood: {error}")),
            _ => Self::Disconnected,
        }
    }
}

impl Reception {
    /// Accepts clients while the future is polled.
    pub(super) async fn serve(self, listener: UnixListener) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    tokio::spawn(self.clone().receive(stream));
                }
                Err(error) => {
                    log::warn!("cannot accept a client: {error}");
                    sleep(BREATH).await;
                }
            }
        }
    }

    async fn receive(self, stream: UnixStream) {
        let end = match Peer::of(&stream) {
            Ok(peer) => self.admit(&stream, &peer).await,
            Err(error) => Err(ConnectionEnd::Refusal(format!("cannot identify the client: {error}"))),
        };
        match end {
            Ok(()) | Err(ConnectionEnd::Disconnected) => {}
            Err(ConnectionEnd::TimedOut) => self.access.time_out(),
            Err(ConnectionEnd::Refusal(why)) => {
                self.access.refuse();
                if let Ok(frame) = protocol::frame(&AgentAnswer::Refused { why: Cow::Owned(why) }) {
                    let _ = timeout(self.timeouts.answer, protocol::send(&stream, &frame)).await;
                }
            }
        }
    }

    async fn admit(&self, stream: &UnixStream, peer: &Peer) -> Result<(), ConnectionEnd> {
        let viewer = peer.viewer(self.group);
        let is_user = viewer != Viewer::Everything;
        let _ticket =
            self.access.enter(login_user(peer.uid), is_user).map_err(|why| ConnectionEnd::Refusal(why.to_owned()))?;
        let mut inbox = Inbox::new(protocol::REQUEST_BYTES);
        let hello =
            timeout(self.timeouts.hello, inbox.receive(stream)).await.map_err(|_elapsed| ConnectionEnd::TimedOut)??;
        let Some(hello) = hello else { return Ok(()) };
        greet(&hello)?;
        let program = env!("CARGO_PKG_VERSION").to_owned();
        let welcome = protocol::frame(&AgentAnswer::Welcome(Welcome { protocol: PROTOCOL, program, viewer }))?;
        self.send(stream, &welcome).await?;
        self.converse(stream, inbox, (peer, viewer)).await
    }

    async fn converse(
        &self,
        stream: &UnixStream,
        mut inbox: Inbox,
        (peer, viewer): (&Peer, Viewer),
    ) -> Result<(), ConnectionEnd> {
        let mut follow: Option<Interval> = None;
        let mut idle_until = Instant::now() + self.timeouts.idle;
        loop {
            tokio::select! {
                frame = inbox.receive(stream) => match frame? {
                    None => return Ok(()),
                    Some(frame) => match understand(&frame)? {
                        AgentRequest::Snapshot => self.report(stream, viewer).await?,
                        AgentRequest::Follow { every_ms } => follow = Some(pace(every_ms)),
                        AgentRequest::ResetPeaks { tgid } => self.reset_peaks(stream, Tgid(tgid), viewer).await?,
                        AgentRequest::History => self.history(stream, viewer).await?,
                        AgentRequest::Outlook => self.outlook(stream, viewer).await?,
                        AgentRequest::Page => self.page(stream, viewer).await?,
                        AgentRequest::Watch(request) => return self.watch(stream, (peer, viewer), request).await,
                        AgentRequest::Past(request) => return self.past(stream, (peer, viewer), request).await,
                        AgentRequest::Events(request) if request.follow => {
                            return self.follow_events(stream, &mut inbox, (viewer, request)).await;
                        }
                        AgentRequest::Events(request) => drop(self.events(stream, (viewer, request)).await?),
                        AgentRequest::EndWatch => return Err(ConnectionEnd::Refusal("not understood: no watch to end".to_owned())),
                        AgentRequest::Hello { .. } => return Err(ConnectionEnd::Refusal("not understood: a second hello".to_owned())),
                    },
                },
                () = next(&mut follow) => self.report(stream, viewer).await?,
                () = sleep_until(idle_until), if follow.is_none() => return Err(ConnectionEnd::TimedOut),
            }
            idle_until = Instant::now() + self.timeouts.idle;
        }
    }

    /// Sends a snapshot restricted to the processes that this client may see.
    async fn report(&self, stream: &UnixStream, viewer: Viewer) -> Result<(), ConnectionEnd> {
        let earliest = Instant::now() + CLOSEST;
        let published = self.source.latest().await.ok_or(ConnectionEnd::Disconnected)?;
        let frame = self.writer.write(published, viewer).await?;
        self.send(stream, &frame).await?;
        sleep_until(earliest).await;
        Ok(())
    }

    async fn reset_peaks(&self, stream: &UnixStream, tgid: Tgid, viewer: Viewer) -> Result<(), ConnectionEnd> {
        let earliest = Instant::now() + CLOSEST;
        if !self.source.reset_peaks(tgid, viewer).await.ok_or(ConnectionEnd::Disconnected)? {
            return Err(ConnectionEnd::Refusal(format!("process {} is not visible to you", tgid.0)));
        }
        self.send(stream, &protocol::frame(&AgentAnswer::PeaksReset)?).await?;
        sleep_until(earliest).await;
        Ok(())
    }

    async fn history(&self, stream: &UnixStream, viewer: Viewer) -> Result<(), ConnectionEnd> {
        if viewer != Viewer::Everything {
            return Err(ConnectionEnd::Refusal("its history contains the processes of all users".to_owned()));
        }
        let earliest = Instant::now() + CLOSEST;
        let kept = self.source.history().await.ok_or(ConnectionEnd::Disconnected)?;
        self.send(stream, &protocol::frame(&AgentAnswer::History(kept))?).await?;
        sleep_until(earliest).await;
        Ok(())
    }

    async fn outlook(&self, stream: &UnixStream, viewer: Viewer) -> Result<(), ConnectionEnd> {
        let earliest = Instant::now() + CLOSEST;
        let (outlook, published) = (self.source.outlook().await, self.source.latest().await);
        let (Some(outlook), Some(published)) = (outlook, published) else { return Err(ConnectionEnd::Disconnected) };
        let message = outlook.observed_by(viewer, &published.snapshot);
        self.send(stream, &protocol::frame(&AgentAnswer::Outlook(message))?).await?;
        sleep_until(earliest).await;
        Ok(())
    }

    async fn page(&self, stream: &UnixStream, viewer: Viewer) -> Result<(), ConnectionEnd> {
        let earliest = Instant::now() + CLOSEST;
        self.send(stream, &protocol::frame(&AgentAnswer::Page(self.page.link(viewer)))?).await?;
        sleep_until(earliest).await;
        Ok(())
    }

    /// Watches processes for the client, which ends the conversation.
    async fn watch(
        &self,
        stream: &UnixStream,
        client: (&Peer, Viewer),
        request: WatchRequest,
    ) -> Result<(), ConnectionEnd> {
        end_of(self.watches.serve(stream, client, request).await)
    }

    /// Sends the client's part of the history, which ends the conversation.
    async fn past(
        &self,
        stream: &UnixStream,
        (peer, viewer): (&Peer, Viewer),
        request: PastRequest,
    ) -> Result<(), ConnectionEnd> {
        let Viewer::User(uid) = viewer else {
            return Err(ConnectionEnd::Refusal("its history is readable as a file".to_owned()));
        };
        let kept = self.source.history().await.ok_or(ConnectionEnd::Disconnected)?;
        let kept = kept.ok_or_else(|| ConnectionEnd::Refusal("it keeps no history".to_owned()))?;
        end_of(self.watches.serve_past(stream, peer, PastOrder { kept, uid, period: request }).await)
    }

    async fn send(&self, stream: &UnixStream, frame: &[u8]) -> Result<(), ConnectionEnd> {
        Ok(timeout(self.timeouts.answer, protocol::send(stream, frame))
            .await
            .map_err(|_elapsed| ConnectionEnd::TimedOut)??)
    }
}

/// Returns how a conversation ends after a watch.
fn end_of(watch: Result<WatchEnd, String>) -> Result<(), ConnectionEnd> {
    match watch {
        Ok(WatchEnd::Sent) => Ok(()),
        Ok(WatchEnd::ClientLeft) => Err(ConnectionEnd::Disconnected),
        Err(why) => Err(ConnectionEnd::Refusal(why)),
    }
}

fn greet(frame: &[u8]) -> Result<(), ConnectionEnd> {
    match understand(frame)? {
        AgentRequest::Hello { protocol, .. } if protocol.major == PROTOCOL.major => Ok(()),
        AgentRequest::Hello { protocol, program } => Err(ConnectionEnd::Refusal(format!(
            "this agent is memwatch {} and speaks protocol {}, memwatch {} speaks {}: use the same version of both",
            env!("CARGO_PKG_VERSION"),
            PROTOCOL.major,
            program.escape_debug(),
            protocol.major,
        ))),
        _ => Err(ConnectionEnd::Refusal("not understood: no hello".to_owned())),
    }
}

fn understand(frame: &[u8]) -> Result<AgentRequest, ConnectionEnd> {
    serde_json::from_slice(frame).map_err(|error| ConnectionEnd::Refusal(format!("not understood: {error}")))
}

fn pace(every_ms: u64) -> Interval {
    let every_ms = every_ms.clamp(*FOLLOW_MS.start(), *FOLLOW_MS.end());
    let mut pace = interval(Duration::from_millis(every_ms));
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pace
}

async fn next(follow: &mut Option<Interval>) {
    match follow {
        Some(interval) => {
            interval.tick().await;
        }
        None => std::future::pending().await,
    }
}

/// Encodes snapshots as frames in another thread, since encoding a large snapshot takes longer than
/// records may wait.
///
/// Encodes one snapshot at a time, and only once for all clients with the same view.
#[derive(Default)]
pub(super) struct FrameCache {
    written: Mutex<CachedFrames>,
    /// Held while events are encoded, which happens for one client at a time.
    events: Mutex<()>,
}

#[derive(Default)]
struct CachedFrames {
    snapshot: u64,
    frames: BTreeMap<Viewer, Arc<[u8]>>,
}

impl FrameCache {
    async fn write(&self, published: Arc<Published>, viewer: Viewer) -> io::Result<Arc<[u8]>> {
        let mut written = self.written.lock().await;
        let snapshot = published.agent.snapshots_total;
        if written.snapshot != snapshot {
            *written = CachedFrames { snapshot, ..CachedFrames::default() };
        }
        if let Some(frame) = written.frames.get(&viewer) {
            return Ok(Arc::clone(frame));
        }
        let frame = tokio::task::spawn_blocking(move || reported(&published, viewer)).await??;
        let frame: Arc<[u8]> = frame.into();
        written.frames.insert(viewer, Arc::clone(&frame));
        Ok(frame)
    }
}

fn reported(published: &Published, viewer: Viewer) -> io::Result<Vec<u8>> {
    let snapshot = match viewer {
        Viewer::Everything => Cow::Borrowed(&published.snapshot),
        Viewer::User(_) => Cow::Owned(published.snapshot.observed_by(viewer)),
    };
    let boottime_to_unix_ns = published.boottime_to_unix_ns;
    let contradictions = published.agent.contradictions.iter().sum();
    protocol::frame(&AgentAnswer::Snapshot(SnapshotMessage { snapshot, boottime_to_unix_ns, contradictions }))
}

#[cfg(test)]
mod tests;
