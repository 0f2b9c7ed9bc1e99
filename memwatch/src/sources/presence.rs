//! Selects the watched processes to look up in `/proc`. The kernel half reports exits, except those
//! of processes that it does not know, and except reports that were lost.
//!
//! Looking up ten thousand processes every second would be the largest part of memwatch's load.

use std::collections::BTreeSet;

use memwatch_core::words::Tgid;

/// Number of processes up to which all are looked up each time.
const FEW: usize = 256;
/// Number of turns within which each process is looked up at least once, if there are more
/// processes than [`FEW`].
const TURNS: usize = 30;
/// Time for which all processes are looked up after a loss, in nanoseconds: a process whose report
/// was lost may exit a little later.
const WARY_NS: u64 = 10_000_000_000;

/// State of the selection.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    /// Processes known from NVML or `/proc` and not from a call.
    unreported: BTreeSet<Tgid>,
    /// Last process looked up in turn.
    last: Option<Tgid>,
    /// Time until which all processes are looked up after a loss: `CLOCK_BOOTTIME`, nanoseconds.
    wary_until_ns: u64,
}

impl Presence {
    /// Notes a process whose exit is not reported until it makes a call.
    pub(crate) fn unreported(&mut self, tgid: u32) {
        self.unreported.insert(Tgid(tgid));
    }

    /// Notes that the kernel half knows this process and reports its exit.
    pub(crate) fn reported(&mut self, tgid: u32) {
        self.unreported.remove(&Tgid(tgid));
    }

    /// Notes that records were lost.
    pub(crate) fn distrust(&mut self, now_ns: u64) {
        self.wary_until_ns = now_ns + WARY_NS;
    }

    /// Selects the processes to look up at this time from the watched ones, given in ascending
    /// order.
    pub(crate) fn due(&mut self, watched: impl Iterator<Item = Tgid>, now_ns: u64) -> Vec<Tgid> {
        let all: Vec<Tgid> = watched.collect();
        if all.len() <= FEW || now_ns < self.wary_until_ns {
            return all;
        }
        self.unreported.retain(|tgid| all.binary_search(tgid).is_ok());
        let begin = self.last.map_or(0, |last| all.partition_point(|tgid| *tgid <= last));
        let turn = all.iter().cycle().skip(begin).take(all.len().div_ceil(TURNS)).copied();
        let mut due: BTreeSet<Tgid> = self.unreported.clone();
        for tgid in turn {
            self.last = Some(tgid);
            due.insert(tgid);
        }
        due.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(count: u32) -> impl Iterator<Item = Tgid> {
        (1..=count).map(Tgid)
    }

    #[test]
    fn presence_checks_all_processes_when_there_are_few() {
        let mut presence = Presence::default();
        assert_eq!(presence.due(watched(256), 0).len(), 256);
    }

    #[test]
    fn presence_checks_all_processes_in_turns_and_unreported_ones_always() {
        let mut presence = Presence::default();
        presence.unreported(700);
        presence.unreported(900);
        presence.reported(900);
        let mut seen = BTreeSet::new();
        for _ in 0..TURNS {
            let due = presence.due(watched(1000), 0);
            assert!(due.len() <= 1000 / TURNS + 2 && due.contains(&Tgid(700)), "{due:?}");
            seen.extend(due);
        }
        assert_eq!(seen, watched(1000).collect());
    }

    #[test]
    fn presence_checks_all_processes_for_a_while_after_a_loss() {
        let mut presence = Presence::default();
        presence.distrust(5);
        assert_eq!(presence.due(watched(1000), 5 + WARY_NS - 1).len(), 1000);
        assert!(presence.due(watched(1000), 5 + WARY_NS).len() < 100);
    }

    #[test]
    fn processes_that_are_no_longer_watched_are_dropped() {
        let mut presence = Presence::default();
        presence.unreported(5000);
        presence.due(watched(1000), 0);
        assert!(presence.unreported.is_empty());
    }
}
