//! Sends one request to a Unix socket and reads its answer, with limits on time and size.
//!
//! A server may hang, send garbage or never stop sending; that costs only the answer. Each request
//! has its own connection, which is closed after the answer. The crate bollard would bring all of
//! Docker's API for the one request made here, and none of the kubelet's.

use std::future::Future;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Collected, Empty, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response, StatusCode, Version, header};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::sources::grpc;

/// Maximum time from the connection to the complete answer.
pub(super) const TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum size of an answer's headers in bytes.
const HEADERS_BYTES: usize = 16 << 10;

/// A socket on which a server may listen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EngineSocket {
    /// Path of the socket.
    pub(super) path: PathBuf,
    /// Set for a default path. In a container that shares the host's pid namespace, the host's file
    /// of this path is meant.
    pub(super) well_known: bool,
    /// The only accepted owner of the server; `None` accepts any.
    pub(super) user: Option<u32>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ExchangeError {
    /// No server listens on the socket.
    Absent,
    /// The server does not know the subject of the request, or refuses it.
    Unknown(String),
    /// The answer timed out or is invalid, with the reason.
    Failed(String),
}

impl ExchangeError {
    fn failed(error: impl std::fmt::Display) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Sends `GET target` over HTTP/1.1 and returns the JSON body of at most `most_bytes`.
pub(super) async fn get(place: &EngineSocket, target: &str, most_bytes: usize) -> Result<Bytes, ExchangeError> {
    let request = Request::get(target)
        .header(header::HOST, "localhost")
        .header(header::ACCEPT, "application/json")
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(ExchangeError::failed)?;
    within_timeout(async {
        let stream = TokioIo::new(connect(place).await?);
        let (mut sender, connection) = http1::Builder::new()
            .max_buf_size(HEADERS_BYTES)
            .max_headers(64)
            .handshake(stream)
            .await
            .map_err(ExchangeError::failed)?;
        driven(connection, async move {
            let response = sender.send_request(request).await.map_err(ExchangeError::failed)?;
            match response.status() {
                StatusCode::OK => check_content(&response, "application/json")?,
                status @ (StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST | StatusCode::FORBIDDEN) => {
                    return Err(ExchangeError::Unknown(status.to_string()));
                }
                status => return Err(ExchangeError::Failed(status.to_string())),
            }
            Ok(collect(response, most_bytes).await?.to_bytes())
        })
        .await
    })
    .await
}

/// Makes one gRPC call (PROTOCOL-HTTP2.md of the gRPC project) and returns the message of at most
/// `most_bytes`.
pub(super) async fn call<A: Message + Default>(
    place: &EngineSocket,
    method: &str,
    question: &impl Message,
    most_bytes: usize,
) -> Result<A, ExchangeError> {
    let request = Request::post(format!("http://localhost{method}"))
        .version(Version::HTTP_2)
        .header(header::CONTENT_TYPE, "application/grpc")
        .header(header::TE, "trailers")
        .header("grpc-timeout", format!("{}m", TIMEOUT.as_millis()))
        .body(BoxBody::new(Full::new(grpc::framed(&question.encode_to_vec(), false))))
        .map_err(ExchangeError::failed)?;
    within_timeout(async {
        let stream = TokioIo::new(connect(place).await?);
        let (mut sender, connection) = http2::Builder::new(TokioExecutor::new())
            .max_header_list_size(u32::try_from(HEADERS_BYTES).unwrap_or(u32::MAX))
            .handshake(stream)
            .await
            .map_err(ExchangeError::failed)?;
        driven(connection, async move {
            let response = sender.send_request(request).await.map_err(ExchangeError::failed)?;
            if response.status() != StatusCode::OK {
                return Err(ExchangeError::Failed(response.status().to_string()));
            }
            check_content(&response, "application/grpc")?;
            let early = response.headers().clone();
            let body = collect(response, most_bytes.saturating_add(grpc::PREFIX_BYTES)).await?;
            check_status(body.trailers().unwrap_or(&early))?;
            unframed(&body.to_bytes())
        })
        .await
    })
    .await
}

async fn within_timeout<T>(exchange: impl Future<Output = Result<T, ExchangeError>>) -> Result<T, ExchangeError> {
    let late = |_| ExchangeError::Failed(format!("no answer within {TIMEOUT:?}"));
    timeout(TIMEOUT, exchange).await.map_err(late)?
}

async fn connect(place: &EngineSocket) -> Result<UnixStream, ExchangeError> {
    let stream = match UnixStream::connect(&place.path).await {
        // Without access to the first process's files, only the file of this path is tried.
        Err(absent) if place.well_known && absent.kind() == ErrorKind::NotFound => {
            UnixStream::connect(on_the_machine(&place.path)).await.or(Err(absent))
        }
        outcome => outcome,
    };
    let stream = stream.map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => ExchangeError::Absent,
        _ => ExchangeError::failed(error),
    })?;
    if let Some(user) = place.user {
        let peer = stream.peer_cred().map_err(ExchangeError::failed)?.uid();
        if peer != user {
            return Err(ExchangeError::Failed(format!("the socket's server is user {peer}, not {user}")));
        }
    }
    Ok(stream)
}

/// Returns this path in the file system of the host's first process, independent of this process's
/// mounts: proc_pid_root(5).
fn on_the_machine(path: &Path) -> PathBuf {
    Path::new("/proc/1/root").join(path.strip_prefix("/").unwrap_or(path))
}

/// Returns the result of `answer` while `connection` does the reading and writing.
async fn driven<T>(connection: impl Future, answer: impl Future<Output = T>) -> T {
    let (mut connection, mut answer) = (pin!(connection), pin!(answer));
    tokio::select! {
        biased;
        answer = &mut answer => return answer,
        _ = &mut connection => {}
    }
    // A server that closes after the answer has sent all of it; an earlier end shows in the answer.
    answer.await
}

fn check_content(response: &Response<Incoming>, wanted: &str) -> Result<(), ExchangeError> {
    let content = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let is_wanted =
        content.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with([';', '+', ' ']));
    if is_wanted { Ok(()) } else { Err(ExchangeError::Failed(format!("{content:?} is not {wanted}"))) }
}

async fn collect(response: Response<Incoming>, most_bytes: usize) -> Result<Collected<Bytes>, ExchangeError> {
    Limited::new(response.into_body(), most_bytes).collect().await.map_err(ExchangeError::failed)
}

fn unframed<A: Message + Default>(body: &[u8]) -> Result<A, ExchangeError> {
    A::decode(grpc::unframed(body).map_err(ExchangeError::failed)?).map_err(ExchangeError::failed)
}

/// Checks the gRPC status: 0 is success; any other comes from a working server that refuses.
fn check_status(headers: &header::HeaderMap) -> Result<(), ExchangeError> {
    match grpc::status(headers) {
        Some(("0", _)) => Ok(()),
        Some((status, why)) => Err(ExchangeError::Unknown(format!("status {status} {why}"))),
        None => Err(ExchangeError::Failed("no gRPC status".to_owned())),
    }
}

#[cfg(test)]
mod tests;
