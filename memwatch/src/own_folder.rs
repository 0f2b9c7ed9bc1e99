//! Folders that only root and this user can change. One is opened once, checked as the folder that was opened, and changed through that descriptor: a path
//! may lead elsewhere by the time that it is used again.

use std::collections::VecDeque;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

/// Bits of a mode (inode(7)).
const WRITABLE_BY_GROUP: u32 = 0o020;
const WRITABLE_BY_ALL: u32 = 0o002;
const STICKY: u32 = 0o1000;
/// The mode of a folder that is made here.
const MODE: libc::mode_t = 0o700;
/// Links that one path may lead over, as in the kernel (path_resolution(7)).
const MOST_LINKS: u32 = 40;
/// Groups below this are the system's, but for `users`, which Debian and Fedora put people into (login.defs(5), `GID_MIN`; base-passwd).
const FIRST_USERS_GROUP: u32 = 1000;
const USERS: u32 = 100;

/// Why a folder is not ours alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Foreign {
    /// It belongs to another user.
    #[error("is user {0}'s")]
    User(u32),
    /// It is a link of another user's.
    #[error("is a link that is user {0}'s")]
    Link(u32),
    /// A group may write into it.
    #[error("can be changed by group {0}")]
    Group(u32),
    /// Everybody may write into it.
    #[error("can be changed by others")]
    Others,
}

impl From<Foreign> for io::Error {
    fn from(foreign: Foreign) -> Self {
        Self::other(foreign)
    }
}

/// A folder, open.
#[derive(Debug)]
pub(crate) struct OwnFolder(File);

impl OwnFolder {
    /// Opens a folder whatever its mode is. What is in it is checked when that is opened.
    ///
    /// # Errors
    /// It is no folder, or cannot be opened.
    pub(crate) fn open_unchecked(path: &Path) -> io::Result<Self> {
        OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_CLOEXEC).open(path).map(Self)
    }

    /// Whether only root and this user can change it: its own entries, which the sticky bit would not keep others from making.
    ///
    /// # Errors
    /// [`Foreign`], or it cannot be looked at.
    pub(crate) fn check(&self) -> io::Result<()> {
        let found = self.0.metadata()?;
        check_owner(&found)?;
        check_mode(&found)?;
        Ok(())
    }

    /// The folder of this name in it, which is no link and is ours alone.
    ///
    /// # Errors
    /// It is not there, no folder, or not ours alone.
    pub(crate) fn folder(&self, name: &OsStr) -> io::Result<Self> {
        let name = c_string(name)?;
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: the folder is open, and the name ends with a zero byte.
        let fd = unsafe { libc::openat(self.0.as_raw_fd(), name.as_ptr(), flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it was just opened, and nothing else has it.
        let folder = Self(File::from(unsafe { OwnedFd::from_raw_fd(fd) }));
        folder.check()?;
        Ok(folder)
    }

    /// The same, made where it is not there.
    ///
    /// # Errors
    /// It cannot be made, or what is there is not ours alone.
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

    /// The names in it.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn names(&self) -> io::Result<Vec<OsString>> {
        let entries = fs::read_dir(format!("/proc/self/fd/{}", self.0.as_raw_fd()))?;
        entries.map(|entry| Ok(entry?.file_name())).collect()
    }

    /// Takes out what has this name, and all below it. A link is taken out itself; nothing is done where it leads. What is gone already is no error.
    ///
    /// # Errors
    /// Something cannot be taken out, or is a folder that others can change.
    pub(crate) fn remove(&self, name: &OsStr) -> io::Result<()> {
        let c_name = c_string(name)?;
        match self.unlink(&c_name, 0) {
            // As unlink(2) on Linux answers for a folder; POSIX has the other.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EISDIR | libc::EPERM)) => {}
            done => return done.or_else(unless_absent),
        }
        match self.folder(name) {
            Ok(folder) => folder.clear()?,
            Err(error) => return unless_absent(error),
        }
        self.unlink(&c_name, libc::AT_REMOVEDIR).or_else(unless_absent)
    }

    /// Takes out all that is in it.
    ///
    /// # Errors
    /// As of [`Self::remove`].
    pub(crate) fn clear(&self) -> io::Result<()> {
        self.names()?.iter().try_for_each(|name| self.remove(name))
    }

    /// Takes the folder of this name out where that is empty.
    ///
    /// # Errors
    /// It is not there, or something is in it.
    pub(crate) fn remove_empty(&self, name: &OsStr) -> io::Result<()> {
        self.unlink(&c_string(name)?, libc::AT_REMOVEDIR)
    }

    /// Locks it for as long as it is open.
    ///
    /// # Errors
    /// `WouldBlock` where another process has it.
    pub(crate) fn lock(&self) -> io::Result<()> {
        // SAFETY: the descriptor is open.
        let locked = unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
        if locked == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// The number of the kind of its file system (statfs(2)).
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

/// Whether a folder, or a link, belongs to root or to this user.
///
/// # Errors
/// [`Foreign::User`].
pub(crate) fn check_owner(found: &Metadata) -> Result<(), Foreign> {
    if [0, own_uid()].contains(&found.uid()) { Ok(()) } else { Err(Foreign::User(found.uid())) }
}

/// Whether nobody but its owner may write into a folder, by its mode.
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

/// Whether what is in a folder stays in its place: others may make files in one like `/tmp`, and not replace what is ours.
///
/// # Errors
/// As of [`check_mode`].
pub(crate) fn check_sticky(found: &Metadata) -> Result<(), Foreign> {
    if found.mode() & STICKY != 0 { Ok(()) } else { check_mode(found) }
}

/// Whether nobody can put something else in the place of what this path leads to: neither a folder above it nor a link on the way is another user's. The one
/// that called sudo counts as this user. A group of the system's may write into such a folder, as that of the log does on Ubuntu.
///
/// # Errors
/// What can be changed, and why; or a part of the path is not there.
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
        // His own group, as distributions give each user one.
        Err(Foreign::Group(gid)) if crate::output_file::caller().is_some_and(|(_, own)| own == gid) => Ok(()),
        checked => checked,
    }
}

/// What is gone already is no error.
pub(crate) fn unless_absent(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

fn c_string(name: &OsStr) -> io::Result<CString> {
    // A name with a slash in it would lead out of the folder.
    if name.as_bytes().contains(&b'/') || name == ".." || name == "." {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    CString::new(name.as_bytes()).map_err(io::Error::other)
}

/// The user that this process acts as.
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
