//! Pinned objects: maps and links of the kernel half in bpffs, which stay in the kernel when memwatch exits.
//!
//! The next memwatch loads the programs on the same maps, attaches all probes again and then removes the earlier links. A call reported twice is one
//! call. Each kernel half has a directory of its own name, so maps of a different one are not used.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use aya::maps::MapData;
use aya::programs::links::{FdLink, LinkError, PinnedLink};
use aya::sys::SyscallError;

use crate::own_folder::{Foreign, OwnFolder, check_way, unless_absent};
use crate::sources::clock;
use crate::sources::library::{FileHandle, FileIdentity};

/// Usual mount point of bpffs.
pub(crate) const BPFFS: &str = "/sys/fs/bpf";

/// Maps that survive memwatch: unread records and losses, calls in flight, the allocation map, and the shares of owners. Not among them: partial stack copies,
/// and the table of sent stacks, since stacks are sent again.
pub(crate) const PINNED_MAPS: [&str; 16] = [
    RECORDS,
    "READER_SLEEPS",
    "IN_FLIGHT",
    "WATCHED",
    "CALL_TARGETS",
    "KNOWN",
    "LOST",
    "LOST_TOTAL",
    "LOST_BY_OWNER",
    "OWNERS",
    "TAKEN",
    "ARMED_NS",
    "ADDRESSES",
    "ALLOCATION_MAP",
    "RM_IN_FLIGHT",
    "RM_WAITING",
];
const RECORDS: &str = "RECORDS";

/// Directory of all agents in bpffs. Names in it have no dots, which the kernel refuses.
const ALL: &str = "memwatch";
const MAPS: &str = "maps";
const LINKS: &str = "links";

/// Prefixes of link names. Links are attached in this order and removed in reverse.
pub(crate) const ENTRY: &str = "entry";
pub(crate) const EVENTS: &str = "events";
pub(crate) const RETURN: &str = "return";

/// Attempts to lock a directory in use, and the pause between them.
const LOOKS: u32 = 10;
const LOOK: Duration = Duration::from_millis(10);

/// Mount command for a bpffs that only root can write to; without a mode everyone can, as in `/tmp` (kernel/bpf/inode.c).
pub(crate) const MOUNT: &str = "mount -t bpf -o mode=700 bpf";
/// Command that restricts a mounted bpffs; a remount does not change its mode.
pub(crate) const CLOSE: &str = "chmod 700";

/// `BPF_FS_MAGIC` of include/uapi/linux/magic.h.
const BPF_FS_MAGIC: u32 = 0xcafe_4a11;

/// Why pinning is impossible.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoPins {
    /// No bpffs is mounted.
    #[error("{0} is no bpf file system ({MOUNT} {0}; in a container, mount the host's there)")]
    NotMounted(String),
    /// Other users can write to it or to a directory above it, so root's programs and maps must not be pinned there.
    #[error("{0} {1}, who could put something else in the place of what is pinned ({CLOSE} {0})")]
    Foreign(String, String),
    /// No write permission.
    #[error("{0} cannot be written to")]
    Refused(String, #[source] io::Error),
    /// Another bpffs is mounted over it.
    #[error("another agent that answers on a socket of this name has pinned its kernel half below {0}")]
    Taken(String),
}

/// Directory of one agent in bpffs, locked against other agents. All directories above it belong to root or this user, so its path is stable.
#[derive(Debug)]
pub(crate) struct PinPlace {
    path: PathBuf,
    all: OwnFolder,
    name: OsString,
    /// Lock held for the life of the agent.
    own: OwnFolder,
}

impl PinPlace {
    /// Opens the directory of the agent with this socket; creates it if missing.
    ///
    /// # Errors
    /// There is no bpffs, it is not writable, other users can write to it, or another agent uses the directory.
    pub(crate) fn open(bpffs: &Path, socket: &Path) -> Result<Self, NoPins> {
        let name = bpffs.display().to_string();
        let root = root_of(bpffs).map_err(|error| NoPins::Refused(name.clone(), error))?;
        let root = root.ok_or_else(|| NoPins::NotMounted(name.clone()))?;
        check_way(bpffs).map_err(|(path, error)| NoPins::Foreign(path.display().to_string(), error.to_string()))?;
        root.check().map_err(|error| NoPins::Foreign(name.clone(), error.to_string()))?;
        let (of_all, own_name) = (bpffs.join(ALL), name_of(socket));
        let path = of_all.join(&own_name);
        let refused = |path: &Path| {
            let name = path.display().to_string();
            move |error| NoPins::Refused(name, error)
        };
        let all = root.made(OsStr::new(ALL)).map_err(refused(&of_all))?;
        let own = all.made(&own_name).map_err(refused(&path))?;
        match lock_soon(&own) {
            Ok(()) => Ok(Self { path, all, name: own_name, own }),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(NoPins::Taken(path.display().to_string())),
            Err(error) => Err(NoPins::Refused(name, error)),
        }
    }

