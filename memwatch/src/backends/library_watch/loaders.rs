//! Whose loaders are to be looked at next: processes with a new program, and the ones that map what programs with CUDA map before the driver library.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// More do not wait: the sweep and the mapping records find what their processes map.
const MOST_WAITING: usize = 64;
/// Between two looks, so that who starts programs without end occupies a thread for a fraction of its time: one takes some 3 ms.
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);
/// Between two looks at one process.
const BETWEEN_LOOKS_AT_ONE: Duration = Duration::from_millis(500);

/// The processes that wait for a look, and the one that is being looked at.
#[derive(Debug, Default)]
pub(super) struct Loaders {
    /// Those with a new program: who runs one may map the library within milliseconds.
    programs: BTreeSet<u32>,
    /// The ones that were reported by a mapping.
    heralded: BTreeSet<u32>,
    looked: BTreeMap<u32, Instant>,
    at_work: Option<u32>,
    last: Option<Instant>,
}

impl Loaders {
    /// A process has a new program.
    pub(super) fn want(&mut self, tgid: u32) {
        if self.programs.len() < MOST_WAITING {
            self.programs.insert(tgid);
        }
    }

    /// These have mapped a library that programs with CUDA map before the driver's.
    pub(super) fn note(&mut self, tgids: Vec<u32>) {
        for tgid in tgids {
            let again = self.looked.get(&tgid).is_some_and(|looked| looked.elapsed() < BETWEEN_LOOKS_AT_ONE);
            if !again && self.heralded.len() < MOST_WAITING {
                self.heralded.insert(tgid);
            }
        }
    }

    /// Of the ones that were reported by a mapping, only these are of interest.
    pub(super) fn keep_wanted(&mut self, wanted: impl Fn(u32) -> bool) {
        self.heralded.retain(|tgid| wanted(*tgid));
    }

    /// A process has ended.
    pub(super) fn forget(&mut self, tgid: u32) {
        self.programs.remove(&tgid);
        self.heralded.remove(&tgid);
        self.looked.remove(&tgid);
    }

    /// The next one to look at; `None` while another is being looked at, or just was.
    pub(super) fn next(&mut self) -> Option<u32> {
        let rests = self.last.is_some_and(|last| last.elapsed() < BETWEEN_LOOKS);
        if self.at_work.is_some() || rests {
            return None;
        }
        let tgid = self.programs.pop_first().or_else(|| self.heralded.pop_first())?;
        if self.looked.len() >= MOST_WAITING {
            self.looked.retain(|_, looked| looked.elapsed() < BETWEEN_LOOKS_AT_ONE);
        }
        self.looked.insert(tgid, Instant::now());
        self.at_work = Some(tgid);
        Some(tgid)
    }

    /// When the next one is to be looked at, if one waits and nobody is being looked at.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        let waits = !self.programs.is_empty() || !self.heralded.is_empty();
        (waits && self.at_work.is_none()).then(|| self.last.map_or(now, |last| last + BETWEEN_LOOKS))
    }

    /// A look has ended.
    pub(super) fn done(&mut self, tgid: u32) {
        if self.at_work == Some(tgid) {
            self.at_work = None;
            self.last = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_looked_at_at_a_time_and_new_programs_come_first() {
        let mut loaders = Loaders::default();
        loaders.note(vec![5, 6]);
        loaders.want(9);
        assert_eq!(loaders.next(), Some(9));
        let now = Instant::now();
        assert_eq!((loaders.next(), loaders.due(now)), (None, None), "9 is being looked at");
        loaders.done(8);
        assert_eq!(loaders.next(), None, "that was another");
        loaders.done(9);
        assert!(loaders.due(now) >= Some(now + BETWEEN_LOOKS));
        loaders.last = None;
        assert_eq!(loaders.due(now), Some(now));
        loaders.keep_wanted(|tgid| tgid == 6);
        assert_eq!(loaders.next(), Some(6));
    }

    #[test]
    fn who_maps_without_end_is_not_looked_at_without_end() {
        let mut loaders = Loaders::default();
        loaders.note((0..10_000).collect());
        (0..10_000).for_each(|tgid| loaders.want(tgid));
        assert_eq!((loaders.heralded.len(), loaders.programs.len()), (MOST_WAITING, MOST_WAITING));
        loaders.forget(0);
        assert_eq!((loaders.heralded.len(), loaders.programs.len()), (MOST_WAITING - 1, MOST_WAITING - 1));
        let next = loaders.next().expect("one of the ones that wait");
        loaders.done(next);
        loaders.heralded.clear();
        loaders.note(vec![next]);
        assert!(loaders.heralded.is_empty(), "it has just been looked at");
    }
}
