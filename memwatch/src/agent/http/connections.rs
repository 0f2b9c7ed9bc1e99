//! Which connections are open. One that is being answered is never hung up for another; of the ones that are not, the oldest is, where a new
//! one needs its place: clients that send half a request keep nobody out.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

/// How many there may be at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    /// Connections.
    pub(super) all: usize,
    /// Of them, scrapes that are being answered.
    pub(super) scrapes: usize,
    /// And pages.
    pub(super) pages: usize,
    /// And pages that are open, and get what changes.
    pub(super) streams: usize,
}

/// The open connections.
#[derive(Debug)]
pub(super) struct Connections {
    places: Arc<Semaphore>,
    scrapes: Arc<Semaphore>,
    pages: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    /// The ones that are not being answered, the oldest first.
    unanswered: Mutex<BTreeMap<u64, Arc<Notify>>>,
    next: AtomicU64,
}

/// One connection, until this is dropped.
#[derive(Debug)]
pub(in crate::agent) struct Connection {
    all: Arc<Connections>,
    number: u64,
    hang_up: Arc<Notify>,
    /// The place of a scrape, a page or a stream: until the last byte is written.
    answer: Mutex<Option<OwnedSemaphorePermit>>,
    /// It goes on for as long as its client reads.
    is_stream: AtomicBool,
    _place: OwnedSemaphorePermit,
}

impl Connections {
    /// None yet.
    pub(super) fn new(Places { all, scrapes, pages, streams }: Places) -> Arc<Self> {
        let [places, scrapes, pages, streams] =
            [all, scrapes, pages, streams].map(|count| Arc::new(Semaphore::new(count)));
        Arc::new(Self { places, scrapes, pages, streams, unanswered: Mutex::default(), next: AtomicU64::new(0) })
    }

    /// A place for a connection that was accepted; `None` never comes, since the semaphore is not closed.
    pub(super) async fn admit(self: &Arc<Self>) -> Option<Arc<Connection>> {
        let places = Arc::clone(&self.places);
        if places.available_permits() == 0
            && let Some((_, oldest)) = self.unanswered().pop_first()
        {
            oldest.notify_one();
        }
        let place = places.acquire_owned().await.ok()?;
        let (number, hang_up) = (self.next.fetch_add(1, Ordering::Relaxed), Arc::new(Notify::new()));
        self.unanswered().insert(number, Arc::clone(&hang_up));
        let (answer, is_stream) = (Mutex::default(), AtomicBool::new(false));
        Some(Arc::new(Connection { all: Arc::clone(self), number, hang_up, answer, is_stream, _place: place }))
    }

    fn unanswered(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Notify>>> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    /// From now on it is being answered.
    pub(in crate::agent) fn answer(&self) {
        self.all.unanswered().remove(&self.number);
    }

    /// Waits for a place among the scrapes. It can be hung up meanwhile.
    pub(super) async fn answer_scrape(&self) {
        self.answer_in(&self.all.scrapes).await;
    }

    /// The same among the pages.
    pub(in crate::agent) async fn answer_page(&self) {
        self.answer_in(&self.all.pages).await;
    }

    /// From now on it gets what changes, without a limit of time; false where there is no room for that.
    pub(in crate::agent) fn answer_stream(&self) -> bool {
        let place = Arc::clone(&self.all.streams).try_acquire_owned().ok();
        let has_place = place.is_some();
        self.is_stream.store(has_place, Ordering::Relaxed);
        self.hold(place);
        self.answer();
        has_place
    }

    async fn answer_in(&self, places: &Arc<Semaphore>) {
        self.hold(Arc::clone(places).acquire_owned().await.ok());
        self.answer();
    }

    fn hold(&self, place: Option<OwnedSemaphorePermit>) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = place;
    }

    /// Ends it: its client does not read.
    pub(in crate::agent) fn hang_up(&self) {
        self.hang_up.notify_one();
    }

    /// Comes when it has lasted for so long, unless it is a stream.
    pub(super) async fn is_over(&self, longest: Duration) {
        sleep(longest).await;
        if self.is_stream.load(Ordering::Relaxed) {
            pending::<()>().await;
        }
    }

    /// Comes when it has to make limit.
    pub(super) async fn hung_up(&self) {
        self.hang_up.notified().await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.answer();
    }
}
