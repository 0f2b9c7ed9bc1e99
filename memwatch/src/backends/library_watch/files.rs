//! The library files that were met: who maps each, which of them are kept, and how many there may be.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use memwatch_core::input::LibraryCoverage;

use crate::sources::kernel::attach::LibraryProbes;
use crate::sources::library::limits::{Owner, Shares};
use crate::sources::library::{Discovery, FileIdentity};
use crate::sources::mappings::MappedInode;

/// So many refused files are kept apart; further ones are refused, too.
const MOST_REFUSED: usize = 4096;

/// Likewise of files that loaders may find.
const MOST_REFUSED_FILES: usize = 1024;

/// A file that was met, probed or not.
pub(super) struct Met {
    pub(super) identity: FileIdentity,
    pub(super) coverage: LibraryCoverage,
    pub(super) probes: LibraryProbes,
    /// When its last probe was in place: `CLOCK_BOOTTIME`, nanoseconds.
    pub(super) attached_ns: u64,
    /// Who answers for it; `None` for a file of the host.
    pub(super) owner: Option<Owner>,
    /// It lies in one of the usual places, or was named: it stays.
    pub(super) is_usual: bool,
    /// The processes whose loader may find it: it stays as long as they run.
    pub(super) wanted_by: BTreeSet<u32>,
    /// The processes that map it, and when that was seen last: `CLOCK_BOOTTIME`, nanoseconds. Some may have ended.
    pub(super) users: BTreeMap<u32, u64>,
    /// Distinguishes it from all others, also from the ones that are gone.
    id: u64,
}

impl Met {
    /// A file that nobody is known to map.
    pub(super) fn new(
        identity: FileIdentity,
        (coverage, probes): (LibraryCoverage, LibraryProbes),
        attached_ns: u64,
        owner: Option<Owner>,
    ) -> Self {
        let (wanted_by, users) = (BTreeSet::new(), BTreeMap::new());
        Self { identity, coverage, probes, attached_ns, owner, is_usual: false, wanted_by, users, id: 0 }
    }
}

/// All of them.
#[derive(Default)]
pub(super) struct Files {
    met: Vec<Met>,
    last_id: u64,
    /// The file behind each inode that a mapping record has named.
    inodes: BTreeMap<MappedInode, u64>,
    refused: BTreeSet<MappedInode>,
    /// Files that loaders may find and that were refused, with whose share was full: they are not looked into again for that owner until something is given
    /// up.
    refused_files: VecDeque<(FileIdentity, Owner)>,
    /// How many files have been refused, as far as that was seen at once in one look.
    refused_in_look: u64,
    identities: Arc<Vec<FileIdentity>>,
    changed: bool,
}

impl Files {
    /// The identities of all of them.
    pub(super) fn identities(&self) -> Arc<Vec<FileIdentity>> {
        Arc::clone(&self.identities)
    }

    /// The same, and the files that were refused to this owner.
    pub(super) fn known_to(&self, owner: Option<Owner>) -> Arc<Vec<FileIdentity>> {
        let refused = self.refused_files.iter().filter(|(_, refused)| Some(*refused) == owner);
        let mut refused = refused.map(|(identity, _)| identity.clone()).peekable();
        if refused.peek().is_none() {
            return self.identities();
        }
        Arc::new(self.identities.iter().cloned().chain(refused).collect())
    }

    /// A file that a loader may find was refused to this owner.
    pub(super) fn refuse_file(&mut self, identity: FileIdentity, owner: Owner) {
        if self.refused_files.len() >= MOST_REFUSED_FILES {
            self.refused_files.pop_front();
        }
        self.refused_files.push_back((identity, owner));
    }

    /// The file with this identity.
    pub(super) fn find(&self, identity: &FileIdentity) -> Option<&Met> {
        self.met.iter().find(|met| met.identity.is_same_file(identity))
    }

    /// The file behind an inode that was named before.
    pub(super) fn behind(&self, inode: &MappedInode) -> Option<&Met> {
        let id = self.inodes.get(inode)?;
        self.met.iter().find(|met| met.id == *id)
    }

    /// A mapping record has named the file with this identity so.
    pub(super) fn name(&mut self, inode: MappedInode, identity: &FileIdentity) {
        if let Some(id) = self.find(identity).map(|met| met.id) {
            self.inodes.insert(inode, id);
        }
    }

    /// One more.
    pub(super) fn insert(&mut self, met: Met) {
        self.last_id += 1;
        self.met.push(Met { id: self.last_id, ..met });
        self.refresh();
    }

    /// A process maps the file with this identity.
    pub(super) fn note_user(&mut self, identity: &FileIdentity, tgid: u32, time_ns: u64) {
        if let Some(met) = self.met.iter_mut().find(|met| met.identity.is_same_file(identity)) {
            met.users.insert(tgid, time_ns);
            self.changed |= !std::mem::replace(&mut met.coverage.in_use, true);
        }
    }

    /// The loader of a process may find the file with this identity.
    pub(super) fn note_wanted(&mut self, identity: &FileIdentity, tgid: u32) {
        if let Some(met) = self.met.iter_mut().find(|met| met.identity.is_same_file(identity)) {
            met.wanted_by.insert(tgid);
        }
    }

