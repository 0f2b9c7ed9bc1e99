//! Decides whether the kernel-driver ledger is trusted, by comparison with NVML.
//!
//! The ledger is trusted once the sum of a process seen from its start has equalled what NVML
//! charges, both above 0, at two settled readings at least a second apart. A later difference is
//! reported with its sign. After a late attach, the first settled reading shows, beyond the sum,
//! the memory older than the attach.

use serde::{Deserialize, Serialize};

/// Minimum time between two agreeing readings, nanoseconds.
const APART_NS: u64 = 1_000_000_000;

/// NVML and the ledger at one settled reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compared {
    /// Bytes that NVML charges the process.
    pub used_bytes: u64,
    /// Bytes that the process's ioctls add up to at the same time.
    pub seen_bytes: u64,
    /// Start of the reading: `CLOCK_BOOTTIME`, nanoseconds.
    pub begin_ns: u64,
}

impl Compared {
    fn beyond(&self) -> i128 {
        i128::from(self.used_bytes) - i128::from(self.seen_bytes)
    }
}

/// Agreement of a process's ledger with NVML on one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvmlAgreement {
    /// Memory older than the attach, bytes; `None` before the first settled reading, or while the
    /// ledger has more than NVML.
    older_bytes: Option<u64>,
    /// Start of the first reading in the current run of agreeing readings.
    agree_since_ns: Option<u64>,
    /// Whether readings have agreed for long enough.
    agreed: bool,
    /// Last settled reading.
    last: Option<Compared>,
}

impl NvmlAgreement {
    /// Takes in a settled reading. `from_start` means that the process was traced from its start.
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

    /// Resets the comparison, because memory of unknown size may have been freed. The next settled
    /// reading shows again how much memory is older than the attach.
    pub(super) fn miss(&mut self) {
        *self = Self::default();
    }

    fn difference_of(&self, compared: &Compared) -> Option<i64> {
        let beyond = compared.beyond() - i128::from(self.older_bytes?);
        Some(i64::try_from(beyond).unwrap_or(if beyond > 0 { i64::MAX } else { i64::MIN }))
    }

    /// Returns whether the ledger agreed with NVML over a second.
    pub const fn has_agreed(&self) -> bool {
        self.agreed
    }

    /// Memory older than the attach, bytes.
    pub const fn older_bytes(&self) -> Option<u64> {
        self.older_bytes
    }

    /// Returns the last settled reading, and the bytes that NVML charges beyond the ledger there.
    pub fn last(&self) -> Option<(Compared, Option<i64>)> {
        self.last.map(|compared| (compared, self.difference_of(&compared)))
    }
}

/// Whether the ledger explains what NVML charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LedgerTrust {
    /// The ledger has agreed with NVML.
    Trusted,
    /// The ledger was not compared often enough, or has not agreed yet.
    Settling,
    /// The layouts of this kernel driver are unknown: the ledger is kept but not used as an
    /// explanation.
    Unknown,
    /// The ledger is known to be incomplete or wrong.
    Refused(Reason),
}

/// Reason why the ledger of a process is incomplete or wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Records of ioctls were lost or could not be read.
    Lost,
    /// An ioctl has a size that no known layout has.
    Layout,
    /// The result of an ioctl breaks a rule.
    Contradictory,
    /// The process used an object that it was never seen to create.
    NeverMade,
}

impl Reason {
    /// The reason as a sentence, for display.
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Lost => "records of its requests to the kernel driver were lost",
            Self::Layout => "a request to the kernel driver has a size that no known version of it has",
            Self::Contradictory => "results of its requests to the kernel driver are inconsistent",
            Self::NeverMade => "it uses kernel-driver objects whose creation was not seen",
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

    fn after(readings: &[Compared], from_start: bool) -> NvmlAgreement {
        let mut standing = NvmlAgreement::default();
        for reading in readings {
            standing.compare(*reading, from_start);
        }
        standing
    }

    #[test]
    fn ledger_are_believed_after_two_equal_sums_a_second_apart_and_not_before() {
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
    fn older_bytes_are_set_at_the_first_poll_until_an_unknown_free() {
        let mut standing = after(&[at(S, 900, 100), at(2 * S, 1000, 200)], false);
        assert_eq!((standing.older_bytes(), standing.last().and_then(|last| last.1)), (Some(800), Some(0)));
        assert!(standing.has_agreed());
        standing.miss();
        assert_eq!((standing.older_bytes(), standing.has_agreed()), (None, false));
        standing.compare(at(3 * S, 700, 200), false);
        assert_eq!(standing.older_bytes(), Some(500));
    }

    #[test]
    fn older_bytes_are_unknown_if_nvml_charges_less_than_the_ledger() {
        let standing = after(&[at(S, 100, 200)], false);
        assert_eq!((standing.older_bytes(), standing.last()), (None, Some((at(S, 100, 200), None))));
    }
}
