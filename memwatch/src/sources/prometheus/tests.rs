use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;

use std::path::Path;

use super::*;

const WANTED: AnswerRequest = AnswerRequest { labels: &["instance"], most: 10 };
const ONE: &str = r#"{"status":"success","data":{"resultType":"vector","result":[
    {"metric":{"__name__":"up","instance":"a:1"},"value":[1.5,"2.5e3"]}]}}"#;

fn block<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(future)
}

fn request(stream: &mut TcpStream) -> String {
    let (mut request, mut part) = (String::new(), [0; 4096]);
    while !request.contains("query=") {
        let read = stream.read(&mut part).expect("a request");
        assert!(read > 0, "{request}");
        request.push_str(&String::from_utf8_lossy(&part[..read]));
    }
    request
}

/// Answers consecutive connections with these answers. Returns a client of the server, and a handle
/// for the received requests.
fn answering(answers: Vec<Vec<u8>>) -> (PrometheusClient, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}/prefix/", listener.local_addr().expect("it is bound"));
    let thread = std::thread::spawn(move || {
        let one = |answer: Vec<u8>| {
            let (mut stream, _) = listener.accept().expect("somebody comes");
            let request = request(&mut stream);
            // A client that does not want the whole answer closes the connection.
            let _ = stream.write_all(&answer);
            request
        };
        answers.into_iter().map(one).collect()
    });
    (client(&url, Duration::from_secs(60)), thread)
}

fn client(url: &str, timeout: Duration) -> PrometheusClient {
    let tenant = (HeaderName::from_static("x-scope-orgid"), HeaderValue::from_static("7"));
    let manner = Manner { headers: vec![tenant], timeout, authorities: None };
    PrometheusClient::new(PrometheusServer::parse(url).expect("an address"), manner)
}

fn http(status: &str, headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

#[test]
fn prometheus_query_sends_headers_and_reconnects_after_a_close() {
    let (mut client, thread) = answering(vec![http("200 OK", "", ONE), http("200 OK", "", ONE)]);
    block(async {
        for _ in 0..2 {
            let (answer, length) = client.query("up{a=\"b\"} + 1", WANTED).await.expect("it answers");
            assert_eq!(answer.series, [PrometheusSeries { key: vec!["a:1".to_owned()], value: 2_500.0 }]);
            assert_eq!(length.bytes, ONE.len());
        }
    });
    for request in thread.join().expect("it has answered") {
        assert!(request.starts_with("POST /prefix/api/v1/query HTTP/1.1\r\n"), "{request}");
        assert!(request.contains("x-scope-orgid: 7\r\n") && request.contains("query=up%7Ba%3D%22b%22%7D%20%2B%201"));
    }
}

#[test]
fn prometheus_failure_is_reported_with_a_fix() {
    let refusal = r#"{"status":"error","errorType":"bad_data","error":"parse error"}"#;
    for (answer, what, fix) in [
        (http("400 Bad Request", "", refusal), "refuses up: parse error", ""),
        (http("401 Unauthorized", "", "no"), "401 Unauthorized", "--header-file"),
        (http("403 Forbidden", "", refusal), "403 Forbidden", "--header-file"),
        (http("302 Found", "location: /login\r\n", ""), "302 Found, to /login", "address that it redirects to"),
        (http("404 Not Found", "", "<html>\n <b>\u{1b}"), "404 Not Found", "Is the path right?"),
        (http("200 OK", "", ""), "EOF while parsing a value at line 1 column 0): nothing", "Is the path right?"),
        (http("400 Bad Request", "", "Client sent an HTTP request to an HTTPS server.\n"), "it speaks TLS", "https://"),
        (http("503 Service Unavailable", "", "starting"), "503 Service Unavailable", "Is the path right?"),
        (b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(), "does not speak HTTP", "something else at this port"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{".to_vec(), "is incomplete", ""),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n".to_vec(), "longer than 32 MiB", "-n"),
    ] {
        let (mut client, thread) = answering(vec![answer]);
        let trouble = block(client.query("up", WANTED)).expect_err("it is no answer");
        assert!(trouble.what.contains(what) && trouble.fix.clone().unwrap_or_default().contains(fix), "{trouble:?}");
        drop(thread.join());
    }
    let trouble = block(client("http://127.0.0.1:1", Duration::from_secs(60)).query("up", WANTED)).expect_err("nobody");
    assert!(trouble.what.contains("no connection") && trouble.fix.is_some(), "{trouble:?}");
}

#[test]
fn an_answer_without_end_is_given_up() {
    let begin = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
    let (mut client, thread) = answering(vec![[begin, vec![b' '; LONGEST_ANSWER_BYTES + (1 << 20)]].concat()]);
    let trouble = block(client.query("up", WANTED)).expect_err("it is too long");
    assert!(trouble.what.contains("longer than 32 MiB"), "{trouble:?}");
    drop(thread.join());
}

#[test]
fn prometheus_query_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    let mut client = client(&url, Duration::from_millis(20));
    let trouble = block(client.query("up", WANTED)).expect_err("it only listens");
    assert!(trouble.what.contains("no answer within 0.02 s to up"), "{trouble:?}");
    assert!(trouble.fix.expect("a way out").contains("--timeout"));
}

#[test]
fn an_address_has_a_scheme_and_no_password() {
    let server = PrometheusServer::parse("http://[::1]:9090/prometheus/").expect("an address");
    assert_eq!((server.address.host.as_str(), server.address.port), ("::1", 9090));
    assert_eq!(server.url(), "http://[::1]:9090/prometheus");
    let server = PrometheusServer::parse("https://metrics/select/0/prometheus/api/v1").expect("an address");
    assert_eq!((server.address.port, server.url().as_str()), (443, "https://metrics/select/0/prometheus"));
    for (text, sentence) in
        [("prometheus:9090", "http://HOST:PORT"), ("http://", "http://HOST:PORT"), ("http://a:b@c", "--header-file")]
    {
        assert!(PrometheusServer::parse(text).expect_err("no address").contains(sentence), "{text}");
    }
}

#[test]
fn a_file_of_authorities_has_certificates() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let why = Authorities::load(Some(file.path()), "--ca-file").expect_err("it is empty");
    assert!(why.contains("no certificate in PEM"), "{why}");
    let why = Authorities::load(Some(Path::new("/nowhere")), "--ca-file").expect_err("it is nowhere");
    assert!(why.contains("/nowhere"), "{why}");
}
