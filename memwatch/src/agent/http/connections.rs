//! Limits for open connections. A new connection beyond a limit replaces the oldest one that is not
//! being answered, otherwise the oldest one whose client has not read its answer for a while.
//! Clients that send half a request or read slowly therefore cannot lock out others.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

/// Time that a client has to read its answer before it can be replaced. A scrape of a large node
/// takes milliseconds over a network.
const UNDISTURBED: Duration = Duration::from_secs(1);
/// Interval at which a waiting connection checks whether another one can be replaced.
const POLL: Duration = Duration::from_millis(50);

/// Maximum numbers of concurrent connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionLimits {
    /// All connections.
    pub(super) all: usize,
    /// Scrapes being answered.
    pub(super) scrapes: usize,
    /// Pages being answered.
    pub(super) pages: usize,
    /// Open pages that receive updates.
    pub(super) streams: usize,
}

/// Type of a connection's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerKind {
    /// An answer without a limit of its own: a health check or a static file of the page.
    Small,
    Scrape,
    Page,
    Stream,
}

/// A connection that may be replaced.
#[derive(Debug)]
struct OpenConnection {
    hang_up: Arc<Notify>,
    /// Type of the answer, and the time since which it is being answered.
    answered: Option<(AnswerKind, Instant)>,
}

/// The open connections.
#[derive(Debug)]
pub(super) struct Connections {
    places: Arc<Semaphore>,
    scrapes: Arc<Semaphore>,
    pages: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    /// Connections by number, oldest first. Connections that were asked to hang up are removed.
    open: Mutex<BTreeMap<u64, OpenConnection>>,
    next: AtomicU64,
    undisturbed: Duration,
}

/// One connection, open until this is dropped.
#[derive(Debug)]
pub(in crate::agent) struct HttpConnection {
    all: Arc<Connections>,
    number: u64,
    hang_up: Arc<Notify>,
    /// Permit of a scrape, a page or a stream, held until the last byte is written.
    answer: Mutex<Option<OwnedSemaphorePermit>>,
    /// Whether the connection is a stream, which has no time limit.
    is_stream: AtomicBool,
    _place: OwnedSemaphorePermit,
}

impl Connections {
    /// Creates the limits without any connection.
    pub(super) fn new(places: ConnectionLimits) -> Arc<Self> {
        Self::undisturbed_for(UNDISTURBED, places)
    }

    fn undisturbed_for(
        undisturbed: Duration,
        ConnectionLimits { all, scrapes, pages, streams }: ConnectionLimits,
    ) -> Arc<Self> {
        let [places, scrapes, pages, streams] =
            [all, scrapes, pages, streams].map(|count| Arc::new(Semaphore::new(count)));
        let (open, next) = (Mutex::default(), AtomicU64::new(0));
        Arc::new(Self { places, scrapes, pages, streams, open, next, undisturbed })
    }

    /// Waits for a slot for an accepted connection. Never returns `None`, because the semaphore is
    /// not closed.
    pub(super) async fn admit(self: &Arc<Self>) -> Option<Arc<HttpConnection>> {
        let place = self.place(&self.places, |open| {
            let unanswered = open.iter().find(|(_, open)| open.answered.is_none());
            let slow = || open.iter().find(|(_, open)| self.is_slow(open, |answer| answer != AnswerKind::Stream));
            unanswered.or_else(slow).map(|(number, _)| *number)
        });
        let place = place.await?;
        let (number, hang_up) = (self.next.fetch_add(1, Ordering::Relaxed), Arc::new(Notify::new()));
        self.open().insert(number, OpenConnection { hang_up: Arc::clone(&hang_up), answered: None });
        let (answer, is_stream) = (Mutex::default(), AtomicBool::new(false));
        Some(Arc::new(HttpConnection { all: Arc::clone(self), number, hang_up, answer, is_stream, _place: place }))
    }

    /// Acquires a permit. If none is free, hangs up the connection that `goes` selects, as soon as
    /// it selects one.
    async fn place(
        &self,
        places: &Arc<Semaphore>,
        goes: impl Fn(&BTreeMap<u64, OpenConnection>) -> Option<u64> + Send,
    ) -> Option<OwnedSemaphorePermit> {
        let mut place = std::pin::pin!(Arc::clone(places).acquire_owned());
        while places.available_permits() == 0 {
            // The freed permit may go to another connection that has waited longer. Then one more
            // connection must be replaced.
            let patience = if self.let_go(&goes) { UNDISTURBED } else { POLL };
            if let Ok(place) = timeout(patience, &mut place).await {
                return place.ok();
            }
        }
        place.await.ok()
    }

    /// Hangs up the connection that `goes` selects. Returns false if it selects none.
    fn let_go(&self, goes: impl Fn(&BTreeMap<u64, OpenConnection>) -> Option<u64>) -> bool {
        let mut open = self.open();
        let gone = goes(&open).and_then(|number| open.remove(&number));
        gone.inspect(|gone| gone.hang_up.notify_one()).is_some()
    }

