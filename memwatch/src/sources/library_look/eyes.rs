//! Scans processes for libraries, on a thread that a process's owner may block.

use std::sync::{Mutex, PoisonError};

use memwatch_common::probes::{Probe, When};

use super::{LibraryQuery, LibraryRequest, Looked, NewFile};
use crate::sources::kernel::attach::plan;
use crate::sources::kernel::site::KernelVersion;
use crate::sources::library::limits::{FileOwner, Shares};
use crate::sources::library::loader::LoaderSearch;
use crate::sources::library::{
    Discovery, FileIdentity, LIBRARY_STEM, LibraryFile, LibraryScan, REQUESTERS, is_library,
};

/// State shared by all scans. No lock is held while a file is read.
pub(super) struct LibraryScanner {
    scan: LibraryScan,
    requesters: LibraryScan,
    /// Scan for driver libraries and requesters.
    loadable: LibraryScan,
    known_requesters: Mutex<KnownRequesters>,
    version: KernelVersion,
    search: LoaderSearch,
}

/// Requesters that were inspected, and their number by owner.
#[derive(Default)]
struct KnownRequesters {
    files: Vec<FileIdentity>,
    shares: Shares,
}

impl LibraryScanner {
    pub(super) fn new(scan: &LibraryScan, version: KernelVersion) -> Self {
        Self {
            scan: scan.clone(),
            requesters: scan.clone().with_stems(&REQUESTERS).without_named(),
            loadable: scan.clone().with_stems(&[&[LIBRARY_STEM][..], &REQUESTERS].concat()),
            known_requesters: Mutex::default(),
            version,
            search: LoaderSearch::default(),
        }
    }

    pub(super) fn look(&self, owner: FileOwner, LibraryRequest { subject, known }: LibraryRequest) -> Looked {
        let (mut asking, looking) = (Vec::new(), subject.looking());
        let found = match subject {
            LibraryQuery::Mapped(tgid) => self.scan.scan_process(tgid),
            LibraryQuery::Part(.., tgids) => self.scan.scan_processes(&tgids),
            LibraryQuery::Loader(tgid) => {
                let mut found = self.search.files(&self.loadable, tgid);
                asking = take_requesters(&mut found);
                asking.extend(self.requesters.scan_process(tgid).files);
                found
            }
            LibraryQuery::Program(program, path) => {
                let mut found = self.search.files_of_program(&self.loadable, &program, &path);
                asking = take_requesters(&mut found);
                found
            }
            LibraryQuery::Requesters(tgids) => {
                let here = || self.requesters.scan_host();
                asking = tgids.map_or_else(here, |tgids| self.requesters.scan_processes(&tgids)).files;
                Discovery::default()
            }
            LibraryQuery::Functions(tgid, when) => {
                let found = self.scan.scan_process(tgid);
                let new = new_files(&found, &[], (self.version, (self.scan.probes(), when)));
                return Looked { subject: looking, owner, found, new, requesters: Vec::new() };
            }
        };
        let new = new_files(&found, &known, (self.version, (self.scan.probes(), When::Always)));
        let owner_of_asking = matches!(looking, super::Looking::Loader(_)).then_some(owner);
        Looked { subject: looking, owner, found, new, requesters: self.look_into(asking, owner_of_asking) }
    }

    /// Finds where new files call `ioctl`, unless their owner has too many files.
    fn look_into(&self, files: Vec<LibraryFile>, owner: Option<FileOwner>) -> Vec<NewFile> {
        let is_new = |file: &LibraryFile| {
            let mut known = self.known_requesters.lock().unwrap_or_else(PoisonError::into_inner);
            known.note(file, file.owner.or(owner))
        };
        let new = files.into_iter().filter(is_new);
        new.map(|file| NewFile { plan: plan(&file, self.version, (&[], When::Always)), file }).collect()
    }
}

impl KnownRequesters {
    /// Whether a file is to be inspected. Returns true once for each file.
    fn note(&mut self, file: &LibraryFile, owner: Option<FileOwner>) -> bool {
        let is_known = self.files.iter().any(|known| known.is_same_file(&file.identity));
        if is_known || owner.is_some_and(|owner| !self.shares.has_room(owner)) {
            return false;
        }
        if let Some(owner) = owner {
            self.shares.count(owner);
        }
        self.files.push(file.identity.clone());
        true
    }
}

/// Takes the files that only make kernel-driver requests out of the result.
fn take_requesters(found: &mut Discovery) -> Vec<LibraryFile> {
    let is_one = |file: &mut LibraryFile| REQUESTERS.iter().any(|stem| is_library(file.display.as_bytes(), stem));
    found.left_out.retain(|file| !REQUESTERS.iter().any(|stem| is_library(file.display.as_bytes(), stem)));
    found.files.extract_if(.., is_one).collect()
}

/// Returns the files that are not known yet, with their probe plans.
pub(crate) fn new_files(
    found: &Discovery,
    known: &[FileIdentity],
    (version, rows): (KernelVersion, (&[Probe], When)),
) -> Vec<NewFile> {
    let is_new = |file: &&LibraryFile| !known.iter().any(|known| known.is_same_file(&file.identity));
    let new = found.files.iter().filter(is_new);
    new.map(|file| NewFile { file: file.clone(), plan: plan(file, version, rows) }).collect()
}
