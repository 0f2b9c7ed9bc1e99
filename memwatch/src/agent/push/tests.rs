use std::io::Read as _;
use std::net::TcpListener;
use std::thread::JoinHandle;

use flate2::read::GzDecoder;

use super::args::Protocol;
use super::delivery::deliver;
use super::receiver::tests::named;
use super::*;
use crate::agent::metrics::otlp::messages::{ExportRequest, PartialSuccess, Response};

const LONG: Duration = Duration::from_secs(60);

fn block<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(future)
}

fn request() -> Vec<Bytes> {
    vec![compressed(&ExportRequest::default().encode_to_vec())]
}

fn http(status: &str, body: &[u8]) -> Vec<u8> {
    [format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
}

/// Starts a receiver that accepts one connection, sends this answer and exits. Returns its address
/// and the received bytes.
fn answering(answer: Vec<u8>) -> (String, JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}/below", listener.local_addr().expect("it is bound"));
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("somebody comes");
        let mut sent = vec![0; 64 << 10];
        let mut length = 0;
        // hyper sends the whole request in its first or second write.
        while length == 0 || !sent[..length].windows(4).any(|end| end == b"\r\n\r\n") {
            let read = stream.read(&mut sent[length..]).expect("a request");
            assert!(read > 0, "a whole request");
            length += read;
        }
        let _ = stream.write_all(&answer);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        // Reads until the client hangs up: closing a socket with unread bytes would discard the
        // answer.
        while let Ok(read @ 1..) = stream.read(&mut sent[length..]) {
            length += read;
        }
        sent.truncate(length);
        sent
    });
    (url, thread)
}

#[test]
fn a_request_has_the_path_its_headers_and_a_compressed_body() {
    let (url, thread) = answering(http("200 OK", &Response::default().encode_to_vec()));
    let mut receiver = named(&url, None).expect("an address").expect("it is named");
    receiver.headers.push(crate::options::headers::header("Authorization: Bearer x").expect("a header"));
    let message =
        ExportRequest { resource_metrics: vec![crate::agent::metrics::otlp::messages::ResourceMetrics::default()] };
    block(deliver(&receiver, vec![compressed(&message.encode_to_vec())], LONG)).expect("it is accepted");
    let sent = thread.join().expect("it has answered");
    let end = sent.windows(4).position(|end| end == b"\r\n\r\n").expect("a head") + 4;
    let head = String::from_utf8_lossy(&sent[..end]).to_ascii_lowercase();
    assert!(head.starts_with("post /below/v1/metrics http/1.1\r\n"), "{head}");
    for line in ["content-type: application/x-protobuf", "content-encoding: gzip", "authorization: bearer x"] {
        assert!(head.contains(&format!("{line}\r\n")), "{line}: {head}");
    }
    let mut body = Vec::new();
    GzDecoder::new(&sent[end..]).read_to_end(&mut body).expect("gzip");
    assert_eq!(ExportRequest::decode(&*body).expect("a message"), message);
}

#[test]
fn otlp_rejection_is_reported_with_a_fix() {
    let rejected = |rejected_data_points| {
        let part = PartialSuccess { rejected_data_points, error_message: "too\n many \x1b[2Jseries".to_owned() };
        Response { partial_success: Some(part) }.encode_to_vec()
    };
    for (answer, what, fix) in [
        (http("503 Service Unavailable", b"later,\n please"), "it answers 503 Service Unavailable: later, please", ""),
        (http("401 Unauthorized", b""), "it answers 401 Unauthorized", "--otlp-header-file"),
        (http("404 Not Found", b"<html>"), "404 Not Found", "Is the path right?"),
        (http("307 Temporary Redirect", b""), "307", "Use the address"),
        (http("200 OK", &rejected(7)), "it rejects 7 points: too many", ""),
        (http("200 OK", b"<html>"), "its answer is not OTLP", "Is it a receiver"),
        (b"SSH-2.0-x\r\n".to_vec(), "does not speak HTTP", "--otlp-protocol grpc; if the server uses TLS"),
        (Vec::new(), "does not speak HTTP", "--otlp-protocol grpc"),
    ] {
        let (url, thread) = answering(answer);
        let receiver = named(&url, None).expect("an address").expect("it is named");
        let trouble = block(deliver(&receiver, request(), LONG)).expect_err(what);
        assert!(trouble.what.contains(what) && !trouble.what.contains(['\n', '\x1b']), "{what}: {trouble:?}");
        assert!(trouble.fix.clone().unwrap_or_default().contains(fix), "{what}: {trouble:?}");
        drop(thread);
    }
    let (url, _thread) = answering(http("200 OK", &rejected(0)));
    let receiver = named(&url, None).expect("an address").expect("it is named");
    block(deliver(&receiver, request(), LONG)).expect("what is not rejected is a warning at most");
}

#[test]
fn otlp_refused_connection_non_grpc_and_timeout_are_told_apart() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    for protocol in [Protocol::Http, Protocol::Grpc] {
        let receiver = named(&url, Some(protocol)).expect("an address").expect("it is named");
        let trouble = block(deliver(&receiver, request(), Duration::from_millis(50))).expect_err("it never accepts");
        assert_eq!(trouble.what, "it was not accepted within 0.05 s");
    }
    drop(listener);
    for protocol in [Protocol::Http, Protocol::Grpc] {
        let receiver = named(&url, Some(protocol)).expect("an address").expect("it is named");
        let trouble = block(deliver(&receiver, request(), LONG)).expect_err("nobody listens");
        assert!(trouble.what.contains("no connection: Connection refused"), "{trouble:?}");
    }
    let (url, _thread) = answering(http("400 Bad Request", b""));
    let url = url.trim_end_matches("/below");
    let receiver = named(url, Some(Protocol::Grpc)).expect("an address").expect("it is named");
    let trouble = block(deliver(&receiver, request(), LONG)).expect_err("it is HTTP/1.1");
    assert!(trouble.what.contains("does not speak gRPC"), "{trouble:?}");
    assert!(trouble.fix.clone().unwrap_or_default().contains("--otlp-protocol http"), "{trouble:?}");
}

#[test]
fn every_failure_is_counted_and_only_a_change_is_reported() {
    let pushes = Pushes::default();
    assert_eq!(pushes.state(), PushState { is_up: None, failures_total: 0 });
    let reported = [true, true, false, false, true].map(|is_accepted| pushes.note(is_accepted));
    assert_eq!(reported, [true, false, true, false, true]);
    assert_eq!(pushes.state(), PushState { is_up: Some(true), failures_total: 2 });
}
