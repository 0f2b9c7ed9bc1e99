//! Sends a client the events that it may see.

use std::borrow::Cow;
use std::sync::Arc;

use memwatch_core::snapshot::Viewer;
use tokio::net::UnixStream;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep_until};

use super::{CLOSEST, ConnectionEnd, Reception};
use crate::agent::events::{AgentEvent, EventSubscription};
use crate::client::protocol::events::{EventsMessage, EventsRequest};
use crate::client::protocol::{self, AgentAnswer, Inbox};

impl Reception {
    /// Sends the kept events that the client may see.
    pub(super) async fn events(
        &self,
        stream: &UnixStream,
        (viewer, request): (Viewer, EventsRequest),
    ) -> Result<EventSubscription, ConnectionEnd> {
        let earliest = Instant::now() + CLOSEST;
        let mut subscription = self.source.events(viewer).await.ok_or(ConnectionEnd::Disconnected)?;
        let mut kept = std::mem::take(&mut subscription.kept);
        kept.retain(|event| request.since_unix_ns.is_none_or(|since_unix_ns| event.unix_ns >= since_unix_ns));
        self.send_events(stream, viewer, kept, &subscription).await?;
        sleep_until(earliest).await;
        Ok(subscription)
    }

    /// Sends the kept events that the client may see and those that follow, until the client leaves,
    /// which ends the conversation. A client that reads too slowly is dropped.
    pub(super) async fn follow_events(
        &self,
        stream: &UnixStream,
        inbox: &mut Inbox,
        (viewer, request): (Viewer, EventsRequest),
    ) -> Result<(), ConnectionEnd> {
        let mut subscription = self.events(stream, (viewer, request)).await?;
        loop {
            tokio::select! {
                frame = inbox.receive(stream) => return match frame? {
                    None => Ok(()),
                    Some(_) => Err(ConnectionEnd::Refusal("not understood: a request while events follow".to_owned())),
                },
                event = subscription.later.recv() => match event {
                    Ok(event) if event.seen_by(viewer).is_some() => {
                        self.send_events(stream, viewer, vec![event], &subscription).await?;
                    }
                    Ok(_) => {}
                    Err(RecvError::Lagged(_)) => return Err(ConnectionEnd::TimedOut),
                    Err(RecvError::Closed) => return Err(ConnectionEnd::Disconnected),
                },
            }
        }
    }

    async fn send_events(
        &self,
        stream: &UnixStream,
        viewer: Viewer,
        events: Vec<Arc<AgentEvent>>,
        subscription: &EventSubscription,
    ) -> Result<(), ConnectionEnd> {
        let EventSubscription { kept_since_unix_ns, left_out, .. } = *subscription;
        let turn = self.writer.events.lock().await;
        // Many events take longer to write than records may wait.
        let frame = tokio::task::spawn_blocking(move || {
            let events = events.iter().filter_map(|event| event.seen_by(viewer)).map(Cow::Borrowed).collect();
            protocol::frame(&AgentAnswer::Events(EventsMessage { kept_since_unix_ns, left_out, events }))
        });
        let frame = frame.await.map_err(std::io::Error::from)??;
        drop(turn);
        self.send(stream, &frame).await
    }
}
