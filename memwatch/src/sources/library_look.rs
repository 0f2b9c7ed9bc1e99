//! What takes reading others' files, in threads of its own: who maps which library file, what its loader would find, and where the functions of a new
//! file are. The loop that fetches records waits for none of it, and a network file system that hangs stops the look for future files alone.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use memwatch_common::probes::{Probe, When};
use tokio::sync::Notify;

use super::kernel::attach::{Plan, PlanError, plan};
use super::kernel::site::KernelVersion;
use super::library::limits::{Owner, Shares};
use super::library::loader::LoaderSearch;
use super::library::{Discovery, FileIdentity, LIBRARY_STEM, LibraryFile, LibraryScan, REQUESTERS, is_library};

/// What is to be looked at.
#[derive(Debug)]
pub(crate) enum Subject {
    /// What a process has mapped.
    Mapped(u32),
    /// What a process may map.
    Loader(u32),
    /// What this program may map, started with these directories in `LD_LIBRARY_PATH`.
    Program(PathBuf, Vec<u8>),
    /// Which of the driver's other libraries that ask the kernel driver for memory these processes have mapped, or this machine has.
    Requesters(Option<Vec<u32>>),
    /// What any process of the machine has mapped.
    Machine,
    /// Where a process's files have the functions that are probed at such times.
    Functions(u32, When),
    /// What a sweep found that began at this time: `CLOCK_BOOTTIME`, nanoseconds.
    Swept(u64, Discovery),
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
    Machine,
    Functions(u32, When),
    Swept(u64),
}

/// A file that nobody has looked into before.
#[derive(Debug)]
pub(crate) struct NewFile {
    pub(crate) file: LibraryFile,
    pub(crate) plan: Result<Plan, PlanError>,
}

/// The threads, seen from outside. They end with this.
pub(crate) struct Lookers {
    mapped: Sender<Order>,
    loaders: Sender<Order>,
    functions: Sender<Order>,
    looked: Receiver<Looked>,
    news: Arc<Notify>,
}

impl Lookers {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system has none to give.
    pub(crate) fn start(scan: &LibraryScan, version: KernelVersion) -> std::io::Result<Self> {
        let (done, looked) = channel();
        let news = Arc::new(Notify::new());
        let worker = |name: &str| {
            let (orders, ordered) = channel();
            let mut eyes = Eyes {
                scan: scan.clone(),
                requesters: scan.clone().with_stems(&REQUESTERS).without_named(),
                loadable: scan.clone().with_stems(&[&[LIBRARY_STEM][..], &REQUESTERS].concat()),
                known_requesters: Vec::new(),
                shares: Shares::default(),
                version,
                search: LoaderSearch::default(),
            };
            let (done, news) = (done.clone(), Arc::clone(&news));
            std::thread::Builder::new().name(name.to_owned()).spawn(move || {
                for order in ordered {
                    if done.send(eyes.look(order)).is_err() {
                        return;
                    }
                    news.notify_one();
                }
            })?;
            Ok::<_, std::io::Error>(orders)
        };
        let (mapped, loaders, functions) = (worker("library-files")?, worker("loaders")?, worker("functions")?);
        Ok(Self { mapped, loaders, functions, looked, news })
    }

    /// Has something looked at.
    pub(crate) fn order(&self, order: Order) {
        let thread = match order.subject {
            Subject::Mapped(_) | Subject::Machine | Subject::Swept(..) => &self.mapped,
            Subject::Functions(..) => &self.functions,
            Subject::Loader(_) | Subject::Program(..) | Subject::Requesters(_) => &self.loaders,
        };
        // The threads end only with this.
        let _ = thread.send(order);
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

struct Eyes {
    scan: LibraryScan,
    requesters: LibraryScan,
    /// For both.
    loadable: LibraryScan,
    /// Requesters that were looked into, and whose they are.
    known_requesters: Vec<FileIdentity>,
    shares: Shares,
    version: KernelVersion,
    search: LoaderSearch,
}

impl Eyes {
    fn look(&mut self, Order { subject, known }: Order) -> Looked {
        let (mut asking, mut owner) = (Vec::new(), None);
        let (subject, found) = match subject {
            Subject::Mapped(tgid) => (Looking::Mapped(tgid), self.scan.scan_process(tgid)),
            Subject::Loader(tgid) => {
                let mut found = self.search.files(&self.loadable, tgid);
                asking = take_requesters(&mut found);
                asking.extend(self.requesters.scan_process(tgid).files);
                owner = Owner::of(&PathBuf::from(format!("/proc/{tgid}")));
                (Looking::Loader(tgid), found)
            }
            Subject::Program(program, path) => {
                let mut found = self.search.files_of_program(&self.loadable, &program, &path);
                asking = take_requesters(&mut found);
                (Looking::Program, found)
            }
            Subject::Requesters(tgids) => {
                let here = || self.requesters.scan_host();
                let found = tgids.map_or_else(here, |tgids| self.requesters.scan_processes(&tgids));
                asking = found.files;
                (Looking::Requesters, Discovery::default())
            }
            Subject::Machine => (Looking::Machine, self.scan.scan_all()),
            Subject::Functions(tgid, when) => {
                let found = self.scan.scan_process(tgid);
                let new = new_files(&found, &[], (self.version, (self.scan.probes(), when)));
                return Looked { subject: Looking::Functions(tgid, when), found, new, requesters: Vec::new() };
            }
            Subject::Swept(begun_ns, found) => (Looking::Swept(begun_ns), found),
        };
        let new = new_files(&found, &known, (self.version, (self.scan.probes(), When::Always)));
        Looked { subject, found, new, requesters: self.look_into(asking, owner) }
    }

    /// Where new files call `ioctl`, unless their owner has too many.
    fn look_into(&mut self, files: Vec<LibraryFile>, owner: Option<Owner>) -> Vec<NewFile> {
        let mut new = Vec::new();
        for file in files {
            let is_known = self.known_requesters.iter().any(|known| known.is_same_file(&file.identity));
            let owner = file.owner.or(owner);
            if !is_known && owner.is_none_or(|owner| self.shares.has_room(owner)) {
                if let Some(owner) = owner {
                    self.shares.count(owner);
                }
                self.known_requesters.push(file.identity.clone());
                let plan = plan(&file, self.version, (&[], When::Always));
                new.push(NewFile { file, plan });
            }
        }
        new
    }
}

/// Takes out the files that only ask the kernel driver.
fn take_requesters(found: &mut Discovery) -> Vec<LibraryFile> {
    let is_one = |file: &mut LibraryFile| REQUESTERS.iter().any(|stem| is_library(file.display.as_bytes(), stem));
    found.left_out.retain(|file| !REQUESTERS.iter().any(|stem| is_library(file.display.as_bytes(), stem)));
    found.files.extract_if(.., is_one).collect()
}

/// The files that are not known, each with where its functions are.
pub(crate) fn new_files(
    found: &Discovery,
    known: &[FileIdentity],
    (version, rows): (KernelVersion, (&[Probe], When)),
) -> Vec<NewFile> {
    let is_new = |file: &&LibraryFile| !known.iter().any(|known| known.is_same_file(&file.identity));
    let new = found.files.iter().filter(is_new);
    new.map(|file| NewFile { file: file.clone(), plan: plan(file, version, rows) }).collect()
}
