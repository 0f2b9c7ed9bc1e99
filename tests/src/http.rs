//! One HTTP request and its answer, for tests.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};

use crate::TIMEOUT;

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status, such as 200.
    pub status: u16,
    /// Everything before the body.
    pub head: String,
    /// The body; a chunked one is put together.
    pub body: String,
}

/// Asks for a path; `None` where nobody listens (yet) or the answer breaks off.
pub fn get(address: SocketAddr, path: &str, headers: &str) -> Option<Answer> {
    ask(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}\r\n"))
}

/// The data of the next event of this kind that a path sends, one line each; `None` where none comes.
pub fn event(address: SocketAddr, path: &str, kind: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).ok()?;
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    lines.find(|line| line.strip_prefix("event: ") == Some(kind))?;
    lines.find_map(|line| line.strip_prefix("data: ").map(str::to_owned))
}

/// Posts JSON to a path, likewise.
pub fn post(address: SocketAddr, path: &str, body: &serde_json::Value) -> Option<Answer> {
    let body = body.to_string();
    let head =
        format!("POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\n");
    ask(address, &format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()))
}

fn ask(address: SocketAddr, request: &str) -> Option<Answer> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8(answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let is_chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let body = if is_chunked { unchunk(body)? } else { body.to_owned() };
    Some(Answer { status, head: head.to_owned(), body })
}

fn unchunk(mut body: &str) -> Option<String> {
    let mut whole = String::new();
    loop {
        let (length, rest) = body.split_once("\r\n")?;
        let length = usize::from_str_radix(length, 16).ok()?;
        if length == 0 {
            return Some(whole);
        }
        whole.push_str(rest.get(..length)?);
        body = rest.get(length..)?.strip_prefix("\r\n")?;
    }
}

/// A port on loopback where nobody listens now.
///
/// # Panics
/// When there is none.
pub fn free_port() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it is bound")
}
