//! Test server on a Unix socket with scripted answers.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixListener;

use super::exchange::EngineSocket;

/// A socket and its server, which ends when this is dropped.
pub(super) struct Listener {
    directory: TempDir,
    task: tokio::task::JoinHandle<()>,
    asked: Arc<AtomicUsize>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Listener {
    fn start<F>(serve: impl Fn(tokio::net::UnixStream) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let directory = TempDir::with_prefix("memwatch-socket-").expect("a temporary directory");
        let listener = UnixListener::bind(directory.path().join("socket")).expect("a socket in it");
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = asked.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(serve(stream));
            }
        });
        Self { directory, task, asked }
    }

    /// Creates a server that sends these bytes after the first request, and then closes or hangs
    /// with the connection open.
    pub(super) fn saying(words: impl Into<Vec<u8>>, then_hangs: bool) -> Self {
        let words: Arc<Vec<u8>> = Arc::new(words.into());
        Self::start(move |mut stream| {
            let words = words.clone();
            async move {
                let mut question = [0; 4096];
                let _ = stream.read(&mut question).await;
                let _ = stream.write_all(&words).await;
                if then_hangs {
                    std::future::pending::<()>().await;
                }
            }
        })
    }

    /// Creates a server that answers any request with this JSON.
    pub(super) fn reporting(json: &str) -> Self {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length:";
        Self::saying(format!("{head} {}\r\n\r\n{json}", json.len()), false)
    }

    /// Creates a gRPC server.
    pub(super) fn calls(answer: impl Fn(&str) -> GrpcAnswer + Clone + Send + Sync + 'static) -> Self {
        Self::start(move |stream| {
            let answer = answer.clone();
            async move {
                let service = service_fn(move |request: Request<Incoming>| {
                    let answer = answer(request.uri().path());
                    async move { Ok::<_, Infallible>(answer.response()) }
                });
                let connection = http2::Builder::new(TokioExecutor::new());
                let _ = connection.serve_connection(TokioIo::new(stream), service).await;
            }
        })
    }

    /// Returns the socket as a place to ask.
    pub(super) fn place(&self) -> EngineSocket {
        EngineSocket { path: self.path(), well_known: false, user: None }
    }

    /// Returns the path of the socket.
    pub(super) fn path(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// Returns the number of connections so far.
    pub(super) fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

/// A gRPC answer.
#[derive(Clone, Debug)]
pub(super) struct GrpcAnswer {
    pub(super) content_type: &'static str,
    pub(super) body: Vec<u8>,
    /// Status trailer; `None` omits it.
    pub(super) status: Option<&'static str>,
}

impl GrpcAnswer {
    /// Creates a successful answer with a message.
    pub(super) fn of(message: &impl Message) -> Self {
        let encoded = message.encode_to_vec();
        let length = u32::try_from(encoded.len()).expect("a short message");
        let body = [&[0], length.to_be_bytes().as_slice(), &encoded].concat();
        Self { content_type: "application/grpc", body, status: Some("0") }
    }

    /// Creates a refusal.
    pub(super) fn refusal(status: &'static str) -> Self {
        Self { content_type: "application/grpc", body: Vec::new(), status: Some(status) }
    }

    fn response(self) -> Response<impl Body<Data = Bytes, Error = Infallible>> {
        let mut trailers = HeaderMap::new();
        if let Some(status) = self.status {
            trailers.insert("grpc-status", HeaderValue::from_static(status));
        }
        let body = Full::new(Bytes::from(self.body)).with_trailers(std::future::ready(Some(Ok(trailers))));
        Response::builder().header(header::CONTENT_TYPE, self.content_type).body(body).expect("a plain response")
    }
}
