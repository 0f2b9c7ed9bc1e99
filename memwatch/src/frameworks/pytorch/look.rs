//! The slow part of finding a framework in a process, in a thread of its own: reading its mappings and the symbols of its libraries.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use memwatch_common::tensor::FrameworkLibrary;

use super::symbols::TensorPoint;
use crate::frameworks::bfc::ArenaLayout;
use crate::frameworks::libraries::{Contents, LIBRARIES, LibraryRow};
use crate::sources::kernel::site::KernelVersion;
use crate::sources::library::{FileIdentity, LibraryFile, LibraryScan};

/// What the thread says.
pub(crate) enum LookResult {
    /// A process has mapped this library.
    Found(Box<FoundLibrary>),
    /// All that this process has mapped was stated.
    Done(u32),
}

/// A framework's library in a process.
#[derive(Clone)]
pub(crate) struct FoundLibrary {
    /// The process.
    pub(crate) tgid: u32,
    /// Which.
    pub(crate) library: FrameworkLibrary,
    /// Its file.
    pub(crate) file: LibraryFile,
    /// Where the rows are in it; or why nobody knows.
    pub(crate) points: Result<Vec<TensorPoint>, String>,
    /// Where things lie in its arenas, where it has any.
    pub(crate) arenas: Option<ArenaLayout>,
}

/// The thread, seen from outside. It ends with this.
pub(crate) struct Looker {
    orders: Sender<u32>,
    stated: Receiver<LookResult>,
}

impl Looker {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub(crate) fn start(version: KernelVersion) -> std::io::Result<Self> {
        let (orders, ordered) = channel();
        let (say, stated) = channel();
        std::thread::Builder::new().name("pytorch".to_owned()).spawn(move || {
            let stems = LIBRARIES.map(|row| row.stem);
            let mut eyes = Eyes { scan: LibraryScan::new("/proc").with_stems(&stems), version, known: Vec::new() };
            for tgid in ordered {
                // Nobody listens any more once the watch has ended.
                if eyes.look(tgid, &say).is_none() {
                    return;
                }
            }
        })?;
        Ok(Self { orders, stated })
    }

    /// Has a process looked at.
    pub(crate) fn order(&self, tgid: u32) {
        // The thread ends only with this.
        let _ = self.orders.send(tgid);
    }

    /// What it has reported since the last call.
    pub(crate) fn hear(&self) -> impl Iterator<Item = LookResult> {
        self.stated.try_iter()
    }
}

struct Eyes {
    scan: LibraryScan,
    version: KernelVersion,
    /// Files looked into before; few, since machines have few versions of a framework.
    known: Vec<(FileIdentity, Contents)>,
}

impl Eyes {
    fn look(&mut self, tgid: u32, say: &Sender<LookResult>) -> Option<()> {
        let found = self.scan.scan_process(tgid).files;
        for row in &LIBRARIES {
            let Some(file) = found.iter().find(|file| row.is_at(file.display.as_bytes())) else { continue };
            let Contents { points, arenas } = self.known(file, row);
            let found = FoundLibrary { tgid, library: row.library, file: file.clone(), points, arenas };
            say.send(LookResult::Found(Box::new(found))).ok()?;
        }
        say.send(LookResult::Done(tgid)).ok()
    }

    fn known(&mut self, file: &LibraryFile, row: &LibraryRow) -> Contents {
        if let Some((_, known)) = self.known.iter().find(|(identity, _)| identity.is_same_file(&file.identity)) {
            return known.clone();
        }
        let begin = Instant::now();
        let opened = file.open();
        let is_busy = opened.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        let known = self.look_into(opened, row);
        log::info!("{}: its symbols were looked through in {} ms", file.display, begin.elapsed().as_millis());
        // What its owner has a lease on may be readable later.
        if !is_busy {
            self.known.push((file.identity.clone(), known.clone()));
        }
        known
    }

    fn look_into(&self, opened: io::Result<File>, row: &LibraryRow) -> Contents {
        match opened {
            Ok(opened) => row.look_into(&opened, self.version),
            Err(error) => Contents { points: Err(error.to_string()), arenas: None },
        }
    }
}
