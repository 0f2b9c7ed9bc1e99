//! Watches of processes for clients that may not trace: the agent starts a worker, a memwatch of its
//! own with a session of these processes, and passes its recording on.
//!
//! A worker has its own kernel half and memory, so that neither a slow client nor a program with
//! millions of events costs the agent's session anything. A thread per watch passes the recording
//! on and checks the client's rights.

mod forward;
mod rights;
pub(crate) mod worker;
pub(super) mod worker_process;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use memwatch_core::snapshot::Viewer;
use tokio::net::UnixStream;
use tokio::time::{Duration, Instant, sleep_until};

pub(super) use self::forward::WatchEnd;
use self::forward::{Forward, ForwardOrder};
use self::rights::Asker;
use self::worker::PastOrder;
use super::credentials::Peer;
use crate::client::protocol::watch::WatchRequest;
use crate::options::CommonArgs;
use crate::sources::cgroup::own_limit;
use crate::sources::login_users::login_user;

/// Maximum number of processes in one request.
const PROCESSES: usize = 64;
/// Maximum number of watches at once, as far as memory allows.
const MOST: usize = 4;

/// Number of watches that an owner may begin at once after a pause. A beginning takes up to a second
/// of a processor.
const BURST: u32 = 12;
/// Interval of an owner's watches beyond that.
const EACH: Duration = Duration::from_secs(5);

/// Time for which a watch keeps its place although an owner without any waits for one.
const TURN: Duration = Duration::from_mins(1);

/// Watches in progress.
#[derive(Debug)]
pub(super) struct Watches {
    /// Options of the agent that its workers need, too.
    options: Vec<OsString>,
    most: usize,
    inside: Mutex<WatchesInside>,
}

#[derive(Debug, Default)]
struct WatchesInside {
    /// Each watch in progress, by owner.
    watched: BTreeMap<u32, Vec<WatchInProgress>>,
    /// Number of places that the agent's own work has.
    own: usize,
    /// For each owner, the time at which the watches so far would have begun at an even pace.
    even: BTreeMap<u32, Instant>,
}

#[derive(Debug)]
struct WatchInProgress {
    tgids: Vec<u32>,
    since: Instant,
    /// Set when its place is given to another owner.
    is_over: Arc<AtomicBool>,
}

impl WatchesInside {
    fn taken(&self) -> usize {
        self.watched.values().flatten().count()
    }

    /// Ends the longest watch of the owner with most of them, for an owner without one, once it has
    /// had its turn. Its place is free a moment later.
    fn end_longest(&self, now: Instant) {
        let of_most = self.watched.values().max_by_key(|watches| watches.len());
        let longest = of_most.into_iter().flatten().min_by_key(|watch| watch.since);
        if let Some(watch) = longest.filter(|watch| now.saturating_duration_since(watch.since) >= TURN) {
            watch.is_over.store(true, Ordering::Relaxed);
        }
    }

    /// Counts a watch of this owner, and returns when it may begin.
    fn begin_of(&mut self, owner: u32, now: Instant) -> Instant {
        self.even.retain(|_, even| *even > now);
        let even = self.even.entry(owner).or_insert(now);
        *even += EACH;
        even.checked_sub(EACH * BURST).map_or(now, |begin| begin.max(now))
    }
}

/// A place for a watch, free again on drop.
#[derive(Debug)]
pub(super) struct WatchPermit {
    watches: Arc<Watches>,
    place: PlaceKind,
}

/// Owner of a place.
#[derive(Debug)]
enum PlaceKind {
    /// The agent's.
    Own,
    /// An owner's, for a watch that is to end when this is set.
    Watch { owner: u32, is_over: Arc<AtomicBool> },
}

impl Watches {
    /// Creates the places for watches of an agent with these options.
    pub(super) fn new(common: &CommonArgs) -> Arc<Self> {
        let most = own_limit::rest_bytes().map_or(MOST, |bytes| usize::try_from(bytes / worker::BYTES).unwrap_or(MOST));
        Self::with(worker_options(common), most.clamp(1, MOST))
    }

    /// Creates this many places.
    #[cfg(test)]
    pub(super) fn with_room(most: usize) -> Arc<Self> {
        Self::with(Vec::new(), most)
    }

    fn with(options: Vec<OsString>, most: usize) -> Arc<Self> {
        Arc::new(Self { options, most, inside: Mutex::default() })
    }

