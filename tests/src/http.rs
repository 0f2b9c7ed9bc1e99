//! One HTTP request and its answer, for tests.

use std::io::{Read as _, Write as _};
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
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}\r\n").ok()?;
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
