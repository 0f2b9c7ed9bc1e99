use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use tokio::sync::oneshot;

use super::*;
use crate::agent::publish::{AgentState, PublisherRequest};
use crate::agent::trail::Trail;
use crate::agent::web::access::Exposure;
use crate::render::fixture;

/// Time limit of a client, longer than every limit of the server.
const LIMIT: Duration = Duration::from_secs(60);

/// Settings of the usual server.
pub(in crate::agent) const SERVING: Serving = Serving::new(0, true);
/// A server with the clients' time limits, so that it drops no client because of time.
const PATIENT: Serving =
    Serving { processes: 0, needs_nvml: true, certificate: None, longest_head: LIMIT, longest_connection: LIMIT };

/// Runs clients against the server over a real socket. The watch answers only if `answers` is true.
fn serving(answers: bool, clients: impl FnOnce(SocketAddr)) {
    serving_as(SERVING, answers.then(fixture::busy_node), clients);
}

/// Runs clients against a server whose watch answers with this snapshot.
fn serving_as(serving: Serving, snapshot: Option<Snapshot>, clients: impl FnOnce(SocketAddr)) {
    serving_page(serving, snapshot, |address, _| clients(address));
}

/// Runs clients that get links to the page.
pub(in crate::agent) fn serving_page(
    serving: Serving,
    snapshot: Option<Snapshot>,
    clients: impl FnOnce(SocketAddr, &PageAccess),
) {
    let (stop, stopped) = oneshot::channel::<()>();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    let access = PageAccess::new(Some(address), Exposure::Loopback);
    let page = Arc::clone(&access);
    let server = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            listener.set_nonblocking(true).expect("a plain setting");
            let listener = TcpListener::from_std(listener).expect("a listener");
            let (source, mut requests) = SnapshotSource::new();
            tokio::spawn(serve(listener, (source, page), serving));
            tokio::spawn(async move {
                let (boottime_to_unix_ns, agent) = (fixture::clock().boottime_to_unix_ns, AgentState::default());
                let published = snapshot.map(|snapshot| Arc::new(Published { snapshot, boottime_to_unix_ns, agent }));
                while let Some(question) = requests.recv().await {
                    let Some(published) = &published else { return };
                    match question {
                        PublisherRequest::Latest(reply) => drop(reply.send(Arc::clone(published))),
                        PublisherRequest::Outlook(reply) => drop(reply.send(Arc::default())),
                        PublisherRequest::Trail(reply) => {
                            let mut trail = Trail::default();
                            trail.note(&published.snapshot);
                            drop(reply.send(trail));
                        }
                        _ => return,
                    }
                }
            });
            let _ = stopped.await;
        });
    });
    clients(address, &access);
    drop(stop);
    server.join().expect("the server does not panic");
}

/// Connects clients that have sent only this part of a request.
fn holding(address: SocketAddr, count: usize, request: &str) -> Vec<TcpStream> {
    let hold = |_| {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.write_all(request.as_bytes()).expect("it reads");
        stream
    };
    (0..count).map(hold).collect()
}

/// Returns whether the server has neither answered nor hung up.
fn is_held(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).expect("a plain setting");
    matches!(stream.read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
}

fn assert_alive(address: SocketAddr) {
    let answer = ask(address, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
}

pub(in crate::agent) fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(LIMIT)).expect("a plain setting");
    // The server may answer and close before it has read everything; the write then fails after the
    // answer.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).expect("text")
}

