//! Examines files of other users: which processes map which library, which libraries a loader would
//! find, and where the functions of a new file are. Opening, querying or reading a file can block
//! for as long as its owner likes (FUSE, a dead NFS server). All of that therefore runs on the
//! threads of [`OwnerQueues`], in the queue of the process's owner, and never blocks the poll loop.

mod eyes;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use memwatch_common::probes::When;
use tokio::sync::Notify;

use self::eyes::LibraryScanner;
use super::kernel::attach::{AttachPlan, PlanError};
use super::kernel::site::KernelVersion;
use super::library::limits::FileOwner;
use super::library::{Discovery, FileIdentity, LibraryFile, LibraryScan};
use super::owner_queues::OwnerQueues;

pub(crate) use self::eyes::new_files;

/// Subject of an examination.
#[derive(Debug)]
pub(crate) enum LibraryQuery {
    /// Mapped libraries of a process.
    Mapped(u32),
    /// Libraries that a process may map.
    Loader(u32),
    /// Libraries that this program may map, given `LD_LIBRARY_PATH`.
    Program(PathBuf, Vec<u8>),
    /// Other libraries of the driver that send requests to the kernel driver, in these processes of
    /// one owner or on this machine.
    Requesters(Option<Vec<u32>>),
    /// Mapped libraries of these processes of an owner, as part of a sweep that started at this
    /// time: `CLOCK_BOOTTIME`, nanoseconds.
    Part(u64, FileOwner, Vec<u32>),
    /// Functions to be probed on this occasion, in the files of a process.
    Functions(u32, When),
}

/// A request. Known files are not read again.
#[derive(Debug)]
pub(crate) struct LibraryRequest {
    pub(crate) subject: LibraryQuery,
    pub(crate) known: Arc<Vec<FileIdentity>>,
}

/// Result of a request.
#[derive(Debug)]
pub(crate) struct Looked {
    pub(crate) subject: Looking,
    /// Owner of the queue.
    pub(crate) owner: FileOwner,
    pub(crate) found: Discovery,
    /// New files found.
    pub(crate) new: Vec<NewFile>,
    /// New files found that only send requests to the kernel driver.
    pub(crate) requesters: Vec<NewFile>,
}

/// Subject of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Looking {
    Mapped(u32),
    Loader(u32),
    Program,
    Requesters,
    Part(u64),
    Functions(u32, When),
}

/// A file not examined before.
#[derive(Debug)]
pub(crate) struct NewFile {
    pub(crate) file: LibraryFile,
    pub(crate) plan: Result<AttachPlan, PlanError>,
}

/// Queues of the examinations. Examining an owner's mappings does not wait for sweeps or for
/// loaders.
pub(crate) struct Lookers {
    mapped: OwnerQueues,
    sweeps: OwnerQueues,
    loaders: OwnerQueues,
    functions: OwnerQueues,
    eyes: Arc<LibraryScanner>,
    done: Sender<Looked>,
    looked: Receiver<Looked>,
    news: Arc<Notify>,
}

impl Lookers {
    /// Creates the queues without threads.
    pub(crate) fn new(scan: &LibraryScan, version: KernelVersion) -> Self {
        let (done, looked) = channel();
        Self {
            mapped: OwnerQueues::new("library-files"),
            sweeps: OwnerQueues::new("library-sweeps"),
            loaders: OwnerQueues::new("loaders"),
            functions: OwnerQueues::new("functions"),
            eyes: Arc::new(LibraryScanner::new(scan, version)),
            done,
            looked,
            news: Arc::new(Notify::new()),
        }
    }

    /// Submits a request. If the owner's queue is full, the result says that the processes are
    /// unreadable.
    pub(crate) fn order(&self, order: LibraryRequest) {
        let Some(owner) = order.subject.owner() else {
            // The process has exited.
            return self.answer(Looked::nothing(order.subject.looking(), FileOwner::Root(0), Vec::new()));
        };
        let queues = match order.subject {
            LibraryQuery::Mapped(_) => &self.mapped,
            LibraryQuery::Part(..) => &self.sweeps,
            LibraryQuery::Functions(..) => &self.functions,
            LibraryQuery::Loader(_) | LibraryQuery::Program(..) | LibraryQuery::Requesters(_) => &self.loaders,
        };
        let (looking, tgids) = (order.subject.looking(), order.subject.tgids());
        let (eyes, done, news) = (Arc::clone(&self.eyes), self.done.clone(), Arc::clone(&self.news));
        let look = move || {
            let looked = eyes.look(owner, order);
            // The receiver is gone if the session has ended.
            let _ = done.send(looked);
            news.notify_one();
        };
        if queues.order(owner, look).is_err() {
            self.answer(Looked::nothing(looking, owner, tgids));
        }
    }

    fn answer(&self, looked: Looked) {
        // The receiver lives as long as this value.
        let _ = self.done.send(looked);
        self.news.notify_one();
    }

    /// Takes a result, if there is one.
    pub(crate) fn take(&self) -> Option<Looked> {
        self.looked.try_recv().ok()
    }

    /// Waits for a result, for at most this long.
    pub(crate) fn wait(&self, longest: Duration) -> Option<Looked> {
        self.looked.recv_timeout(longest).ok()
    }

    /// Returns the notifier that completes [`Self::news`], for other sources.
    pub(crate) fn notifier(&self) -> Arc<Notify> {
        Arc::clone(&self.news)
    }

    /// Completes when there is a result. Cancel safe.
    pub(crate) fn news(&self) -> impl Future<Output = ()> + use<> {
        let news = Arc::clone(&self.news);
        async move { news.notified().await }
    }
}

impl LibraryQuery {
    /// Returns the owner of the queue for a request; `None` if the process has exited.
    fn owner(&self) -> Option<FileOwner> {
        match self {
            Self::Mapped(tgid) | Self::Loader(tgid) | Self::Functions(tgid, _) => owner_of(*tgid),
            Self::Part(_, owner, _) => Some(*owner),
            Self::Requesters(Some(tgids)) => tgids.iter().find_map(|tgid| owner_of(*tgid)),
            Self::Program(..) | Self::Requesters(None) => FileOwner::of(Path::new("/proc/self")),
        }
    }

    fn looking(&self) -> Looking {
        match self {
            Self::Mapped(tgid) => Looking::Mapped(*tgid),
            Self::Loader(tgid) => Looking::Loader(*tgid),
            Self::Program(..) => Looking::Program,
            Self::Requesters(_) => Looking::Requesters,
            Self::Part(begun_ns, ..) => Looking::Part(*begun_ns),
            Self::Functions(tgid, when) => Looking::Functions(*tgid, *when),
        }
    }

    /// Returns the processes whose mappings remain unknown if a request is refused.
    fn tgids(&self) -> Vec<u32> {
        match self {
            Self::Mapped(tgid) => vec![*tgid],
            Self::Part(.., tgids) => tgids.clone(),
            _ => Vec::new(),
        }
    }
}

impl Looked {
    /// Returns the result of a refused request: the mappings of these processes are unknown.
    fn nothing(subject: Looking, owner: FileOwner, tgids: Vec<u32>) -> Self {
        Self { subject, owner, found: Discovery::of_unseen(tgids), new: Vec::new(), requesters: Vec::new() }
    }
}

/// Returns the owner of a process; `None` if it has exited.
pub(crate) fn owner_of(tgid: u32) -> Option<FileOwner> {
    FileOwner::of(&PathBuf::from(format!("/proc/{tgid}")))
}
