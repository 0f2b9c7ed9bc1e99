//! The books of the kernel driver against NVML: whether they are believed.
//!
//! They are once the sum of a process seen from its start equalled what NVML charges it, both above 0, at two settled readings a second apart. A later
//! difference is kept, with its sign. What a process had before it was watched is what its first settled reading shows beyond its sum.

use serde::{Deserialize, Serialize};

/// Two readings that agree lie this far apart at least, nanoseconds.
const APART_NS: u64 = 1_000_000_000;

/// NVML and the books at one settled reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compared {
    /// What NVML charges the process, in bytes.
    pub used_bytes: u64,
    /// What its ioctls add up to at the same time, in bytes.
    pub seen_bytes: u64,
    /// When the reading began: `CLOCK_BOOTTIME`, nanoseconds.
    pub begin_ns: u64,
}

impl Compared {
    fn beyond(&self) -> i128 {
        i128::from(self.used_bytes) - i128::from(self.seen_bytes)
    }
}

/// How a process's books on one GPU stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// What is older than the watch, in bytes; `None` before the first settled reading, or where the books have more than NVML.
    older_bytes: Option<u64>,
    /// The first of the readings in a row that agree.
    agree_since_ns: Option<u64>,
    /// They did over long enough.
    agreed: bool,
    /// The last settled reading.
    last: Option<Compared>,
}

impl Standing {
    /// A settled reading: of a process of which nothing was missed, or of another.
    pub(super) fn compare(&mut self, compared: Compared, from_start: bool) {
        self.last = Some(compared);
        if from_start {
            self.older_bytes = Some(0);
        } else if self.older_bytes.is_none() {
            self.older_bytes = u64::try_from(compared.beyond()).ok();
        }
        let is_there = compared.used_bytes > 0 && (compared.seen_bytes > 0 || !from_start);
        if self.difference_of(&compared) == Some(0) && is_there {
            let since_ns = *self.agree_since_ns.get_or_insert(compared.begin_ns);
            self.agreed |= compared.begin_ns.saturating_sub(since_ns) >= APART_NS;
        } else {
            self.agree_since_ns = None;
        }
    }

    /// Memory whose size nobody knows may have gone: what is older shows at the next settled reading.
    pub(super) fn miss(&mut self) {
        *self = Self::default();
    }

    fn difference_of(&self, compared: &Compared) -> Option<i64> {
        let beyond = compared.beyond() - i128::from(self.older_bytes?);
        Some(i64::try_from(beyond).unwrap_or(if beyond > 0 { i64::MAX } else { i64::MIN }))
    }

    /// Whether the books agreed with NVML over a second.
    pub const fn has_agreed(&self) -> bool {
        self.agreed
    }

    /// What is older than the watch, in bytes.
    pub const fn older_bytes(&self) -> Option<u64> {
        self.older_bytes
    }

    /// The last settled reading, and what NVML charges beyond the books there.
    pub fn last(&self) -> Option<(Compared, Option<i64>)> {
        self.last.map(|compared| (compared, self.difference_of(&compared)))
    }
}

/// Whether the books explain what NVML charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trust {
    /// They do.
    Trusted,
    /// They were not compared often enough, or did not agree yet.
    Settling,
    /// Nobody knows the layouts of this kernel driver: the books are kept, and explain nothing.
    Unknown,
    /// They cannot be right.
    Refused(Reason),
}

/// Why the books of a process cannot be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Records of its ioctls were lost, or came unread.
    Lost,
    /// An ioctl has a size that no known layout has.
    Layout,
    /// What came of an ioctl breaks a rule.
    Contradictory,
    /// It used what it was never seen to make.
    NeverMade,
}

impl Reason {
    /// A sentence for people.
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Lost => "records of its requests to the kernel driver were lost",
            Self::Layout => "a request to the kernel driver has a size that no known version of it has",
            Self::Contradictory => "what the kernel driver answered breaks its own rules",
            Self::NeverMade => "it uses objects of the kernel driver that it was never seen to make",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn at(begin_ns: u64, used_bytes: u64, seen_bytes: u64) -> Compared {
        Compared { used_bytes, seen_bytes, begin_ns }
    }

    fn after(readings: &[Compared], from_start: bool) -> Standing {
        let mut standing = Standing::default();
        for reading in readings {
            standing.compare(*reading, from_start);
        }
        standing
    }

    #[test]
    fn books_are_believed_after_two_equal_sums_a_second_apart_and_not_before() {
        assert!(!after(&[at(S, 518, 518)], true).has_agreed());
        assert!(!after(&[at(S, 518, 518), at(2 * S - 1, 518, 518)], true).has_agreed());
        assert!(after(&[at(S, 518, 518), at(2 * S, 520, 520)], true).has_agreed());
        assert!(!after(&[at(S, 0, 0), at(3 * S, 0, 0)], true).has_agreed(), "nothing equals nothing");
        assert!(!after(&[at(S, 518, 518), at(2 * S, 520, 518), at(3 * S, 518, 518)], true).has_agreed());
    }

    #[test]
    fn a_later_difference_has_its_sign_and_takes_no_belief_away() {
        let standing = after(&[at(S, 518, 518), at(2 * S, 518, 518), at(3 * S, 510, 518)], true);
        assert!(standing.has_agreed());
        assert_eq!(standing.last(), Some((at(3 * S, 510, 518), Some(-8))));
    }

    #[test]
    fn what_was_there_at_the_first_look_is_older_until_something_unknown_goes() {
        let mut standing = after(&[at(S, 900, 100), at(2 * S, 1000, 200)], false);
        assert_eq!((standing.older_bytes(), standing.last().and_then(|last| last.1)), (Some(800), Some(0)));
        assert!(standing.has_agreed());
        standing.miss();
        assert_eq!((standing.older_bytes(), standing.has_agreed()), (None, false));
        standing.compare(at(3 * S, 700, 200), false);
        assert_eq!(standing.older_bytes(), Some(500));
    }

    #[test]
    fn less_than_the_books_have_is_never_older_memory() {
        let standing = after(&[at(S, 100, 200)], false);
        assert_eq!((standing.older_bytes(), standing.last()), (None, Some((at(S, 100, 200), None))));
    }
}
