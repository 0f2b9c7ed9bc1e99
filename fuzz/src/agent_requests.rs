//! Untrusted input of an agent, and answers of a receiver of its pushes: frames on the socket, the
//! `Accept` line of a scrape, names of the page, answers of gRPC. hyper parses HTTP itself.
//!
//! The first byte selects the kind of input. For frames, the second byte sets the size of the
//! pieces in which they arrive.

use memwatch_core::snapshot::Viewer;
use prost::Message as _;

use crate::agent::metrics::accept;
use crate::agent::metrics::otlp::messages::Response;
use crate::agent::web::access::{Exposure, PageAccess};
use crate::client::protocol::{AgentRequest, Inbox, PageLink, REQUEST_BYTES, TooLong, frame};
use crate::sources::grpc;

/// Parses the bytes as the selected kind of input.
///
/// # Panics
/// When the parsed value differs from the input.
pub fn run(data: &[u8]) {
    let Some((selector, rest)) = data.split_first() else { return };
    match selector % 4 {
        0 => frames(rest),
        1 => scrape(&String::from_utf8_lossy(rest)),
        2 => page(&String::from_utf8_lossy(rest)),
        _ => answer(rest),
    }
}

/// Asserts that the frames of a stream, up to the first that is too long, do not depend on how the
/// stream is cut into pieces.
fn frames(data: &[u8]) {
    let Some((piece, stream)) = data.split_first() else { return };
    let (whole, cut) = (taken(stream, stream.len().max(1)), taken(stream, usize::from(*piece).max(1)));
    assert_eq!(whole, cut, "pieces of {piece}");
    for request in whole.0.iter().filter_map(|frame| serde_json::from_slice::<AgentRequest>(frame).ok()) {
        let written = frame(&request).expect("a request can be written");
        let mut inbox = Inbox::new(written.len());
        inbox.put(&written);
        let read = inbox.take().expect("it is short").expect("it is whole");
        assert_eq!(serde_json::from_slice::<AgentRequest>(&read).expect("it was written so"), request);
    }
}

fn taken(stream: &[u8], piece: usize) -> (Vec<Vec<u8>>, Option<TooLong>) {
    let (mut inbox, mut frames) = (Inbox::new(REQUEST_BYTES), Vec::new());
    for piece in stream.chunks(piece) {
        inbox.put(piece);
        loop {
            match inbox.take() {
                Ok(Some(frame)) => {
                    assert!(frame.len() <= REQUEST_BYTES, "{}", frame.len());
                    frames.push(frame);
                }
                Ok(None) => break,
                Err(why) => return (frames, Some(why)),
            }
        }
    }
    (frames, None)
}

fn scrape(line: &str) {
    let form = accept::form(Some(line));
    assert_eq!(form, accept::form(Some(line)), "the same line wants the same");
    assert!(form.content_type().contains("charset=utf-8"));
}

/// Asserts that no name can be guessed that opens a link, a session or a session's page.
fn page(name: &str) {
    let access = PageAccess::new(Some(([127, 0, 0, 1], 9747).into()), Exposure::Loopback);
    let PageLink::Open { url } = access.link(Viewer::User(7)) else { return };
    let link = url.rsplit('/').next().expect("a split has a part");
    assert_eq!(access.open(name).expect("no session is asked for"), None, "{name}");
    assert!(access.viewer(name).is_none() && access.open_page(name).is_none(), "{name}");
    let session = access.open(link).expect("there are random numbers").expect("the link is new");
    assert_eq!(access.viewer(&session), Some(Viewer::User(7)));
    assert_eq!(access.viewer(name), None, "{name}");
}

fn answer(body: &[u8]) {
    let Ok(message) = grpc::unframed(body) else { return };
    assert_eq!(grpc::framed(message, false), body);
    if let Ok(read) = Response::decode(message) {
        assert_eq!(Response::decode(&*read.encode_to_vec()).as_ref(), Ok(&read));
    }
}