    /// A process has ended.
    pub(super) fn forget_user(&mut self, tgid: u32) {
        for met in &mut self.met {
            met.users.remove(&tgid);
            met.wanted_by.remove(&tgid);
            self.changed |= met.note_use();
        }
    }

    /// The ones that a process maps.
    pub(super) fn mapped_by(&mut self, tgid: u32) -> impl Iterator<Item = &mut Met> {
        self.met.iter_mut().filter(move |met| met.users.contains_key(&tgid))
    }

    /// Those of which calls that change a thread's context are not seen.
    pub(super) fn without_changes(&mut self) -> impl Iterator<Item = &mut Met> {
        self.met.iter_mut().filter(|met| !met.probes.see_changes())
    }

    /// All that have probes.
    pub(super) fn probed(&self) -> impl Iterator<Item = &Met> {
        self.met.iter().filter(|met| met.coverage.probes_attached > 0)
    }

    /// Whether a process is known to map a probed file that was found at this path.
    pub(super) fn is_probed_for(&self, tgid: u32, path: &str) -> bool {
        self.probed().any(|met| met.users.contains_key(&tgid) && met.coverage.path == path)
    }

    /// The processes that map one; some may have ended.
    pub(super) fn users(&self) -> BTreeSet<u32> {
        self.met.iter().flat_map(|met| met.users.keys().copied()).collect()
    }

    /// Whether one more of this owner may be met, besides the ones that are being looked at.
    pub(super) fn has_room(&self, owner: Owner, looked_at: impl Iterator<Item = Owner>) -> bool {
        Shares::of(self.met.iter().filter_map(|met| met.owner).chain(looked_at)).has_room(owner)
    }

    /// Whether there are files that nobody is known to map, and that are not kept for another reason: a sweep may take them out.
    pub(super) fn has_idle(&self) -> bool {
        self.met.iter().any(|met| !met.is_usual && met.wanted_by.is_empty() && met.users.is_empty())
    }

    /// A file that a mapping record has named was refused.
    pub(super) fn refuse(&mut self, inode: MappedInode) {
        if self.refused.len() < MOST_REFUSED {
            self.changed |= self.refused.insert(inode);
        }
    }

    /// So many files were refused in one look.
    pub(super) fn note_refused(&mut self, count: usize) {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.changed |= count > self.refused_in_look;
        self.refused_in_look = self.refused_in_look.max(count);
    }

    /// How many files have been refused.
    pub(super) fn refused(&self) -> u64 {
        u64::try_from(self.refused.len()).unwrap_or(u64::MAX).max(self.refused_in_look)
    }

    /// All processes were looked through, from `begun_ns` on, and `found` is who maps what: whoever does so no more is no user any more.
    pub(super) fn note_sweep(&mut self, found: &Discovery, begun_ns: u64) {
        for met in &mut self.met {
            let now = found.files.iter().find(|file| met.identity.is_same_file(&file.identity));
            let mapped_by = now.map_or(&[][..], |file| &file.mapped_by);
            // What a process maps that may not be looked at is known from the mapping records alone.
            let is_closed = |tgid| found.left_out.iter().any(|one| one.is_closed_of(tgid, &met.coverage.path));
            let is_user = |tgid: &u32| mapped_by.contains(tgid) || found.denied.contains(tgid) || is_closed(*tgid);
            met.users.retain(|tgid, seen_ns| *seen_ns >= begun_ns || is_user(tgid));
            self.changed |= met.note_use();
        }
    }

    /// Takes out the files that nobody has mapped since `begun_ns`, and that are not kept for another reason.
    pub(super) fn take_unused(&mut self, begun_ns: u64, is_running: impl Fn(u32) -> bool) -> Vec<Met> {
        self.met.iter_mut().for_each(|met| met.wanted_by.retain(|tgid| is_running(*tgid)));
        let is_kept = |met: &Met| met.is_usual || !met.wanted_by.is_empty() || !met.users.is_empty();
        let is_unused = |met: &mut Met| met.attached_ns < begun_ns && !is_kept(met);
        let unused: Vec<Met> = self.met.extract_if(.., is_unused).collect();
        if !unused.is_empty() {
            self.refused_files.clear();
            self.refresh();
        }
        unused
    }

    /// What is covered, if that has changed since the last call.
    pub(super) fn new_coverage(&mut self) -> Option<Vec<LibraryCoverage>> {
        std::mem::take(&mut self.changed).then(|| self.met.iter().map(|met| met.coverage.clone()).collect())
    }

    /// Something else that belongs to the coverage has changed.
    pub(super) fn touch(&mut self) {
        self.changed = true;
    }

    fn refresh(&mut self) {
        self.identities = Arc::new(self.met.iter().map(|met| met.identity.clone()).collect());
        let ids: BTreeSet<u64> = self.met.iter().map(|met| met.id).collect();
        self.inodes.retain(|_, id| ids.contains(id));
        self.changed = true;
    }
}

impl Met {
    /// Whether that has changed: somebody maps it.
    fn note_use(&mut self) -> bool {
        let in_use = !self.users.is_empty();
        std::mem::replace(&mut self.coverage.in_use, in_use) != in_use
    }
}

#[cfg(test)]
mod tests;
