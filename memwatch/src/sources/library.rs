//! Finds the driver library files and the processes that have loaded them.
//!
//! Each distinct `libcuda.so` on the machine needs its own probes, since a probe is attached to a file: the host's,
//! a container's forward-compatibility copy, and a file replaced under a running job. The scan examines the host's
//! usual directories and the mappings of processes, and counts each file once. It reads no more of a file than the
//! ELF class.

mod host;
mod identity;
pub(crate) mod limits;
pub(crate) mod loader;
mod maps;
mod merged;
mod replaced;

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memwatch_common::probes::{PROBES, Probe};

use crate::printable::printable;
use crate::stranger_file::{self, MOST_CODE_BYTES};
pub(crate) use identity::{FileHandle, FileIdentity};
use limits::{FileOwner, Shares};
use maps::{LibraryMapping, Mappings};
pub(crate) use maps::{is_library, unescape};
pub(crate) use replaced::KnownHandles;

/// Stem of the driver library's file names: the whole name, or followed by a dot and a version.
pub(crate) const LIBRARY_STEM: &str = "libcuda.so";

/// Other libraries of the driver that request memory from the kernel driver: those of OpenGL, Vulkan and the video
/// decoder (found by their imports of `ioctl` and the sizes of the requests in their code: drivers 470 to 555).
pub(crate) const REQUESTERS: [&str; 4] =
    ["libnvidia-glcore.so", "libnvidia-eglcore.so", "libnvidia-glsi.so", "libnvcuvid.so"];

/// Maximum number of listed files without probes.
const MOST_LEFT_OUT: usize = 64;

/// Buffer size for reading `maps`. The kernel fills a page or more at a time.
const MAPS_BUFFER_BYTES: usize = 32 << 10;

/// A driver library file that can be probed.
#[derive(Debug, Clone)]
pub(crate) struct LibraryFile {
    /// Path at which the file was found, printable: control characters are escaped.
    pub(crate) display: String,
    /// Identity, by which the same file is recognized.
    pub(crate) identity: FileIdentity,
    /// Whether the file was removed or replaced since it was mapped.
    pub(crate) deleted: bool,
    /// Processes that execute the file, in ascending order. May be empty for a file of the host.
    pub(crate) mapped_by: Vec<u32>,
    /// Owner of the first of these processes; `None` for a file of the host.
    pub(crate) owner: Option<FileOwner>,
    /// The file, opened with `O_PATH`, so that it outlives the process through which it was found.
    opened: Arc<File>,
}

impl LibraryFile {
    /// Returns a path that leads to the file while this value lives, even if the file is renamed.
    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.opened.as_raw_fd()))
    }

    /// Opens the file for reading.
    ///
    /// # Errors
    /// `WouldBlock` while the file's owner holds a lease on it. Otherwise, permission is missing, or the file is
    /// larger than any file with code.
    pub(crate) fn open(&self) -> io::Result<File> {
        stranger_file::reopen(&self.opened, MOST_CODE_BYTES)
    }
}

/// A file with the library's name that is not probed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SkippedLibrary {
    /// Path at which the file was found, printable.
    pub(crate) display: String,
    /// Why it is not probed.
    pub(crate) reason: LeftOutReason,
    /// Processes that execute the file, in ascending order.
    pub(crate) mapped_by: Vec<u32>,
    /// Whether the user named the file.
    pub(crate) named: bool,
}

impl SkippedLibrary {
    /// Whether the file matters: many machines have unused 32-bit copies.
    pub(crate) fn concerns_somebody(&self) -> bool {
        self.named || !self.mapped_by.is_empty()
    }

    /// Whether this is the unreadable file that this process maps from this path.
    pub(crate) fn is_closed_of(&self, tgid: u32, path: &str) -> bool {
        let is_closed = matches!(self.reason, LeftOutReason::Unreadable(_));
        is_closed && self.display == path && self.mapped_by.binary_search(&tgid).is_ok()
    }
}

/// Why a library file is not probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LeftOutReason {
    /// Processes of a 32-bit library pass arguments on the stack and not in the registers that the probes read.
    #[error("32-bit library: only 64-bit processes are watched")]
    ThirtyTwoBit,
    /// The file is not a shared library.
    #[error("not an ELF file")]
    NotElf,
    /// The file cannot be opened or read, or a named file does not exist.
    #[error("cannot be read: {0}")]
    Unreadable(io::ErrorKind),
}

