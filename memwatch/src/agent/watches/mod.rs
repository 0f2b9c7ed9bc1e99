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
    /// The processes of each watch in progress, by owner.
    watched: BTreeMap<u32, Vec<Vec<u32>>>,
    /// Number of places that the agent's own work has.
    own: usize,
    /// For each owner, the time at which the watches so far would have begun at an even pace.
    even: BTreeMap<u32, Instant>,
}

impl WatchesInside {
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
    /// An owner's, for a watch of these processes.
    Watch { owner: u32, tgids: Vec<u32> },
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
        let inside = &mut all.watched;
        if let Some(tgid) =
            tgids.iter().find(|tgid| inside.values().flatten().flatten().any(|watched| watched == *tgid))
        {
            return Err(format!("process {tgid} is being watched already: try again when that watch has ended"));
        }
        let of_owner = inside.get(&owner).map_or(0, Vec::len);
        let share = if owner == 0 { self.most } else { (self.most / 2).max(1) };
        if of_owner >= share || inside.values().flatten().count() + of_agent >= self.most {
            return Err("it watches as many programs at once as it may: try again in a moment".to_owned());
        }
        inside.entry(owner).or_default().push(tgids.to_vec());
        let begin = all.begin_of(owner, Instant::now());
        let place = PlaceKind::Watch { owner, tgids: tgids.to_vec() };
        Ok((WatchPermit { watches: Arc::clone(self), place }, begin))
    }

    /// Returns the options of the agent that its workers need, too.
    pub(super) fn worker_options(&self) -> Vec<OsString> {
        self.options.clone()
    }

    /// Takes a place for a moment's work of the agent itself, if memory allows. It is one of the places
    /// for watches only where memory is limited.
    pub(super) fn place(self: &Arc<Self>) -> Option<WatchPermit> {
        let mut all = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = all.watched.values().flatten().count() + all.own;
        if self.most < MOST && taken >= self.most {
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
        let ended = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            forward.run()
        });
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

impl Drop for WatchPermit {
    fn drop(&mut self) {
        let mut all = self.watches.inside.lock().unwrap_or_else(PoisonError::into_inner);
        let PlaceKind::Watch { owner, tgids } = &self.place else {
            all.own -= 1;
            return;
        };
        let inside = &mut all.watched;
        if let Some(own) = inside.get_mut(owner) {
            if let Some(at) = own.iter().position(|watched| watched == tgids) {
                own.swap_remove(at);
            }
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
            let own = watches.place().expect("room");
            assert_eq!((watches.enter(1000, &[7]).is_err(), watches.place().is_none()), (is_refused, is_refused));
            drop(own);
            assert!(watches.enter(1000, &[7]).is_ok());
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
