//! HTTP server of the agent: `/metrics`, `/healthz`, `/readyz` and the page of `web`. Any other
//! path is not found.
//!
//! There is one request per connection, a limit on connections, and a time limit on each. A slow
//! reader occupies a connection and a response, but never blocks the session, and is dropped when
//! the connection is needed. Scrapes have a separate limit, so that they never delay health checks.

pub(super) mod connections;
mod host;
pub(super) mod tls;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use memwatch_core::input::NvmlState;
use memwatch_core::snapshot::Snapshot;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

use self::connections::{ConnectionLimits, Connections, HttpConnection};
use self::tls::Certificate;
use super::metrics::{ExpositionFormat, Metrics, accept};
use super::publish::{Published, SnapshotSource};
use super::web::access::PageAccess;
use super::web::{self, IsServed, WebPage};
use crate::printable::printable;
use crate::watch::session::has_reading;

/// Maximum number of open connections. A new connection beyond it replaces the oldest one that has
/// sent no complete request or waits to be scraped; failing that, the oldest one whose client has
/// not read its answer within a second.
const CONNECTIONS: usize = 128;
/// Maximum number of concurrent scrapes, and of page loads. Further ones wait.
const SCRAPES: usize = 16;
const PAGES: usize = 16;
/// Maximum number of open pages. The limit on connections has room for these, scrapes, page loads
/// and health checks together.
const STREAMS: usize = 64;
/// Time limit of a connection. Prometheus gives up after 10 s by default.
const LONGEST_CONNECTION: Duration = Duration::from_secs(15);
/// Time limit of a request's head.
const LONGEST_HEAD: Duration = Duration::from_secs(5);
/// Maximum size of a request's head.
const HEAD_BYTES: usize = 16 << 10;
const HEADERS: usize = 64;
/// Time limit for a snapshot.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failed accept.
const PAUSE: Duration = Duration::from_millis(100);

/// Configuration of the server.
#[derive(Clone, Debug)]
pub(crate) struct Serving {
    /// Number of the largest pairs of a process and a GPU that get separate series.
    pub(crate) processes: usize,
    /// Whether `/readyz` waits for NVML.
    pub(crate) needs_nvml: bool,
    /// TLS configuration, if any.
    certificate: Option<Arc<Certificate>>,
    longest_head: Duration,
    longest_connection: Duration,
}

impl Serving {
    /// Creates a configuration with default limits, without TLS.
    pub(crate) const fn new(processes: usize, needs_nvml: bool) -> Self {
        let (longest_head, longest_connection) = (LONGEST_HEAD, LONGEST_CONNECTION);
        Self { processes, needs_nvml, certificate: None, longest_head, longest_connection }
    }
}

impl Serving {
    /// Adds TLS if there is a certificate.
    #[must_use]
    pub(crate) fn through(self, certificate: Option<Arc<Certificate>>) -> Self {
        Self { certificate, ..self }
    }
}

/// Serves until the agent exits.
pub(crate) async fn serve(listener: TcpListener, (source, page): (SnapshotSource, Arc<PageAccess>), serving: Serving) {
    let shown = WebPage::new(Arc::clone(&page), source.clone());
    let writer = Arc::new(Mutex::new(MetricsCache::new(serving.processes)));
    let routes =
        routes(Arc::new(HttpState { source, writer, needs_nvml: serving.needs_nvml })).merge(web::routes(shown));
    let connections =
        Connections::new(ConnectionLimits { all: CONNECTIONS, scrapes: SCRAPES, pages: PAGES, streams: STREAMS });
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let Some(connection) = connections.admit().await else { return };
                let is_served = stream.local_addr().is_ok_and(|local| page.serves_on(local.ip()));
                tokio::spawn(converse(stream, routes.clone(), (connection, IsServed(is_served)), serving.clone()));
            }
            Err(error) => {
                log::warn!("a connection cannot be accepted: {error}");
                sleep(PAUSE).await;
            }
        }
    }
}

/// Handles one request.
async fn converse(
    stream: TcpStream,
    routes: Router,
    (connection, is_served): (Arc<HttpConnection>, IsServed),
    serving: Serving,
) {
    // With TLS, the certificate determines the valid host names.
    let is_plain = serving.certificate.is_none();
    let is_local = is_plain && stream.local_addr().is_ok_and(|local| local.ip().to_canonical().is_loopback());
    let routes = TowerToHyperService::new(routes);
    let asked = Arc::clone(&connection);
    let answering = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Arc::clone(&asked));
        request.extensions_mut().insert(is_served);
        let (is_meant, routes) = (!is_local || host::is_of_loopback(&request), routes.clone());
        async move { if is_meant { routes.call(request).await } else { Ok(host::refusal()) } }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(serving.longest_head);
    http.max_buf_size(HEAD_BYTES).max_headers(HEADERS).keep_alive(false);
    // Nothing is logged about a client that leaves early or sends garbage.
    let served = async move {
        let Some(certificate) = &serving.certificate else {
            let _ = http.serve_connection(TokioIo::new(stream), answering).await;
            return;
        };
        let greeted = timeout(serving.longest_head, certificate.acceptor().accept(stream)).await;
        if let Ok(Ok(stream)) = greeted {
            let _ = http.serve_connection(TokioIo::new(stream), answering).await;
        }
    };
    let longest = serving.longest_connection;
    tokio::select! {
        () = served => {}
        () = connection.is_over(longest) => {}
        () = connection.hung_up() => {}
    }
}

