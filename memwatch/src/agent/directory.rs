//! Directories for the agent's files, in which no other user can replace a file with a link or
//! another file.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::Path;

use anyhow::{Context as _, anyhow, bail};

use crate::own_folder::{check_owner, check_sticky, check_way, own_uid};

/// Permission bit of a mode (inode(7)).
const WRITABLE_BY_ALL: u32 = 0o002;

/// A directory that only root and the agent's user can change.
#[derive(Debug)]
pub(super) struct OwnDirectory {
    /// The open directory. Its path may lead to another one by now.
    file: File,
    /// Whether [`Self::open`] created it.
    pub(super) is_new: bool,
}

impl OwnDirectory {
    /// Creates the directory with this mode, or opens an existing one without changing its mode.
    ///
    /// # Errors
    /// It belongs to another user, other users can write to it, or it cannot be created or opened.
    pub(super) fn open(path: &Path, mode: u32) -> anyhow::Result<Self> {
        let name = path.display();
        check_above(path)?;
        let is_new = match DirBuilder::new().mode(mode & 0o700).create(path) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(error).with_context(|| format!("the directory {name} cannot be made")),
        };
        // A directory that was just created is a link only if another process has replaced it.
        let nofollow = if is_new { libc::O_NOFOLLOW } else { 0 };
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_DIRECTORY | libc::O_CLOEXEC | nofollow);
        let file = match options.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => bail!("{name} is not a directory"),
            opened => opened.with_context(|| format!("the directory {name} cannot be opened"))?,
        };
        let found = file.metadata()?;
        for checked in [check_owner(&found), check_sticky(&found)] {
            checked.map_err(|foreign| anyhow!("{name} {foreign}: {ADVICE}"))?;
        }
        let directory = Self { file, is_new };
        if is_new {
            // Sets the bits that the umask has cleared.
            directory.set_mode(mode)?;
        }
        Ok(directory)
    }

    /// Changes the group.
    ///
    /// # Errors
    /// No permission.
    pub(super) fn give_to(&self, group: u32) -> io::Result<()> {
        fchown(&self.file, None, Some(group))
    }

    /// Whether every user may create files in the directory.
    ///
    /// # Errors
    /// Its attributes cannot be read.
    pub(super) fn is_open_to_all(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.mode() & WRITABLE_BY_ALL != 0)
    }

    /// Changes the mode.
    ///
    /// # Errors
    /// No permission.
    pub(super) fn set_mode(&self, mode: u32) -> io::Result<()> {
        self.file.set_permissions(Permissions::from_mode(mode))
    }

    /// Opens the socket that the agent has just created, so that later changes apply to this file
    /// and not to its name.
    ///
    /// # Errors
    /// Another file has this name.
    pub(super) fn socket(&self, name: &Path) -> anyhow::Result<OwnSocket> {
        let name = name.file_name().context("a socket has a name")?;
        let name = std::ffi::CString::new(name.as_bytes())?;
        let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: the directory is open, and the name ends with a zero byte.
        let fd = unsafe { libc::openat(self.file.as_raw_fd(), name.as_ptr(), flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error()).context("the socket that was just made is gone");
        }
        // SAFETY: openat has just created the descriptor, and nothing else owns it.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        let found = file.metadata()?;
        let is_ours = found.mode() & libc::S_IFMT == libc::S_IFSOCK && found.uid() == own_uid();
        if !is_ours {
            bail!("another user or program has replaced the socket");
        }
        Ok(OwnSocket(file))
    }
}

/// A socket's file, opened without following links.
#[derive(Debug)]
pub(super) struct OwnSocket(File);

