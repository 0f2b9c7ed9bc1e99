//! Table of the library files found: which processes map each, why a file is kept, and limits on
//! their number.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use memwatch_core::input::LibraryCoverage;

use crate::sources::kernel::attach::LibraryProbes;
use crate::sources::library::limits::{FileOwner, Shares};
use crate::sources::library::{Discovery, FileIdentity};
use crate::sources::mappings::MappedInode;

/// Maximum number of refused files that are remembered individually. Further files are refused,
/// too.
const MOST_REFUSED: usize = 4096;

/// Maximum number of remembered refused files that loaders may find.
const MOST_REFUSED_FILES: usize = 1024;

/// A library file, probed or not.
pub(super) struct Met {
    pub(super) identity: FileIdentity,
    pub(super) coverage: LibraryCoverage,
    pub(super) probes: LibraryProbes,
    /// When its last probe was attached: `CLOCK_BOOTTIME`, nanoseconds.
    pub(super) attached_ns: u64,
    /// Owner of the file, for the owner's limit; `None` for a file of the host.
    pub(super) owner: Option<FileOwner>,
    /// Set if the file is in one of the usual directories or was named by the user; such a file is
    /// kept.
    pub(super) is_usual: bool,
    /// Processes with a loader that may find the file. The file is kept while they run.
    pub(super) wanted_by: BTreeSet<u32>,
    /// Processes that map the file, and when that was last seen: `CLOCK_BOOTTIME`, nanoseconds.
    /// Some may have exited.
    pub(super) users: BTreeMap<u32, u64>,
    /// Unique id; ids of removed files are not reused.
    id: u64,
}

impl Met {
    /// Creates an entry for a file without known users.
    pub(super) fn new(
        identity: FileIdentity,
        (coverage, probes): (LibraryCoverage, LibraryProbes),
        attached_ns: u64,
        owner: Option<FileOwner>,
    ) -> Self {
        let (wanted_by, users) = (BTreeSet::new(), BTreeMap::new());
        Self { identity, coverage, probes, attached_ns, owner, is_usual: false, wanted_by, users, id: 0 }
    }
}

/// All library files found.
#[derive(Default)]
pub(super) struct Files {
    met: Vec<Met>,
    last_id: u64,
    /// Id of the file behind each inode that a mapping record has named.
    inodes: BTreeMap<MappedInode, u64>,
    refused: BTreeSet<MappedInode>,
    /// Refused files that loaders may find, with the owner at its limit. They are not inspected
    /// again for that owner until a file is removed.
    refused_files: VecDeque<(FileIdentity, FileOwner)>,
    /// Highest number of files refused in one scan.
    refused_in_look: u64,
    identities: Arc<Vec<FileIdentity>>,
    changed: bool,
}

impl Files {
    /// Returns the identities of all files.
    pub(super) fn identities(&self) -> Arc<Vec<FileIdentity>> {
        Arc::clone(&self.identities)
    }

    /// Returns the identities of all files and of those refused to this owner.
    pub(super) fn known_to(&self, owner: Option<FileOwner>) -> Arc<Vec<FileIdentity>> {
        let refused = self.refused_files.iter().filter(|(_, refused)| Some(*refused) == owner);
        let mut refused = refused.map(|(identity, _)| identity.clone()).peekable();
        if refused.peek().is_none() {
            return self.identities();
        }
        Arc::new(self.identities.iter().cloned().chain(refused).collect())
    }

    /// Records that a file which a loader may find was refused to this owner.
    pub(super) fn refuse_file(&mut self, identity: FileIdentity, owner: FileOwner) {
        if self.refused_files.len() >= MOST_REFUSED_FILES {
            self.refused_files.pop_front();
        }
        self.refused_files.push_back((identity, owner));
    }

    /// Returns the file with this identity.
    pub(super) fn find(&self, identity: &FileIdentity) -> Option<&Met> {
        self.met.iter().find(|met| met.identity.is_same_file(identity))
    }

    /// Returns the file behind an inode that a mapping record has named before.
    pub(super) fn behind(&self, inode: &MappedInode) -> Option<&Met> {
        let id = self.inodes.get(inode)?;
        self.met.iter().find(|met| met.id == *id)
    }

    /// Records that a mapping record's inode is the file with this identity.
    pub(super) fn name(&mut self, inode: MappedInode, identity: &FileIdentity) {
        if let Some(id) = self.find(identity).map(|met| met.id) {
            self.inodes.insert(inode, id);
        }
    }

    /// Adds a file.
    pub(super) fn insert(&mut self, met: Met) {
        self.last_id += 1;
        self.met.push(Met { id: self.last_id, ..met });
        self.refresh();
    }

