//! Tracks whether all driver libraries that a process maps are known to be probed. For a process
//! without any visible call, only that proves that it has made none.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::{LibraryWatch, PendingScan};
use crate::sources::library::{Discovery, LibraryFile};
use crate::sources::library_look::LibraryQuery;

/// Pause after a scan that proved nothing. Doubles each time up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(16);

/// Proofs by process.
#[derive(Default)]
pub(super) struct Proofs {
    /// When the last sweep over all processes began (`CLOCK_BOOTTIME`, nanoseconds), and the
    /// processes that map something unprobed.
    looked_ns: u64,
    unproven: BTreeSet<u32>,
    /// Processes that were scanned individually.
    of: BTreeMap<u32, Proof>,
}

enum Proof {
    /// No proof so far: when the next scan is due, and the pause after it.
    Open { pause: Duration, next: Instant },
    /// Everything the process maps is probed.
    Done,
}

impl Proofs {
    /// Forgets a process that has exited or runs another program.
    pub(super) fn forget(&mut self, tgid: u32) {
        self.of.remove(&tgid);
        self.unproven.remove(&tgid);
    }
}

impl LibraryWatch {
    /// Whether all driver libraries that a process maps are probed. `start_ns` is the process's
    /// start time. Queues a scan if the process has not been scanned.
    pub(crate) fn proves(&mut self, tgid: u32, start_ns: u64) -> bool {
        let is_user = self.files.probed().any(|met| met.users.contains_key(&tgid));
        let was_looked_at = is_user || start_ns < self.proofs.looked_ns || self.expected.contains_key(&tgid);
        if was_looked_at && !self.proofs.unproven.contains(&tgid) && !self.pending.contains_key(&tgid) {
            return true;
        }
        let now = Instant::now();
        let proof = self.proofs.of.entry(tgid).or_insert(Proof::Open { pause: FIRST_PAUSE, next: now });
        let Proof::Open { pause, next } = proof else { return true };
        if *next <= now && !self.pending.contains_key(&tgid) {
            (*next, *pause) = (now + *pause, (*pause * 2).min(LONGEST_PAUSE));
            self.pending.insert(tgid, PendingScan::default());
            self.order(LibraryQuery::Mapped(tgid));
        }
        false
    }

    /// Updates the proof of a process after a scan, once the probeable files are probed.
    pub(super) fn note_look_at(&mut self, tgid: u32, found: &Discovery) {
        let is_proven = found.processes > 0 && found.over_limit == 0 && self.not_probed(found).next().is_none();
        if is_proven {
            self.proofs.unproven.remove(&tgid);
            if let Some(proof) = self.proofs.of.get_mut(&tgid) {
                *proof = Proof::Done;
            }
        } else if found.denied.contains(&tgid) {
            // The process could not be scanned, for example because its owner's queue is full.
            self.proofs.unproven.insert(tgid);
        }
    }

    /// Updates the proofs of all processes after a sweep that began at `begun_ns`. A sweep that
    /// skipped files because of the limit proves nothing.
    pub(super) fn note_look_at_all(&mut self, begun_ns: u64, found: &Discovery) {
        if found.over_limit == 0 {
            self.proofs.unproven = self.not_probed(found).collect();
            self.proofs.looked_ns = begun_ns;
        }
    }

    /// Returns the processes that map something unprobed or could not be scanned.
    fn not_probed(&self, found: &Discovery) -> impl Iterator<Item = u32> {
        let is_open =
            |file: &&LibraryFile| self.files.find(&file.identity).is_none_or(|met| met.coverage.probes_attached == 0);
        let open = found.files.iter().filter(is_open).flat_map(|file| file.mapped_by.iter());
        let left_out = found.left_out.iter().flat_map(|one| one.mapped_by.iter());
        open.chain(left_out).chain(&found.denied).copied()
    }
}
