//! The right to watch a process through the agent: root, members of the group and the user of the
//! process have it, by the kernel's rule for reading a process (`PTRACE_MODE_READ` of ptrace(2)).
//!
//! The kernel cannot be asked, since the agent is not the one that wants to read. The rule here is
//! stricter: a process with capabilities of its own user namespace is its owner's for the kernel and
//! nobody's here.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use memwatch_core::snapshot::Viewer;

use crate::agent::credentials::Peer;

/// Maximum bytes read of `status`, in which the identities come first.
const STATUS_BYTES: u64 = 16 << 10;

/// The client that asks for a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    /// It may see everything.
    Everybody,
    /// A user.
    User {
        /// Effective user id.
        uid: u32,
        /// Effective group id.
        gid: u32,
    },
}

/// Why a process may not be watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RightsRefusal {
    /// The process is unknown, or belongs to somebody else. Both have the same text: a user learns
    /// nothing about the processes of others.
    #[error("it is not a process of yours")]
    Foreign,
    /// The user's own process has other rights.
    #[error("it runs with rights that you do not have")]
    Privileged,
}

impl Asker {
    /// Returns the asker of this peer.
    pub(super) const fn of(peer: &Peer, viewer: Viewer) -> Self {
        match viewer {
            Viewer::Everything => Self::Everybody,
            Viewer::User(_) => Self::User { uid: peer.uid, gid: peer.gid },
        }
    }

    /// Checks whether a running process may be watched at this moment.
    ///
    /// # Errors
    /// It may not.
    pub(super) fn check(self, tgid: u32) -> Result<(), RightsRefusal> {
        let Self::User { uid, gid } = self else { return Ok(()) };
        let process = Path::new("/proc").join(tgid.to_string());
        let mut status = String::new();
        let read =
            fs::File::open(process.join("status")).map(|file| file.take(STATUS_BYTES).read_to_string(&mut status));
        let identity = matches!(read, Ok(Ok(_))).then(|| ProcessIdentities::parse(&status)).flatten();
        let identity = identity.ok_or(RightsRefusal::Foreign)?;
        // The kernel gives the files of a process that may not be dumped to root (proc(5)), and those
        // of one that has ended and has nothing left.
        let is_dumpable = || fs::metadata(process.join("status")).is_ok_and(|status| status.uid() == uid);
        let is_dumpable = identity.has_ended || is_dumpable();
        identity.check((uid, gid), is_dumpable)
    }
}

/// Identities of a process, from its `status` (proc_pid_status(5)).
#[derive(Debug, PartialEq, Eq)]
struct ProcessIdentities {
    /// Real, effective and saved user id.
    uids: [u32; 3],
    /// Real, effective and saved group id.
    gids: [u32; 3],
    /// Permitted capabilities.
    capabilities: u64,
    /// Whether the process is a zombie.
    has_ended: bool,
}

impl ProcessIdentities {
    fn parse(status: &str) -> Option<Self> {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let ids = |name: &str| {
            let mut ids = field(name)?.split_ascii_whitespace().map(|word| word.parse().ok());
            Some([ids.next()??, ids.next()??, ids.next()??])
        };
        let capabilities = u64::from_str_radix(field("CapPrm:")?.trim(), 16).ok()?;
        let has_ended = field("State:").is_some_and(|state| matches!(state.trim().chars().next(), Some('Z' | 'X')));
        Some(Self { uids: ids("Uid:")?, gids: ids("Gid:")?, capabilities, has_ended })
    }

    fn check(&self, (uid, gid): (u32, u32), is_dumpable: bool) -> Result<(), RightsRefusal> {
        // A setuid program of somebody else has the user's real id.
        if self.uids[0] != uid {
            return Err(RightsRefusal::Foreign);
        }
        let is_same = self.uids == [uid; 3] && self.gids == [gid; 3];
        if is_same && self.capabilities == 0 && is_dumpable { Ok(()) } else { Err(RightsRefusal::Privileged) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(uids: &str, gids: &str, capabilities: &str) -> String {
        format!("Name:\tpython Uid: 0\nUmask:\t0022\nUid:\t{uids}\nGid:\t{gids}\nCapInh:\t0\nCapPrm:\t{capabilities}\n")
    }

    fn check(uids: &str, gids: &str, capabilities: &str, is_dumpable: bool) -> Result<(), RightsRefusal> {
        let identity = ProcessIdentities::parse(&status(uids, gids, capabilities)).expect("it is complete");
        identity.check((1000, 100), is_dumpable)
    }

    #[test]
    fn only_a_users_own_process_without_further_rights_may_be_watched() {
        let (own, group, none) = ("1000\t1000\t1000\t1000", "100\t100\t100\t100", "0000000000000000");
        assert_eq!(check(own, group, none, true), Ok(()));
        for other in ["1001\t1001\t1001\t1001", "0\t0\t0\t0", "0\t1000\t1000\t1000"] {
            assert_eq!(check(other, group, none, true), Err(RightsRefusal::Foreign), "{other}");
        }
        for mixed in ["1000\t0\t0\t0", "1000\t1000\t0\t1000", "1000\t0\t1000\t0"] {
            assert_eq!(check(mixed, group, none, true), Err(RightsRefusal::Privileged), "{mixed}");
        }
        assert_eq!(check(own, "100\t7\t7\t7", none, true), Err(RightsRefusal::Privileged), "a setgid program");
        assert_eq!(check(own, group, "0000000000002000", true), Err(RightsRefusal::Privileged), "capabilities");
        assert_eq!(check(own, group, none, false), Err(RightsRefusal::Privileged), "it may not be dumped");
    }

    #[test]
    fn incomplete_status_is_no_identity() {
        for cut in
            ["", "Uid:\t1000\t1000\n", "Uid:\t1\t1\t1\nGid:\t1\t1\t1\n", "Uid:\tx\t1\t1\nGid:\t1\t1\t1\nCapPrm:\t0\n"]
        {
            assert_eq!(ProcessIdentities::parse(cut), None, "{cut:?}");
        }
    }

    #[test]
    fn agents_own_process_is_checked_against_the_kernel() {
        let own = std::process::id();
        assert_eq!(Asker::Everybody.check(own), Ok(()));
        let stranger = Asker::User { uid: 4_000_000_000, gid: 4_000_000_000 };
        assert_eq!(stranger.check(own), Err(RightsRefusal::Foreign));
        assert_eq!(stranger.check(u32::MAX), Err(RightsRefusal::Foreign), "there is none");
    }
}
