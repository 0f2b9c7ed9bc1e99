//! Directories that only root and this user can change. A directory is opened once, checked through
//! the open descriptor, and changed through that descriptor: the path may lead elsewhere by the
//! time it is used again.

use std::collections::VecDeque;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

/// Mode bits (inode(7)).
const WRITABLE_BY_GROUP: u32 = 0o020;
const WRITABLE_BY_ALL: u32 = 0o002;
const STICKY: u32 = 0o1000;
/// Mode of a directory that is created here.
const MODE: libc::mode_t = 0o700;
/// Maximum number of symlinks in one path, as in the kernel (path_resolution(7)).
const MOST_LINKS: u32 = 40;
/// First group id that is not a system group. `users` is below it, but Debian and Fedora put people
/// into it (login.defs(5), `GID_MIN`; base-passwd).
const FIRST_USERS_GROUP: u32 = 1000;
const USERS: u32 = 100;

/// Reason why a directory can be changed by others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Foreign {
    /// The directory belongs to another user.
    #[error("is owned by user {0}")]
    User(u32),
    /// The path contains a symlink of another user.
    #[error("is a symlink owned by user {0}")]
    Link(u32),
    /// A group may write to the directory.
    #[error("can be changed by group {0}")]
    Group(u32),
    /// All users may write to the directory.
    #[error("can be changed by others")]
    Others,
}

impl From<Foreign> for io::Error {
    fn from(foreign: Foreign) -> Self {
        Self::other(foreign)
    }
}

/// An open directory.
#[derive(Debug)]
pub(crate) struct OwnFolder(File);

