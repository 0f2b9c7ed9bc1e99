//! Protocol between agent and client. A frame is a length of four bytes, big-endian, followed by
//! that many bytes of JSON.
//!
//! Frames, `hello` and `refused` are the same in every version, so that incompatible programs can
//! report the mismatch.

pub(crate) mod events;
pub(crate) mod watch;

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;

use memwatch_core::features::forecast::view::ForecastsView;
use memwatch_core::features::leak::view::LeaksView;
use memwatch_core::snapshot::{ProcessView, Snapshot, Viewer};
use memwatch_core::words::Tgid;
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;

use self::events::{EventsMessage, EventsRequest};
use self::watch::{PastRequest, WatchRequest};

/// Protocol version of this program. The major number changes when a side requires data that older
/// versions do not send.
pub(crate) const PROTOCOL: ProtocolVersion = ProtocolVersion { major: 2, minor: 6 };

/// First minor version in which an agent resets peaks.
pub(crate) const PEAKS_SINCE_MINOR: u32 = 1;

/// First minor version in which an agent reports the location of its history.
pub(crate) const HISTORY_SINCE_MINOR: u32 = 2;

/// First minor version in which an agent sends outlooks.
pub(crate) const OUTLOOK_SINCE_MINOR: u32 = 3;

/// First minor version in which an agent gives links to its web page.
pub(crate) const PAGE_SINCE_MINOR: u32 = 4;

/// First minor version in which an agent watches processes for a client.
pub(crate) const WATCH_SINCE_MINOR: u32 = 5;

/// First minor version in which an agent sends the events that it keeps.
pub(crate) const EVENTS_SINCE_MINOR: u32 = 6;

/// Maximum frame size that an agent reads.
pub(crate) const REQUEST_BYTES: usize = 4096;

/// Maximum frame size that a client reads. The snapshot of 10,000 processes on eight GPUs each
/// takes about 80 MB.
pub(crate) const ANSWER_BYTES: usize = 256 << 20;

/// Bytes per read.
const CHUNK_BYTES: usize = 16 << 10;

const LENGTH_BYTES: usize = 4;

/// A protocol version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProtocolVersion {
    /// Major number. Both sides must have the same.
    pub(crate) major: u32,
    /// Minor number. It grows with optional additions.
    pub(crate) minor: u32,
}

/// A message from a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AgentRequest {
    /// First message of a client.
    Hello {
        /// Protocol version of the client.
        protocol: ProtocolVersion,
        /// Program version of the client.
        program: String,
    },
    /// Requests one snapshot.
    Snapshot,
    /// Requests a snapshot immediately and one per interval until the client leaves.
    Follow {
        /// Interval in milliseconds.
        every_ms: u64,
    },
    /// Resets the peaks of a process that the client may see.
    ResetPeaks {
        /// Process id.
        #[serde(rename = "pid")]
        tgid: u32,
    },
    /// Requests the location of the history. Only for clients that may see everything.
    History,
    /// Requests the outlook: growth, and whether memory runs out.
    Outlook,
    /// Requests a link to the web page, restricted to what the client may see.
    Page,
    /// Requests a recording of processes that the client may read. The connection is used for
    /// nothing else from then on.
    Watch(WatchRequest),
    /// Requests the part of the history with the client's own processes, as a recording. The
    /// connection is used for nothing else from then on.
    Past(PastRequest),
    /// Requests the events that the agent keeps.
    Events(EventsRequest),
    /// Ends the watch early. What it has is still sent.
    EndWatch,
}

/// A message from an agent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "one at a time, taken apart at once")]
pub(crate) enum AgentAnswer<'a> {
    /// Answer to a hello.
    Welcome(Welcome),
    /// Snapshot, restricted to what the client may see.
    Snapshot(SnapshotMessage<'a>),
    /// The peaks of the requested process are reset.
    PeaksReset,
    /// Location of the history; `None` if the agent keeps none.
    History(Option<HistoryFiles>),
    /// Outlook, restricted to what the client may see.
    Outlook(OutlookMessage),
    /// Link to the web page.
    Page(PageLink),
    /// Events, restricted to what the client may see.
    Events(EventsMessage<'a>),
    /// The watch has attached its probes. Frames of the recording follow ([`watch::recorded`]).
    Watching,
    /// The watch has ended, and nothing follows.
    WatchEnded {
        /// Why it ended early, as a sentence; `None` if it ended as requested.
        why: Option<String>,
    },
    /// The request is refused. The agent then closes the connection.
    Refused {
        /// The reason, as a sentence.
        why: Cow<'a, str>,
    },
}

/// Identity of the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// Protocol version of the agent.
    pub(crate) protocol: ProtocolVersion,
    /// Program version of the agent.
    pub(crate) program: String,
    /// Visibility that the agent grants the client.
    pub(crate) viewer: Viewer,
}

