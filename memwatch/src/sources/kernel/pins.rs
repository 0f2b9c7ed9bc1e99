//! What of the kernel half stays in the kernel when memwatch is gone: maps and links, pinned in a file system of the kernel's (bpffs).
//!
//! Whoever comes next loads the programs again, on the same maps, probes all again, and then takes the earlier links out: a call that both report is one
//! call. Maps of another kernel half are not used: each has a folder of its own name.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use aya::maps::MapData;
use aya::programs::links::{FdLink, LinkError, PinnedLink};
use aya::sys::SyscallError;

use crate::sources::clock;
use crate::sources::library::{FileHandle, FileIdentity};

/// Where bpffs is mounted on most systems.
pub(crate) const BPFFS: &str = "/sys/fs/bpf";

/// The maps that have to outlive memwatch: records and losses that nobody has read, calls in flight, and the books. What a thread is in the middle of
/// copying is not among them, nor which stacks were sent: stacks are sent again.
pub(crate) const PINNED_MAPS: [&str; 13] = [
    RECORDS,
    "READER_SLEEPS",
    "IN_FLIGHT",
    "WATCHED",
    "CALL_TARGETS",
    "KNOWN",
    "LOST",
    "LOST_TOTAL",
    "ARMED_NS",
    "ADDRESSES",
    "ALLOCATION_MAP",
    "RM_IN_FLIGHT",
    "RM_WAITING",
];
const RECORDS: &str = "RECORDS";

/// The folder of all agents in bpffs. Names in it have no dots: the kernel refuses those.
const ALL: &str = "memwatch";
const MAPS: &str = "maps";
const LINKS: &str = "links";

/// How the names of links begin: in this order they are put in place, and backwards they are taken out.
pub(crate) const ENTRY: &str = "entry";
pub(crate) const EVENTS: &str = "events";
pub(crate) const RETURN: &str = "return";

/// How many times a place that somebody has is tried, and how long after each try.
const LOOKS: u32 = 10;
const LOOK: Duration = Duration::from_millis(10);

/// `BPF_FS_MAGIC` of include/uapi/linux/magic.h.
const BPF_FS_MAGIC: u32 = 0xcafe_4a11;

/// Why nothing can be pinned.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoPins {
    /// There is none.
    #[error("{0} is no bpf file system (mount -t bpf bpf {0}; in a container, mount the host's there)")]
    NotMounted(String),
    /// It may not be written to.
    #[error("{0} cannot be written to")]
    Refused(String, #[source] io::Error),
    /// Another one is there, by another mount of the same name.
    #[error("another agent that answers on a socket of this name has pinned its kernel half below {0}")]
    Taken(String),
}

/// The place of one agent in bpffs, which no other one uses meanwhile.
#[derive(Debug)]
pub(crate) struct PinPlace {
    path: PathBuf,
    /// Held for as long as the agent lives.
    _lock: File,
}

impl PinPlace {
    /// The place of the agent that answers on this socket. It is made where it is not there.
    ///
    /// # Errors
    /// There is no bpffs, it may not be written to, or another agent has this place.
    pub(crate) fn open(bpffs: &Path, socket: &Path) -> Result<Self, NoPins> {
        let name = bpffs.display().to_string();
        if !is_bpffs(bpffs) {
            return Err(NoPins::NotMounted(name));
        }
        let all = bpffs.join(ALL);
        let path = place_of(bpffs, socket);
        for folder in [&all, &path] {
            make(folder).map_err(|error| NoPins::Refused(name.clone(), error))?;
        }
        match lock_soon(&path) {
            Ok(lock) => Ok(Self { path, _lock: lock }),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(NoPins::Taken(path.display().to_string())),
            Err(error) => Err(NoPins::Refused(name, error)),
        }
    }

    /// The number of the pinned ring of this kernel half, if there is one.
    pub(crate) fn ring_number(&self, kernel_half: &str) -> Option<u32> {
        Some(ring_of(&self.path.join(kernel_half)).ok()?.info().ok()?.id())
    }

    /// The kernel half that is pinned here and whose ring has this number, if there is one.
    pub(crate) fn half_of(&self, ring: u32) -> Option<String> {
        names(&self.path).ok()?.into_iter().find(|half| self.ring_number(half) == Some(ring))
    }

    /// Takes everything out that is pinned here.
    ///
    /// # Errors
    /// Something cannot be taken out.
    pub(crate) fn clear(&self) -> io::Result<()> {
        self.clear_but(None)
    }

    /// The same, but for one kernel half.
    fn clear_but(&self, kept: Option<&str>) -> io::Result<()> {
        for half in names(&self.path)?.into_iter().filter(|half| Some(half.as_str()) != kept) {
            let folder = self.path.join(half);
            remove_below(&folder)?;
            fs::remove_dir(&folder)?;
        }
        Ok(())
    }

    /// Takes out what is pinned here, and the place itself.
    ///
    /// # Errors
    /// Something cannot be taken out.
    pub(crate) fn remove(&self) -> io::Result<()> {
        self.clear()?;
        fs::remove_dir(&self.path).or_else(unless_absent)?;
        // Others may have theirs in it.
        let _ = self.path.parent().map(fs::remove_dir);
        Ok(())
    }
}

