//! Executes one push: sends the requests over one connection, within a time limit, and checks each
//! answer.

use std::future::Future;
use std::time::Duration;

use http_body_util::{BodyExt as _, Collected, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderMap, TE, USER_AGENT};
use hyper::http::request::Builder;
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::args::Protocol;
use super::receiver::Receiver;
use crate::agent::metrics::otlp::messages;
use crate::printable::printable;
use crate::sources::grpc;
use crate::sources::servers::{Trouble, connect};

/// Time limit for all requests of a push and their answers.
pub(super) const LONGEST: Duration = Duration::from_secs(10);
/// Maximum size of an answer in bytes.
const ANSWER_BYTES: usize = 64 << 10;
/// Maximum size of an answer's headers in bytes.
const HEADERS_BYTES: usize = 16 << 10;
/// Maximum number of characters of a receiver's message to show.
const SHOWN: usize = 160;

/// Sends requests that are compressed with gzip.
///
/// # Errors
/// If a request is not accepted completely. The remaining requests are not sent.
pub(super) async fn deliver(receiver: &Receiver, requests: Vec<Bytes>, longest: Duration) -> Result<(), Trouble> {
    let sent = async {
        match receiver.protocol {
            Protocol::Http => over_http(receiver, requests).await,
            Protocol::Grpc => over_grpc(receiver, requests).await,
        }
    };
    timeout(longest, sent).await.unwrap_or_else(|_elapsed| {
        Err(Trouble::bare(format!("it was not accepted within {} s", longest.as_secs_f64())))
    })
}

async fn over_http(receiver: &Receiver, requests: Vec<Bytes>) -> Result<(), Trouble> {
    let stream = connect(&receiver.address, receiver.authorities.as_ref(), b"http/1.1").await?;
    let mut http = http1::Builder::new();
    let opened = http.max_buf_size(HEADERS_BYTES).max_headers(64).handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = opened.map_err(|error| not_http(receiver, &error))?;
    let _driver = Driver(tokio::spawn(driven(connection)));
    for body in requests {
        sender.ready().await.map_err(|error| not_http(receiver, &error))?;
        let request = Request::post(&receiver.path).header(HOST, &receiver.address.authority);
        let request = request.header(CONTENT_TYPE, "application/x-protobuf").header(CONTENT_ENCODING, "gzip");
        let response = sender.send_request(whole(request, receiver, body)?).await;
        let response = response.map_err(|error| not_http(receiver, &error))?;
        let status = response.status();
        let body = collect(response).await?.to_bytes();
        if !status.is_success() {
            return Err(by_status(status, &body));
        }
        check(&body)?;
    }
    Ok(())
}

async fn over_grpc(receiver: &Receiver, requests: Vec<Bytes>) -> Result<(), Trouble> {
    let stream = connect(&receiver.address, receiver.authorities.as_ref(), b"h2").await?;
    let mut http = http2::Builder::new(TokioExecutor::new());
    let list = u32::try_from(HEADERS_BYTES).unwrap_or(u32::MAX);
    let opened = http.max_header_list_size(list).handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = opened.map_err(|error| not_grpc(&error))?;
    let _driver = Driver(tokio::spawn(driven(connection)));
    for message in requests {
        sender.ready().await.map_err(|error| not_grpc(&error))?;
        let request = Request::post(format!("{}{}", receiver.address.root(), receiver.path)).version(Version::HTTP_2);
        let request = request.header(CONTENT_TYPE, "application/grpc").header(TE, "trailers");
        let request = request.header("grpc-encoding", "gzip").header("grpc-timeout", format!("{}S", LONGEST.as_secs()));
        let request = whole(request, receiver, grpc::framed(&message, true))?;
        let response = sender.send_request(request).await.map_err(|error| not_grpc(&error))?;
        if response.status() != StatusCode::OK {
            return Err(by_status(response.status(), b""));
        }
        let early = response.headers().clone();
        let body = collect(response).await?;
        by_trailers(body.trailers().unwrap_or(&early))?;
        let unlike = |why: &str| Trouble::bare(format!("its answer is not gRPC: {why}"));
        check(grpc::unframed(&body.to_bytes()).map_err(unlike)?)?;
    }
    Ok(())
}