/// Files of an agent's history, as paths of the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HistoryFiles {
    /// Current recording.
    pub(crate) file: PathBuf,
    /// File before it.
    pub(crate) previous: Option<PathBuf>,
    /// Files before that one, newest first.
    #[serde(default)]
    pub(crate) older: Vec<PathBuf>,
    /// Reason why the recording cannot be written at the moment.
    pub(crate) failing: Option<String>,
}

/// Link to an agent's web page, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PageLink {
    /// A link that can be opened once.
    Open {
        /// URL for a browser on the agent's machine.
        url: String,
    },
    /// The page is not served.
    Closed {
        /// The reason, phrased to follow the words "the agent".
        why: String,
    },
}

/// A snapshot and the offset of its clock.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SnapshotMessage<'a> {
    /// The snapshot.
    pub(crate) snapshot: Cow<'a, Snapshot>,
    /// Offset from its `CLOCK_BOOTTIME` values to nanoseconds since 1970.
    pub(crate) boottime_to_unix_ns: i128,
    /// Number of contradictions in the agent's reports.
    #[serde(default)]
    pub(crate) contradictions: u64,
}

/// Growth in processes, and whether memory runs out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct OutlookMessage {
    /// Growth of at least one megabyte per minute, by process.
    pub(crate) leaks: Vec<LeaksView>,
    /// Forecasts of the time at which memory runs out.
    pub(crate) forecasts: ForecastsView,
}

impl OutlookMessage {
    /// Returns the part of the outlook that this viewer may see, for the processes of a snapshot.
    pub(crate) fn observed_by(&self, viewer: Viewer, snapshot: &Snapshot) -> Self {
        let is_shown = |tgid: Tgid, observed_since_ns: u64| {
            let is_it = |process: &&ProcessView| (process.tgid, process.observed_since_ns) == (tgid, observed_since_ns);
            snapshot.processes.iter().find(is_it).is_some_and(|process| process.is_shown_to(viewer))
        };
        let mut own = self.clone();
        own.leaks.retain(|leaks| is_shown(leaks.tgid, leaks.observed_since_ns));
        own.forecasts.processes.retain(|forecast| is_shown(forecast.tgid, forecast.observed_since_ns));
        own
    }
}

/// Serialises a message to a frame.
pub(crate) fn frame(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; LENGTH_BYTES];
    serde_json::to_writer(&mut bytes, message)?;
    let length = u32::try_from(bytes.len() - LENGTH_BYTES).map_err(|_too_long| io::ErrorKind::FileTooLarge)?;
    bytes[..LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
    Ok(bytes)
}

/// A frame that exceeds the reader's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of {bytes} bytes, where {limit_bytes} are the most")]
pub(crate) struct TooLong {
    bytes: usize,
    limit_bytes: usize,
}

/// Splits a byte stream into frames. Buffers at most one frame and the chunk that was read with its
/// end.
#[derive(Debug)]
pub(crate) struct Inbox {
    arrived: Vec<u8>,
    limit_bytes: usize,
}

impl Inbox {
    /// Creates an inbox with a maximum frame size in bytes.
    pub(crate) const fn new(limit_bytes: usize) -> Self {
        Self { arrived: Vec::new(), limit_bytes }
    }