/// How many agents have left something in bpffs and run no more, and how many run; `None` where there is no bpffs.
///
/// # Errors
/// It cannot be read.
pub(crate) fn count(bpffs: &Path) -> io::Result<Option<(usize, usize)>> {
    if !is_bpffs(bpffs) {
        return Ok(None);
    }
    let all = bpffs.join(ALL);
    let (mut left, mut running) = (0, 0);
    for name in names(&all)? {
        let path = all.join(name);
        match lock(&path) {
            Ok(_) if names(&path)?.is_empty() => {}
            Ok(_) => left += 1,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => running += 1,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Some((left, running)))
}

/// Takes out what agents have left in bpffs that run no more. Returns how many had left something, and how many run.
///
/// # Errors
/// Something cannot be taken out.
pub(crate) fn remove_all(bpffs: &Path) -> io::Result<(usize, usize)> {
    let all = bpffs.join(ALL);
    let (mut removed, mut running) = (0, 0);
    for name in names(&all)? {
        let path = all.join(name);
        match lock(&path) {
            Ok(lock) => {
                PinPlace { path, _lock: lock }.remove()?;
                removed += 1;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => running += 1,
            Err(error) => return Err(error),
        }
    }
    if running == 0 {
        fs::remove_dir(&all).or_else(unless_absent)?;
    }
    Ok((removed, running))
}

/// The same of one agent alone: the one that answered on this socket.
///
/// # Errors
/// Something cannot be taken out.
pub(crate) fn remove_of(bpffs: &Path, socket: &Path) -> io::Result<(usize, usize)> {
    let path = place_of(bpffs, socket);
    match lock(&path) {
        Ok(lock) => PinPlace { path, _lock: lock }.remove().map(|()| (1, 0)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok((0, 1)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((0, 0)),
        Err(error) => Err(error),
    }
}

/// Where the agent that answers on this socket has its own.
fn place_of(bpffs: &Path, socket: &Path) -> PathBuf {
    bpffs.join(ALL).join(format!("agent-{:08x}", crc32fast::hash(socket.as_os_str().as_bytes())))
}

/// What is pinned by this process, and what was pinned by the one before it.
#[derive(Debug)]
pub(crate) struct Pins {
    place: Arc<PinPlace>,
    folder: PathBuf,
    /// Distinguishes the links of this process.
    generation: u64,
    made: u64,
    /// The kernel half that was here before, and its links as they were when this began.
    earlier_folder: PathBuf,
    earlier: BTreeSet<String>,
}

impl Pins {
    /// What is pinned for this kernel half, which takes the place of an earlier one: of itself, of another one, or of none. Whatever else was there is
    /// taken out.
    ///
    /// # Errors
    /// The folders cannot be made, or not be cleared.
    pub(crate) fn open(place: &Arc<PinPlace>, kernel_half: &str, earlier: Option<&str>) -> io::Result<Self> {
        place.clear_but(earlier)?;
        let folder = place.path.join(kernel_half);
        for part in [folder.clone(), folder.join(MAPS), folder.join(LINKS)] {
            make(&part)?;
        }
        let earlier_folder = place.path.join(earlier.unwrap_or(kernel_half));
        let earlier = names(&earlier_folder.join(LINKS))?.into_iter().collect();
        let place = Arc::clone(place);
        Ok(Self { place, folder, generation: clock::boottime_ns(), made: 0, earlier_folder, earlier })
    }

    /// Where a map is pinned.
    pub(crate) fn map(&self, name: &str) -> PathBuf {
        self.folder.join(MAPS).join(name)
    }

    /// Pins a link, under a name that says what it is for.
    ///
    /// # Errors
    /// The kernel refuses: the link is gone then.
    pub(crate) fn pin(&mut self, link: FdLink, label: &str) -> Result<PinnedLink, aya::pin::PinError> {
        self.made += 1;
        let name = format!("{label}-{:x}-{}", self.generation, self.made);
        link.pin(self.folder.join(LINKS).join(name))
    }

    /// Whether this file has had all its probes from the process before.
    pub(crate) fn was_probed(&self, file: &FileIdentity) -> bool {
        let label = whole(file);
        self.earlier.iter().any(|name| name.starts_with(&label))
    }

    /// What opens the files that the process before had probed: some may have been replaced since, under jobs that run on them.
    pub(crate) fn probed_handles(&self) -> Vec<FileHandle> {
        self.earlier.iter().filter_map(|name| handle_in(name)).collect()
    }

    /// Takes out the links of the process before: what they probe is probed by this one. That is a thread's work, since the kernel waits each time until
    /// nobody is inside a probe.
    ///
    /// # Errors
    /// There is no thread.
    pub(crate) fn drop_earlier(&mut self) -> io::Result<()> {
        let (folder, earlier) = (self.folder.join(LINKS), std::mem::take(&mut self.earlier));
        thread::Builder::new().name("pins".to_owned()).spawn(move || drop_links(&folder, earlier))?;
        Ok(())
    }

    /// The ring of another kernel half, whose place this one takes, with all that it will ever have: its probes are out when this returns.
    ///
    /// # Errors
    /// There is no other one, or it has no ring.
    pub(crate) fn silence_earlier(&mut self) -> io::Result<MapData> {
        drop_links(&self.earlier_folder.join(LINKS), self.earlier.clone());
        ring_of(&self.earlier_folder).map_err(io::Error::other)
    }

    /// Takes out what is left of another kernel half.
    ///
    /// # Errors
    /// Something of it is still there.
    pub(crate) fn remove_earlier(&self) -> io::Result<()> {
        if self.earlier_folder == self.folder {
            return Ok(());
        }
        remove_below(&self.earlier_folder)?;
        fs::remove_dir(&self.earlier_folder)
    }

    /// Takes everything out.
    ///
    /// # Errors
    /// Something is still there.
    pub(crate) fn remove(&self) -> io::Result<()> {
        self.place.remove()
    }
}

/// The beginning of the names of links that probe all of a file's functions at their returns, which are probed after their entries.
pub(crate) fn whole(file: &FileIdentity) -> String {
    format!("{RETURN}-whole-{}", file.key())
}

/// Stands before a file's handle in the name of a link.
const HANDLE: &str = "-h";
/// Names in bpffs end at 255 bytes (`NAME_MAX`): a longer handle is left out.
const LONGEST_HANDLE: usize = 128;

/// The label of such links: [`whole`], and what opens the file when its path does not lead to it any more.
pub(crate) fn whole_with_handle(file: &FileIdentity) -> String {
    let handle = file.handle().map(|handle| handle.to_text()).filter(|text| text.len() <= LONGEST_HANDLE);
    whole(file) + &handle.map_or_else(String::new, |text| format!("{HANDLE}{text}"))
}

/// The handle in the name of a link, before the numbers of the link itself.
fn handle_in(name: &str) -> Option<FileHandle> {
    let (_, rest) = name.split_once(HANDLE)?;
    let mut parts = rest.rsplitn(3, '-');
    FileHandle::parse(parts.nth(2)?)
}

/// The descriptor is the last that there is of it: when that is closed, the probes are out. A removed file alone takes a while.
fn drop_link(path: &Path) -> Result<(), LinkError> {
    let link = PinnedLink::from_pin(path)?;
    let unlinked = link.unpin().map(drop);
    Ok(unlinked.or_else(unless_absent).map_err(|io_error| SyscallError { call: "unlink", io_error })?)
}

/// Returns first: one that is reported twice, of an entry that was reported once, would be a return without entry.
fn drop_links(folder: &Path, links: BTreeSet<String>) {
    for name in links.into_iter().rev() {
        if let Err(error) = drop_link(&folder.join(name)) {
            log::warn!("a probe of the agent before stays beside its like: {error}");
        }
    }
}

fn ring_of(kernel_half: &Path) -> Result<MapData, aya::maps::MapError> {
    MapData::from_pin(kernel_half.join(MAPS).join(RECORDS))
}

fn is_bpffs(path: &Path) -> bool {
    let Ok(path) = std::ffi::CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: all zeros are valid, and the path ends with a zero byte.
    let (found, kind) = unsafe {
        let mut status: libc::statfs = std::mem::zeroed();
        (libc::statfs(path.as_ptr(), &raw mut status), status.f_type)
    };
    found == 0 && u32::try_from(kind).is_ok_and(|kind| kind == BPF_FS_MAGIC)
}

fn make(folder: &Path) -> io::Result<()> {
    let made = DirBuilder::new().mode(0o700).create(folder);
    made.or_else(|error| if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) })
}

fn lock(folder: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(folder)?;
    // SAFETY: the descriptor is open.
    let locked = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
    if locked == 0 { Ok(file) } else { Err(io::Error::last_os_error()) }
}

/// Who only looks has it for a moment.
fn lock_soon(folder: &Path) -> io::Result<File> {
    for _ in 0..LOOKS {
        match lock(folder) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(LOOK),
            locked => return locked,
        }
    }
    lock(folder)
}

/// The names in a folder; none of one that is not there.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    match fs::read_dir(folder) {
        Ok(entries) => entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn remove_below(folder: &Path) -> io::Result<()> {
    for name in names(folder)? {
        let path = folder.join(name);
        if fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
            remove_below(&path)?;
            fs::remove_dir(&path)?;
        } else {
            fs::remove_file(&path).or_else(unless_absent)?;
        }
    }
    Ok(())
}

fn unless_absent(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_links_name_leads_to_the_file_that_it_probes() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("libcuda.so.1");
        fs::write(&path, "contents").expect("a file in the temporary directory");
        let identity = FileIdentity::of(&File::open(&path).expect("it is there")).expect("an identity");
        let name = format!("{}-{:x}-{}", whole_with_handle(&identity), 0x1234_u64, 7);
        assert!(name.starts_with(&whole(&identity)) && !name.contains('.'), "{name}");
        assert_eq!(handle_in(&name), identity.handle());
        assert_eq!(handle_in("return-1234-7"), None);
    }
}
