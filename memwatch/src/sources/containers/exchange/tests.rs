use super::*;
use crate::sources::containers::listener::{GrpcAnswer, Listener};

const MOST_BYTES: usize = 4096;

#[derive(Clone, PartialEq, Message)]
struct TextMessage {
    #[prost(string, tag = "1")]
    text: String,
}

fn word(text: &str) -> TextMessage {
    TextMessage { text: text.to_owned() }
}

async fn got(listener: &Listener) -> Result<Bytes, ExchangeError> {
    get(&listener.place(), "/containers/0a/json", MOST_BYTES).await
}

async fn called(listener: &Listener) -> Result<TextMessage, ExchangeError> {
    call(&listener.place(), "/test.Service/Say", &word("?"), MOST_BYTES).await
}

#[track_caller]
fn assert_failed<T: std::fmt::Debug>(answer: &Result<T, ExchangeError>, why: &str) {
    match answer {
        Err(ExchangeError::Failed(reason)) if reason.contains(why) => {}
        other => panic!("{why:?} was expected of {other:?}"),
    }
}

#[tokio::test]
async fn a_body_comes_whole_whether_counted_chunked_or_until_the_end() {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\n";
    for rest in [
        "Content-Length: 4\r\n\r\ntrue",
        "Transfer-Encoding: chunked\r\n\r\n1\r\nt\r\n3\r\nrue\r\n0\r\n\r\n",
        "Connection: close\r\n\r\ntrue",
    ] {
        let listener = Listener::saying(format!("{head}{rest}"), false);
        assert_eq!(got(&listener).await, Ok(Bytes::from_static(b"true")), "{rest}");
    }
}

#[tokio::test]
async fn engine_socket_without_a_listener_is_absent() {
    let listener = Listener::saying("", false);
    let place = EngineSocket { path: listener.path().with_file_name("nobody"), well_known: true, user: None };
    assert_eq!(get(&place, "/", MOST_BYTES).await, Err(ExchangeError::Absent));
    // A socket file that a runtime left behind when it exited.
    let left = tempfile::TempDir::new().expect("a temporary directory");
    let path = left.path().join("socket");
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket"));
    assert_eq!(get(&EngineSocket { path, ..listener.place() }, "/", MOST_BYTES).await, Err(ExchangeError::Absent));
}

#[tokio::test]
async fn engine_that_hangs_fails_after_the_timeout() {
    for words in ["", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"] {
        let listener = Listener::saying(words, true);
        assert_failed(&got(&listener).await, "no answer within");
    }
    let listener = Listener::saying("", true);
    assert_failed(&called(&listener).await, "no answer within");
}

#[tokio::test]
async fn an_answer_that_is_too_long_is_not_read_to_its_end() {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
    let endless = "x".repeat(1 << 20);
    for rest in ["Content-Length: 1048576\r\n\r\n", "\r\n"] {
        let listener = Listener::saying(format!("{head}{rest}{endless}"), true);
        assert_failed(&got(&listener).await, "length limit exceeded");
    }
    let headers = Listener::saying(format!("{head}X-Long: {endless}"), true);
    assert!(matches!(got(&headers).await, Err(ExchangeError::Failed(_))));
    let long = Listener::calls(move |_| GrpcAnswer::of(&word(&endless)));
    assert_failed(&called(&long).await, "length limit exceeded");
}

#[tokio::test]
async fn garbage_and_other_kinds_of_content_are_failures() {
    let html = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 4\r\n\r\ntrue";
    assert_failed(&got(&Listener::saying(html, false)).await, "is not application/json");
    let garbage =
        [&[0xff, 0x00, 0x1b][..], b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"];
    for words in garbage {
        let listener = Listener::saying(words, false);
        assert!(matches!(got(&listener).await, Err(ExchangeError::Failed(_))), "{words:?}");
        assert!(matches!(called(&listener).await, Err(ExchangeError::Failed(_))), "{words:?}");
    }
}

#[tokio::test]
async fn a_status_of_no_such_thing_is_an_answer_and_one_of_a_breakdown_is_not() {
    let status = |line: &str| Listener::saying(format!("HTTP/1.1 {line}\r\nContent-Length: 0\r\n\r\n"), false);
    assert!(matches!(got(&status("404 Not Found")).await, Err(ExchangeError::Unknown(_))));
    assert_failed(&got(&status("500 Internal Server Error")).await, "500");
    let refusing = Listener::calls(|_| GrpcAnswer::refusal("5"));
    assert_eq!(called(&refusing).await, Err(ExchangeError::Unknown("status 5 ".to_owned())));
}

#[tokio::test]
async fn a_call_brings_one_whole_message() {
    let listener = Listener::calls(|path| GrpcAnswer::of(&word(path)));
    assert_eq!(called(&listener).await, Ok(word("/test.Service/Say")));
    assert_eq!(called(&Listener::calls(|_| GrpcAnswer::of(&word("")))).await, Ok(word("")));
}

#[tokio::test]
async fn a_message_that_is_cut_compressed_or_no_message_is_a_failure() {
    let whole = GrpcAnswer::of(&word("train"));
    let with = |body: Vec<u8>| GrpcAnswer { body, ..whole.clone() };
    let cut = with(whole.body[..whole.body.len() - 1].to_vec());
    let twice = with([whole.body.clone(), whole.body.clone()].concat());
    let compressed = with([&[1], &whole.body[1..]].concat());
    let nonsense = with(vec![0, 0, 0, 0, 2, 0xff, 0xff]);
    let no_text = with(vec![0, 0, 0, 0, 3, 0x0a, 1, 0xff]);
    let html = GrpcAnswer { content_type: "text/html", ..whole.clone() };
    let without_status = GrpcAnswer { status: None, ..whole.clone() };
    for answer in [with(Vec::new()), cut, twice, compressed, nonsense, no_text, html, without_status] {
        let listener = Listener::calls({
            let answer = answer.clone();
            move |_| answer.clone()
        });
        assert!(matches!(called(&listener).await, Err(ExchangeError::Failed(_))), "{answer:?}");
    }
}

#[tokio::test]
async fn another_users_socket_is_not_believed() {
    let listener = Listener::reporting("true");
    // SAFETY: takes nothing and cannot fail.
    let us = unsafe { libc::geteuid() };
    let of = |user| EngineSocket { user: Some(user), ..listener.place() };
    assert_failed(&get(&of(us + 1), "/", MOST_BYTES).await, "the socket's server is user");
    assert_eq!(get(&of(us), "/", MOST_BYTES).await, Ok(Bytes::from_static(b"true")));
}