/// Result of a scan.
#[derive(Debug, Clone, Default)]
pub(crate) struct Discovery {
    /// Distinct files that can be probed, host files first.
    pub(crate) files: Vec<LibraryFile>,
    /// Files left out, with the reason.
    pub(crate) left_out: Vec<SkippedLibrary>,
    /// Number of processes whose mappings were read.
    pub(crate) processes: usize,
    /// Number of processes whose mappings this user may not read.
    pub(crate) processes_denied: usize,
    /// Processes whose mappings this user may not read, in ascending order.
    pub(crate) denied: Vec<u32>,
    /// Number of further files that exceed the [`limits`].
    pub(crate) over_limit: usize,
    shares: Shares,
    handles: KnownHandles,
}

/// Finds the files of given libraries on this machine.
#[derive(Debug, Clone)]
pub(crate) struct LibraryScan {
    proc_root: PathBuf,
    host_root: PathBuf,
    stems: Vec<&'static str>,
    probes: &'static [Probe],
    named: Vec<PathBuf>,
    handles: KnownHandles,
}

impl LibraryScan {
    /// Creates a scan for `libcuda.so` and `libcuda.so.*`. `proc_root` is `/proc` except in tests.
    pub(crate) fn new(proc_root: impl Into<PathBuf>) -> Self {
        Self {
            proc_root: proc_root.into(),
            host_root: PathBuf::from("/"),
            stems: vec![LIBRARY_STEM],
            probes: PROBES,
            named: Vec::new(),
            handles: KnownHandles::default(),
        }
    }

    /// Searches for other libraries: files with one of these stems as their name, or named `stem.<anything>`.
    #[must_use]
    pub(crate) fn with_stems(mut self, stems: &[&'static str]) -> Self {
        self.stems = stems.to_vec();
        self
    }

    /// Searches for these functions in the libraries.
    #[must_use]
    pub(crate) const fn with_probes(mut self, probes: &'static [Probe]) -> Self {
        self.probes = probes;
        self
    }

    /// Returns the wanted functions.
    pub(crate) const fn probes(&self) -> &'static [Probe] {
        self.probes
    }

    /// Searches for the host's files below `root` instead of `/`.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn with_host_root(mut self, root: impl Into<PathBuf>) -> Self {
        self.host_root = root.into();
        self
    }

    /// Also opens, by these handles, files that were replaced while in use.
    #[must_use]
    pub(crate) fn with_handles(mut self, handles: KnownHandles) -> Self {
        self.handles = handles;
        self
    }

    /// Omits the files named by the user.
    #[must_use]
    pub(crate) fn without_named(mut self) -> Self {
        self.named.clear();
        self
    }

    /// Adds a file that the user has named. It may have any name, and is reported if it cannot be used.
    #[must_use]
    pub(crate) fn with_named(mut self, path: impl Into<PathBuf>) -> Self {
        self.named.push(path.into());
        self
    }

    /// Finds the files of the host and of all processes, on the calling thread, which any owner of a file can
    /// block.
    ///
    /// A process that exits during the scan is skipped. Processes of other users that may not be read are counted
    /// in [`Discovery::processes_denied`].
    pub(crate) fn scan_all(&self) -> Discovery {
        let mut discovery = self.scan_host();
        for tgid in numbers_in(&self.proc_root) {
            self.add_process(tgid, &mut discovery);
        }
        discovery
    }

    /// Finds the files that one process executes. There are none if it has exited or uses no GPU.
    pub(crate) fn scan_process(&self, tgid: u32) -> Discovery {
        let mut discovery = self.discovery();
        self.add_process(tgid, &mut discovery);
        discovery
    }

    /// Finds the files that several processes execute.
    pub(crate) fn scan_processes(&self, tgids: &[u32]) -> Discovery {
        let mut discovery = self.discovery();
        for &tgid in tgids {
            self.add_process(tgid, &mut discovery);
        }
        discovery
    }

    /// Finds the files that the user has named and those in the host's usual directories.
    pub(crate) fn scan_host(&self) -> Discovery {
        let mut discovery = self.discovery();
        for path in &self.named {
            match open_regular(path) {
                Ok((file, identity)) => {
                    let path = fs::canonicalize(path).unwrap_or_else(|_| path.clone());
                    discovery.add(file, identity, FileOccurrence { named: true, ..FileOccurrence::on_host(&path) });
                }
                Err(error) => {
                    let find = FileOccurrence { named: true, ..FileOccurrence::on_host(path) };
                    discovery.leave_out(&find, LeftOutReason::Unreadable(error.kind()));
                }
            }
        }
        for path in self.stems.iter().flat_map(|stem| host::candidates(&self.host_root, stem)) {
            // Most of these paths do not exist on any one machine.
            if let Ok((file, identity)) = open_regular(&path) {
                let path = fs::canonicalize(&path).unwrap_or(path);
                discovery.add(file, identity, FileOccurrence::on_host(&path));
            }
        }
        discovery
    }

    /// Returns the processes that execute one of the files, by file name only. No file is opened.
    pub(crate) fn mapped_by_name(&self) -> Vec<u32> {
        numbers_in(&self.proc_root).into_iter().filter(|tgid| self.is_mapped_by(*tgid)).collect()
    }

    /// Whether a process executes one of the files, by file name only.
    pub(crate) fn is_mapped_by(&self, tgid: u32) -> bool {
        let mappings = self.mappings(&self.proc_root.join(tgid.to_string()));
        mappings.is_ok_and(|mappings| mappings.is_some_and(|mappings| !mappings.libraries.is_empty()))
    }

    /// Returns an empty result.
    fn discovery(&self) -> Discovery {
        Discovery { handles: self.handles.clone(), ..Discovery::default() }
    }

    fn add_process(&self, tgid: u32, discovery: &mut Discovery) {
        let process = self.proc_root.join(tgid.to_string());
        match self.mappings(&process) {
            Ok(Some(mappings)) => discovery.add_mappings(tgid, &process, &mappings),
            // The main thread has exited and has no memory; other threads may still have it.
            Ok(None) => self.add_by_threads(tgid, discovery),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                discovery.processes_denied += 1;
                discovery.denied.push(tgid);
            }
            // The process has exited.
            Err(_) => {}
        }
    }

    /// Adds the mappings through a thread, which has its own directory in `/proc`, although a listing does not show
    /// it.
    fn add_by_threads(&self, tgid: u32, discovery: &mut Discovery) {
        for tid in numbers_in(&self.proc_root.join(format!("{tgid}/task"))) {
            let thread = self.proc_root.join(tid.to_string());
            if let Ok(Some(mappings)) = self.mappings(&thread) {
                return discovery.add_mappings(tgid, &thread, &mappings);
            }
        }
        // A kernel thread, or an exiting process.
        discovery.processes += 1;
    }

    /// Reads the mappings of the libraries in a process or thread; `None` if it has no memory.
    fn mappings(&self, process: &Path) -> io::Result<Option<Mappings>> {
        let mut maps = BufReader::with_capacity(MAPS_BUFFER_BYTES, File::open(process.join("maps"))?);
        if maps.fill_buf()?.is_empty() {
            return Ok(None);
        }
        maps::library_mappings(maps, &self.stems).map(Some)
    }
}

