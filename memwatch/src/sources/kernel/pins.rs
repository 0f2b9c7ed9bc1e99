//! What of the kernel half stays in the kernel when memwatch is gone: maps and links, pinned in a file system of the kernel's (bpffs).
//!
//! Whoever comes next loads the programs again, on the same maps, probes all again, and then takes the earlier links out: a call that both report is one
//! call. Maps of another kernel half are not used: each has a folder of its own name.

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

/// Where bpffs is mounted on most systems.
pub(crate) const BPFFS: &str = "/sys/fs/bpf";

/// The maps that have to outlive memwatch: records and losses that nobody has read, calls in flight, the books, and what of each is whose. What a thread is in the middle of
/// copying is not among them, nor which stacks were sent: stacks are sent again.
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

/// How a bpf file system is mounted into which only root can write: without a mode it is everybody's, as `/tmp` is (kernel/bpf/inode.c).
pub(crate) const MOUNT: &str = "mount -t bpf -o mode=700 bpf";
/// How one that is mounted becomes such: it takes no other mode when it is mounted once more.
pub(crate) const CLOSE: &str = "chmod 700";

/// `BPF_FS_MAGIC` of include/uapi/linux/magic.h.
const BPF_FS_MAGIC: u32 = 0xcafe_4a11;

/// Why nothing can be pinned.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoPins {
    /// There is none.
    #[error("{0} is no bpf file system ({MOUNT} {0}; in a container, mount the host's there)")]
    NotMounted(String),
    /// Others may write into it, or into a folder above it: root's programs and maps must not lie there.
    #[error("{0} {1}, who could put something else in the place of what is pinned ({CLOSE} {0})")]
    Foreign(String, String),
    /// It may not be written to.
    #[error("{0} cannot be written to")]
    Refused(String, #[source] io::Error),
    /// Another one is there, by another mount of the same name.
    #[error("another agent that answers on a socket of this name has pinned its kernel half below {0}")]
    Taken(String),
}

/// The place of one agent in bpffs, which no other one uses meanwhile. All folders above it are root's or this user's, so its path stays its own.
#[derive(Debug)]
pub(crate) struct PinPlace {
    path: PathBuf,
    all: OwnFolder,
    name: OsString,
    /// Locked for as long as the agent lives.
    own: OwnFolder,
}

impl PinPlace {
    /// The place of the agent that answers on this socket. It is made where it is not there.
    ///
    /// # Errors
    /// There is no bpffs, it may not be written to, others may write to it, or another agent has this place.
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

    /// The number of the pinned ring of this kernel half, if there is one.
    pub(crate) fn ring_number(&self, kernel_half: &str) -> Option<u32> {
        Some(ring_of(&self.path.join(kernel_half)).ok()?.info().ok()?.id())
    }

    /// The kernel half that is pinned here and whose ring has this number, if there is one.
    pub(crate) fn half_of(&self, ring: u32) -> Option<String> {
        let halves = self.own.names().ok()?.into_iter().filter_map(|half| half.into_string().ok());
        halves.into_iter().find(|half| self.ring_number(half) == Some(ring))
    }

    /// Takes everything out that is pinned here, but for one kernel half.
    fn clear_but(&self, kept: Option<&str>) -> io::Result<()> {
        let names = self.own.names()?;
        names
            .iter()
            .filter(|half| Some(half.as_os_str()) != kept.map(OsStr::new))
            .try_for_each(|half| self.own.remove(half))
    }

    /// Takes out what is pinned here, and the place itself.
    ///
    /// # Errors
    /// Something cannot be taken out.
    pub(crate) fn remove(&self) -> io::Result<()> {
        self.all.remove(&self.name)?;
        // Others may have theirs in it.
        let _ =
            self.path.ancestors().nth(2).map(OwnFolder::open_unchecked).map(|root| root?.remove_empty(OsStr::new(ALL)));
        Ok(())
    }
}

/// How many agents have left something in bpffs and run no more, and how many run; `None` where there is no bpffs.
///
/// # Errors
/// It cannot be read, or a folder in it is another user's.
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

/// Takes out what agents have left in bpffs that run no more. Returns how many had left something, and how many run. Others may write into bpffs itself:
/// what is root's in it is theirs no more than in `/tmp`.
///
/// # Errors
/// Something cannot be taken out, or is another user's, which is left alone.
pub(crate) fn remove_all(bpffs: &Path) -> io::Result<(usize, usize)> {
    remove_where(bpffs, |_| true)
}

/// The same of one agent alone: the one that answered on this socket.
///
/// # Errors
/// As of [`remove_all`].
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
        // Where there are others it is not empty, and stays.
        let _ = root.remove_empty(OsStr::new(ALL));
    }
    Ok((removed, running))
}

/// Hands over each agent's place, with the folder that it is in and its name there.
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
    // Where bpffs is mounted here itself, the kernel has files of its own in it, such as maps.debug (kernel/bpf/preload).
    let is_place = |name: &OsString| name.as_encoded_bytes().starts_with(PLACE.as_bytes());
    for name in all.names()?.into_iter().filter(is_place) {
        match all.folder(&name) {
            Ok(place) => take(&all, &name, place)?,
            Err(error) => unless_absent(named(&name, error))?,
        }
    }
    Ok(())
}

/// The folder of each agent is called this, and by its socket.
const PLACE: &str = "agent-";

/// What the folder is called of the agent that answers on this socket.
fn name_of(socket: &Path) -> OsString {
    format!("{PLACE}{:08x}", crc32fast::hash(socket.as_os_str().as_bytes())).into()
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
        self.earlier_folder.file_name().map_or(Ok(()), |half| self.place.own.remove(half))
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

/// The folder where bpffs is mounted, or where memwatch's own folder of one is, under its name: a container needs no more of the machine's. `None` where there
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

/// Who only looks has it for a moment.
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
        // Other folders of the temporary directory are everybody's.
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
