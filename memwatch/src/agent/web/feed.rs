//! Content of the page, generated at most once per second and once for all viewers with the same
//! view. Many or slow browsers therefore do not load the session.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use memwatch_core::snapshot::{ProcessView, Snapshot, Viewer};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::html;
use super::json::{self, PageContent};
use crate::agent::publish::{Published, SnapshotSource};
use crate::client::protocol::OutlookMessage;
use crate::printable::write_json;
use crate::render::output::host_name;
use crate::render::wall_clock::WallClock;
use crate::sources::clock;

/// Update interval of a page.
pub(super) const EVERY: Duration = Duration::from_secs(1);
/// Lifetime of generated content, slightly shorter than [`EVERY`], so that each update of a page
/// gets new content. Pages that update at about the same time share it.
const FRESH: Duration = Duration::from_millis(900);
/// Time limit for an answer of the session.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of processes on a page. Those with the most memory are shown.
pub(super) const PROCESSES: usize = 500;

/// Format of the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PageFormat {
    /// The HTML page.
    Html,
    /// The data as JSON.
    Json,
    /// The JSON data as an event for an open page.
    Event,
}

impl PageFormat {
    /// Returns the `Content-Type` of the format.
    pub(super) const fn content_type(self) -> &'static str {
        match self {
            Self::Html => "text/html; charset=utf-8",
            Self::Json => "application/json",
            Self::Event => "text/event-stream",
        }
    }
}

/// Source and cache of the content.
pub(super) struct Feed {
    source: SnapshotSource,
    host: Arc<str>,
    state: Mutex<FeedState>,
}

#[derive(Default)]
struct FeedState {
    made: Option<RenderedPages>,
}

struct RenderedPages {
    at: Instant,
    known: FeedData,
    written: BTreeMap<(Viewer, PageFormat), Bytes>,
}

/// Data of one point in time.
#[derive(Clone)]
struct FeedData {
    published: Arc<Published>,
    outlook: Arc<OutlookMessage>,
}

impl Feed {
    /// Creates a feed from a session. The session is queried only when a viewer requests content.
    pub(super) fn new(source: SnapshotSource) -> Self {
        Self { source, host: host_name().into(), state: Mutex::default() }
    }

    /// Returns the content for a viewer; `None` if the session does not answer.
    pub(super) async fn written(&self, viewer: Viewer, form: PageFormat) -> Option<Bytes> {
        // The lock ensures that the content is generated only once.
        let mut state = self.state.lock().await;
        let made = self.fresh(&mut state).await?;
        if let Some(text) = made.written.get(&(viewer, form)) {
            return Some(text.clone());
        }
        let (known, host) = (made.known.clone(), Arc::clone(&self.host));
        // Formatting hundreds of processes takes milliseconds, so it runs off the session's thread.
        let written = tokio::task::spawn_blocking(move || write(&known, &host, (viewer, form))).await;
        let failed = |error: &dyn std::fmt::Display| log::error!("the page cannot be written: {error}");
        let text = written.inspect_err(|error| failed(error)).ok()?.inspect_err(|error| failed(error)).ok()?;
        made.written.insert((viewer, form), text.clone());
        Some(text)
    }

    /// Returns the history of the GPUs' memory as the first event of an open page.
    pub(super) async fn trail(&self) -> Option<Bytes> {
        let trail = timeout(TIMEOUT, self.source.trail()).await.ok()??;
        let mut text = b"retry: 2000\nevent: trail\ndata: ".to_vec();
        write_json(&mut text, &trail.json(clock::boottime_to_unix_ns())).ok()?;
        text.extend_from_slice(b"\n\n");
        Some(text.into())
    }

    /// Drops the cached content when a page is closed. Other pages generate it again.
    pub(super) async fn forget(&self) {
        self.state.lock().await.made = None;
    }

    async fn fresh<'a>(&self, state: &'a mut FeedState) -> Option<&'a mut RenderedPages> {
        if state.made.as_ref().is_none_or(|made| made.at.elapsed() >= FRESH) {
            let asked = async { Some((self.source.latest().await?, self.source.outlook().await?)) };
            let (published, outlook) = timeout(TIMEOUT, asked).await.ok()??;
            let known = FeedData { published, outlook };
            state.made = Some(RenderedPages { at: Instant::now(), known, written: BTreeMap::new() });
        }
        state.made.as_mut()
    }
}

fn write(known: &FeedData, host: &str, (viewer, form): (Viewer, PageFormat)) -> io::Result<Bytes> {
    let FeedData { published, outlook } = known;
    let (snapshot, left_out) = largest(published.snapshot.observed_by(viewer));
    let outlook = outlook.observed_by(viewer, &published.snapshot);
    let clock = WallClock::utc(published.boottime_to_unix_ns);
    let shown = PageContent { snapshot: &snapshot, outlook: &outlook, left_out, viewer, host, clock: &clock };
    let mut text = Vec::new();
    match form {
        PageFormat::Html => text = html::page(&shown).into_bytes(),
        PageFormat::Json => json::write(&mut text, &shown)?,
        PageFormat::Event => {
            text.extend_from_slice(b"event: snapshot\ndata: ");
            json::write(&mut text, &shown)?;
            text.push(b'\n');
        }
    }
    Ok(text.into())
}

/// Keeps the processes with the most memory, largest first, and returns the number of the others.
fn largest(mut snapshot: Snapshot) -> (Snapshot, usize) {
    let all = snapshot.processes.len();
    let size = |process: &ProcessView| {
        let sizes = process.gpus.iter().map(|gpu| gpu.used_bytes.unwrap_or_default().max(gpu.live_bytes));
        sizes.fold(0_u64, u64::saturating_add)
    };
    snapshot
        .processes
        .sort_by_cached_key(|process| (process.ended_ns.is_some(), std::cmp::Reverse(size(process)), process.tgid));
    snapshot.processes.truncate(PROCESSES);
    let left_out = all - snapshot.processes.len();
    (snapshot, left_out)
}