/// Checks whether a file named on the command line can be a library.
///
/// # Errors
/// A sentence: the file cannot be read, or is not a library.
pub(crate) fn check_named(path: &Path) -> Result<(), String> {
    let (file, _) = open_regular(path).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => "not a file".to_owned(),
        _ => error.to_string(),
    })?;
    match check_class(&file) {
        Err(reason @ (LeftOutReason::NotElf | LeftOutReason::Unreadable(_))) => Err(reason.to_string()),
        // A 32-bit library is listed with that reason.
        Err(LeftOutReason::ThirtyTwoBit) | Ok(()) => Ok(()),
    }
}

/// Returns the numeric entries of a directory, in ascending order.
pub(super) fn numbers_in(directory: &Path) -> Vec<u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut numbers: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

/// One occurrence of a file.
struct FileOccurrence {
    display: String,
    deleted: bool,
    tgid: Option<u32>,
    named: bool,
    owner: Option<FileOwner>,
}

impl FileOccurrence {
    fn on_host(path: &Path) -> Self {
        let display = shown(path.as_os_str().as_bytes());
        Self { display, deleted: false, tgid: None, named: false, owner: None }
    }
}

impl Discovery {
    fn add_mappings(&mut self, tgid: u32, process: &Path, mappings: &Mappings) {
        self.processes += 1;
        self.over_limit += mappings.over_limit;
        let owner = if mappings.libraries.is_empty() { None } else { FileOwner::of(process) };
        for mapping in &mappings.libraries {
            self.add_mapping((tgid, owner), process, mapping);
        }
    }

    fn add_mapping(&mut self, (tgid, owner): (u32, Option<FileOwner>), process: &Path, mapping: &LibraryMapping) {
        let display = shown(&mapping.path);
        let find = FileOccurrence { display, deleted: mapping.deleted, tgid: Some(tgid), named: false, owner };
        let opened = open_mapped(process, mapping).or_else(|| self.handles.open(process, mapping));
        let Some((file, identity)) = opened else {
            if process.exists() {
                self.leave_out(&find, LeftOutReason::Unreadable(io::ErrorKind::NotFound));
            }
            return;
        };
        self.add(file, identity, find);
    }

