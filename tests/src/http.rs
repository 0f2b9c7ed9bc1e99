//! Sends one HTTP request and reads the answer.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};

use crate::TIMEOUT;

/// Answer to a request.
#[derive(Clone, Debug)]
pub struct HttpAnswer {
    /// Status, such as 200.
    pub status: u16,
    /// Everything before the body.
    pub head: String,
    /// Body, with the chunks of a chunked one joined.
    pub body: String,
}

/// Requests a path. Returns `None` if nothing listens there (yet) or the answer breaks off.
pub fn get(address: SocketAddr, path: &str, headers: &str) -> Option<HttpAnswer> {
    ask(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}\r\n"))
}

/// Reads a path's event stream up to the next event of this kind and returns that event's data, or
/// `None` if no such event comes.
pub fn event(address: SocketAddr, path: &str, kind: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).ok()?;
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    lines.find(|line| line.strip_prefix("event: ") == Some(kind))?;
    lines.find_map(|line| line.strip_prefix("data: ").map(str::to_owned))
}

/// Posts JSON to a path. Returns `None` if nothing listens there or the answer breaks off.
pub fn post(address: SocketAddr, path: &str, body: &serde_json::Value) -> Option<HttpAnswer> {
    let body = body.to_string();
    let head =
        format!("POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\n");
    ask(address, &format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()))
}

fn ask(address: SocketAddr, request: &str) -> Option<HttpAnswer> {
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
    Some(HttpAnswer { status, head: head.to_owned(), body })
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

/// Returns a loopback port on which nothing listens at present.
///
/// # Panics
/// When there is none.
pub fn free_port() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it is bound")
}
