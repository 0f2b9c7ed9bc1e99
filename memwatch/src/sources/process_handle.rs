//! Handles of processes (`pidfd_open(2)`).

use std::os::fd::{FromRawFd as _, OwnedFd};

/// Opens a handle that stays with the process even if its id is reused; `None` if it has exited.
pub(crate) fn process_handle(tgid: u32) -> Option<OwnedFd> {
    let tgid = libc::pid_t::try_from(tgid).ok()?;
    // SAFETY: a plain system call.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, tgid, 0) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: the descriptor was just opened, and nothing else owns it.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}