    /// Appends received bytes.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.arrived.extend_from_slice(bytes);
    }

    /// Returns the next complete frame without its length.
    pub(crate) fn take(&mut self) -> Result<Option<Vec<u8>>, TooLong> {
        let Some(length) = self.arrived.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let bytes = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if bytes > self.limit_bytes {
            return Err(TooLong { bytes, limit_bytes: self.limit_bytes });
        }
        let end = LENGTH_BYTES + bytes;
        if self.arrived.len() < end {
            return Ok(None);
        }
        let rest = self.arrived.split_off(end);
        let mut frame = std::mem::replace(&mut self.arrived, rest);
        frame.drain(..LENGTH_BYTES);
        Ok(Some(frame))
    }

    /// Receives the next frame of a stream; `None` at its end. Cancel safe: received bytes stay in
    /// the inbox.
    ///
    /// # Errors
    /// If reading fails, a frame is too long ([`io::ErrorKind::InvalidData`]), or the stream ends
    /// within a frame.
    pub(crate) async fn receive(&mut self, stream: &UnixStream) -> io::Result<Option<Vec<u8>>> {
        loop {
            let found = self.take().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            if found.is_some() {
                return Ok(found);
            }
            stream.readable().await?;
            match self.read_from(stream) {
                Ok(0) if self.arrived.is_empty() => return Ok(None),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
    }

    fn read_from(&mut self, stream: &UnixStream) -> io::Result<usize> {
        let mut chunk = [0; CHUNK_BYTES];
        let length = stream.try_read(&mut chunk)?;
        self.put(&chunk[..length]);
        Ok(length)
    }
}

/// Sends a frame.
///
/// # Errors
/// If writing fails.
pub(crate) async fn send(stream: &UnixStream, frame: &[u8]) -> io::Result<()> {
    let mut rest = frame;
    while !rest.is_empty() {
        stream.writable().await?;
        match stream.try_write(rest) {
            Ok(length) => rest = &rest[length..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::fixture::{busy_node, divided_node};
    use proptest::prelude::*;

    fn taken(frame: &[u8]) -> Vec<u8> {
        let mut inbox = Inbox::new(ANSWER_BYTES);
        inbox.put(frame);
        inbox.take().expect("not too long").expect("a whole one")
    }

    #[test]
    fn a_snapshot_arrives_as_it_was_sent() {
        for snapshot in [busy_node(), divided_node()] {
            for boottime_to_unix_ns in [0, -5, 1_795_266_000_000_000_000, i128::from(u64::MAX)] {
                let reported =
                    SnapshotMessage { snapshot: Cow::Borrowed(&snapshot), boottime_to_unix_ns, contradictions: 0 };
                let frame = taken(&frame(&AgentAnswer::Snapshot(reported)).expect("it can be written"));
                let Ok(AgentAnswer::Snapshot(reported)) = serde_json::from_slice(&frame) else { panic!("a snapshot") };
                assert_eq!(
                    (reported.snapshot.into_owned(), reported.boottime_to_unix_ns),
                    (snapshot.clone(), boottime_to_unix_ns)
                );
            }
        }
    }

    #[test]
    fn protocol_hello_and_refusal_are_the_same_in_every_version() {
        let hello = AgentRequest::Hello { protocol: PROTOCOL, program: "0.1.0".to_owned() };
        let text = r#"{"hello":{"protocol":{"major":2,"minor":6},"program":"0.1.0"}}"#;
        assert_eq!(taken(&frame(&hello).expect("it can be written")), text.as_bytes());
        let refused = AgentAnswer::Refused { why: "no".into() };
        assert_eq!(taken(&frame(&refused).expect("it can be written")), br#"{"refused":{"why":"no"}}"#);
        let later = r#"{"hello":{"protocol":{"major":7,"minor":3},"program":"9","colour":"red"}}"#;
        assert!(matches!(
            serde_json::from_str(later),
            Ok(AgentRequest::Hello { protocol: ProtocolVersion { major: 7, .. }, .. })
        ));
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_anything_is_kept_for_it() {
        let mut inbox = Inbox::new(16);
        inbox.put(b"GET / HTTP/1.1\r\n\r\n");
        assert_eq!(inbox.take(), Err(TooLong { bytes: 0x4745_5420, limit_bytes: 16 }));
        let mut inbox = Inbox::new(16);
        inbox.put(&[0, 0, 0, 17]);
        assert!(inbox.take().is_err());
        let mut inbox = Inbox::new(16);
        inbox.put(&[0, 0, 0, 16]);
        assert_eq!(inbox.take(), Ok(None));
    }

    proptest! {
        #[test]
        fn frames_arrive_whole_and_in_order_however_they_are_cut(
            frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
            pieces in prop::collection::vec(1..7_usize, 1..400),
        ) {
            let mut wire = Vec::new();
            for frame in &frames {
                wire.extend(u32::try_from(frame.len()).expect("short").to_be_bytes());
                wire.extend(frame);
            }
            let (mut inbox, mut found, mut rest) = (Inbox::new(40), Vec::new(), wire.as_slice());
            for piece in pieces.iter().cycle() {
                let (now, later) = rest.split_at((*piece).min(rest.len()));
                inbox.put(now);
                while let Some(frame) = inbox.take().expect("not too long") {
                    found.push(frame);
                }
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(found, frames);
        }

        #[test]
        fn garbage_is_never_more_than_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut inbox = Inbox::new(64);
            inbox.put(&bytes);
            while let Ok(Some(frame)) = inbox.take() {
                prop_assert!(frame.len() <= 64);
                let _ = serde_json::from_slice::<AgentRequest>(&frame);
                let _ = serde_json::from_slice::<AgentAnswer>(&frame);
            }
        }
    }
}
