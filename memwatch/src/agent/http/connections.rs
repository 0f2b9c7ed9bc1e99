//! Which connections are open, and which goes where a new one needs its place: the oldest that is not being answered; else the oldest whose answer its
//! client has not read for a while. Clients that send half a request, or read as slowly as they can, keep nobody out.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

/// How long a client has for an answer before another may get its place: a scrape of a large node takes milliseconds over a network.
const UNDISTURBED: Duration = Duration::from_secs(1);
/// A connection that is admitted asks this often whether another has become old enough to go.
const POLL: Duration = Duration::from_millis(50);

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

/// What a connection gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// What needs no place of its own: a probe of life, a file of the page.
    Small,
    Scrape,
    Page,
    Stream,
}

/// A connection that may have to make room.
#[derive(Debug)]
struct Open {
    hang_up: Arc<Notify>,
    /// What it gets, and since when.
    answered: Option<(Answer, Instant)>,
}

/// The open connections.
#[derive(Debug)]
pub(super) struct Connections {
    places: Arc<Semaphore>,
    scrapes: Arc<Semaphore>,
    pages: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    /// The oldest first; without the ones that were asked to go.
    open: Mutex<BTreeMap<u64, Open>>,
    next: AtomicU64,
    undisturbed: Duration,
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
    pub(super) fn new(places: Places) -> Arc<Self> {
        Self::undisturbed_for(UNDISTURBED, places)
    }

    fn undisturbed_for(undisturbed: Duration, Places { all, scrapes, pages, streams }: Places) -> Arc<Self> {
        let [places, scrapes, pages, streams] =
            [all, scrapes, pages, streams].map(|count| Arc::new(Semaphore::new(count)));
        let (open, next) = (Mutex::default(), AtomicU64::new(0));
        Arc::new(Self { places, scrapes, pages, streams, open, next, undisturbed })
    }

    /// A place for a connection that was accepted; `None` never comes, since the semaphore is not closed.
    pub(super) async fn admit(self: &Arc<Self>) -> Option<Arc<Connection>> {
        let place = self.place(&self.places, |open| {
            let unanswered = open.iter().find(|(_, open)| open.answered.is_none());
            let slow = || open.iter().find(|(_, open)| self.is_slow(open, |answer| answer != Answer::Stream));
            unanswered.or_else(slow).map(|(number, _)| *number)
        });
        let place = place.await?;
        let (number, hang_up) = (self.next.fetch_add(1, Ordering::Relaxed), Arc::new(Notify::new()));
        self.open().insert(number, Open { hang_up: Arc::clone(&hang_up), answered: None });
        let (answer, is_stream) = (Mutex::default(), AtomicBool::new(false));
        Some(Arc::new(Connection { all: Arc::clone(self), number, hang_up, answer, is_stream, _place: place }))
    }

    /// A place among these. Where there is none, the one that `goes` names goes, if any does by then.
    async fn place(
        &self,
        places: &Arc<Semaphore>,
        goes: impl Fn(&BTreeMap<u64, Open>) -> Option<u64> + Send,
    ) -> Option<OwnedSemaphorePermit> {
        let mut place = std::pin::pin!(Arc::clone(places).acquire_owned());
        while places.available_permits() == 0 {
            // The place of the one that goes may be another's who has waited for longer: then one more has to go.
            let patience = if self.let_go(&goes) { UNDISTURBED } else { POLL };
            if let Ok(place) = timeout(patience, &mut place).await {
                return place.ok();
            }
        }
        place.await.ok()
    }

    /// Asks the one that `goes` names to go; false where it names none.
    fn let_go(&self, goes: impl Fn(&BTreeMap<u64, Open>) -> Option<u64>) -> bool {
        let mut open = self.open();
        let gone = goes(&open).and_then(|number| open.remove(&number));
        gone.inspect(|gone| gone.hang_up.notify_one()).is_some()
    }

    /// Whether a client has had time enough for its answer of such a kind.
    fn is_slow(&self, open: &Open, is_meant: impl Fn(Answer) -> bool) -> bool {
        open.answered.is_some_and(|(answer, since)| is_meant(answer) && since.elapsed() >= self.undisturbed)
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    /// From now on it is being answered.
    pub(in crate::agent) fn answer(&self) {
        self.answers(Answer::Small);
    }

    /// Waits for a place among the scrapes. It can be hung up meanwhile.
    pub(super) async fn answer_scrape(&self) {
        self.answer_in(&self.all.scrapes, Answer::Scrape).await;
    }

    /// The same among the pages.
    pub(in crate::agent) async fn answer_page(&self) {
        self.answer_in(&self.all.pages, Answer::Page).await;
    }

    /// From now on it gets what changes, without a limit of time; false where there is no room for that.
    pub(in crate::agent) fn answer_stream(&self) -> bool {
        let place = Arc::clone(&self.all.streams).try_acquire_owned().ok();
        let has_place = place.is_some();
        self.is_stream.store(has_place, Ordering::Relaxed);
        self.hold(place);
        self.answers(if has_place { Answer::Stream } else { Answer::Small });
        has_place
    }

    async fn answer_in(&self, places: &Arc<Semaphore>, kind: Answer) {
        let place = self.all.place(places, |open| {
            let mut slow = open.iter().filter(|(_, open)| self.all.is_slow(open, |answer| answer == kind));
            slow.next().map(|(number, _)| *number)
        });
        self.hold(place.await);
        self.answers(kind);
    }

    fn answers(&self, answer: Answer) {
        if let Some(open) = self.all.open().get_mut(&self.number) {
            open.answered = Some((answer, Instant::now()));
        }
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

    /// Comes when it has to make room.
    pub(super) async fn hung_up(&self) {
        self.hang_up.notified().await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.all.open().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: Places = Places { all: 4, scrapes: 2, pages: 2, streams: 2 };

    async fn admitted(all: &Arc<Connections>) -> Arc<Connection> {
        all.admit().await.expect("the semaphore is open")
    }

    /// Whether it was asked to go.
    async fn goes(connection: &Connection) -> bool {
        timeout(Duration::ZERO, connection.hung_up()).await.is_ok()
    }

    /// Admits one while this one goes.
    async fn admitted_for(all: &Arc<Connections>, goer: Arc<Connection>) -> Arc<Connection> {
        let going = async {
            goer.hung_up().await;
            drop(goer);
        };
        tokio::join!(admitted(all), going).0
    }

    #[tokio::test]
    async fn whoever_is_not_answered_goes_before_who_reads_slowly_and_a_stream_stays() {
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
    async fn a_scrape_that_is_not_read_goes_for_the_next_one_and_no_page_does() {
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
    async fn nobody_goes_who_was_just_answered() {
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
