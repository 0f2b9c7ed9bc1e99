//! The web page at `/`: the agent's data, live in a browser. `access` controls the access, and
//! `feed` generates the content.

pub(crate) mod access;
mod feed;
mod files;
mod html;
mod json;

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use http_body_util::channel::{Channel, Sender};
use memwatch_core::snapshot::Viewer;
use tokio::time::{sleep, timeout};

use self::access::PageAccess;
use self::feed::{EVERY, Feed, PageFormat};
use super::http::connections::HttpConnection;
use super::publish::SnapshotSource;

/// Security headers of the page and its files: no external resources, no embedding in frames, and
/// no referrer.
///
/// The plot library sets styles through the object model, which no policy forbids. The HTML
/// contains no inline style or script.
const HEADERS: [(HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// Time limit for a browser to read the data sent to it. A slower browser is disconnected.
const SLOWEST: Duration = Duration::from_secs(10);

/// State shared by all requests for the page.
pub(super) struct WebPage {
    access: Arc<PageAccess>,
    feed: Feed,
}

impl WebPage {
    /// Creates the page of this agent.
    pub(super) fn new(access: Arc<PageAccess>, source: SnapshotSource) -> Arc<Self> {
        Arc::new(Self { access, feed: Feed::new(source) })
    }

    /// Returns the viewer of a session, or the reason for a refusal.
    fn admit(&self, served: IsServed, session: &str) -> Result<Viewer, html::PageRefusal> {
        if !served.0 {
            return Err(html::ELSEWHERE);
        }
        self.access.viewer(session).ok_or(html::ENDED)
    }
}

/// Whether the page is served on the local address of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct IsServed(pub(super) bool);

/// Returns the routes of the page.
pub(super) fn routes(page: Arc<WebPage>) -> Router {
    Router::new()
        .route("/", get(front))
        .route("/open/{link}", get(open))
        .route("/s/{session}/", get(shown))
        .route("/s/{session}/events", get(events))
        .route("/s/{session}/snapshot.json", get(snapshot))
        .route("/web/{file}", get(file))
        .with_state(page)
}

/// Answers requests without a session with instructions.
async fn front(
    Extension(connection): Extension<Arc<HttpConnection>>,
    Extension(served): Extension<IsServed>,
) -> Response {
    connection.answer();
    refusal(if served.0 { html::VISITOR } else { html::ELSEWHERE })
}

/// Opens a session.
async fn open(
    State(page): State<Arc<WebPage>>,
    (method, Extension(connection)): (Method, Extension<Arc<HttpConnection>>),
    Extension(served): Extension<IsServed>,
    Path(link): Path<String>,
) -> Response {
    connection.answer();
    if !served.0 {
        return refusal(html::ELSEWHERE);
    }
    // Link previews send HEAD requests. They must not use up the link.
    if method == Method::HEAD {
        return secure(StatusCode::NO_CONTENT.into_response());
    }
    match page.access.open(&link) {
        Ok(Some(session)) => {
            let to = [(header::LOCATION, format!("/s/{session}/"))];
            (StatusCode::SEE_OTHER, secure(to.into_response())).into_response()
        }
        Ok(None) => refusal(html::USED),
        Err(error) => {
            log::error!("no session can be made: {error}");
            refusal(html::UNABLE)
        }
    }
}

/// Returns the HTML page with all content as tables, which scripts enhance.
async fn shown(
    State(page): State<Arc<WebPage>>,
    Extension(connection): Extension<Arc<HttpConnection>>,
    Extension(served): Extension<IsServed>,
    Path(session): Path<String>,
) -> Response {
    written(&page, &connection, (served, &session), PageFormat::Html).await
}

/// Returns the content as JSON.
async fn snapshot(
    State(page): State<Arc<WebPage>>,
    Extension(connection): Extension<Arc<HttpConnection>>,
    Extension(served): Extension<IsServed>,
    Path(session): Path<String>,
) -> Response {
    written(&page, &connection, (served, &session), PageFormat::Json).await
}

async fn written(
    page: &WebPage,
    connection: &HttpConnection,
    (served, session): (IsServed, &str),
    form: PageFormat,
) -> Response {
    let viewer = match page.admit(served, session) {
        Ok(viewer) => viewer,
        Err(why) => return refusal(why),
    };
    if timeout(SLOWEST, connection.answer_page()).await.is_err() {
        return (StatusCode::SERVICE_UNAVAILABLE, secure("too many pages at a time\n".into_response())).into_response();
    }
    match page.feed.written(viewer, form).await {
        Some(text) => secure(([(header::CONTENT_TYPE, form.content_type())], text).into_response()),
        None => unanswered(),
    }
}

/// Streams updates for as long as the page is open.
async fn events(
    State(page): State<Arc<WebPage>>,
    Extension(connection): Extension<Arc<HttpConnection>>,
    Extension(served): Extension<IsServed>,
    Path(session): Path<String>,
) -> Response {
    let viewer = match page.admit(served, &session) {
        Ok(viewer) => viewer,
        Err(why) => return refusal(why),
    };
    let place = page.access.open_page(&session);
    if place.is_none() || !connection.answer_stream() {
        return (StatusCode::SERVICE_UNAVAILABLE, secure("too many open pages\n".into_response())).into_response();
    }
    let (sender, body) = Channel::<Bytes>::new(1);
    tokio::spawn(async move {
        if send_events(&page, sender, (&session, viewer)).await.is_none() {
            connection.hang_up();
        }
        drop(place);
        page.feed.forget().await;
    });
    secure(([(header::CONTENT_TYPE, "text/event-stream")], Body::new(body)).into_response())
}

/// Sends updates until the session ends. Returns `None` if the browser does not read or has
/// disconnected.
async fn send_events(page: &WebPage, mut sender: Sender<Bytes>, (session, viewer): (&str, Viewer)) -> Option<()> {
    let mut send = async |text: Bytes| timeout(SLOWEST, sender.send_data(text)).await.ok()?.ok();
    send(page.feed.trail().await?).await?;
    while page.access.viewer(session).is_some() {
        send(page.feed.written(viewer, PageFormat::Event).await?).await?;
        sleep(EVERY).await;
    }
    send(Bytes::from_static(b"event: ended\ndata: {}\n\n")).await
}

async fn file(Extension(connection): Extension<Arc<HttpConnection>>, Path(name): Path<String>) -> Response {
    connection.answer();
    match files::find(&name) {
        Some((content_type, bytes)) => secure(([(header::CONTENT_TYPE, content_type)], bytes).into_response()),
        None => (StatusCode::NOT_FOUND, secure("there is no such file\n".into_response())).into_response(),
    }
}

fn refusal(words: html::PageRefusal) -> Response {
    let text = ([(header::CONTENT_TYPE, PageFormat::Html.content_type())], html::refusal(words)).into_response();
    (StatusCode::FORBIDDEN, secure(text)).into_response()
}

fn unanswered() -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, secure("the agent does not answer\n".into_response())).into_response()
}

fn secure(mut response: Response) -> Response {
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests;