    /// Inode number of the pinned ring of this kernel half, if any.
    pub(crate) fn ring_number(&self, kernel_half: &str) -> Option<u32> {
        Some(ring_of(&self.path.join(kernel_half)).ok()?.info().ok()?.id())
    }

    /// Name of the pinned kernel half whose ring has this number, if any.
    pub(crate) fn half_of(&self, ring: u32) -> Option<String> {
        let halves = self.own.names().ok()?.into_iter().filter_map(|half| half.into_string().ok());
        halves.into_iter().find(|half| self.ring_number(half) == Some(ring))
    }

    /// Removes all pinned objects except those of one kernel half.
    fn clear_but(&self, kept: Option<&str>) -> io::Result<()> {
        let names = self.own.names()?;
        names
            .iter()
            .filter(|half| Some(half.as_os_str()) != kept.map(OsStr::new))
            .try_for_each(|half| self.own.remove(half))
    }

    /// Removes all pinned objects and the directory.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub(crate) fn remove(&self) -> io::Result<()> {
        self.all.remove(&self.name)?;
        // Other agents may have directories in it.
        let _ =
            self.path.ancestors().nth(2).map(OwnFolder::open_unchecked).map(|root| root?.remove_empty(OsStr::new(ALL)));
        Ok(())
    }
}

/// Number of exited agents with pinned objects, and of running agents; `None` without bpffs.
///
/// # Errors
/// It is unreadable, or a directory in it belongs to another user.
pub(crate) fn count(bpffs: &Path) -> io::Result<Option<(usize, usize)>> {
    let Some(root) = root_of(bpffs)? else { return Ok(None) };
    let (mut left, mut running) = (0, 0);
    root.check()?;
    for_each_place(&root, |_, _, place| {
        match place.lock() {
            Ok(()) if place.names()?.is_empty() => {}
            Ok(()) => left += 1,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => running += 1,
            Err(error) => return Err(error),
        }
        Ok(())
    })?;
    Ok(Some((left, running)))
}

/// Removes pinned objects of exited agents. Returns the number of such agents, and of running ones. Other users may write to bpffs itself,
/// but like in `/tmp` not to directories of root.
///
/// # Errors
/// Something cannot be removed, or belongs to another user and is left alone.
pub(crate) fn remove_all(bpffs: &Path) -> io::Result<(usize, usize)> {
    remove_where(bpffs, |_| true)
}

/// Removes the pinned objects of the agent with this socket, if it has exited.
///
/// # Errors
/// As [`remove_all`].
pub(crate) fn remove_of(bpffs: &Path, socket: &Path) -> io::Result<(usize, usize)> {
    let own = name_of(socket);
    remove_where(bpffs, |name| name == own)
}

