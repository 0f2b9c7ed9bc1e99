//! Whether all driver libraries that a process has mapped are known to be probed. Of a process that has made no call that was seen, nothing else says that it
//! has made none.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::{LibraryWatch, Pending};
use crate::sources::library::{Discovery, LibraryFile};
use crate::sources::library_look::Subject;

/// How long after a look that has proven nothing there is another one: twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(16);

/// What is proven of which process.
#[derive(Default)]
pub(super) struct Proofs {
    /// The last look at all processes began then (`CLOCK_BOOTTIME`, nanoseconds), and which processes have something that is not probed.
    looked_ns: u64,
    unproven: BTreeSet<u32>,
    /// Processes that were looked at on their own.
    of: BTreeMap<u32, Proof>,
}

enum Proof {
    /// Not so far: when the next look is due, and how long after that the one after it.
    Open { pause: Duration, next: Instant },
    /// All that it has mapped is probed.
    Done,
}

impl Proofs {
    /// A process has ended, or has another program.
    pub(super) fn forget(&mut self, tgid: u32) {
        self.of.remove(&tgid);
        self.unproven.remove(&tgid);
    }
}

impl LibraryWatch {
    /// Whether all driver libraries that a process has mapped, which began at `start_ns`, are probed. Where nobody has looked, a thread does.
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
            self.pending.insert(tgid, Pending::default());
            self.order(Subject::Mapped(tgid));
        }
        false
    }

    /// What a process has mapped was looked at, and what of it could be probed is.
    pub(super) fn note_look_at(&mut self, tgid: u32, found: &Discovery) {
        let is_proven = found.processes > 0 && found.over_limit == 0 && self.not_probed(found).next().is_none();
        if is_proven {
            self.proofs.unproven.remove(&tgid);
            if let Some(proof) = self.proofs.of.get_mut(&tgid) {
                *proof = Proof::Done;
            }
        } else if found.denied.contains(&tgid) {
            // Nobody has looked: its owner's queue is full.
            self.proofs.unproven.insert(tgid);
        }
    }

    /// The same of all processes, by a look that began at `begun_ns`. One that left files out for their number has seen nobody whole.
    pub(super) fn note_look_at_all(&mut self, begun_ns: u64, found: &Discovery) {
        if found.over_limit == 0 {
            self.proofs.unproven = self.not_probed(found).collect();
            self.proofs.looked_ns = begun_ns;
        }
    }

    /// The processes in which something was found that is not probed, or of which it cannot be known.
    fn not_probed(&self, found: &Discovery) -> impl Iterator<Item = u32> {
        let is_open =
            |file: &&LibraryFile| self.files.find(&file.identity).is_none_or(|met| met.coverage.probes_attached == 0);
        let open = found.files.iter().filter(is_open).flat_map(|file| file.mapped_by.iter());
        let left_out = found.left_out.iter().flat_map(|one| one.mapped_by.iter());
        open.chain(left_out).chain(&found.denied).copied()
    }
}
