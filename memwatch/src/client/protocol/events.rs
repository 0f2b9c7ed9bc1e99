//! Messages about the events that an agent keeps.

use std::borrow::Cow;

use memwatch_core::snapshot::ProcessView;
use serde::{Deserialize, Serialize};

/// Requests the events that the client may see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EventsRequest {
    /// Start of the period, nanoseconds since 1970; `None` for all that the agent keeps.
    pub(crate) since_unix_ns: Option<i64>,
    /// Whether later events follow until the client leaves. The connection is used for nothing else
    /// from then on.
    pub(crate) follow: bool,
}

/// Events, oldest first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EventsMessage<'a> {
    /// Time since which the agent keeps events, nanoseconds since 1970.
    pub(crate) kept_since_unix_ns: i64,
    /// Number of events that the agent does not keep, of those that the client may see.
    pub(crate) left_out: u64,
    /// The events.
    pub(crate) events: Vec<Cow<'a, EventMessage>>,
}

/// One event, restricted to what the client may see.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct EventMessage {
    /// Identity of the processes that it is about, the most important one first.
    pub(crate) subjects: Vec<ProcessView>,
    /// The event as a line of JSON (`memwatch.event/1`).
    pub(crate) json: String,
}
