//! Rate limit per login user for reading new processes from `/proc`. Reading one takes 0.1 ms of
//! the poll loop, and a user can start thousands of processes a second. Beyond the limit only the
//! kernel half's record is used, and processes that stay alive are read later.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Maximum number of processes in a burst after a pause.
const BURST: u32 = 512;
/// Interval per process beyond the burst.
const EACH: Duration = Duration::from_millis(4);
/// Maximum number of deferred processes per user. When a user exceeds it, most of them exit before
/// they are read.
const MOST_LATER: usize = 2048;
/// Number of users from which idle users are dropped.
const MANY_OWNERS: usize = 256;

/// State of the rate limit.
#[derive(Debug, Default)]
pub(super) struct ReadPace {
    /// For each login user, the time at which the processes read so far would have been read at an
    /// even pace.
    owners: BTreeMap<u32, Instant>,
    /// Deferred processes by login user.
    later: BTreeMap<u32, Vec<u32>>,
}

impl ReadPace {
    /// Whether another process of this login user may be read at the moment. Counts the process if
    /// so.
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

    /// Defers a process of this login user.
    pub(super) fn put_off(&mut self, login_user: u32, tgid: u32) {
        let own = self.later.entry(login_user).or_default();
        if own.len() < MOST_LATER {
            own.push(tgid);
        }
    }

    /// Takes the deferred processes that may be read at the moment, and drops exited ones.
    pub(super) fn due(&mut self, lives: impl Fn(u32) -> bool, now: Instant) -> Vec<u32> {
        let mut due = Vec::new();
        for (login_user, mut own) in std::mem::take(&mut self.later) {
            own.retain(|tgid| lives(*tgid));
            let now_due = own.iter().take_while(|_| self.allows(login_user, now)).count();
            due.extend(own.drain(..now_due));
            if !own.is_empty() {
                self.later.insert(login_user, own);
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_read_rate_limit_applies_per_user() {
        let (mut pace, begin) = (ReadPace::default(), Instant::now());
        let read = (0..2 * BURST).filter(|_| pace.allows(1, begin)).count();
        assert_eq!(read, BURST as usize);
        assert!(pace.allows(2, begin));
        assert!(!pace.allows(1, begin + EACH / 2));
        assert!(pace.allows(1, begin + EACH));
    }

    #[test]
    fn deferred_process_reads_skip_ended_ones_and_follow_the_user_rate() {
        let (mut pace, begin) = (ReadPace::default(), Instant::now());
        while pace.allows(1, begin) {}
        (10..14).for_each(|tgid| pace.put_off(1, tgid));
        let lives = |tgid| tgid != 11;
        assert_eq!(pace.due(lives, begin), Vec::<u32>::new());
        assert_eq!(pace.due(lives, begin + 2 * EACH), [10, 12]);
        assert_eq!(pace.due(|_| true, begin + 9 * EACH), [13], "the one that had ended is forgotten");
        // A user with too many deferred processes does not displace those of another user.
        (100..5000).for_each(|tgid| pace.put_off(1, tgid));
        pace.put_off(2, 77);
        assert!(pace.due(|tgid| tgid == 77, begin + 10 * EACH).contains(&77));
    }
}
