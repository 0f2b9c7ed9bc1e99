//! Files that a stranger has written, and may be writing: opened by this room alone. To open one never waits (a write lease would hold whoever opens it for
//! 45 seconds, fcntl(2) and `/proc/sys/fs/lease-break-time`), nothing but a regular file is opened in earnest, and what is read of one is bounded.

mod elf;

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

pub(crate) use self::elf::ElfReader;

/// No file with code is as large: PyTorch's largest library has 2.5 GB.
pub(crate) const MOST_CODE_BYTES: u64 = 8 << 30;

/// Opens a regular file for examination only (`O_PATH`), over links: no device, pipe or lease that a hostile path may name is touched.
///
/// # Errors
/// It is not there, or no regular file.
pub(crate) fn examine(path: &Path) -> io::Result<File> {
    regular(OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_CLOEXEC).open(path)?)
}

/// A regular file that was opened for examination, for reading, if it has no more bytes than this.
///
/// # Errors
/// `WouldBlock` while its owner has a lease on it: it may be readable later. Else it may not be read, is larger, or no regular file.
pub(crate) fn reopen(file: &File, most_bytes: u64) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY;
    let found = regular(file.try_clone()?)?.metadata()?;
    if found.len() > most_bytes {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    OpenOptions::new().read(true).custom_flags(flags).open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// The text of a small file that this path names itself, and no link.
///
/// # Errors
/// As of [`reopen`]; `InvalidData` where it is no UTF-8.
pub(crate) fn read_text(path: &Path, most_bytes: u64) -> io::Result<String> {
    let file = reopen(&examine(path)?, most_bytes)?;
    let mut text = String::new();
    // It may have grown meanwhile.
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
        // The signal of a broken lease would end this process.
        // SAFETY: to ignore a signal has no preconditions, and the descriptor is open.
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
