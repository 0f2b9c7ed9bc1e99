//! Events that an agent keeps, and those that follow.

use std::path::Path;

use super::protocol::events::{EventMessage, EventsMessage, EventsRequest};
use super::protocol::{AgentAnswer, AgentRequest, EVENTS_SINCE_MINOR};
use super::{AgentConnection, NoAgent};

/// Connection over which an agent sends events.
#[derive(Debug)]
pub(crate) struct AgentEventStream {
    connection: AgentConnection,
}

/// Events that an agent has sent.
#[derive(Clone, Debug)]
pub(crate) struct SentEvents {
    /// Time since which the agent keeps events, nanoseconds since 1970.
    pub(crate) kept_since_unix_ns: i64,
    /// Number of events that the agent does not keep.
    pub(crate) left_out: u64,
    /// The events, oldest first.
    pub(crate) events: Vec<EventMessage>,
}

impl AgentEventStream {
    /// Requests events from the agent on `path`. Returns those that the agent keeps.
    ///
    /// # Errors
    /// If there is no agent, or it sends no events.
    pub(crate) async fn begin(path: &Path, request: EventsRequest) -> Result<(Self, SentEvents), NoAgent> {
        let (mut connection, welcome) = AgentConnection::open(path).await?;
        welcome.check(EVENTS_SINCE_MINOR, "keeps no events")?;
        let kept = sent(connection.ask(&AgentRequest::Events(request)).await?)?;
        Ok((Self { connection }, kept))
    }

    /// Waits for the next events. Cancel safe.
    ///
    /// # Errors
    /// If the agent is gone, or drops this client for reading too slowly.
    pub(crate) async fn next(&mut self) -> Result<SentEvents, NoAgent> {
        sent(self.connection.answer().await?)
    }
}

fn sent(answer: AgentAnswer<'static>) -> Result<SentEvents, NoAgent> {
    let AgentAnswer::Events(EventsMessage { kept_since_unix_ns, left_out, events }) = answer else {
        return Err(NoAgent::Unusable("it sent an unexpected answer".to_owned()));
    };
    Ok(SentEvents {
        kept_since_unix_ns,
        left_out,
        events: events.into_iter().map(std::borrow::Cow::into_owned).collect(),
    })
}
