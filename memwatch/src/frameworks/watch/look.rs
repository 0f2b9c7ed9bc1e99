//! Scans processes for framework libraries on threads of the owner queues, since reading mappings
//! and the symbols of libraries is slow.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use memwatch_common::tensor::FrameworkLibrary;

use crate::frameworks::bfc::ArenaLayout;
use crate::frameworks::descriptor::{Contents, LibraryRow};
use crate::frameworks::list::FrameworkList;
use crate::frameworks::points::TensorPoint;
use crate::sources::kernel::site::KernelVersion;
use crate::sources::library::{FileIdentity, LibraryFile, LibraryScan};
use crate::sources::library_look::owner_of;
use crate::sources::owner_queues::OwnerQueues;

/// Name of the threads that scan, as process viewers show it.
const THREADS: &str = "pytorch";

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
    pub(crate) id: FrameworkLibrary,
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
    pub(crate) fn new(frameworks: FrameworkList, version: KernelVersion) -> Self {
        let (say, stated) = channel();
        let eyes = Arc::new(FrameworkScanner::new(frameworks, version));
        Self { queues: OwnerQueues::new(THREADS), eyes, say, stated }
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
    frameworks: FrameworkList,
    scan: LibraryScan,
    version: KernelVersion,
    /// Files inspected before. They are few, since a machine has few versions of a framework. The
    /// lock is not held while a file is read.
    known: Mutex<Vec<(FileIdentity, Contents)>>,
}

impl FrameworkScanner {
    fn new(frameworks: FrameworkList, version: KernelVersion) -> Self {
        let stems: Vec<&str> = frameworks.libraries().map(|row| row.name.stem).collect();
        Self { frameworks, scan: LibraryScan::new("/proc").with_stems(&stems), version, known: Mutex::default() }
    }

    fn look(&self, tgid: u32, say: &Sender<LookResult>) -> Option<()> {
        let found = self.scan.scan_process(tgid).files;
        for row in self.frameworks.libraries() {
            let Some(file) = found.iter().find(|file| row.name.is_at(file.display.as_bytes())) else { continue };
            let Contents { points, arenas } = self.contents(file, row);
            let found = FoundLibrary { tgid, id: row.id, file: file.clone(), points, arenas };
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
            Ok(opened) => row.contents(&opened, self.version),
            Err(error) => Contents::of_points(Err(error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Child, Command};
    use std::thread::sleep;
    use std::time::Duration;

    use memwatch_common::tensor::tensor_probe;
    use memwatch_core::words::Framework;

    use super::*;
    use crate::frameworks::descriptor::{FrameworkDescriptor, Keeps, LibraryName};

    const LIBRARY: LibraryName = LibraryName::new("libtoy.so");
    /// A framework with one pool. It has the identifiers of another one, since those are closed.
    const TOY: FrameworkDescriptor = FrameworkDescriptor::new(
        Framework::Rmm,
        &[LibraryRow::new(LIBRARY, FrameworkLibrary::Rmm, Keeps::Pools).inspected_by(inspect)],
        &[LIBRARY],
    );
    const LIST: FrameworkList = FrameworkList(&[&TOY]);
    /// Row of the pool's only probe, and its place in the file.
    const GRANTED: u16 = 67;
    const OFFSET: u64 = 0x40;

    fn inspect(_file: &File, _row: &LibraryRow, _kernel: KernelVersion) -> Contents {
        let row = tensor_probe(GRANTED).expect("it is in the table");
        Contents::of_points(Ok(vec![TensorPoint::new(row, OFFSET)]))
    }

    /// Starts a program that maps a file of this name, and waits until it does.
    fn run(name: &str) -> (tempfile::TempDir, Child) {
        let folder = tempfile::tempdir().expect("a directory");
        let program = folder.path().join(name);
        std::fs::copy("/bin/sleep", &program).expect("every machine has it");
        let child = Command::new(&program).arg("60").spawn().expect("it is a program");
        let maps = format!("/proc/{}/maps", child.id());
        while !std::fs::read_to_string(&maps).expect("it runs").contains(name) {
            sleep(Duration::from_millis(1));
        }
        (folder, child)
    }

    #[test]
    fn toy_framework_is_found_by_its_descriptor_alone() {
        let (_folder, mut child) = run("libtoy.so.1");
        let looker = Looker::new(LIST, KernelVersion::from_release("6.18.0").expect("a version"));
        looker.order(child.id());
        let mut found = Vec::new();
        while let Ok(LookResult::Found(library)) = looker.stated.recv() {
            found.push(library);
        }
        child.kill().expect("it runs");
        assert_eq!(child.wait().expect("it has ended").signal(), Some(libc::SIGKILL));
        let [library] = &found[..] else { panic!("{} libraries", found.len()) };
        let points = library.points.as_ref().expect("it has a probe");
        assert_eq!((library.tgid, library.id), (child.id(), FrameworkLibrary::Rmm));
        assert_eq!(
            points.iter().map(|point| (point.row.id, point.file_offset)).collect::<Vec<_>>(),
            [(GRANTED, OFFSET)]
        );
        assert!(LIST.is_of(Framework::Rmm, library.file.display.as_bytes()));
        assert_eq!(LIST.marked_by(b"/opt/toy/libtoy.so.1"), Some(Framework::Rmm));
        assert_eq!(LIST.keeps(FrameworkLibrary::GgmlBase), None);
    }
}