    /// Takes a place for an owner's watch of these processes. A process is watched once at a time,
    /// so that it pays once however many ask. An owner other than root may take half of the places.
    fn enter(self: &Arc<Self>, owner: u32, tgids: &[u32]) -> Result<(WatchPermit, Instant), String> {
        let mut all = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        let of_agent = if self.most < MOST { all.own } else { 0 };
        let is_watched = |tgid: &&u32| all.watched.values().flatten().any(|watch| watch.tgids.contains(*tgid));
        if let Some(tgid) = tgids.iter().find(is_watched) {
            return Err(format!("process {tgid} is being watched already: try again when that watch has ended"));
        }
        let of_owner = all.watched.get(&owner).map_or(0, Vec::len);
        let share = if owner == 0 { self.most } else { (self.most / 2).max(1) };
        let is_full = all.taken() + of_agent >= self.most;
        if is_full && of_owner == 0 {
            all.end_longest(Instant::now());
        }
        if of_owner >= share || is_full {
            return Err("it watches as many programs at once as it may: try again in a moment".to_owned());
        }
        let (since, is_over) = (Instant::now(), Arc::new(AtomicBool::new(false)));
        let watch = WatchInProgress { tgids: tgids.to_vec(), since, is_over: Arc::clone(&is_over) };
        all.watched.entry(owner).or_default().push(watch);
        let begin = all.begin_of(owner, since);
        let place = PlaceKind::Watch { owner, is_over };
        Ok((WatchPermit { watches: Arc::clone(self), place }, begin))
    }

    /// Returns the options of the agent that its workers need, too.
    pub(super) fn worker_options(&self) -> Vec<OsString> {
        self.options.clone()
    }

    /// Takes a place for a moment's work of the agent itself, if memory allows. It is one of the places
    /// for watches only where memory is limited; if it `cannot_wait`, it has its turn there.
    pub(super) fn place(self: &Arc<Self>, cannot_wait: bool) -> Option<WatchPermit> {
        let mut all = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        if self.most < MOST && all.taken() + all.own >= self.most {
            if cannot_wait && all.own == 0 {
                all.end_longest(Instant::now());
            }
            return None;
        }
        all.own += 1;
        Some(WatchPermit { watches: Arc::clone(self), place: PlaceKind::Own })
    }

    /// Watches processes for a client until the watch ends, and sends it the recording.
    ///
    /// # Errors
    /// The watch is refused; the reason is a sentence.
    pub(super) async fn serve(
        self: &Arc<Self>,
        stream: &UnixStream,
        (peer, viewer): (&Peer, Viewer),
        request: WatchRequest,
    ) -> Result<WatchEnd, String> {
        let asker = Asker::of(peer, viewer);
        if request.tgids.is_empty() || request.tgids.len() > PROCESSES {
            return Err(format!("a watch is of 1 to {PROCESSES} processes"));
        }
        for tgid in &request.tgids {
            asker.check(*tgid).map_err(|why| format!("process {tgid} cannot be watched for you: {why}"))?;
        }
        let order = ForwardOrder::Watch { asker, request };
        self.forward(stream, login_user(peer.uid), order).await
    }

    /// Sends a client its part of the history.
    ///
    /// # Errors
    /// As [`Self::serve`].
    pub(super) async fn serve_past(
        self: &Arc<Self>,
        stream: &UnixStream,
        peer: &Peer,
        order: PastOrder,
    ) -> Result<WatchEnd, String> {
        self.forward(stream, login_user(peer.uid), ForwardOrder::Past(order)).await
    }

    /// Takes a place, and passes on what a worker writes.
    async fn forward(
        self: &Arc<Self>,
        stream: &UnixStream,
        owner: u32,
        order: ForwardOrder,
    ) -> Result<WatchEnd, String> {
        let (permit, begin) = self.enter(owner, order.tgids())?;
        sleep_until(begin).await;
        let socket = stream.as_fd().try_clone_to_owned().map_err(|error| format!("the connection: {error}"))?;
        let forward = Forward { order, socket: socket.into(), options: self.options.clone() };
        let ended = tokio::task::spawn_blocking(move || forward.run(|| permit.is_over()));
        ended.await.map_err(|error| format!("the watch failed: {error}"))?
    }
}

/// Returns the options of the command line that decide what a session finds.
fn worker_options(common: &CommonArgs) -> Vec<OsString> {
    let mut words: Vec<OsString> = Vec::new();
    let files = common.libcuda.iter().map(|file| ("--libcuda", file));
    for (option, file) in files.chain(common.nvml_lib.iter().map(|file| ("--nvml-lib", file))) {
        words.extend([option.into(), file.into()]);
    }
    let flags = [(common.classic_uprobes, "--classic-uprobes"), (common.poll_libraries, "--poll-libraries")];
    words.extend(flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag.into()));
    words
}

