//! Identifies memwatch's own processes. They load NVML and with it the driver library, but allocate
//! no GPU memory, and are not reported.

use std::mem::size_of;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// This process and the agent of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnProcesses(Vec<u32>);

impl OwnProcesses {
    /// Finds this process and the listener of the agent's socket, unless they are targets.
    pub(crate) fn find(agent_socket: Option<&Path>, targets: &[u32]) -> Self {
        let agent = agent_socket.and_then(listener);
        let own = [Some(std::process::id()), agent].into_iter().flatten();
        Self(own.filter(|tgid| !targets.contains(tgid)).collect())
    }

    /// Whether a process is one of memwatch's own.
    pub(crate) fn holds(&self, tgid: u32) -> bool {
        self.0.contains(&tgid)
    }
}

/// Returns the process that listens on a socket, from the kernel (unix(7)). It is accepted as the
/// agent only if it runs as root or as this user. An agent that was started by socket activation is
/// not found, since the machine's first process listens for it.
fn listener(path: &Path) -> Option<u32> {
    let stream = UnixStream::connect(path).ok()?;
    // SAFETY: the struct consists of three integers, for which all-zero is valid.
    let mut peer: libc::ucred = unsafe { std::mem::zeroed() };
    let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).ok()?;
    let (socket, into) = (stream.as_raw_fd(), (&raw mut peer).cast());
    // SAFETY: the struct is as long as `length` says, and both live until the call returns.
    let status = unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, into, &raw mut length) };
    // SAFETY: geteuid has no preconditions.
    let own_uid = unsafe { libc::geteuid() };
    let is_believed = status == 0 && (peer.uid == 0 || peer.uid == own_uid);
    u32::try_from(peer.pid).ok().filter(|tgid| is_believed && *tgid > 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn this_process_is_memwatchs_own_unless_it_is_a_target() {
        let own = std::process::id();
        assert!(OwnProcesses::find(None, &[]).holds(own));
        assert!(!OwnProcesses::find(None, &[own]).holds(own));
        assert!(!OwnProcesses::find(None, &[]).holds(own + 1));
    }

    #[test]
    fn agent_process_is_found_by_its_listening_socket() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("agent.sock");
        assert_eq!(listener(&path), None, "nobody listens");
        let _listening = UnixListener::bind(&path).expect("a socket");
        assert_eq!(listener(&path), Some(std::process::id()));
        assert_eq!(OwnProcesses::find(Some(&path), &[std::process::id()]), OwnProcesses(Vec::new()));
    }
}