fn remove_where(bpffs: &Path, is_meant: impl Fn(&OsStr) -> bool) -> io::Result<(usize, usize)> {
    let Some(root) = root_of(bpffs)? else { return Ok((0, 0)) };
    let (mut removed, mut running) = (0, 0);
    for_each_place(&root, |all, name, place| {
        if !is_meant(name) {
            return Ok(());
        }
        match place.lock() {
            Ok(()) => {
                all.remove(name)?;
                removed += 1;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => running += 1,
            Err(error) => return Err(error),
        }
        Ok(())
    })?;
    if running == 0 {
        // Not empty, and kept, if there are others.
        let _ = root.remove_empty(OsStr::new(ALL));
    }
    Ok((removed, running))
}

/// Visits the directory of each agent, with its parent and name.
fn for_each_place(
    root: &OwnFolder,
    mut take: impl FnMut(&OwnFolder, &OsStr, OwnFolder) -> io::Result<()>,
) -> io::Result<()> {
    let named = |name: &OsStr, error: io::Error| match error.get_ref() {
        Some(why) if why.is::<Foreign>() => io::Error::other(format!("{} in it {why}", name.display())),
        _ => error,
    };
    let all = match root.folder(OsStr::new(ALL)) {
        Err(error) => return unless_absent(named(OsStr::new(ALL), error)),
        Ok(all) => all,
    };
    // If this is the root of bpffs, it also contains files of the kernel such as maps.debug (kernel/bpf/preload).
    let is_place = |name: &OsString| name.as_encoded_bytes().starts_with(PLACE.as_bytes());
    for name in all.names()?.into_iter().filter(is_place) {
        match all.folder(&name) {
            Ok(place) => take(&all, &name, place)?,
            Err(error) => unless_absent(named(&name, error))?,
        }
    }
    Ok(())
}

/// Prefix of the directory name of an agent; the socket follows.
const PLACE: &str = "agent-";

/// Directory name of the agent with this socket.
fn name_of(socket: &Path) -> OsString {
    format!("{PLACE}{:08x}", crc32fast::hash(socket.as_os_str().as_bytes())).into()
}

/// Objects pinned by this process and by the previous one.
#[derive(Debug)]
pub(crate) struct Pins {
    place: Arc<PinPlace>,
    folder: PathBuf,
    /// Suffix that distinguishes the links of this process.
    generation: u64,
    made: u64,
    /// Name of the previous kernel half, and its links at the start.
    earlier_folder: PathBuf,
    earlier: BTreeSet<String>,
}

impl Pins {
    /// Sets up pinning for this kernel half, which replaces an earlier one (the same, a different one, or none). Everything else is
    /// removed.
    ///
    /// # Errors
    /// Directories cannot be created or cleared.
    pub(crate) fn open(place: &Arc<PinPlace>, kernel_half: &str, earlier: Option<&str>) -> io::Result<Self> {
        place.clear_but(earlier)?;
        let folder = place.path.join(kernel_half);
        let own = place.own.made(OsStr::new(kernel_half))?;
        for part in [MAPS, LINKS] {
            own.made(OsStr::new(part))?;
        }
        let half = earlier.unwrap_or(kernel_half);
        let earlier_folder = place.path.join(half);
        let links = place.own.folder(OsStr::new(half)).and_then(|half| half.folder(OsStr::new(LINKS))?.names());
        let links = links.or_else(|error| unless_absent(error).map(|()| Vec::new()))?;
        let earlier = links.into_iter().filter_map(|name| name.into_string().ok()).collect();
        let place = Arc::clone(place);
        Ok(Self { place, folder, generation: clock::boottime_ns(), made: 0, earlier_folder, earlier })
    }

    /// Path of a pinned map.
    pub(crate) fn map(&self, name: &str) -> PathBuf {
        self.folder.join(MAPS).join(name)
    }

    /// Pins a link under a name with its purpose.
    ///
    /// # Errors
    /// The kernel refuses; the link is lost.
    pub(crate) fn pin(&mut self, link: FdLink, label: &str) -> Result<PinnedLink, aya::pin::PinError> {
        self.made += 1;
        let name = format!("{label}-{:x}-{}", self.generation, self.made);
        link.pin(self.folder.join(LINKS).join(name))
    }

    /// Whether the previous process had attached all probes of this file.
    pub(crate) fn was_probed(&self, file: &FileIdentity) -> bool {
        let label = whole(file);
        self.earlier.iter().any(|name| name.starts_with(&label))
    }

    /// Handles of the files probed by the previous process; files may have been replaced since, while jobs still use them.
    pub(crate) fn probed_handles(&self) -> Vec<FileHandle> {
        self.earlier.iter().filter_map(|name| handle_in(name)).collect()
    }

    /// Removes the links of the previous process, whose probes have been attached again. Done in a thread, since the kernel waits each time until
    /// no thread is inside a probe.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn drop_earlier(&mut self) -> io::Result<()> {
        let (folder, earlier) = (self.folder.join(LINKS), std::mem::take(&mut self.earlier));
        thread::Builder::new().name("pins".to_owned()).spawn(move || drop_links(&folder, earlier))?;
        Ok(())
    }

    /// Opens the final ring of a different previous kernel half, after removing its probes.
    ///
    /// # Errors
    /// There is none, or it has no ring.
    pub(crate) fn silence_earlier(&mut self) -> io::Result<MapData> {
        drop_links(&self.earlier_folder.join(LINKS), self.earlier.clone());
        ring_of(&self.earlier_folder).map_err(io::Error::other)
    }

    /// Removes the rest of a different previous kernel half.
    ///
    /// # Errors
    /// Something could not be removed.
    pub(crate) fn remove_earlier(&self) -> io::Result<()> {
        if self.earlier_folder == self.folder {
            return Ok(());
        }
        self.earlier_folder.file_name().map_or(Ok(()), |half| self.place.own.remove(half))
    }

    /// Removes everything.
    ///
    /// # Errors
    /// Something could not be removed.
    pub(crate) fn remove(&self) -> io::Result<()> {
        self.place.remove()
    }
}

