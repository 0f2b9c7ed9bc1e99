//! Pinned objects: maps and links of the kernel half in bpffs, which stay in the kernel when
//! memwatch exits.
//!
//! The next memwatch loads the programs on the same maps, attaches all probes again and then
//! removes the earlier links. A call reported by both counts as one. Each kernel half has a
//! directory with its name, so maps of a different kernel half are not used.

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

/// Maps that outlive memwatch: unread records and losses, calls in flight, the allocation map, and
/// the shares of owners. Partial stack copies and the table of sent stacks are not pinned, since
/// stacks are sent again.
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

/// Prefixes of link names. Links are attached in the order of their names and removed in reverse.
pub(crate) const ENTRY: &str = "entry";
pub(crate) const EVENTS: &str = "events";
pub(crate) const RETURN: &str = "return";

/// Number of attempts to lock a directory in use, and the pause between them.
const LOOKS: u32 = 10;
const LOOK: Duration = Duration::from_millis(10);

/// Mount command for a bpffs that only root can write to. Without a mode, all users can write to
/// it, as in `/tmp` (kernel/bpf/inode.c).
pub(crate) const MOUNT: &str = "mount -t bpf -o mode=700 bpf";
/// Command that restricts a mounted bpffs. A remount does not change its mode.
pub(crate) const CLOSE: &str = "chmod 700";

/// `BPF_FS_MAGIC` of include/uapi/linux/magic.h.
const BPF_FS_MAGIC: u32 = 0xcafe_4a11;

/// Why pinning is impossible.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoPins {
    /// No bpffs is mounted.
    #[error("{0} is no bpf file system ({MOUNT} {0}; in a container, mount the host's there)")]
    NotMounted(String),
    /// Other users can write to it or to a directory above it, so root's programs and maps must not
    /// be pinned there.
    #[error("{0} {1}, who could replace the pinned objects ({CLOSE} {0})")]
    Foreign(String, String),
    /// It cannot be written to.
    #[error("{0} cannot be written to")]
    Refused(String, #[source] io::Error),
    /// A running agent uses the directory.
    #[error("another agent that answers on a socket of this name has pinned its kernel half below {0}")]
    Taken(String),
}

/// Directory of one agent in bpffs, locked against other agents. All directories above it belong to
/// root or to this user, so its path is stable.
#[derive(Debug)]
pub(crate) struct PinPlace {
    path: PathBuf,
    all: OwnFolder,
    name: OsString,
    /// Lock that is held as long as the agent lives.
    own: OwnFolder,
}

impl PinPlace {
    /// Opens the directory of the agent with this socket, and creates it if missing.
    ///
    /// # Errors
    /// There is no bpffs, it is not writable, other users can write to it, or another agent uses
    /// the directory.
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

    /// Returns the number of the pinned ring of this kernel half, if there is one.
    pub(crate) fn ring_number(&self, kernel_half: &str) -> Option<u32> {
        Some(ring_of(&self.path.join(kernel_half)).ok()?.info().ok()?.id())
    }

    /// Returns the name of the pinned kernel half whose ring has this number, if there is one.
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
        // Other agents may have directories in the parent, so it may not be empty.
        let _ =
            self.path.ancestors().nth(2).map(OwnFolder::open_unchecked).map(|root| root?.remove_empty(OsStr::new(ALL)));
        Ok(())
    }
}

/// Returns the number of exited agents with pinned objects, and of running agents; `None` without
/// bpffs.
///
/// # Errors
/// bpffs cannot be read, or a directory in it belongs to another user.
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

/// Removes the pinned objects of exited agents. Returns the number of these agents, and of running
/// agents. Other users may be able to write to bpffs itself, but, as in `/tmp`, not to directories
/// of root.
///
/// # Errors
/// Something cannot be removed, or belongs to another user and is not touched.
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
        // Fails if the directory has other contents, and is then kept.
        let _ = root.remove_empty(OsStr::new(ALL));
    }
    Ok((removed, running))
}

/// Calls `take` for the directory of each agent, with its parent and name.
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
    // At the root of bpffs there are also files of the kernel, such as maps.debug
    // (kernel/bpf/preload).
    let is_place = |name: &OsString| name.as_encoded_bytes().starts_with(PLACE.as_bytes());
    for name in all.names()?.into_iter().filter(is_place) {
        match all.folder(&name) {
            Ok(place) => take(&all, &name, place)?,
            Err(error) => unless_absent(named(&name, error))?,
        }
    }
    Ok(())
}

/// Prefix of the directory name of an agent. A hash of the socket's path follows.
const PLACE: &str = "agent-";

