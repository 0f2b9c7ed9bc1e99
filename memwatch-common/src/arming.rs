//! Groups of probed files, each with the time since when its probes are in place. A call that was entered earlier
//! may return unseen and is not a loss.
//!
//! Files are grouped by owner, so that attaching to one file does not hide losses in another: a user who keeps
//! mapping new libraries cannot affect calls into files of root.

/// Number of groups: those in a cookie, once for calls and once for requests to the kernel driver, which are
/// attached separately.
pub const GROUPS: u32 = 2 * IN_COOKIE;

/// Number of groups that fit in an attach cookie.
const IN_COOKIE: u32 = 16;
/// Number of groups reserved for files of root.
const GROUPS_OF_ROOT: u32 = 8;
/// Bit offset of the group in an attach cookie.
const SHIFT: u32 = 59;

/// A group of files, armed and disarmed together while probes are attached or removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArmGroup(u32);

impl ArmGroup {
    /// Returns the group of a file, from the user id of its owner and its inode number.
    #[expect(clippy::cast_possible_truncation, reason = "three bits")]
    pub const fn of_file(owner: u32, inode: u64) -> Self {
        if owner == 0 {
            Self((inode % GROUPS_OF_ROOT as u64) as u32)
        } else {
            Self(GROUPS_OF_ROOT + owner % (IN_COOKIE - GROUPS_OF_ROOT))
        }
    }

    /// Returns the group of the probes on requests to the kernel driver in the same files.
    #[inline(always)]
    #[must_use]
    pub const fn of_requests(self) -> Self {
        Self(self.0 | IN_COOKIE)
    }

    /// Reads the group of calls from an attach cookie.
    #[inline(always)]
    pub const fn of_cookie(cookie: u64) -> Self {
        Self((cookie >> SHIFT) as u32 % IN_COOKIE)
    }

    /// Adds the group to an attach cookie in which its bits are 0.
    #[must_use]
    pub const fn in_cookie(self, cookie: u64) -> u64 {
        cookie | ((self.0 % IN_COOKIE) as u64) << SHIFT
    }

    /// Returns the group with this number.
    #[inline(always)]
    pub const fn numbered(number: u32) -> Self {
        Self(number % GROUPS)
    }

    /// Returns the number of the group, below [`GROUPS`].
    #[inline(always)]
    pub const fn number(self) -> u32 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{CapturePlan, ONLY_LISTED};

    #[test]
    fn probe_cookie_carries_its_group_beside_plan_and_listed_flag() {
        let plan = CapturePlan::registers().out(3).tolerant();
        for number in 0..IN_COOKIE {
            let cookie = ArmGroup(number).in_cookie(plan.cookie(u16::MAX) | ONLY_LISTED);
            assert_eq!((ArmGroup::of_cookie(cookie), cookie & ONLY_LISTED), (ArmGroup(number), ONLY_LISTED));
            assert_eq!(CapturePlan::from_cookie(cookie), (u16::MAX, plan));
        }
    }

    #[test]
    fn a_users_files_are_never_in_a_group_with_roots() {
        for owner in 1..100_u32 {
            for inode in 0..100 {
                assert_ne!(ArmGroup::of_file(owner, inode), ArmGroup::of_file(0, u64::from(owner)));
                assert!(ArmGroup::of_file(owner, inode).of_requests().number() < GROUPS);
            }
        }
    }
}
