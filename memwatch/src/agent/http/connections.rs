//! Which connections are open. One that is being answered is never hung up for another; of those that are not, the oldest is, where a new
//! one needs its place: clients that send half a request keep nobody out.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// The open connections.
#[derive(Debug)]
pub(super) struct Connections {
    places: Arc<Semaphore>,
    scrapes: Arc<Semaphore>,
    /// Those that are not being answered, the oldest first.
    unanswered: Mutex<BTreeMap<u64, Arc<Notify>>>,
    next: AtomicU64,
}

/// One connection, until this is dropped.
#[derive(Debug)]
pub(super) struct Connection {
    all: Arc<Connections>,
    number: u64,
    hang_up: Arc<Notify>,
    /// The place of a scrape: until the last byte is written.
    scrape: Mutex<Option<OwnedSemaphorePermit>>,
    _place: OwnedSemaphorePermit,
}

impl Connections {
    /// At most so many at once, and of them so many scrapes.
    pub(super) fn new(connections: usize, scrapes: usize) -> Arc<Self> {
        let [places, scrapes] = [connections, scrapes].map(|count| Arc::new(Semaphore::new(count)));
        Arc::new(Self { places, scrapes, unanswered: Mutex::default(), next: AtomicU64::new(0) })
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
        Some(Arc::new(Connection { all: Arc::clone(self), number, hang_up, scrape: Mutex::default(), _place: place }))
    }

    fn unanswered(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Notify>>> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    /// From now on it is being answered.
    pub(super) fn answer(&self) {
        self.all.unanswered().remove(&self.number);
    }

    /// Waits for a place among the scrapes. It can be hung up meanwhile.
    pub(super) async fn answer_scrape(&self) {
        let place = Arc::clone(&self.all.scrapes).acquire_owned().await.ok();
        *self.scrape.lock().unwrap_or_else(PoisonError::into_inner) = place;
        self.answer();
    }

    /// Comes when it has to make room.
    pub(super) async fn hung_up(&self) {
        self.hang_up.notified().await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.answer();
    }
}