/// Returns the directory name of the agent with this socket.
fn name_of(socket: &Path) -> OsString {
    format!("{PLACE}{:08x}", crc32fast::hash(socket.as_os_str().as_bytes())).into()
}

/// Objects pinned by this process and by the previous one.
#[derive(Debug)]
pub(crate) struct PinnedObjects {
    place: Arc<PinPlace>,
    folder: PathBuf,
    /// Part of the names of this process's links that distinguishes them from others.
    generation: u64,
    made: u64,
    /// Directory of the previous kernel half, and its links at the start.
    earlier_folder: PathBuf,
    earlier: BTreeSet<String>,
}

impl PinnedObjects {
    /// Sets up pinning for this kernel half, which replaces the previous kernel half `earlier`: the
    /// same one, a different one, or none. Everything else is removed.
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

    /// Returns the path of a pinned map.
    pub(crate) fn map(&self, name: &str) -> PathBuf {
        self.folder.join(MAPS).join(name)
    }

    /// Pins a link under a name that starts with its purpose.
    ///
    /// # Errors
    /// The kernel refuses to pin it. The link is then lost.
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

    /// Returns the handles of the files probed by the previous process. Such a file may have been
    /// replaced since, while jobs still use it.
    pub(crate) fn probed_handles(&self) -> Vec<FileHandle> {
        self.earlier.iter().filter_map(|name| handle_in(name)).collect()
    }

    /// Removes the links of the previous process, whose probes have been attached again. Runs in a
    /// thread, since the kernel waits at each link until no thread is inside a probe.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn drop_earlier(&mut self) -> io::Result<()> {
        let (folder, earlier) = (self.folder.join(LINKS), std::mem::take(&mut self.earlier));
        thread::Builder::new().name("pins".to_owned()).spawn(move || drop_links(&folder, earlier))?;
        Ok(())
    }

    /// Opens the ring of a different previous kernel half, after removing its probes, so that the
    /// ring does not change any more.
    ///
    /// # Errors
    /// There is no such kernel half, or it has no ring.
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

    /// Removes all pinned objects.
    ///
    /// # Errors
    /// Something could not be removed.
    pub(crate) fn remove(&self) -> io::Result<()> {
        self.place.remove()
    }
}

/// Returns the name prefix of the link at the returns of all functions of a file, which is attached
/// after the entry link.
pub(crate) fn whole(file: &FileIdentity) -> String {
    format!("{RETURN}-whole-{}", file.key())
}

/// Precedes a file's handle in the name of a link.
const HANDLE: &str = "-h";
/// Maximum length of a handle in a name. Names in bpffs are limited to 255 bytes (`NAME_MAX`); a
/// longer handle is omitted.
const LONGEST_HANDLE: usize = 128;

/// Returns the label of such links: [`whole`] and the file's handle, which opens the file even if
/// its path is gone.
pub(crate) fn whole_with_handle(file: &FileIdentity) -> String {
    let handle = file.handle().map(|handle| handle.to_text()).filter(|text| text.len() <= LONGEST_HANDLE);
    whole(file) + &handle.map_or_else(String::new, |text| format!("{HANDLE}{text}"))
}

/// Parses the handle in the name of a link. The numbers of the link follow it.
fn handle_in(name: &str) -> Option<FileHandle> {
    let (_, rest) = name.split_once(HANDLE)?;
    let mut parts = rest.rsplitn(3, '-');
    FileHandle::parse(parts.nth(2)?)
}

/// Removes a pinned link. Opening it first gives this process the last descriptor, so the probes
/// are removed when it is closed. Removing the file alone would take effect later.
fn drop_link(path: &Path) -> Result<(), LinkError> {
    let link = PinnedLink::from_pin(path)?;
    let unlinked = link.unpin().map(drop);
    Ok(unlinked.or_else(unless_absent).map_err(|io_error| SyscallError { call: "unlink", io_error })?)
}

/// Removes links, return links first: a return reported twice for an entry reported once would
/// count as a return without an entry.
fn drop_links(folder: &Path, links: BTreeSet<String>) {
    for name in links.into_iter().rev() {
        if let Err(error) = drop_link(&folder.join(name)) {
            log::warn!("cannot remove a probe of the previous agent: {error}");
        }
    }
}

fn ring_of(kernel_half: &Path) -> Result<MapData, aya::maps::MapError> {
    MapData::from_pin(kernel_half.join(MAPS).join(RECORDS))
}

/// Opens the mount point of bpffs, or memwatch's own directory of bpffs, which is all that a
/// container needs. Returns `None` if there is none.
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

/// Locks a directory. Retries, since an agent that only inspects it holds the lock briefly.
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
        // Every user can write to the parent of a temporary directory.
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