impl OwnFolder {
    /// Opens a directory without checking its mode. Its entries are checked when they are opened.
    ///
    /// # Errors
    /// The path is not a directory, or cannot be opened.
    pub(crate) fn open_unchecked(path: &Path) -> io::Result<Self> {
        OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_CLOEXEC).open(path).map(Self)
    }

    /// Checks that only root and this user can add entries to the directory. The sticky bit does
    /// not suffice, since it does not stop others from adding entries.
    ///
    /// # Errors
    /// [`Foreign`], or the metadata cannot be read.
    pub(crate) fn check(&self) -> io::Result<()> {
        let found = self.0.metadata()?;
        check_owner(&found)?;
        check_mode(&found)?;
        Ok(())
    }

    /// Opens the subdirectory of this name, which must not be a symlink and must pass
    /// [`Self::check`].
    ///
    /// # Errors
    /// It does not exist, is not a directory, or can be changed by others.
    pub(crate) fn folder(&self, name: &OsStr) -> io::Result<Self> {
        let name = c_string(name)?;
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: the folder is open, and the name ends with a zero byte.
        let fd = unsafe { libc::openat(self.0.as_raw_fd(), name.as_ptr(), flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened, and nothing else owns it.
        let folder = Self(File::from(unsafe { OwnedFd::from_raw_fd(fd) }));
        folder.check()?;
        Ok(folder)
    }

    /// Opens the subdirectory of this name, after creating it if it does not exist.
    ///
    /// # Errors
    /// It cannot be created, or the existing one can be changed by others.
    pub(crate) fn made(&self, name: &OsStr) -> io::Result<Self> {
        let c_name = c_string(name)?;
        // SAFETY: the folder is open, and the name ends with a zero byte.
        let made = unsafe { libc::mkdirat(self.0.as_raw_fd(), c_name.as_ptr(), MODE) };
        let error = io::Error::last_os_error();
        if made != 0 && error.kind() != io::ErrorKind::AlreadyExists {
            return Err(error);
        }
        self.folder(name)
    }

    /// Returns the names of the entries.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub(crate) fn names(&self) -> io::Result<Vec<OsString>> {
        let entries = fs::read_dir(format!("/proc/self/fd/{}", self.0.as_raw_fd()))?;
        entries.map(|entry| Ok(entry?.file_name())).collect()
    }

    /// Removes the entry of this name and everything below it. A symlink is removed without
    /// following it. A missing entry is no error.
    ///
    /// # Errors
    /// An entry cannot be removed, or is a directory that others can change.
    pub(crate) fn remove(&self, name: &OsStr) -> io::Result<()> {
        let c_name = c_string(name)?;
        match self.unlink(&c_name, 0) {
            // unlink(2) fails with EISDIR for a directory on Linux, with EPERM according to POSIX.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EISDIR | libc::EPERM)) => {}
            done => return done.or_else(unless_absent),
        }
        match self.folder(name) {
            Ok(folder) => folder.clear()?,
            Err(error) => return unless_absent(error),
        }
        self.unlink(&c_name, libc::AT_REMOVEDIR).or_else(unless_absent)
    }

    /// Removes all entries.
    ///
    /// # Errors
    /// Those of [`Self::remove`].
    pub(crate) fn clear(&self) -> io::Result<()> {
        self.names()?.iter().try_for_each(|name| self.remove(name))
    }

    /// Removes the subdirectory of this name if it is empty.
    ///
    /// # Errors
    /// It does not exist, or is not empty.
    pub(crate) fn remove_empty(&self, name: &OsStr) -> io::Result<()> {
        self.unlink(&c_string(name)?, libc::AT_REMOVEDIR)
    }

    /// Locks the directory until it is closed.
    ///
    /// # Errors
    /// `WouldBlock` if another process holds the lock.
    pub(crate) fn lock(&self) -> io::Result<()> {
        // SAFETY: the descriptor is open.
        let locked = unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
        if locked == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Returns the type number of the file system (statfs(2)).
    pub(crate) fn file_system(&self) -> Option<u32> {
        // SAFETY: all zeros are valid, and the descriptor is open.
        let (found, kind) = unsafe {
            let mut status: libc::statfs = std::mem::zeroed();
            (libc::fstatfs(self.0.as_raw_fd(), &raw mut status), status.f_type)
        };
        u32::try_from(kind).ok().filter(|_| found == 0)
    }

    fn unlink(&self, name: &CStr, flags: i32) -> io::Result<()> {
        // SAFETY: the folder is open, and the name ends with a zero byte.
        let done = unsafe { libc::unlinkat(self.0.as_raw_fd(), name.as_ptr(), flags) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// Checks that a directory or symlink belongs to root or to this user.
///
/// # Errors
/// [`Foreign::User`].
pub(crate) fn check_owner(found: &Metadata) -> Result<(), Foreign> {
    if [0, own_uid()].contains(&found.uid()) { Ok(()) } else { Err(Foreign::User(found.uid())) }
}

/// Checks by its mode that only the owner may write to a directory.
///
/// # Errors
/// [`Foreign::Others`] or [`Foreign::Group`].
pub(crate) fn check_mode(found: &Metadata) -> Result<(), Foreign> {
    if found.mode() & WRITABLE_BY_ALL != 0 {
        return Err(Foreign::Others);
    }
    let is_own = [0, own_gid()].contains(&found.gid());
    if found.mode() & WRITABLE_BY_GROUP != 0 && !is_own { Err(Foreign::Group(found.gid())) } else { Ok(()) }
}

/// Checks that others cannot replace entries of a directory. They may add entries to a sticky one
/// such as `/tmp`.
///
/// # Errors
/// Those of [`check_mode`].
pub(crate) fn check_sticky(found: &Metadata) -> Result<(), Foreign> {
    if found.mode() & STICKY != 0 { Ok(()) } else { check_mode(found) }
}

/// Checks that others cannot replace the file that a path leads to: no directory above it and no
/// symlink on the way belongs to another user. The user that called sudo counts as this user. A
/// system group may write to a directory on the way, as the group of the log directory does on
/// Ubuntu.
///
/// # Errors
/// The part of the path that can be changed, and why; or a part of the path does not exist.
pub(crate) fn check_way(path: &Path) -> Result<(), (PathBuf, io::Error)> {
    let full = std::path::absolute(path).map_err(|error| (path.to_owned(), error))?;
    let mut left: VecDeque<OsString> = parts(&full).collect();
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    while let Some(part) = left.pop_front() {
        if part == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&part);
        let failed = |error| (next.clone(), error);
        let found = fs::symlink_metadata(&next).map_err(failed)?;
        check_on_way(&found).map_err(|foreign| failed(foreign.into()))?;
        if !found.is_symlink() {
            at = next;
            continue;
        }
        links += 1;
        if links > MOST_LINKS {
            return Err(failed(io::Error::from_raw_os_error(libc::ELOOP)));
        }
        let target = fs::read_link(&next).map_err(failed)?;
        if target.is_absolute() {
            at = PathBuf::from("/");
        }
        parts(&target).rev().for_each(|part| left.push_front(part));
    }
    Ok(())
}

fn parts(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    let is_part = |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().filter(is_part).map(|part| part.as_os_str().to_owned())
}

fn check_on_way(found: &Metadata) -> Result<(), Foreign> {
    let is_own = check_owner(found).is_ok() || crate::output_file::caller().is_some_and(|(uid, _)| uid == found.uid());
    if found.is_symlink() {
        return if is_own { Ok(()) } else { Err(Foreign::Link(found.uid())) };
    }
    if !is_own {
        return Err(Foreign::User(found.uid()));
    }
    match check_sticky(found) {
        Err(Foreign::Group(gid)) if gid < FIRST_USERS_GROUP && gid != USERS => Ok(()),
        // The caller's own group: distributions give each user one.
        Err(Foreign::Group(gid)) if crate::output_file::caller().is_some_and(|(_, own)| own == gid) => Ok(()),
        checked => checked,
    }
}

/// Turns `NotFound` into success.
pub(crate) fn unless_absent(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

fn c_string(name: &OsStr) -> io::Result<CString> {
    // A name with a slash would leave the directory.
    if name.as_bytes().contains(&b'/') || name == ".." || name == "." {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    CString::new(name.as_bytes()).map_err(io::Error::other)
}

/// Returns the effective user id of this process.
pub(crate) fn own_uid() -> u32 {
    // SAFETY: it has no preconditions.
    unsafe { libc::geteuid() }
}

fn own_gid() -> u32 {
    // SAFETY: it has no preconditions.
    unsafe { libc::getegid() }
}

#[cfg(test)]
mod tests;
