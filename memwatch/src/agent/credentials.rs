//! Credentials of a socket's peer, as the kernel reports them (unix(7)), and which processes the
//! peer may see.

use std::ffi::CString;
use std::io;
use std::os::fd::AsRawFd;

use memwatch_core::snapshot::Viewer;

/// Members of this group see all processes.
pub(crate) const GROUP: &str = "memwatch";

/// Size of the first buffer for supplementary groups. The kernel reports if there are more.
const GROUPS: usize = 64;

/// Credentials of a peer at the time of connecting. User ids of other user namespaces are
/// translated to those of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    /// Effective user id.
    pub(super) uid: u32,
    /// Effective group id.
    pub(super) gid: u32,
    /// Effective group id and supplementary group ids.
    groups: Vec<u32>,
}

impl Peer {
    /// Reads the credentials of a socket's peer.
    ///
    /// # Errors
    /// The kernel does not provide them.
    pub(super) fn of(socket: &impl AsRawFd) -> io::Result<Self> {
        let socket = socket.as_raw_fd();
        // SAFETY: the struct consists of three integers, for which all-zero is valid.
        let mut credentials: libc::ucred = unsafe { std::mem::zeroed() };
        let length = option(socket, libc::SO_PEERCRED, std::slice::from_mut(&mut credentials))?;
        if length != size_of::<libc::ucred>() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut groups = vec![0_u32; GROUPS];
        let length = loop {
            match option(socket, libc::SO_PEERGROUPS, &mut groups) {
                // The kernel's NGROUPS_MAX.
                Err(error) if error.raw_os_error() == Some(libc::ERANGE) && groups.len() < 65_536 => {
                    groups.resize(groups.len() * 4, 0);
                }
                answer => break answer?,
            }
        };
        groups.truncate(length / size_of::<u32>());
        groups.push(credentials.gid);
        Ok(Self { uid: credentials.uid, gid: credentials.gid, groups })
    }

    /// Returns which processes the peer may see. `group`: id of [`GROUP`], if it exists.
    pub(super) fn viewer(&self, group: Option<u32>) -> Viewer {
        let is_member = group.is_some_and(|group| self.groups.contains(&group));
        if self.uid == 0 || is_member { Viewer::Everything } else { Viewer::User(self.uid) }
    }
}

/// Reads a socket option. Returns the number of bytes that the kernel has written to the buffer.
fn option<T>(socket: i32, name: i32, values: &mut [T]) -> io::Result<usize> {
    let mut length = libc::socklen_t::try_from(size_of_val(values)).map_err(|_too_long| io::ErrorKind::InvalidInput)?;
    // SAFETY: `values` is as long as `length` says, and both live until the call returns.
    let status =
        unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, name, values.as_mut_ptr().cast(), &raw mut length) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    usize::try_from(length).map_err(|_too_long| io::ErrorKind::InvalidData.into())
}

/// Returns the id of a group; `None` if it does not exist.
pub(crate) fn group_number(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: an all-zero group is valid, and is overwritten.
    let mut entry: libc::group = unsafe { std::mem::zeroed() };
    let mut buffer = vec![0; 64 << 10];
    let mut found = std::ptr::null_mut();
    // SAFETY: all pointers point to live locals, and the length is that of the buffer.
    let status =
        unsafe { libc::getgrnam_r(name.as_ptr(), &raw mut entry, buffer.as_mut_ptr(), buffer.len(), &raw mut found) };
    (status == 0 && !found.is_null()).then_some(entry.gr_gid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn peer_credentials_of_a_socket_pair_are_those_of_this_process() {
        let (near, _far) = UnixStream::pair().expect("a pair");
        let peer = Peer::of(&near).expect("the kernel says");
        // SAFETY: these have no preconditions.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        assert_eq!((peer.uid, peer.groups.last()), (uid, Some(&gid)));
        // SAFETY: with a length of 0, getgroups only counts.
        let count = unsafe { libc::getgroups(0, std::ptr::null_mut()) };
        assert_eq!(peer.groups.len(), usize::try_from(count).expect("a count") + 1);
    }

    #[test]
    fn agent_shows_everything_to_root_and_group_members_only() {
        let peer = |uid, groups: &[u32]| Peer { uid, gid: 1000, groups: groups.to_vec() };
        assert_eq!(peer(0, &[0]).viewer(None), Viewer::Everything);
        assert_eq!(peer(1000, &[27, 990, 1000]).viewer(Some(990)), Viewer::Everything);
        assert_eq!(peer(1000, &[27, 1000]).viewer(Some(990)), Viewer::User(1000));
        assert_eq!(peer(1000, &[0, 1000]).viewer(None), Viewer::User(1000));
    }

    #[test]
    fn groups_have_numbers_and_others_are_not_there() {
        assert_eq!(group_number("root"), Some(0));
        assert_eq!(group_number("no-such-group-here"), None);
        assert_eq!(group_number("no\0group"), None);
    }
}