    fn add(&mut self, file: File, identity: FileIdentity, find: FileOccurrence) {
        if let Some(known) = self.files.iter_mut().find(|known| known.identity.is_same_file(&identity)) {
            insert(&mut known.mapped_by, find.tgid);
            return;
        }
        if find.owner.is_some_and(|owner| !self.shares.has_room(owner)) {
            self.over_limit += 1;
            return;
        }
        if let Err(reason) = check_class(&file) {
            self.leave_out(&find, reason);
            return;
        }
        let FileOccurrence { display, deleted, tgid, named: _, owner } = find;
        if let Some(owner) = owner {
            self.shares.count(owner);
        }
        identity.handle().into_iter().for_each(|handle| self.handles.note(handle));
        let (mapped_by, opened) = (tgid.into_iter().collect(), Arc::new(file));
        self.files.push(LibraryFile { display, identity, deleted, mapped_by, owner, opened });
    }

    fn leave_out(&mut self, find: &FileOccurrence, reason: LeftOutReason) {
        let same = |known: &&mut SkippedLibrary| known.reason == reason && known.display == find.display;
        if let Some(known) = self.left_out.iter_mut().find(same) {
            insert(&mut known.mapped_by, find.tgid);
            known.named |= find.named;
            return;
        }
        if !find.named && self.left_out.len() >= MOST_LEFT_OUT {
            self.over_limit += 1;
            return;
        }
        let mapped_by = find.tgid.into_iter().collect();
        self.left_out.push(SkippedLibrary { display: find.display.clone(), reason, mapped_by, named: find.named });
    }
}

fn insert(tgids: &mut Vec<u32>, tgid: Option<u32>) {
    if let Some(tgid) = tgid
        && let Err(place) = tgids.binary_search(&tgid)
    {
        tgids.insert(place, tgid);
    }
}

/// Opens the file of a mapping. `map_files` is exact, even for a deleted file. Without permission for it, the path
/// below the process's root is used if the inode matches.
fn open_mapped(process: &Path, mapping: &LibraryMapping) -> Option<(File, FileIdentity)> {
    let exact = open_regular(&process.join("map_files").join(entry_of(&mapping.range)));
    exact.ok().or_else(|| {
        let named = host::below(&process.join("root"), &mapping.path);
        open_regular(&named).ok().filter(|(_, identity)| identity.inode() == mapping.inode)
    })
}

/// Returns the entry of `map_files` for a range in the notation of `maps`. `maps` pads addresses to eight digits,
/// which affects the short addresses of fixed executables; `map_files` does not pad (fs/proc/task_mmu.c,
/// fs/proc/base.c).
fn entry_of(range: &str) -> String {
    range.split('-').map(|address| address.trim_start_matches('0')).collect::<Vec<_>>().join("-")
}

/// Opens the file of a `maps` line with `O_PATH`, given the parts of the line with the path unescaped.
pub(super) fn open_mapped_file(process: &Path, range: &str, path: &[u8], inode: u64) -> Option<File> {
    let mapping = LibraryMapping { range: range.to_owned(), inode, device: 0, path: path.to_owned(), deleted: false };
    open_mapped(process, &mapping).map(|(file, _)| file)
}

/// Opens a regular file for examination only, so that a device or a pipe that a hostile path leads to is never
/// really opened.
fn open_regular(path: &Path) -> io::Result<(File, FileIdentity)> {
    let file = stranger_file::examine(path)?;
    let identity = FileIdentity::of(&file)?;
    Ok((file, identity))
}

fn check_class(file: &File) -> Result<(), LeftOutReason> {
    const CLASS: usize = 4;
    let mut ident = [0; 5];
    let read = stranger_file::reopen(file, MOST_CODE_BYTES).and_then(|mut file| file.read(&mut ident));
    match (read, ident[CLASS]) {
        (Err(error), _) => Err(LeftOutReason::Unreadable(error.kind())),
        (Ok(_), _) if !ident.starts_with(b"\x7fELF") => Err(LeftOutReason::NotElf),
        (Ok(_), 1) => Err(LeftOutReason::ThirtyTwoBit),
        (Ok(_), _) => Ok(()),
    }
}

/// Returns the printable form of a path.
fn shown(path: &[u8]) -> String {
    printable(&String::from_utf8_lossy(path)).into_owned()
}

#[cfg(test)]
mod tests;
