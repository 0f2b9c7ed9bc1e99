mod events;

use self::events::events_of;
use super::*;
use crate::agent::publish::{AgentState, PublisherRequest, PublisherRequests};
use crate::agent::socket::{ConnectionLimit, OpenSocket};
use crate::agent::web::access::Exposure;
use crate::client::{AgentClient, NoAgent};
use crate::render::fixture;
use memwatch_core::features::leak::view::LeaksView;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;

const ROOMY: ConnectionLimit = ConnectionLimit { clients: 8, users: 6, per_user: 6 };
const QUICK: Timeouts =
    Timeouts { hello: Duration::from_millis(200), idle: Duration::from_secs(3), answer: Duration::from_secs(3) };

/// An agent without a watch, which serves an invented machine.
struct FakeAgent {
    directory: TempDir,
    access: Arc<AccessPolicy>,
    _socket: OpenSocket,
}

impl FakeAgent {
    fn start(processes: u32, limit: ConnectionLimit, timeouts: Timeouts) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let socket = OpenSocket::open(&path, None).expect("nobody is there");
        let (source, requests) = SnapshotSource::new();
        tokio::spawn(hand_out(requests, processes));
        let access = AccessPolicy::new(limit);
        let page = PageAccess::new(Some(([127, 0, 0, 1], 9747).into()), Exposure::Loopback);
        let reception = Reception {
            source,
            access: Arc::clone(&access),
            group: None,
            timeouts,
            writer: Arc::default(),
            page,
            watches: Watches::with_room(1),
        };
        tokio::spawn(reception.serve(socket.listener().expect("a runtime")));
        Self { directory, access, _socket: socket }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    async fn connect(&self) -> UnixStream {
        UnixStream::connect(self.path()).await.expect("it listens")
    }

    /// Sends these bytes, and returns the agent's last answer before it hangs up.
    async fn last_answer_to(&self, bytes: &[u8]) -> Option<String> {
        let stream = self.connect().await;
        protocol::send(&stream, bytes).await.expect("it fits");
        let mut inbox = Inbox::new(protocol::ANSWER_BYTES);
        let mut last = None;
        while let Ok(Some(frame)) = inbox.receive(&stream).await {
            last = Some(String::from_utf8(frame).expect("JSON is UTF-8"));
        }
        last
    }

