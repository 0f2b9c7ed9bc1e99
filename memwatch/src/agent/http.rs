//! What the agent serves over HTTP: `/metrics`, `/healthz` and `/readyz`; everything else is not found.
//!
//! One request per connection, a place for few connections at a time and a time limit on each: whoever reads slowly keeps a place
//! and a text, never the watch.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{sleep, timeout};

use super::metrics::own_use::OwnUse;
use super::metrics::{Facts, Form, Metrics, accept};
use super::publish::{Published, SnapshotSource};
use crate::watch::session::has_reading;

/// So many connections are served at a time; others wait in the kernel's queue.
const CONNECTIONS: usize = 16;
/// From the first byte to the last of a connection. A Prometheus gives up after 10 s, unless set otherwise.
const LONGEST_CONNECTION: Duration = Duration::from_secs(15);
/// How long a request's head may take to come, and how much of it is read.
const LONGEST_HEAD: Duration = Duration::from_secs(5);
const HEAD_BYTES: usize = 16 << 10;
const HEADERS: usize = 64;
/// How long the watch may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long nothing is accepted after the system has refused to.
const PAUSE: Duration = Duration::from_millis(100);

/// The version of NVIDIA's kernel module, where it is loaded (the kernel's `MODULE_VERSION`).
const DRIVER_VERSION: &str = "/sys/module/nvidia/version";

/// Serves until the agent ends. The `processes` largest pairs of process and GPU have series of their own.
pub(crate) async fn serve(listener: TcpListener, source: SnapshotSource, processes: usize) {
    let routes = routes(Arc::new(Server { source, writer: Arc::new(Mutex::new(Writer::new(processes))) }));
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let routes = routes.clone();
                tokio::spawn(async move {
                    converse(stream, routes).await;
                    drop(place);
                });
            }
            Err(error) => {
                log::warn!("a connection cannot be accepted: {error}");
                sleep(PAUSE).await;
            }
        }
    }
}

/// One request and its answer.
async fn converse(stream: TcpStream, routes: Router) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(LONGEST_HEAD).max_buf_size(HEAD_BYTES).max_headers(HEADERS);
    let connection = http.keep_alive(false).serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    // A client that leaves early or sends something else is not worth a word.
    let _ = timeout(LONGEST_CONNECTION, connection).await;
}

fn routes(server: Arc<Server>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(server)
}

/// What all requests share.
struct Server {
    source: SnapshotSource,
    writer: Arc<Mutex<Writer>>,
}

impl Server {
    /// What the watch knows; an error where it does not answer.
    async fn latest(&self) -> Result<Arc<Published>, Unable> {
        let unable = |why| (StatusCode::SERVICE_UNAVAILABLE, why);
        let answer = timeout(TIMEOUT, self.source.latest()).await.unwrap_or_default();
        answer.ok_or_else(|| unable("the watch does not answer\n"))
    }
}

/// Why there is no answer.
type Unable = (StatusCode, &'static str);

async fn metrics(State(server): State<Arc<Server>>, headers: HeaderMap) -> Result<Response, Unable> {
    let accepted: Vec<&str> = headers.get_all(header::ACCEPT).iter().filter_map(|line| line.to_str().ok()).collect();
    let form = accept::form((!accepted.is_empty()).then(|| accepted.join(",")).as_deref());
    // Asked for under the lock, snapshots come in the order of their times: counters must not go back.
    let mut writer = Arc::clone(&server.writer).lock_owned().await;
    let published = server.latest().await?;
    // Thousands of lines take milliseconds to write: not on the thread of the session.
    let written = tokio::task::spawn_blocking(move || writer.text(&published, form));
    let text = written.await.map_err(|error| {
        log::error!("the metrics cannot be written: {error}");
        (StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be written\n")
    })?;
    Ok(([(header::CONTENT_TYPE, form.content_type()), (header::VARY, "accept")], text).into_response())
}

/// Whether the watch answers: if not, start the agent again.
async fn healthz(State(server): State<Arc<Server>>) -> Result<&'static str, Unable> {
    server.latest().await.map(|_| "ok\n")
}

/// Whether the probes are attached and NVML has been asked: its numbers mean something from here on.
async fn readyz(State(server): State<Arc<Server>>) -> Result<&'static str, Unable> {
    let published = server.latest().await?;
    let ready = has_reading(&published.snapshot);
    if ready { Ok("ready\n") } else { Err((StatusCode::SERVICE_UNAVAILABLE, "NVML has not been asked yet\n")) }
}

/// Writes the metrics of each snapshot once in each form, however many ask for them.
struct Writer {
    metrics: Metrics,
    /// Of which snapshot: its time.
    time_ns: u64,
    written: BTreeMap<Form, Bytes>,
}

impl Writer {
    fn new(processes: usize) -> Self {
        Self { metrics: Metrics::new(processes), time_ns: 0, written: BTreeMap::new() }
    }

    fn text(&mut self, published: &Published, form: Form) -> Bytes {
        if self.time_ns != published.snapshot.time_ns {
            self.time_ns = published.snapshot.time_ns;
            self.written.clear();
        }
        self.written.entry(form).or_insert_with(|| write(&mut self.metrics, published, form)).clone()
    }
}

fn write(metrics: &mut Metrics, published: &Published, form: Form) -> Bytes {
    let driver_version = std::fs::read_to_string(DRIVER_VERSION).unwrap_or_default();
    let facts = Facts {
        snapshot: &published.snapshot,
        boottime_to_unix_ns: published.boottime_to_unix_ns,
        collect_ns: Some(published.agent.last_snapshot_ns),
        driver_version: driver_version.trim(),
        history: published.agent.history,
        own: OwnUse::read(),
    };
    Bytes::from(metrics.text(&facts, form))
}

#[cfg(test)]
mod tests;