    /// Returns whether a client has had enough time to read an answer of the given type.
    fn is_slow(&self, open: &OpenConnection, is_meant: impl Fn(AnswerKind) -> bool) -> bool {
        open.answered.is_some_and(|(answer, since)| is_meant(answer) && since.elapsed() >= self.undisturbed)
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, OpenConnection>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HttpConnection {
    /// Marks the connection as being answered.
    pub(in crate::agent) fn answer(&self) {
        self.answers(AnswerKind::Small);
    }

    /// Waits for a scrape permit. The connection can be replaced meanwhile.
    pub(super) async fn answer_scrape(&self) {
        self.answer_in(&self.all.scrapes, AnswerKind::Scrape).await;
    }

    /// Waits for a page permit. The connection can be replaced meanwhile.
    pub(in crate::agent) async fn answer_page(&self) {
        self.answer_in(&self.all.pages, AnswerKind::Page).await;
    }

    /// Turns the connection into a stream without a time limit. Returns false if all streams are in
    /// use.
    pub(in crate::agent) fn answer_stream(&self) -> bool {
        let place = Arc::clone(&self.all.streams).try_acquire_owned().ok();
        let has_place = place.is_some();
        self.is_stream.store(has_place, Ordering::Relaxed);
        self.hold(place);
        self.answers(if has_place { AnswerKind::Stream } else { AnswerKind::Small });
        has_place
    }

    async fn answer_in(&self, places: &Arc<Semaphore>, kind: AnswerKind) {
        let place = self.all.place(places, |open| {
            let mut slow = open.iter().filter(|(_, open)| self.all.is_slow(open, |answer| answer == kind));
            slow.next().map(|(number, _)| *number)
        });
        self.hold(place.await);
        self.answers(kind);
    }

    fn answers(&self, answer: AnswerKind) {
        if let Some(open) = self.all.open().get_mut(&self.number) {
            open.answered = Some((answer, Instant::now()));
        }
    }

    fn hold(&self, place: Option<OwnedSemaphorePermit>) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = place;
    }

    /// Hangs up, because the client does not read.
    pub(in crate::agent) fn hang_up(&self) {
        self.hang_up.notify_one();
    }

    /// Completes when the time limit is reached. Never completes for a stream.
    pub(super) async fn is_over(&self, longest: Duration) {
        sleep(longest).await;
        if self.is_stream.load(Ordering::Relaxed) {
            pending::<()>().await;
        }
    }

    /// Completes when the connection must hang up.
    pub(super) async fn hung_up(&self) {
        self.hang_up.notified().await;
    }
}

impl Drop for HttpConnection {
    fn drop(&mut self) {
        self.all.open().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: ConnectionLimits = ConnectionLimits { all: 4, scrapes: 2, pages: 2, streams: 2 };

    async fn admitted(all: &Arc<Connections>) -> Arc<HttpConnection> {
        all.admit().await.expect("the semaphore is open")
    }

    /// Whether the connection was asked to hang up.
    async fn goes(connection: &HttpConnection) -> bool {
        timeout(Duration::ZERO, connection.hung_up()).await.is_ok()
    }

    /// Admits a connection while this one hangs up.
    async fn admitted_for(all: &Arc<Connections>, goer: Arc<HttpConnection>) -> Arc<HttpConnection> {
        let going = async {
            goer.hung_up().await;
            drop(goer);
        };
        tokio::join!(admitted(all), going).0
    }

    #[tokio::test]
    async fn http_connections_evict_idle_before_slow_readers_and_keep_streams() {
        let all = Connections::undisturbed_for(Duration::ZERO, PLACES);
        let (stream, slow, idle, other) =
            (admitted(&all).await, admitted(&all).await, admitted(&all).await, admitted(&all).await);
        assert!(stream.answer_stream());
        slow.answer();
        other.answer();
        let new = admitted_for(&all, idle).await;
        assert!(!goes(&stream).await && !goes(&slow).await && !goes(&other).await);
        new.answer();
        let newer = admitted_for(&all, slow).await;
        assert!(!goes(&stream).await && !goes(&other).await && !goes(&new).await && !goes(&newer).await);
    }

    #[tokio::test]
    async fn http_scrape_not_read_is_evicted_for_the_next_and_pages_are_kept() {
        let all = Connections::undisturbed_for(Duration::ZERO, PLACES);
        let (page, first, second, next) =
            (admitted(&all).await, admitted(&all).await, admitted(&all).await, admitted(&all).await);
        page.answer_page().await;
        first.answer_scrape().await;
        second.answer_scrape().await;
        tokio::join!(next.answer_scrape(), async {
            first.hung_up().await;
            drop(first);
        });
        assert!(!goes(&page).await && !goes(&second).await && !goes(&next).await);
    }

    #[tokio::test]
    async fn http_connections_keep_those_just_answered() {
        let all = Connections::new(PLACES);
        let mut open = Vec::new();
        for _ in 0..PLACES.all {
            open.push(admitted(&all).await);
        }
        for connection in &open {
            connection.answer();
        }
        assert!(timeout(2 * POLL, all.admit()).await.is_err(), "it waits");
        for connection in &open {
            assert!(!goes(connection).await);
        }
    }
}
