//! Scans processes for framework libraries on threads of the owner queues, since reading mappings
//! and the symbols of libraries is slow.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use memwatch_common::tensor::FrameworkLibrary;

use crate::frameworks::bfc::ArenaLayout;
use crate::frameworks::libraries::{Contents, LIBRARIES, LibraryRow};
use crate::frameworks::points::TensorPoint;
use crate::sources::kernel::site::KernelVersion;
use crate::sources::library::{FileIdentity, LibraryFile, LibraryScan};
use crate::sources::library_look::owner_of;
use crate::sources::owner_queues::OwnerQueues;

/// A result of a scan.
pub(crate) enum LookResult {
    /// A process maps this library.
    Found(Box<FoundLibrary>),
    /// All libraries of this process have been reported.
    Done(u32),
}

/// A framework's library in a process.
#[derive(Clone)]
pub(crate) struct FoundLibrary {
    /// Process id.
    pub(crate) tgid: u32,
    /// The library's identifier.
    pub(crate) library: FrameworkLibrary,
    /// The library's file.
    pub(crate) file: LibraryFile,
    /// Probe points in the file, or a message that explains why they are unknown.
    pub(crate) points: Result<Vec<TensorPoint>, String>,
    /// Field offsets of the library's arenas, if it has any.
    pub(crate) arenas: Option<ArenaLayout>,
}

/// Scans processes, each in the queue of its owner.
pub(crate) struct Looker {
    queues: OwnerQueues,
    eyes: Arc<FrameworkScanner>,
    say: Sender<LookResult>,
    stated: Receiver<LookResult>,
}

impl Looker {
    /// Starts without any scan.
    pub(crate) fn new(version: KernelVersion) -> Self {
        let (say, stated) = channel();
        let scan = LibraryScan::new("/proc").with_stems(&LIBRARIES.map(|row| row.stem));
        let eyes = Arc::new(FrameworkScanner { scan, version, known: Mutex::default() });
        Self { queues: OwnerQueues::new("pytorch"), eyes, say, stated }
    }

    /// Queues a scan of a process.
    pub(crate) fn order(&self, tgid: u32) {
        let (eyes, say) = (Arc::clone(&self.eyes), self.say.clone());
        let look = move || {
            // The receiver is gone once the session has ended.
            let _ = eyes.look(tgid, &say);
        };
        let ordered = owner_of(tgid).map(|owner| self.queues.order(owner, look));
        if ordered.is_none_or(|ordered| ordered.is_err()) {
            // The process has exited, or its owner's queue is full; the caller polls again later.
            let _ = self.say.send(LookResult::Done(tgid));
        }
    }

    /// Returns the results since the last call.
    pub(crate) fn hear(&self) -> impl Iterator<Item = LookResult> {
        self.stated.try_iter()
    }
}

/// State shared by all scans.
struct FrameworkScanner {
    scan: LibraryScan,
    version: KernelVersion,
    /// Files inspected before. They are few, since a machine has few versions of a framework. The
    /// lock is not held while a file is read.
    known: Mutex<Vec<(FileIdentity, Contents)>>,
}

impl FrameworkScanner {
    fn look(&self, tgid: u32, say: &Sender<LookResult>) -> Option<()> {
        let found = self.scan.scan_process(tgid).files;
        for row in &LIBRARIES {
            let Some(file) = found.iter().find(|file| row.is_at(file.display.as_bytes())) else { continue };
            let Contents { points, arenas } = self.contents(file, row);
            let found = FoundLibrary { tgid, library: row.library, file: file.clone(), points, arenas };
            say.send(LookResult::Found(Box::new(found))).ok()?;
        }
        say.send(LookResult::Done(tgid)).ok()
    }

    fn known(&self) -> MutexGuard<'_, Vec<(FileIdentity, Contents)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn contents(&self, file: &LibraryFile, row: &LibraryRow) -> Contents {
        let known = self.known().iter().find(|(identity, _)| identity.is_same_file(&file.identity)).cloned();
        if let Some((_, known)) = known {
            return known;
        }
        let begin = Instant::now();
        let opened = file.open();
        let is_busy = opened.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        let contents = self.look_into(opened, row);
        log::info!("{}: symbols searched in {} ms", file.display, begin.elapsed().as_millis());
        // A file under a lease of its owner may become readable later, so it is not remembered.
        if !is_busy {
            self.known().push((file.identity.clone(), contents.clone()));
        }
        contents
    }

    fn look_into(&self, opened: io::Result<File>, row: &LibraryRow) -> Contents {
        match opened {
            Ok(opened) => row.look_into(&opened, self.version),
            Err(error) => Contents { points: Err(error.to_string()), arenas: None },
        }
    }
}