impl WatchPermit {
    /// Whether its watch has had its turn and another owner waits for the place.
    fn is_over(&self) -> bool {
        matches!(&self.place, PlaceKind::Watch { is_over, .. } if is_over.load(Ordering::Relaxed))
    }
}

impl Drop for WatchPermit {
    fn drop(&mut self) {
        let mut all = self.watches.inside.lock().unwrap_or_else(PoisonError::into_inner);
        let PlaceKind::Watch { owner, is_over } = &self.place else {
            all.own -= 1;
            return;
        };
        let inside = &mut all.watched;
        if let Some(own) = inside.get_mut(owner) {
            own.retain(|watch| !Arc::ptr_eq(&watch.is_over, is_over));
            if own.is_empty() {
                inside.remove(owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_watched_once_and_no_user_takes_all_places() {
        let watches = Watches::with(Vec::new(), 4);
        let enter = |owner, tgids: &[u32]| watches.enter(owner, tgids).map(|(permit, _)| permit);
        let mut own = vec![enter(1000, &[7, 8]).expect("room")];
        assert!(enter(1001, &[8]).expect_err("it is watched").contains("process 8 is being watched"));
        own.push(enter(1000, &[9]).expect("room"));
        assert!(enter(1000, &[10]).is_err(), "the other half is for others");
        let others = [enter(1001, &[10]).expect("room"), enter(1002, &[12]).expect("room")];
        assert!(enter(0, &[11]).is_err(), "all places are taken");
        own.remove(0);
        drop(enter(0, &[7]).expect("room again"));
        drop((own, others));
        assert!(watches.inside.lock().expect("nobody panicked").watched.is_empty());
        let single = Watches::with(Vec::new(), 1);
        assert!(single.enter(1000, &[7]).is_ok(), "one place is everybody's");
    }

    #[test]
    fn own_work_of_the_agent_takes_a_place_only_where_memory_is_limited() {
        for (most, is_refused) in [(1, true), (MOST, false)] {
            let watches = Watches::with(Vec::new(), most);
            let own = watches.place(false).expect("room");
            assert_eq!((watches.enter(1000, &[7]).is_err(), watches.place(false).is_none()), (is_refused, is_refused));
            drop(own);
            assert!(watches.enter(1000, &[7]).is_ok());
        }
    }

    #[test]
    fn an_owner_without_a_place_gets_the_one_of_a_watch_that_has_had_its_turn() {
        for (most, owners) in [(1, &[1000][..]), (4, &[1000, 1000, 1001, 1001])] {
            let watches = Watches::with(Vec::new(), most);
            let take = |(tgid, owner): (u32, &u32)| watches.enter(*owner, &[tgid]).expect("room").0;
            let permits: Vec<WatchPermit> = (1..).zip(owners).map(take).collect();
            let asks = |owner| watches.enter(owner, &[77]).err().map(|_| permits.iter().any(WatchPermit::is_over));
            assert_eq!([asks(1002), asks(0)], [Some(false); 2], "none has had its turn");
            for watch in watches.inside.lock().expect("nobody panicked").watched.values_mut().flatten() {
                watch.since = watch.since.checked_sub(TURN).expect("the machine runs that long");
            }
            assert_eq!(asks(1000), Some(false), "this owner has a place");
            assert_eq!(asks(1002), Some(true));
            let over = permits.iter().filter(|permit| permit.is_over()).count();
            drop(permits);
            assert_eq!((over, watches.inside.lock().expect("nobody panicked").taken()), (1, 0));
        }
    }

    #[test]
    fn an_owner_who_begins_many_watches_waits_and_others_do_not() {
        let (mut inside, now) = (WatchesInside::default(), Instant::now());
        let begins: Vec<Duration> = (0..BURST + 2).map(|_| inside.begin_of(1000, now) - now).collect();
        assert!(begins[..BURST as usize].iter().all(Duration::is_zero), "{begins:?}");
        assert_eq!(begins[BURST as usize..], [EACH, 2 * EACH]);
        assert_eq!(inside.begin_of(1001, now), now);
        let later = now + EACH * (BURST + 2);
        assert_eq!(inside.begin_of(1000, later), later);
        assert_eq!(inside.even.len(), 1, "who has paused is forgotten");
    }
}