impl OwnSocket {
    /// Changes the group.
    ///
    /// # Errors
    /// No permission.
    pub(super) fn give_to(&self, group: u32) -> io::Result<()> {
        let (fd, same) = (self.0.as_raw_fd(), libc::uid_t::MAX);
        // SAFETY: the descriptor is open, and the path is an empty string.
        let done = unsafe { libc::fchownat(fd, c"".as_ptr(), same, group, libc::AT_EMPTY_PATH) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Changes the mode through `/proc`, since fchmod(2) refuses an `O_PATH` descriptor.
    ///
    /// # Errors
    /// No permission.
    pub(super) fn set_mode(&self, mode: u32) -> io::Result<()> {
        fs::set_permissions(format!("/proc/self/fd/{}", self.0.as_raw_fd()), Permissions::from_mode(mode))
    }

    /// Returns device and inode.
    ///
    /// # Errors
    /// Its attributes cannot be read.
    pub(super) fn identity(&self) -> io::Result<(u64, u64)> {
        let found = self.0.metadata()?;
        Ok((found.dev(), found.ino()))
    }
}

/// Checks that no other user can replace the directory, neither through a link that leads to it nor
/// through a directory above it.
fn check_above(path: &Path) -> anyhow::Result<()> {
    let is_link = fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match check_way(if is_link { path } else { above }) {
        // Creating the directory then fails with the right error.
        Err((_, error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err((at, error)) => bail!("{} {error}: {ADVICE}", at.display()),
        Ok(()) => Ok(()),
    }
}

/// Advice for a directory that other users can change.
const ADVICE: &str = "use a directory that belongs to root or to the agent's user and that others cannot write to";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("it is there").mode() & 0o7777
    }

    fn refusal(path: &Path) -> String {
        format!("{:#}", OwnDirectory::open(path, 0o755).expect_err("it is not to be used"))
    }

    #[test]
    fn a_directory_is_made_with_its_mode_and_one_that_is_there_keeps_its_own() {
        let parent = tempfile::tempdir().expect("a directory");
        let (made, link) = (parent.path().join("made"), parent.path().join("link"));
        assert!(OwnDirectory::open(&made, 0o2750).expect("it is made").is_new);
        assert_eq!(mode(&made), 0o2750);
        assert!(!OwnDirectory::open(&made, 0o755).expect("it is there").is_new);
        symlink(&made, &link).expect("it is ours");
        assert!(!OwnDirectory::open(&link, 0o755).expect("our own link leads to our own directory").is_new);
        assert_eq!(mode(&made), 0o2750);
    }

    #[test]
    fn a_directory_that_others_can_change_is_refused() {
        let parent = tempfile::tempdir().expect("a directory");
        let open = parent.path().join("open");
        fs::create_dir(&open).expect("it is ours");
        fs::set_permissions(&open, Permissions::from_mode(0o777)).expect("it is ours");
        assert!(refusal(&open).contains("can be changed by others"), "{}", refusal(&open));
        fs::set_permissions(&open, Permissions::from_mode(0o1777)).expect("it is ours");
        OwnDirectory::open(&open, 0o755).expect("in a directory like /tmp nobody can replace what is another's");
        let file = parent.path().join("file");
        fs::write(&file, "").expect("it is ours");
        assert!(refusal(&file).contains("is not a directory"), "{}", refusal(&file));
        if own_uid() != 0 {
            eprintln!("SKIPPED: only root can make a directory of another user");
            return;
        }
        let (anns, link) = (parent.path().join("anns"), parent.path().join("link"));
        fs::create_dir(&anns).expect("it is ours");
        chown(&anns, Some(64_001), None).expect("root may");
        assert!(refusal(&anns).contains("is owned by user 64001"), "{}", refusal(&anns));
        symlink(parent.path(), &link).expect("it is ours");
        std::os::unix::fs::lchown(&link, Some(64_001), None).expect("root may");
        assert!(refusal(&link).contains("is a symlink owned by user 64001"), "{}", refusal(&link));
        assert!(
            refusal(&anns.join("history")).contains("anns is owned by user 64001"),
            "{}",
            refusal(&anns.join("history"))
        );
        assert!(!anns.join("history").exists(), "nothing is made there");
        let shared = parent.path().join("shared");
        fs::create_dir(&shared).expect("it is ours");
        chown(&shared, None, Some(100)).expect("root may");
        fs::set_permissions(&shared, Permissions::from_mode(0o775)).expect("it is ours");
        assert!(refusal(&shared).contains("can be changed by group 100"), "{}", refusal(&shared));
        assert!(refusal(&shared.join("run")).contains("shared can be changed by group 100"));
    }

    #[test]
    fn a_link_in_the_place_of_the_socket_changes_nothing_of_what_it_leads_to() {
        let parent = tempfile::tempdir().expect("a directory");
        let directory = OwnDirectory::open(&parent.path().join("run"), 0o755).expect("it is made");
        let (socket, victim) = (parent.path().join("run/memwatch.sock"), parent.path().join("victim"));
        fs::write(&victim, "").expect("it is ours");
        fs::set_permissions(&victim, Permissions::from_mode(0o600)).expect("it is ours");
        symlink(&victim, &socket).expect("it is ours");
        let refusal = directory.socket(&socket).expect_err("it is a link").to_string();
        assert!(refusal.contains("has replaced the socket"), "{refusal}");
        fs::remove_file(&socket).expect("it is ours");
        let _listener = UnixListener::bind(&socket).expect("a socket");
        let own = directory.socket(&socket).expect("it is ours");
        // Changes apply to the socket itself, wherever its name leads.
        fs::rename(&socket, parent.path().join("run/away")).expect("it is ours");
        symlink(&victim, &socket).expect("it is ours");
        own.set_mode(0o666).expect("it is ours");
        // SAFETY: getegid has no preconditions.
        own.give_to(unsafe { libc::getegid() }).expect("it is our group");
        assert_eq!((mode(&victim), mode(&parent.path().join("run/away"))), (0o600, 0o666));
    }
}
