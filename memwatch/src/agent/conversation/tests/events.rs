//! Events for clients.

use super::{AgentClient, FakeAgent, ROOMY, TIMEOUT, Viewer};
use crate::agent::events::{AgentEvent, EventSubscription};
use crate::client::events::{AgentEventStream, SentEvents};
use crate::client::protocol::events::EventsRequest;
use tokio::sync::broadcast;

/// Queue of the fake agent's later events.
const WAITING: usize = 2;
/// A user that no test runs as.
const OTHER: Viewer = Viewer::User(4_000_000_000);

/// Returns two kept events of the viewer and one of another user, and this number of later ones of
/// each.
pub(super) fn events_of(viewer: Viewer, later: u32) -> EventSubscription {
    let (sender, receiver) = broadcast::channel(WAITING);
    for number in 0..later {
        let own = AgentEvent::invented(30, &format!("later {number}"), &[viewer]);
        for event in [AgentEvent::invented(30, "other", &[OTHER]), own] {
            sender.send(event).expect("it is received");
        }
    }
    let kept = [10, 20].map(|unix_ns| AgentEvent::invented(unix_ns, &format!("kept {unix_ns}"), &[viewer]));
    let other = AgentEvent::invented(25, "other", &[OTHER]);
    EventSubscription {
        kept_since_unix_ns: 5,
        left_out: 3,
        kept: kept.into_iter().chain([other]).collect(),
        later: receiver,
    }
}

fn lines(sent: &SentEvents) -> Vec<&str> {
    sent.events.iter().map(|event| event.json.as_str()).collect()
}

#[tokio::test]
async fn client_gets_the_kept_events_that_it_may_see() {
    let agent = FakeAgent::start(0, ROOMY, TIMEOUT);
    for (since_unix_ns, expected) in [(None, &["kept 10", "kept 20"][..]), (Some(11), &["kept 20"]), (Some(40), &[])] {
        let request = EventsRequest { since_unix_ns, follow: false };
        let (_, sent) = AgentEventStream::begin(&agent.path(), request).await.expect("it answers");
        assert_eq!((lines(&sent), sent.kept_since_unix_ns, sent.left_out), (expected.to_vec(), 5, 3));
    }
}

#[tokio::test]
async fn follower_gets_later_events_until_it_leaves() {
    let agent = FakeAgent::start(1, ROOMY, TIMEOUT);
    let request = EventsRequest { since_unix_ns: Some(40), follow: true };
    let (mut stream, kept) = AgentEventStream::begin(&agent.path(), request).await.expect("it answers");
    assert_eq!(lines(&kept), [""; 0]);
    assert_eq!(lines(&stream.next().await.expect("it follows")), ["later 0"]);
    agent.until(|state| state.clients == 0).await;
    assert!(stream.next().await.is_err(), "the fake agent has no more");
}

#[tokio::test]
async fn follower_with_too_many_waiting_events_is_dropped() {
    let agent = FakeAgent::start(2, ROOMY, TIMEOUT);
    let request = EventsRequest { since_unix_ns: None, follow: true };
    let (mut stream, kept) = AgentEventStream::begin(&agent.path(), request).await.expect("it answers");
    assert_eq!(lines(&kept).len(), 2);
    assert!(stream.next().await.is_err());
    agent.until(|state| state.clients == 0 && state.clients_dropped_total == 1).await;
    AgentClient::meet(&agent.path()).await.expect("other clients are served");
}