#[test]
fn metrics_come_in_the_form_that_is_asked_for() {
    serving(true, |address| {
        let plain = ask(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(plain.starts_with("HTTP/1.1 200 OK\r\n"), "{plain}");
        assert!(plain.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{plain}");
        assert!(plain.contains("\nmemwatch_build_info{") && !plain.contains("# EOF"), "{plain}");
        let accept = "Accept: text/plain;q=0.1\r\nAccept: application/openmetrics-text;version=1.0.0";
        let open = ask(address, &format!("GET /metrics HTTP/1.1\r\nHost: x\r\n{accept}\r\n\r\n"));
        assert!(
            open.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"),
            "{open}"
        );
        assert!(open.ends_with("# EOF\n"), "{open}");
    });
}

#[test]
fn head_says_what_get_would_without_the_text() {
    serving(true, |address| {
        let head = ask(address, "HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        assert!(!head.contains("memwatch_"), "{head}");
    });
}

#[test]
fn health_and_readiness_are_reported_and_all_else_is_not_found() {
    serving(true, |address| {
        for (request, status) in [
            ("GET /healthz HTTP/1.1", "200 OK"),
            ("GET /readyz HTTP/1.1", "200 OK"),
            ("HEAD /readyz HTTP/1.1", "200 OK"),
            ("GET / HTTP/1.1", "403 Forbidden"),
            ("GET /metrics/ HTTP/1.1", "404 Not Found"),
            ("GET /api/v1/snapshot HTTP/1.1", "404 Not Found"),
            ("GET /../etc/passwd HTTP/1.1", "404 Not Found"),
            ("POST /metrics HTTP/1.1", "405 Method Not Allowed"),
        ] {
            let answer = ask(address, &format!("{request}\r\nHost: x\r\n\r\n"));
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{request}: {answer}");
        }
    });
}

#[test]
fn http_without_an_answering_watch_is_neither_healthy_nor_ready() {
    serving(false, |address| {
        for path in ["healthz", "readyz", "metrics"] {
            let answer = ask(address, &format!("GET /{path} HTTP/1.1\r\nHost: x\r\n\r\n"));
            assert!(answer.starts_with("HTTP/1.1 503 "), "{path}: {answer}");
        }
    });
}

#[test]
fn a_head_without_end_is_refused() {
    serving(true, |address| {
        let long = "x".repeat(HEAD_BYTES);
        let answer = ask(address, &format!("GET /metrics HTTP/1.1\r\nHost: x\r\nX-Long: {long}\r\n\r\n"));
        assert!(answer.starts_with("HTTP/1.1 431 ") || answer.is_empty(), "{answer}");
        let many = "A: b\r\n".repeat(HEADERS + 1);
        let answer = ask(address, &format!("GET /metrics HTTP/1.1\r\nHost: x\r\n{many}\r\n"));
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
        assert!(ask(address, "\x16\x03\x01\x02").starts_with("HTTP/1.1 400 "), "TLS on a plain port");
    });
}

#[test]
fn http_half_requests_do_not_block_others_and_are_kept_below_the_limit() {
    serving_as(PATIENT, Some(fixture::busy_node()), |address| {
        let halves = holding(address, 40, "GET /metrics HTTP/1.1\r\nHost: x\r\n");
        assert_alive(address);
        let metrics = ask(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(metrics.starts_with("HTTP/1.1 200 OK\r\n"), "{metrics}");
        assert!(halves.iter().all(is_held), "there is room for all of them");
    });
}

#[test]
fn http_half_requests_at_the_limit_evict_the_oldest() {
    serving_as(PATIENT, Some(fixture::busy_node()), |address| {
        let halves = holding(address, 2 * CONNECTIONS, "GET /metrics HTTP/1.1\r\n");
        assert_alive(address);
        let held: Vec<bool> = halves.iter().map(is_held).collect();
        // The liveness probe has taken one more connection.
        let gone = CONNECTIONS + 1;
        assert!(held[..gone].iter().all(|held| !held) && held[gone..].iter().all(|held| *held), "{held:?}");
    });
}

#[test]
fn http_scrapes_not_read_do_not_delay_the_liveness_probe() {
    // Larger than the buffers of both sockets, so that the server cannot finish writing.
    let serving = Serving { processes: 20_000, ..PATIENT };
    serving_as(serving, Some(fixture::crowded_node(20_000)), |address| {
        let request = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
        let scrapes = holding(address, SCRAPES + 4, request);
        for mut scrape in &scrapes[..SCRAPES] {
            scrape.set_read_timeout(Some(LIMIT)).expect("a plain setting");
            scrape.read_exact(&mut [0]).expect("its answer has begun");
        }
        assert_alive(address);
        // A client that reads waits for them at most a second, whatever they do.
        let metrics = ask(address, request);
        assert!(metrics.starts_with("HTTP/1.1 200 OK\r\n"), "{}", &metrics[..metrics.len().min(200)]);
    });
}

#[test]
fn http_slow_clients_do_not_delay_the_liveness_probe() {
    let serving = Serving { processes: 20_000, ..PATIENT };
    serving_as(serving, Some(fixture::crowded_node(20_000)), |address| {
        let slow = holding(address, CONNECTIONS, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        for _ in 0..3 {
            assert_alive(address);
        }
        drop(slow);
    });
}

#[test]
fn http_readiness_requires_nvml_unless_started_without_it() {
    let mut snapshot = fixture::busy_node();
    snapshot.nvml = NvmlState::Unavailable("no NVIDIA driver is loaded".to_owned());
    let ready = "GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n";
    serving_as(SERVING, Some(snapshot.clone()), |address| {
        let answer = ask(address, ready);
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        for part in ["not ready: NVML: no NVIDIA driver is loaded.", "tried again", "--no-nvml"] {
            assert!(answer.contains(part), "no {part} in {answer}");
        }
        assert_alive(address);
    });
    serving_as(Serving::new(0, false), Some(snapshot.clone()), |address| {
        assert!(ask(address, ready).starts_with("HTTP/1.1 200 OK\r\n"));
    });
    snapshot.nvml = NvmlState::Starting;
    serving_as(SERVING, Some(snapshot), |address| {
        let answer = ask(address, ready);
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("NVML has not answered yet"), "{answer}");
    });
}