/// Task that drives a connection. Dropping it aborts the task.
struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs a connection to its end. Its error is dropped, because the pending request reports it.
async fn driven(connection: impl Future) {
    connection.await;
}

fn whole(request: Builder, receiver: &Receiver, body: Bytes) -> Result<Request<Full<Bytes>>, Trouble> {
    let request = request.header(USER_AGENT, concat!("memwatch/", env!("CARGO_PKG_VERSION")));
    let request = receiver.headers.iter().fold(request, |request, (name, value)| request.header(name, value));
    request.body(Full::new(body)).map_err(|error| Trouble::bare(error.to_string()))
}

async fn collect(response: Response<Incoming>) -> Result<Collected<Bytes>, Trouble> {
    let body = Limited::new(response.into_body(), ANSWER_BYTES).collect().await;
    body.map_err(|error| Trouble::bare(format!("its answer is incomplete: {error}")))
}

/// Checks the body of a successful answer, which may report that some points were rejected.
fn check(body: &[u8]) -> Result<(), Trouble> {
    let answer = messages::Response::decode(body).map_err(|error| {
        Trouble::new(
            format!("its answer is not OTLP: {error}"),
            "Is it a receiver of OpenTelemetry's metrics, and the right path?",
        )
    })?;
    let part = answer.partial_success.unwrap_or_default();
    match part.rejected_data_points {
        0 => Ok(()),
        rejected => Err(Trouble::bare(format!("it rejects {rejected} points: {}", beginning(&part.error_message)))),
    }
}

fn by_status(status: StatusCode, body: &[u8]) -> Trouble {
    let words = beginning(&String::from_utf8_lossy(body.get(..4 * SHOWN).unwrap_or(body)));
    let what = if words.is_empty() { format!("it answers {status}") } else { format!("it answers {status}: {words}") };
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Trouble::new(what, HEADERS),
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => {
            Trouble::new(what, "Is the path right? /v1/metrics is appended to the path of the address.")
        }
        status if status.is_redirection() => Trouble::new(what, "Use the address that it redirects to."),
        _ => Trouble::bare(what),
    }
}

const HEADERS: &str =
    "Pass credentials with --otlp-header-file FILE, for example a line 'Authorization: Bearer TOKEN'.";

fn by_trailers(trailers: &HeaderMap) -> Result<(), Trouble> {
    match grpc::status(trailers) {
        Some(("0", _)) => Ok(()),
        Some((status, why)) => {
            let what = format!("it answers with gRPC's status {status}: {}", beginning(why));
            // gRPC status codes: 7 is PERMISSION_DENIED, 12 UNIMPLEMENTED, 16 UNAUTHENTICATED.
            Err(match status {
                "7" | "16" => Trouble::new(what, HEADERS),
                "12" => Trouble::new(what, "Does it receive metrics? A receiver may take traces or logs alone."),
                _ => Trouble::bare(what),
            })
        }
        None => Err(Trouble::new("its answer is not gRPC: it has no status", HTTP)),
    }
}

const HTTP: &str = "OTLP over HTTP, usually at port 4318, takes --otlp-protocol http.";

fn not_http(receiver: &Receiver, error: &hyper::Error) -> Trouble {
    let tls = if receiver.address.is_https { "" } else { "; if the server uses TLS, the address starts with https://" };
    Trouble::new(
        format!("it accepts the connection but does not speak HTTP: {}", causes(error)),
        format!("gRPC, usually at port 4317, takes --otlp-protocol grpc{tls}"),
    )
}

fn not_grpc(error: &hyper::Error) -> Trouble {
    Trouble::new(format!("it accepts the connection but does not speak gRPC: {}", causes(error)), HTTP)
}

fn causes(error: &hyper::Error) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    format!("{error}{}", cause.unwrap_or_default())
}

/// Returns the beginning of an untrusted text on one line.
fn beginning(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    printable(&words).chars().take(SHOWN).collect()
}
