//! Limits the number of library files, since a user can give any file the driver library's name and
//! map it.

use std::collections::BTreeMap;
use std::fmt;
use std::os::linux::fs::MetadataExt as _;
use std::path::Path;

use crate::sources::login_users::login_user;

/// Maximum number of files that one process maps.
pub(crate) const MOST_OF_PROCESS: usize = 16;
/// Maximum number of files that the processes of one owner map.
pub(crate) const MOST_OF_OWNER: usize = 32;
/// Maximum number of files in all.
pub(crate) const MOST_IN_ALL: usize = 256;

/// The owner of a process's files, for limits. Root is divided by mount namespace, since every
/// container has a root of its own. Other users are not: a user could create any number of mount
/// namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FileOwner {
    /// A login user by uid, including their subordinate ids.
    User(u32),
    /// Root in this mount namespace.
    Root(u64),
}

impl FileOwner {
    /// Returns the owner of the process with this directory below `/proc`; `None` if it has exited.
    pub(crate) fn of(process: &Path) -> Option<Self> {
        let effective = std::fs::metadata(process).ok()?.st_uid();
        // A set-user-ID program keeps its user's environment, such as library directories, so the
        // real uid counts.
        let uid = if effective == 0 { real_uid(process).unwrap_or(0) } else { effective };
        if uid != 0 {
            return Some(Self::User(login_user(uid)));
        }
        let mounts = std::fs::metadata(process.join("ns/mnt")).map_or(0, |namespace| namespace.st_ino());
        Some(Self::Root(mounts))
    }
}

/// Reads the real uid, the first number in the line `Uid:` of its status (proc_pid_status(5)).
fn real_uid(process: &Path) -> Option<u32> {
    let status = std::fs::read_to_string(process.join("status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_ascii_whitespace().next()?.parse().ok()
}

impl fmt::Display for FileOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(uid) => write!(f, "user {uid}"),
            Self::Root(mounts) => write!(f, "root (mount namespace {mounts})"),
        }
    }
}

/// Number of files by owner.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shares {
    of_owners: BTreeMap<FileOwner, usize>,
    all: usize,
}

impl Shares {
    /// Counts files by these owners.
    pub(crate) fn of(owners: impl Iterator<Item = FileOwner>) -> Self {
        let mut shares = Self::default();
        owners.for_each(|owner| shares.count(owner));
        shares
    }

    /// Whether the owner may have one more file.
    pub(crate) fn has_room(&self, owner: FileOwner) -> bool {
        self.all < MOST_IN_ALL && self.of_owners.get(&owner).is_none_or(|own| *own < MOST_OF_OWNER)
    }

    /// Counts one more file.
    pub(crate) fn count(&mut self, owner: FileOwner) {
        self.all += 1;
        *self.of_owners.entry(owner).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_limit_per_owner_leaves_capacity_for_others() {
        let (greedy, other) = (FileOwner::User(1000), FileOwner::User(1001));
        let shares = Shares::of(std::iter::repeat_n(greedy, MOST_OF_OWNER));
        assert!(!shares.has_room(greedy) && shares.has_room(other) && shares.has_room(FileOwner::Root(1)));
        let all = Shares::of((0..MOST_IN_ALL).map(|number| FileOwner::Root(u64::try_from(number).expect("small"))));
        assert!(!all.has_room(other));
    }

    #[test]
    fn this_process_has_an_owner_and_one_that_is_gone_has_none() {
        // SAFETY: geteuid has no preconditions.
        let uid = unsafe { libc::geteuid() };
        let own = FileOwner::of(Path::new("/proc/self")).expect("it runs");
        let expected =
            if uid == 0 { matches!(own, FileOwner::Root(1..)) } else { own == FileOwner::User(login_user(uid)) };
        assert!(expected, "{own:?}");
        assert_eq!(FileOwner::of(Path::new("/proc/0")), None);
    }
}
