//! Since when the probes of a file are in place: a call that entered earlier may return unseen, which is no loss then.
//!
//! Probes are put into one file while calls of others go on, so files are in groups by who owns them: a user who maps new libraries without end
//! leaves no doubt about calls into root's.

/// How many groups there are: twice as many as a cookie distinguishes, since calls and requests to the kernel driver are probed one after the other.
pub const GROUPS: u32 = 2 * IN_COOKIE;

/// How many groups a cookie distinguishes.
const IN_COOKIE: u32 = 16;
/// How many of those are of root's files alone: two of them are seldom probed at the same time, and then mostly in a group each.
const GROUPS_OF_ROOT: u32 = 8;
/// Where a group stands in an attach cookie.
const SHIFT: u32 = 59;

/// Files whose probes are put in place and taken out together, as far as losses go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Group(u32);

impl Group {
    /// That of a file, by the user id of its owner and its inode number.
    #[expect(clippy::cast_possible_truncation, reason = "three bits")]
    pub const fn of_file(owner: u32, inode: u64) -> Self {
        if owner == 0 {
            Self((inode % GROUPS_OF_ROOT as u64) as u32)
        } else {
            Self(GROUPS_OF_ROOT + owner % (IN_COOKIE - GROUPS_OF_ROOT))
        }
    }

    /// That of the same files' probes on requests to the kernel driver.
    #[inline(always)]
    #[must_use]
    pub const fn of_requests(self) -> Self {
        Self(self.0 | IN_COOKIE)
    }

    /// The group of calls that stands in an attach cookie.
    #[inline(always)]
    pub const fn of_cookie(cookie: u64) -> Self {
        Self((cookie >> SHIFT) as u32 % IN_COOKIE)
    }

    /// Puts it into an attach cookie, whose bits for it are 0.
    #[must_use]
    pub const fn in_cookie(self, cookie: u64) -> u64 {
        cookie | ((self.0 % IN_COOKIE) as u64) << SHIFT
    }

    /// The one of this number.
    #[inline(always)]
    pub const fn numbered(number: u32) -> Self {
        Self(number % GROUPS)
    }

    /// Its number, below [`GROUPS`].
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
    fn a_cookie_carries_a_group_beside_everything_else() {
        let plan = CapturePlan::registers().out(3).tolerant();
        for number in 0..IN_COOKIE {
            let cookie = Group(number).in_cookie(plan.cookie(u16::MAX) | ONLY_LISTED);
            assert_eq!((Group::of_cookie(cookie), cookie & ONLY_LISTED), (Group(number), ONLY_LISTED));
            assert_eq!(CapturePlan::from_cookie(cookie), (u16::MAX, plan));
        }
    }

    #[test]
    fn a_users_files_are_never_in_a_group_with_roots() {
        for owner in 1..100_u32 {
            for inode in 0..100 {
                assert_ne!(Group::of_file(owner, inode), Group::of_file(0, u64::from(owner)));
                assert!(Group::of_file(owner, inode).of_requests().number() < GROUPS);
            }
        }
    }
}