    async fn until(&self, holds: impl Fn(AgentState) -> bool) {
        for _ in 0..1000 {
            if holds(self.access.state()) {
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
        panic!("{:?}", self.access.state());
    }
}

async fn hand_out(mut requests: PublisherRequests, processes: u32) {
    let made = AtomicU64::new(0);
    while let Some(question) = requests.recv().await {
        let reply = match question {
            PublisherRequest::Latest(reply) => reply,
            // A viewer of everything sees processes below 10.
            PublisherRequest::ResetPeaks(tgid, viewer, reply) => {
                let _ = reply.send(viewer == Viewer::Everything && tgid.0 < 10);
                continue;
            }
            PublisherRequest::Outlook(reply) => {
                let _ = reply.send(Arc::new(outlook(processes)));
                continue;
            }
            PublisherRequest::Events(viewer, reply) => {
                let _ = reply.send(events_of(viewer, processes));
                continue;
            }
            // Only pages send this question.
            PublisherRequest::Trail(_) => continue,
            PublisherRequest::History(reply) => {
                let kept = protocol::HistoryFiles {
                    file: "/h/history.mwr".into(),
                    previous: None,
                    older: Vec::new(),
                    failing: None,
                };
                let _ = reply.send((processes > 3).then_some(kept));
                continue;
            }
        };
        let snapshots_total = made.fetch_add(1, Ordering::Relaxed) + 1;
        let agent = AgentState { snapshots_total, ..AgentState::default() };
        let snapshot = fixture::crowded_node(processes);
        let _ = reply.send(Arc::new(Published { snapshot, boottime_to_unix_ns: 5, agent }));
    }
}

/// Returns the outlook for the processes of the node, and for one that the node does not show.
fn outlook(processes: u32) -> protocol::OutlookMessage {
    let known = fixture::crowded_node(processes);
    let mut outlook = protocol::OutlookMessage::default();
    for process in &known.processes {
        let (tgid, observed_since_ns) = (process.tgid, process.observed_since_ns);
        outlook.leaks.push(LeaksView { tgid, observed_since_ns, too_short: 2, ..LeaksView::default() });
    }
    outlook.leaks.push(LeaksView { tgid: Tgid(4_000_000), ..LeaksView::default() });
    outlook.forecasts.time_ns = 7;
    outlook
}

fn hello(major: u32) -> Vec<u8> {
    let protocol = protocol::ProtocolVersion { major, minor: 0 };
    protocol::frame(&AgentRequest::Hello { protocol, program: "9.9\u{1b}[31m".to_owned() }).expect("it can be written")
}

fn followed(every_ms: u64) -> Vec<u8> {
    let follow = protocol::frame(&AgentRequest::Follow { every_ms }).expect("it can be written");
    [hello(PROTOCOL.major), follow].concat()
}

#[tokio::test]
async fn a_client_is_welcomed_and_reported() {
    let agent = FakeAgent::start(3, ROOMY, TIMEOUT);
    let mut client = AgentClient::meet(&agent.path()).await.expect("it welcomes");
    for _ in 0..2 {
        let seen = client.snapshot().await.expect("it answers");
        // The tests run as root in some places, and in others as a user who owns none of these
        // processes.
        let shown = match client.viewer() {
            Viewer::Everything => 3,
            Viewer::User(_) => 0,
        };
        assert_eq!((seen.snapshot.processes.len(), seen.boottime_to_unix_ns), (shown, 5));
    }
    agent.until(|state| state.clients == 1).await;
    drop(client);
    agent.until(|state| (state.clients, state.clients_total) == (0, 1)).await;
    assert_eq!((agent.access.state().clients_refused_total, agent.access.state().clients_dropped_total), (0, 0));
}

#[tokio::test]
async fn agent_sends_growth_on_request_for_visible_processes_only() {
    let agent = FakeAgent::start(3, ROOMY, TIMEOUT);
    let mut client = AgentClient::meet(&agent.path()).await.expect("it welcomes");
    client.snapshot().await.expect("it answers");
    assert_eq!(client.outlook(), protocol::OutlookMessage::default(), "nobody asked for it");
    client.want_outlook();
    let seen = client.snapshot().await.expect("it answers");
    let shown: Vec<Tgid> = seen.snapshot.processes.iter().map(|process| process.tgid).collect();
    let of: Vec<Tgid> = client.outlook().leaks.iter().map(|leaks| leaks.tgid).collect();
    assert_eq!((of, client.outlook().forecasts.time_ns), (shown, 7));
}

#[tokio::test]
async fn peaks_begin_again_of_what_the_asker_may_see_and_of_nothing_else() {
    let agent = FakeAgent::start(3, ROOMY, TIMEOUT);
    let viewer = AgentClient::meet(&agent.path()).await.expect("it welcomes").viewer();
    let reset = AgentClient::reset_peaks(&agent.path(), Tgid(7)).await;
    match viewer {
        Viewer::Everything => assert_eq!(reset, Ok(())),
        Viewer::User(_) => assert!(reset.is_err()),
    }
    let refused = AgentClient::reset_peaks(&agent.path(), Tgid(70)).await.expect_err("it sees none").to_string();
    assert_eq!(refused, "it refused: process 70 is not visible to you");
}

#[tokio::test]
async fn agent_reports_its_history_file_to_viewers_of_everything_only() {
    for (processes, has_one) in [(3, false), (4, true)] {
        let agent = FakeAgent::start(processes, ROOMY, TIMEOUT);
        let (kept, viewer) = AgentClient::history(&agent.path()).await.expect("it answers");
        let is_reported = has_one && viewer == Viewer::Everything;
        assert_eq!(kept.map(|kept| kept.file), is_reported.then(|| "/h/history.mwr".into()));
    }
}

#[tokio::test]
async fn a_follower_gets_one_snapshot_after_another() {
    let agent = FakeAgent::start(1, ROOMY, QUICK);
    let stream = agent.connect().await;
    protocol::send(&stream, &followed(0)).await.expect("it fits");
    let mut inbox = Inbox::new(protocol::ANSWER_BYTES);
    for expected in ["welcome", "snapshot", "snapshot", "snapshot", "snapshot", "snapshot"] {
        let frame = inbox.receive(&stream).await.expect("it answers").expect("it goes on");
        assert!(String::from_utf8_lossy(&frame).starts_with(&format!("{{\"{expected}\"")), "{expected}");
    }
}

#[tokio::test]
async fn another_version_gets_a_sentence_without_its_escapes() {
    let agent = FakeAgent::start(1, ROOMY, TIMEOUT);
    let answer = agent.last_answer_to(&hello(PROTOCOL.major + 1)).await.expect("a sentence");
    assert!(answer.contains("refused") && answer.contains("use the same version of both"), "{answer}");
    assert!(answer.contains("9.9") && !answer.contains("\\u001b["), "{answer}");
    agent.until(|state| state.clients_refused_total == 1 && state.clients == 0).await;
}

#[tokio::test]
async fn agent_refuses_garbage_with_a_message_and_serves_other_clients() {
    let agent = FakeAgent::start(2, ROOMY, TIMEOUT);
    let valid = hello(PROTOCOL.major);
    let snapshot = protocol::frame(&AgentRequest::Snapshot).expect("it can be written");
    for garbage in [
        b"GET /metrics HTTP/1.1\r\n\r\n".to_vec(),
        vec![0xff; 100],
        vec![0, 0, 0, 2, b'{', b'}'],
        vec![0, 0, 0, 0],
        snapshot,
        [valid.clone(), valid.clone()].concat(),
        [valid.clone(), vec![0, 0, 0x10, 1]].concat(),
        [valid, vec![0, 0, 0, 1, 0xff]].concat(),
    ] {
        let answer = agent.last_answer_to(&garbage).await.unwrap_or_else(|| panic!("no answer to {garbage:?}"));
        assert!(answer.contains("not understood"), "{answer}");
    }
    assert_eq!(agent.access.state().clients_refused_total, 8);
    let mut client = AgentClient::meet(&agent.path()).await.expect("it welcomes");
    assert!(client.snapshot().await.is_ok());
}

#[tokio::test]
async fn agent_drops_mute_idle_and_slow_clients() {
    let agent = FakeAgent::start(200, ROOMY, QUICK);
    let mute = agent.connect().await;
    agent.until(|state| state.clients_dropped_total == 1).await;
    let idle = agent.connect().await;
    protocol::send(&idle, &hello(PROTOCOL.major)).await.expect("it fits");
    agent.until(|state| state.clients_dropped_total == 2).await;
    // A user's view of other users' processes is small, so it takes many answers to fill a socket
    // that is not read.
    let slow = agent.connect().await;
    protocol::send(&slow, &followed(100)).await.expect("it fits");
    let mut reader = AgentClient::meet(&agent.path()).await.expect("it welcomes");
    while agent.access.state().clients_dropped_total < 3 {
        assert!(reader.snapshot().await.is_ok(), "others are answered meanwhile");
    }
    drop((mute, idle, slow));
}

#[tokio::test]
async fn agent_refuses_clients_past_its_limit() {
    let agent = FakeAgent::start(1, ConnectionLimit { clients: 1, users: 1, per_user: 1 }, TIMEOUT);
    let first = AgentClient::meet(&agent.path()).await.expect("it welcomes");
    let Err(NoAgent::Unusable(why)) = AgentClient::meet(&agent.path()).await else { panic!("a second one") };
    assert!(why.contains("limit of clients"), "{why}");
    drop(first);
    agent.until(|state| state.clients == 0).await;
    assert!(AgentClient::meet(&agent.path()).await.is_ok());
}

#[tokio::test]
async fn a_client_says_what_is_wrong_with_an_agent() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("socket");
    assert_eq!(AgentClient::meet(&path).await.map(drop), Err(NoAgent::Absent));
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket"));
    assert!(AgentClient::meet(&path).await.expect_err("dead").to_string().contains("nothing is listening"));
    std::fs::remove_file(&path).expect("it is there");
    let listener = UnixListener::bind(&path).expect("a socket");
    let later = Welcome {
        protocol: protocol::ProtocolVersion { major: PROTOCOL.major + 1, minor: 0 },
        program: "9.9".to_owned(),
        viewer: Viewer::User(7),
    };
    for (answer, sentence) in [
        (protocol::frame(&AgentAnswer::Welcome(later)), "it is memwatch 9.9 and speaks protocol 3, this is"),
        (protocol::frame(&AgentAnswer::Refused { why: "go \u{1b}[2Jaway".into() }), "it refused: go \\u{1b}[2Jaway"),
        (protocol::frame(&"something else"), "its answer is not understood"),
        (Ok(vec![0xff; 8]), "4294967295 bytes"),
        (Ok(Vec::new()), "it closed the connection"),
    ] {
        let answer = answer.expect("it can be written");
        let one_client = async {
            let (stream, _) = listener.accept().await.expect("a client");
            protocol::send(&stream, &answer).await.expect("it fits");
        };
        let (met, ()) = tokio::join!(AgentClient::meet(&path), one_client);
        let why = met.expect_err(sentence).to_string();
        assert!(why.contains(sentence), "{why}");
    }
}

#[tokio::test]
async fn agent_snapshot_is_serialized_once_per_viewer() {
    let published = |snapshots_total| {
        let agent = AgentState { snapshots_total, ..AgentState::default() };
        Arc::new(Published { snapshot: fixture::crowded_node(1000), boottime_to_unix_ns: 5, agent })
    };
    let writer = FrameCache::default();
    let first = writer.write(published(1), Viewer::Everything).await.expect("it can be written");
    let again = writer.write(published(1), Viewer::Everything).await.expect("it can be written");
    assert!(Arc::ptr_eq(&first, &again));
    let other = writer.write(published(1), Viewer::User(4242)).await.expect("it can be written");
    assert!(other.len() < first.len() / 10, "{} of {}", other.len(), first.len());
    let next = writer.write(published(2), Viewer::Everything).await.expect("it can be written");
    assert!(!Arc::ptr_eq(&first, &next));
}
