//! How many processes of an owner are read in full as they are met. Reading one takes a tenth of a millisecond of the loop that fetches records, and a
//! user can start thousands a second: beyond some hundreds what the kernel half says of a process has to do, and who lives on is read later.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// So many are read at once, where none were before.
const BURST: u32 = 512;
/// One more may be read each time this has passed.
const EACH: Duration = Duration::from_millis(4);
/// So many wait to be read later; most of a user's who starts more have ended by then.
const MOST_LATER: usize = 4096;
/// Owners beyond so many who have not read anything lately are forgotten.
const MANY_OWNERS: usize = 256;

/// What each owner has left.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// By login user: when all that was read would have been read at an even pace.
    owners: BTreeMap<u32, Instant>,
    later: Vec<Later>,
}

/// A process that was not read as it was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Later {
    /// Its number.
    pub(super) tgid: u32,
    /// Who answers for it.
    pub(super) login_user: u32,
}

impl Pace {
    /// Whether one more process of this login user is to be read now.
    pub(super) fn allows(&mut self, login_user: u32, now: Instant) -> bool {
        if self.owners.len() > MANY_OWNERS {
            self.owners.retain(|_, even| *even > now);
        }
        let even = self.owners.entry(login_user).or_insert(now);
        let next = (*even).max(now) + EACH;
        let is_within = next.saturating_duration_since(now) <= EACH * BURST;
        if is_within {
            *even = next;
        }
        is_within
    }

    /// One is to be read when there is time, if it lives then.
    pub(super) fn put_off(&mut self, process: Later) {
        if self.later.len() < MOST_LATER {
            self.later.push(process);
        }
    }

    /// Those put off that are to be read now; of the others the ones that live are put off again.
    pub(super) fn due(&mut self, lives: impl Fn(u32) -> bool, now: Instant) -> Vec<u32> {
        let mut due = Vec::new();
        for process in std::mem::take(&mut self.later) {
            if !lives(process.tgid) {
                continue;
            }
            if self.allows(process.login_user, now) {
                due.push(process.tgid);
            } else {
                self.later.push(process);
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_starts_too_many_is_read_later_and_nobody_else_is() {
        let (mut pace, begin) = (Pace::default(), Instant::now());
        let read = (0..2 * BURST).filter(|_| pace.allows(1, begin)).count();
        assert_eq!(read, BURST as usize);
        assert!(pace.allows(2, begin));
        assert!(!pace.allows(1, begin + EACH / 2));
        assert!(pace.allows(1, begin + EACH));
    }

    #[test]
    fn of_those_put_off_the_living_are_read_at_the_owners_pace() {
        let (mut pace, begin) = (Pace::default(), Instant::now());
        while pace.allows(1, begin) {}
        (10..14).for_each(|tgid| pace.put_off(Later { tgid, login_user: 1 }));
        let lives = |tgid| tgid != 11;
        assert_eq!(pace.due(lives, begin), Vec::<u32>::new());
        assert_eq!(pace.due(lives, begin + 2 * EACH), [10, 12]);
        assert_eq!(pace.due(|_| true, begin + 9 * EACH), [13], "the one that had ended is forgotten");
    }
}
