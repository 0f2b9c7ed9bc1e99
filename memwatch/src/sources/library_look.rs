//! What takes reading others' files: who maps which library file, what its loader would find, and where the functions of a new file are. To open a file
//! of a stranger, to ask for its attributes and to read it may each take as long as its owner likes (FUSE, a dead NFS server): all of that happens on the
//! threads of [`OwnerQueues`], in the queue of the process's owner, and the loop that fetches records waits for none of it.

mod eyes;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use memwatch_common::probes::When;
use tokio::sync::Notify;

use self::eyes::Eyes;
use super::kernel::attach::{Plan, PlanError};
use super::kernel::site::KernelVersion;
use super::library::limits::Owner;
use super::library::{Discovery, FileIdentity, LibraryFile, LibraryScan};
use super::owner_queues::OwnerQueues;

pub(crate) use self::eyes::new_files;

/// What is to be looked at.
#[derive(Debug)]
pub(crate) enum Subject {
    /// What a process has mapped.
    Mapped(u32),
    /// What a process may map.
    Loader(u32),
    /// What this program may map, started with these directories in `LD_LIBRARY_PATH`.
    Program(PathBuf, Vec<u8>),
    /// Which of the driver's other libraries that ask the kernel driver for memory these processes of one owner have mapped, or this machine has.
    Requesters(Option<Vec<u32>>),
    /// What these processes of this owner have mapped, for a sweep that began at this time: `CLOCK_BOOTTIME`, nanoseconds.
    Part(u64, Owner, Vec<u32>),
    /// Where a process's files have the functions that are probed at such times.
    Functions(u32, When),
}

/// An order. Files that are among the known ones are not read.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) subject: Subject,
    pub(crate) known: Arc<Vec<FileIdentity>>,
}

/// What came of an order.
#[derive(Debug)]
pub(crate) struct Looked {
    pub(crate) subject: Looking,
    /// In whose queue it was.
    pub(crate) owner: Owner,
    pub(crate) found: Discovery,
    /// The new files among what was found.
    pub(crate) new: Vec<NewFile>,
    /// And the new ones that only ask the kernel driver.
    pub(crate) requesters: Vec<NewFile>,
}

/// What was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Looking {
    Mapped(u32),
    Loader(u32),
    Program,
    Requesters,
    Part(u64),
    Functions(u32, When),
}

/// A file that nobody has looked into before.
#[derive(Debug)]
pub(crate) struct NewFile {
    pub(crate) file: LibraryFile,
    pub(crate) plan: Result<Plan, PlanError>,
}

/// The queues of looks. One owner's looks at what is mapped do not wait for a sweep's, or for those at loaders.
pub(crate) struct Lookers {
    mapped: OwnerQueues,
    sweeps: OwnerQueues,
    loaders: OwnerQueues,
    functions: OwnerQueues,
    eyes: Arc<Eyes>,
    done: Sender<Looked>,
    looked: Receiver<Looked>,
    news: Arc<Notify>,
}

impl Lookers {
    /// No thread runs yet.
    pub(crate) fn new(scan: &LibraryScan, version: KernelVersion) -> Self {
        let (done, looked) = channel();
        Self {
            mapped: OwnerQueues::new("library-files"),
            sweeps: OwnerQueues::new("library-sweeps"),
            loaders: OwnerQueues::new("loaders"),
            functions: OwnerQueues::new("functions"),
            eyes: Arc::new(Eyes::new(scan, version)),
            done,
            looked,
            news: Arc::new(Notify::new()),
        }
    }

    /// Has something looked at. Where its owner's queue is full the answer is that the processes may not be looked at.
    pub(crate) fn order(&self, order: Order) {
        let Some(owner) = order.subject.owner() else {
            // The process has ended.
            return self.answer(Looked::nothing(order.subject.looking(), Owner::Root(0), Vec::new()));
        };
        let queues = match order.subject {
            Subject::Mapped(_) => &self.mapped,
            Subject::Part(..) => &self.sweeps,
            Subject::Functions(..) => &self.functions,
            Subject::Loader(_) | Subject::Program(..) | Subject::Requesters(_) => &self.loaders,
        };
        let (looking, tgids) = (order.subject.looking(), order.subject.tgids());
        let (eyes, done, news) = (Arc::clone(&self.eyes), self.done.clone(), Arc::clone(&self.news));
        let look = move || {
            let looked = eyes.look(owner, order);
            // It is of no use any more where the watch has ended meanwhile.
            let _ = done.send(looked);
            news.notify_one();
        };
        if queues.order(owner, look).is_err() {
            self.answer(Looked::nothing(looking, owner, tgids));
        }
    }

    fn answer(&self, looked: Looked) {
        // The receiver is as old as this.
        let _ = self.done.send(looked);
        self.news.notify_one();
    }

    /// Something that has come of an order.
    pub(crate) fn take(&self) -> Option<Looked> {
        self.looked.try_recv().ok()
    }

    /// The same; it is waited for, but not longer than this.
    pub(crate) fn wait(&self, longest: Duration) -> Option<Looked> {
        self.looked.recv_timeout(longest).ok()
    }

    /// By which others report, too, that they have something for whoever waits for [`Self::news`].
    pub(crate) fn notifier(&self) -> Arc<Notify> {
        Arc::clone(&self.news)
    }

    /// Completes when there is something to take. Dropped while it waits, it has taken nothing.
    pub(crate) fn news(&self) -> impl Future<Output = ()> + use<> {
        let news = Arc::clone(&self.news);
        async move { news.notified().await }
    }
}

impl Subject {
    /// In whose queue it belongs; `None` where the process has ended.
    fn owner(&self) -> Option<Owner> {
        match self {
            Self::Mapped(tgid) | Self::Loader(tgid) | Self::Functions(tgid, _) => owner_of(*tgid),
            Self::Part(_, owner, _) => Some(*owner),
            Self::Requesters(Some(tgids)) => tgids.iter().find_map(|tgid| owner_of(*tgid)),
            Self::Program(..) | Self::Requesters(None) => Owner::of(Path::new("/proc/self")),
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

    /// The processes of which it is not known what they have mapped, where nobody looks.
    fn tgids(&self) -> Vec<u32> {
        match self {
            Self::Mapped(tgid) => vec![*tgid],
            Self::Part(.., tgids) => tgids.clone(),
            _ => Vec::new(),
        }
    }
}

impl Looked {
    /// Nobody has looked, and of these processes nothing is known.
    fn nothing(subject: Looking, owner: Owner, tgids: Vec<u32>) -> Self {
        Self { subject, owner, found: Discovery::of_unseen(tgids), new: Vec::new(), requesters: Vec::new() }
    }
}

/// Who answers for a process; `None` where it has ended.
pub(crate) fn owner_of(tgid: u32) -> Option<Owner> {
    Owner::of(&PathBuf::from(format!("/proc/{tgid}")))
}
