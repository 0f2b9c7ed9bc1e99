//! Files that an untrusted user wrote and may still be writing. All such files are opened here.
//! Opening never blocks (a write lease would block for 45 seconds, fcntl(2) and
//! `/proc/sys/fs/lease-break-time`), only regular files are opened for reading, and reads are
//! bounded.

mod elf;

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

pub(crate) use self::elf::ElfReader;

/// Upper bound of the size of a file with code, in bytes: PyTorch's largest library has 2.5 GB.
pub(crate) const MOST_CODE_BYTES: u64 = 8 << 30;

/// Opens a regular file for examination only (`O_PATH`), following symlinks, so that no device,
/// pipe or lease is touched that a hostile path names.
///
/// # Errors
/// The file does not exist, or is not a regular file.
pub(crate) fn examine(path: &Path) -> io::Result<File> {
    regular(OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_CLOEXEC).open(path)?)
}

/// Reopens an examined regular file for reading, if it has at most `most_bytes` bytes.
///
/// # Errors
/// `WouldBlock` while its owner holds a lease on it: it may be readable later. Otherwise it is
/// unreadable, larger, or not a regular file.
pub(crate) fn reopen(file: &File, most_bytes: u64) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY;
    let found = regular(file.try_clone()?)?.metadata()?;
    if found.len() > most_bytes {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    OpenOptions::new().read(true).custom_flags(flags).open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Reads the text of a small file.
///
/// # Errors
/// Those of [`reopen`]; `InvalidData` if it is not UTF-8.
pub(crate) fn read_text(path: &Path, most_bytes: u64) -> io::Result<String> {
    let file = reopen(&examine(path)?, most_bytes)?;
    let mut text = String::new();
    // The file may have grown since it was examined.
    file.take(most_bytes).read_to_string(&mut text)?;
    Ok(text)
}

fn regular(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn only_a_regular_file_is_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        let name = std::ffi::CString::new(pipe.as_os_str().as_bytes()).expect("a path");
        // SAFETY: the path ends with a zero byte.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o666) }, 0);
        std::os::unix::fs::symlink("pipe", folder.path().join("link")).expect("it is ours");
        for path in [&pipe, &folder.path().join("link"), folder.path(), Path::new("/dev/zero")] {
            assert_eq!(examine(path).expect_err("it is no file").kind(), io::ErrorKind::InvalidInput);
            assert!(read_text(path, 10).is_err());
        }
        std::fs::write(folder.path().join("file"), "eight by").expect("it is ours");
        assert_eq!(read_text(&folder.path().join("file"), 8).expect("it is small"), "eight by");
        assert_eq!(
            read_text(&folder.path().join("file"), 7).expect_err("it is larger").kind(),
            io::ErrorKind::FileTooLarge
        );
    }

    #[test]
    fn a_file_with_a_lease_is_refused_at_once_and_read_when_that_is_gone() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(b"text").expect("it is ours");
        let examined = examine(file.path()).expect("that opens nothing");
        // Without this, the signal of a broken lease would end this process.
        // SAFETY: ignoring a signal has no preconditions, and the descriptor is open.
        let leased = unsafe {
            libc::signal(libc::SIGIO, libc::SIG_IGN);
            libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK)
        };
        if leased != 0 {
            eprintln!("SKIPPED: this file system has no leases");
            return;
        }
        assert_eq!(reopen(&examined, 10).expect_err("it is leased").kind(), io::ErrorKind::WouldBlock);
        // SAFETY: the descriptor is open.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) }, 0);
        reopen(&examined, 10).expect("it is free");
    }
}
