use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use tokio::sync::oneshot;

use super::*;
use crate::agent::publish::{AgentState, Question};
use crate::render::fixture;

/// How long a client waits: longer than any limit of the server.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs clients against the server, over a real socket, and a watch that answers if it `answers`.
fn serving(answers: bool, clients: impl FnOnce(SocketAddr)) {
    let (stop, stopped) = oneshot::channel::<()>();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    let server = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            listener.set_nonblocking(true).expect("a plain setting");
            let listener = TcpListener::from_std(listener).expect("a listener");
            let (source, mut requests) = SnapshotSource::new();
            tokio::spawn(serve(listener, source, 0));
            tokio::spawn(async move {
                while let Some(question) = requests.recv().await {
                    let Question::Latest(reply) = question else { return };
                    if !answers {
                        return;
                    }
                    let snapshot = fixture::busy_node();
                    let (boottime_to_unix_ns, agent) = (fixture::clock().boottime_to_unix_ns, AgentState::default());
                    let _ = reply.send(Arc::new(Published { snapshot, boottime_to_unix_ns, agent }));
                }
            });
            let _ = stopped.await;
        });
    });
    clients(address);
    drop(stop);
    server.join().expect("the server does not panic");
}

fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(LIMIT)).expect("a plain setting");
    // It may answer, and close, before it has read everything: then the kernel says so after the answer.
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
            ("GET / HTTP/1.1", "404 Not Found"),
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
fn a_watch_that_does_not_answer_is_neither_healthy_nor_ready() {
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
fn clients_that_say_nothing_keep_nobody_out_for_long() {
    serving(true, |address| {
        let mut silent = Vec::new();
        for _ in 0..2 * CONNECTIONS {
            silent.push(TcpStream::connect(address).expect("it listens"));
        }
        let answer = ask(address, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        drop(silent);
    });
}