/// Name prefix of the link at the returns of all functions of a file, which is attached after the entry link.
pub(crate) fn whole(file: &FileIdentity) -> String {
    format!("{RETURN}-whole-{}", file.key())
}

/// Separates a file's handle in the name of a link.
const HANDLE: &str = "-h";
/// Names in bpffs are limited to 255 bytes (`NAME_MAX`); a longer handle is omitted.
const LONGEST_HANDLE: usize = 128;

/// Label of such links: [`whole`] and the file's handle, which opens the file after it has lost its path.
pub(crate) fn whole_with_handle(file: &FileIdentity) -> String {
    let handle = file.handle().map(|handle| handle.to_text()).filter(|text| text.len() <= LONGEST_HANDLE);
    whole(file) + &handle.map_or_else(String::new, |text| format!("{HANDLE}{text}"))
}

/// Parses the handle in the name of a link, before the numbers of the link.
fn handle_in(name: &str) -> Option<FileHandle> {
    let (_, rest) = name.split_once(HANDLE)?;
    let mut parts = rest.rsplitn(3, '-');
    FileHandle::parse(parts.nth(2)?)
}

/// Holds the last descriptor, so that the probes are removed when it is closed; removing the file alone takes effect later.
fn drop_link(path: &Path) -> Result<(), LinkError> {
    let link = PinnedLink::from_pin(path)?;
    let unlinked = link.unpin().map(drop);
    Ok(unlinked.or_else(unless_absent).map_err(|io_error| SyscallError { call: "unlink", io_error })?)
}

/// Returns first: a return reported twice for an entry reported once would count as a return without entry.
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

/// Mount point of bpffs, or of memwatch's own directory of it, which is all a container needs. `None` if there
/// is none.
fn root_of(bpffs: &Path) -> io::Result<Option<OwnFolder>> {
    let is_bpffs = |folder: &OwnFolder| folder.file_system() == Some(BPF_FS_MAGIC);
    match OwnFolder::open_unchecked(bpffs) {
        Ok(root) if is_bpffs(&root) => Ok(Some(root)),
        Ok(root) => match root.folder(OsStr::new(ALL)) {
            Ok(all) => Ok(is_bpffs(&all).then_some(root)),
            Err(error) => unless_absent(error).map(|()| None),
        },
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

/// An agent that only inspects holds the lock briefly.
fn lock_soon(folder: &OwnFolder) -> io::Result<()> {
    for _ in 0..LOOKS {
        match folder.lock() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(LOOK),
            locked => return locked,
        }
    }
    folder.lock()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    fn mount(words: &[&str], place: &Path) -> bool {
        let status = std::process::Command::new(words[0]).args(&words[1..]).arg(place).status();
        status.is_ok_and(|status| status.success())
    }

    #[test]
    fn the_own_folder_of_a_bpffs_is_enough() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (bpffs, socket) = (directory.path(), Path::new("/run/memwatch/memwatch.sock"));
        assert!(matches!(PinPlace::open(bpffs, socket), Err(NoPins::NotMounted(_))));
        let own = bpffs.join(ALL);
        fs::create_dir(&own).expect("a folder");
        if !mount(&["mount", "-t", "bpf", "-o", "mode=700", "bpf"], &own) {
            eprintln!("SKIPPED: bpffs is mounted by root");
            return;
        }
        // Other directories of the temporary directory are writable by everyone.
        let root = root_of(bpffs).map(|root| root.is_some());
        let counted = count(bpffs);
        assert!(mount(&["umount"], &own));
        assert!(matches!(root, Ok(true)) && matches!(counted, Ok(Some((0, 0)))), "{root:?} {counted:?}");
        assert!(matches!(root_of(bpffs), Ok(None)));
    }

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
