//! The request for a watch, and the frames of its recording.

use memwatch_core::input::TensorLevel;
use serde::{Deserialize, Serialize};

use super::LENGTH_BYTES;

/// Maximum bytes of a recording in one frame.
pub(crate) const PIECE_BYTES: usize = 64 << 10;

/// First byte of a frame with a part of a recording. A message is JSON and begins with a letter of
/// it.
const RECORDED: u8 = 0;

/// Request to watch processes for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WatchRequest {
    /// Processes, which are watched with their children.
    #[serde(rename = "pids")]
    pub(crate) tgids: Vec<u32>,
    /// What is traced of PyTorch.
    pub(crate) tensors: WatchedTensors,
    /// Duration in milliseconds.
    pub(crate) duration_ms: u64,
    /// Program and arguments, if the one process is about to start them and waits for the watch.
    #[serde(default)]
    pub(crate) program: Option<Vec<String>>,
}

/// Request for the client's part of the history, as times in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PastRequest {
    /// Start of the period.
    pub(crate) since_unix_ns: Option<i64>,
    /// End of the period.
    pub(crate) until_unix_ns: Option<i64>,
}

/// What is traced of PyTorch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WatchedTensors {
    /// The level.
    pub(crate) level: TensorLevel,
    /// Only the allocator's report of each tensor.
    pub(crate) reports_only: bool,
    /// Whether all blocks get a stack, and not only large and sampled ones.
    pub(crate) all_stacks: bool,
    /// Maximum overhead in nanoseconds per second of one processor; `None` for no limit.
    pub(crate) budget_ns: Option<u64>,
}

/// Returns a frame with a part of a recording.
pub(crate) fn piece(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len() + 1).expect("a piece is short");
    let mut frame = Vec::with_capacity(LENGTH_BYTES + 1 + bytes.len());
    frame.extend(length.to_be_bytes());
    frame.push(RECORDED);
    frame.extend(bytes);
    frame
}

/// Returns the part of a recording in this frame; `None` if it contains a message.
pub(crate) fn recorded(frame: &[u8]) -> Option<&[u8]> {
    frame.strip_prefix(&[RECORDED])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::protocol::{AgentAnswer, Inbox, frame};

    #[test]
    fn watch_pieces_are_told_from_messages() {
        let mut inbox = Inbox::new(PIECE_BYTES + 1);
        inbox.put(&piece(b"{\"snapshot\""));
        inbox.put(&piece(b""));
        inbox.put(&frame(&AgentAnswer::WatchEnded { why: None }).expect("it can be written"));
        let mut next = || inbox.take().expect("short").expect("complete");
        assert_eq!(recorded(&next()), Some(&b"{\"snapshot\""[..]));
        assert_eq!(recorded(&next()), Some(&b""[..]));
        let message = next();
        assert_eq!(recorded(&message), None);
        assert!(matches!(serde_json::from_slice(&message), Ok(AgentAnswer::WatchEnded { why: None })));
    }
}