    /// Records that a process maps the file with this identity.
    pub(super) fn note_user(&mut self, identity: &FileIdentity, tgid: u32, time_ns: u64) {
        if let Some(met) = self.met.iter_mut().find(|met| met.identity.is_same_file(identity)) {
            met.users.insert(tgid, time_ns);
            self.changed |= !std::mem::replace(&mut met.coverage.in_use, true);
        }
    }

    /// Records that a process's loader may find the file with this identity.
    pub(super) fn note_wanted(&mut self, identity: &FileIdentity, tgid: u32) {
        if let Some(met) = self.met.iter_mut().find(|met| met.identity.is_same_file(identity)) {
            met.wanted_by.insert(tgid);
        }
    }

    /// Removes a process that has exited.
    pub(super) fn forget_user(&mut self, tgid: u32) {
        for met in &mut self.met {
            met.users.remove(&tgid);
            met.wanted_by.remove(&tgid);
            self.changed |= met.note_use();
        }
    }

    /// Returns the files that a process maps.
    pub(super) fn mapped_by(&mut self, tgid: u32) -> impl Iterator<Item = &mut Met> {
        self.met.iter_mut().filter(move |met| met.users.contains_key(&tgid))
    }

    /// Returns the files without context-change probes.
    pub(super) fn without_changes(&mut self) -> impl Iterator<Item = &mut Met> {
        self.met.iter_mut().filter(|met| !met.probes.see_changes())
    }

    /// Returns the files that have probes.
    pub(super) fn probed(&self) -> impl Iterator<Item = &Met> {
        self.met.iter().filter(|met| met.coverage.probes_attached > 0)
    }

    /// Whether a process is known to map a probed file that was found at this path.
    pub(super) fn is_probed_for(&self, tgid: u32, path: &str) -> bool {
        self.probed().any(|met| met.users.contains_key(&tgid) && met.coverage.path == path)
    }

    /// Returns the processes that map a file. Some may have exited.
    pub(super) fn users(&self) -> BTreeSet<u32> {
        self.met.iter().flat_map(|met| met.users.keys().copied()).collect()
    }

    /// Whether the owner may have one more file, besides those being scanned.
    pub(super) fn has_room(&self, owner: FileOwner, looked_at: impl Iterator<Item = FileOwner>) -> bool {
        Shares::of(self.met.iter().filter_map(|met| met.owner).chain(looked_at)).has_room(owner)
    }

    /// Whether a sweep may remove files: some have no known users and no other reason to be kept.
    pub(super) fn has_idle(&self) -> bool {
        self.met.iter().any(|met| !met.is_usual && met.wanted_by.is_empty() && met.users.is_empty())
    }

    /// Records the refusal of a file that a mapping record has named.
    pub(super) fn refuse(&mut self, inode: MappedInode) {
        if self.refused.len() < MOST_REFUSED {
            self.changed |= self.refused.insert(inode);
        }
    }

    /// Records the number of files refused in one scan.
    pub(super) fn note_refused(&mut self, count: usize) {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.changed |= count > self.refused_in_look;
        self.refused_in_look = self.refused_in_look.max(count);
    }

    /// Returns the number of refused files.
    pub(super) fn refused(&self) -> u64 {
        u64::try_from(self.refused.len()).unwrap_or(u64::MAX).max(self.refused_in_look)
    }

    /// Updates the users of all files after a sweep that began at `begun_ns`. Processes that no
    /// longer map a file are removed from its users.
    pub(super) fn note_sweep(&mut self, found: &Discovery, begun_ns: u64) {
        for met in &mut self.met {
            let now = found.files.iter().find(|file| met.identity.is_same_file(&file.identity));
            let mapped_by = now.map_or(&[][..], |file| &file.mapped_by);
            // If a process or file is not readable, only mapping records show the use, so its users
            // are kept.
            let is_closed = |tgid| found.left_out.iter().any(|one| one.is_closed_of(tgid, &met.coverage.path));
            let is_user = |tgid: &u32| mapped_by.contains(tgid) || found.denied.contains(tgid) || is_closed(*tgid);
            met.users.retain(|tgid, seen_ns| *seen_ns >= begun_ns || is_user(tgid));
            self.changed |= met.note_use();
        }
    }

    /// Removes the files without users since `begun_ns` and without another reason to be kept.
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

    /// Returns the coverage of all files, if it has changed since the last call.
    pub(super) fn new_coverage(&mut self) -> Option<Vec<LibraryCoverage>> {
        std::mem::take(&mut self.changed).then(|| self.met.iter().map(|met| met.coverage.clone()).collect())
    }

    /// Marks the coverage as changed.
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
    /// Updates whether the file is in use. Returns whether that has changed.
    fn note_use(&mut self) -> bool {
        let in_use = !self.users.is_empty();
        std::mem::replace(&mut self.coverage.in_use, in_use) != in_use
    }
}

#[cfg(test)]
mod tests;