fn routes(server: Arc<HttpState>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(server)
}

/// State shared by all requests.
struct HttpState {
    source: SnapshotSource,
    writer: Arc<Mutex<MetricsCache>>,
    needs_nvml: bool,
}

impl HttpState {
    /// Requests a snapshot. Fails if the session does not answer.
    async fn latest(&self) -> Result<Arc<Published>, Unable> {
        let answer = timeout(TIMEOUT, self.source.latest()).await.unwrap_or_default();
        answer.ok_or((StatusCode::SERVICE_UNAVAILABLE, "the agent does not answer\n".into()))
    }
}

/// HTTP status and sentence if there is no snapshot.
type Unable = (StatusCode, Cow<'static, str>);

async fn metrics(
    State(server): State<Arc<HttpState>>,
    Extension(connection): Extension<Arc<HttpConnection>>,
    headers: HeaderMap,
) -> Result<Response, Unable> {
    if timeout(TIMEOUT, connection.answer_scrape()).await.is_err() {
        return Err((StatusCode::SERVICE_UNAVAILABLE, "too many scrapes at a time\n".into()));
    }
    let accepted: Vec<&str> = headers.get_all(header::ACCEPT).iter().filter_map(|line| line.to_str().ok()).collect();
    let form = accept::form((!accepted.is_empty()).then(|| accepted.join(",")).as_deref());
    // The snapshot is requested under the lock, so that snapshots are in time order and counters
    // never decrease.
    let mut writer = Arc::clone(&server.writer).lock_owned().await;
    let published = server.latest().await?;
    // Formatting thousands of lines takes milliseconds, so it does not run on the session's thread.
    let written = tokio::task::spawn_blocking(move || writer.text(&published, form));
    let text = written.await.map_err(|error| {
        log::error!("the metrics cannot be written: {error}");
        (StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be written\n".into())
    })?;
    Ok(([(header::CONTENT_TYPE, form.content_type()), (header::VARY, "accept")], text).into_response())
}

/// Liveness: whether the session answers. If not, the agent should be restarted.
async fn healthz(
    State(server): State<Arc<HttpState>>,
    Extension(connection): Extension<Arc<HttpConnection>>,
) -> Result<&'static str, Unable> {
    connection.answer();
    server.latest().await.map(|_| "ok\n")
}

/// Readiness: whether the numbers are complete, with probes attached and NVML available.
async fn readyz(
    State(server): State<Arc<HttpState>>,
    Extension(connection): Extension<Arc<HttpConnection>>,
) -> Result<&'static str, Unable> {
    connection.answer();
    let published = server.latest().await?;
    match lacking(&published.snapshot, server.needs_nvml) {
        None => Ok("ready\n"),
        Some(why) => Err((StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n").into())),
    }
}

/// Returns the reason why the agent is not ready, as a sentence; `None` if it is ready.
fn lacking(snapshot: &Snapshot, needs_nvml: bool) -> Option<String> {
    match &snapshot.nvml {
        NvmlState::Unavailable(why) if needs_nvml => {
            let why = printable(why);
            Some(format!("NVML: {why}. It is tried again at least every 30 s; on a machine without NVML: --no-nvml"))
        }
        _ if has_reading(snapshot) => None,
        _ => Some("NVML has not answered yet".to_owned()),
    }
}

/// Formats snapshots as metrics, and caches the text of the last snapshot in each format.
struct MetricsCache {
    metrics: Metrics,
    /// Time of the snapshot.
    time_ns: u64,
    written: BTreeMap<ExpositionFormat, Bytes>,
}

impl MetricsCache {
    fn new(processes: usize) -> Self {
        Self { metrics: Metrics::new(processes), time_ns: 0, written: BTreeMap::new() }
    }

    fn text(&mut self, published: &Published, form: ExpositionFormat) -> Bytes {
        if self.time_ns != published.snapshot.time_ns {
            self.time_ns = published.snapshot.time_ns;
            self.written.clear();
        }
        self.written.entry(form).or_insert_with(|| write(&mut self.metrics, published, form)).clone()
    }
}

fn write(metrics: &mut Metrics, published: &Published, form: ExpositionFormat) -> Bytes {
    let driver_version = super::driver_version();
    Bytes::from(metrics.text(&published.facts(&driver_version), form))
}

#[cfg(test)]
pub(super) mod tests;
