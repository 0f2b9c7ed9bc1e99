//! Opens paths as another process sees them: below its root, with symbolic links confined to it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::super::host;
use crate::stranger_file::{self, MOST_CODE_BYTES};

/// The root and working directory of a process.
pub(super) struct Root {
    root: File,
    working: Option<File>,
    path: PathBuf,
}

impl Root {
    /// Opens the root of the process with this directory below `/proc`.
    ///
    /// # Errors
    /// The process has exited or is not accessible to this user.
    pub(super) fn of(process: &Path) -> io::Result<Self> {
        let path = process.join("root");
        Ok(Self { root: directory(&path)?, working: directory(&process.join("cwd")).ok(), path })
    }

    /// Opens the root of this process.
    ///
    /// # Errors
    /// The root directory cannot be opened.
    pub(super) fn here() -> io::Result<Self> {
        Ok(Self { root: directory(Path::new("/"))?, working: directory(Path::new(".")).ok(), path: "/".into() })
    }

    /// Opens a regular file with `O_PATH` only, so that no device or FIFO named by a hostile path
    /// is really opened.
    ///
    /// # Errors
    /// No regular file exists at this path.
    pub(super) fn open(&self, path: &[u8]) -> io::Result<File> {
        let is_absolute = path.starts_with(b"/");
        let opened = match (is_absolute, &self.working) {
            (true, _) => open_below(&self.root, path).or_else(|error| {
                // Before Linux 5.6 links may lead out of the root, but only to files that this
                // process could open anyway.
                let old = error.raw_os_error() == Some(libc::ENOSYS);
                if old { examined(&host::below(&self.path, path)) } else { Err(error) }
            }),
            (false, Some(working)) => open_below(working, path),
            (false, None) => Err(io::ErrorKind::NotFound.into()),
        };
        opened.and_then(
            |file| if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) },
        )
    }
}

/// Reopens a file that was opened with `O_PATH` for reading.
///
/// # Errors
/// The file is not readable.
pub(super) fn reopen(file: &File) -> io::Result<File> {
    stranger_file::reopen(file, MOST_CODE_BYTES)
}

fn directory(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_CLOEXEC | libc::O_DIRECTORY).open(path)
}

fn examined(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_CLOEXEC).open(path)
}

/// Calls openat2(2) with the directory as root: absolute links and `..` stay below it.
fn open_below(directory: &File, path: &[u8]) -> io::Result<File> {
    let path = std::ffi::CString::new(path)?;
    // SAFETY: all zeros are a valid value of this struct of three numbers.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = u64::from((libc::O_PATH | libc::O_CLOEXEC).cast_unsigned());
    how.resolve = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS;
    // SAFETY: the path ends with a NUL, the struct has the given length, and both outlive the call.
    let descriptor = unsafe {
        libc::syscall(libc::SYS_openat2, directory.as_raw_fd(), path.as_ptr(), &raw const how, size_of_val(&how))
    };
    match i32::try_from(descriptor) {
        // SAFETY: the descriptor is new and has no other owner.
        Ok(descriptor) if descriptor >= 0 => Ok(unsafe { File::from_raw_fd(descriptor) }),
        _ => Err(io::Error::last_os_error()),
    }
}
