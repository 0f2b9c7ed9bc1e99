//! Files with a driver library's name that get no probes, and the processes that map them. Calls of
//! these processes are invisible.

use std::collections::{BTreeMap, BTreeSet};

use memwatch_core::input::LibraryCoverage;

use crate::sources::library::{Discovery, LeftOutReason, SkippedLibrary};

/// Maximum number of listed files without probes.
const MOST_FILES: usize = 64;

/// All files without probes.
#[derive(Default)]
pub(super) struct LeftOutFiles {
    /// Files by path.
    files: BTreeMap<String, LeftOutFile>,
    /// Processes that map a file which cannot be opened.
    unwatched: BTreeSet<u32>,
    /// Processes added to `unwatched` since the last [`Self::take_unwatched`].
    news: Vec<u32>,
}

struct LeftOutFile {
    reason: LeftOutReason,
    is_named: bool,
    is_mapped: bool,
}

impl LeftOutFiles {
    /// Records a file. Returns `None` if there are too many, else whether there is something new to
    /// report. A process may map a file that was probed before it could no longer be opened.
    pub(super) fn note(&mut self, found: &SkippedLibrary, is_probed_for: impl Fn(u32) -> bool) -> Option<bool> {
        let is_closed = matches!(found.reason, LeftOutReason::Unreadable(_));
        let missed = |tgid: &u32| !is_closed || !is_probed_for(*tgid);
        let missing: Vec<u32> = found.mapped_by.iter().copied().filter(missed).collect();
        if missing.is_empty() && !found.named {
            return Some(false);
        }
        let mut is_new = false;
        if is_closed {
            let new: Vec<u32> = missing.iter().copied().filter(|tgid| self.unwatched.insert(*tgid)).collect();
            is_new = !new.is_empty();
            self.news.extend(new);
        }
        let listed = LeftOutFile { reason: found.reason, is_named: found.named, is_mapped: !missing.is_empty() };
        if self.files.len() >= MOST_FILES && !self.files.contains_key(&found.display) && !found.named {
            return None;
        }
        let same = |known: &LeftOutFile| known.reason == listed.reason && known.is_named == listed.is_named;
        is_new |= !self.files.get(&found.display).is_some_and(same);
        self.files.insert(found.display.clone(), listed);
        Some(is_new)
    }

    /// After a sweep, keeps the files found again and those the user named. Returns whether others
    /// were removed.
    pub(super) fn keep_listed(&mut self, found: &Discovery) -> bool {
        let before = self.files.len();
        let is_listed = |path: &String| found.left_out.iter().any(|one| one.display == *path);
        self.files.retain(|path, listed| listed.is_named || is_listed(path));
        self.files.len() != before
    }

    /// Forgets a process that has exited.
    pub(super) fn forget(&mut self, tgid: u32) {
        self.unwatched.remove(&tgid);
    }

    /// Returns the processes added since the last call.
    pub(super) fn take_unwatched(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.news)
    }

    /// Returns the report's entry of each file.
    pub(super) fn coverage(&self) -> impl Iterator<Item = LibraryCoverage> {
        self.files.iter().map(|(path, listed)| LibraryCoverage {
            path: path.clone(),
            error: Some(listed.sentence()),
            in_use: true,
            ..LibraryCoverage::default()
        })
    }
}

impl LeftOutFile {
    fn sentence(&self) -> String {
        match self.reason {
            LeftOutReason::Unreadable(_) if self.is_mapped => {
                "it cannot be opened, as after a driver update; calls of the processes that map it are not seen until they restart"
                    .to_owned()
            }
            reason => reason.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    fn closed(mapped_by: &[u32]) -> SkippedLibrary {
        let reason = LeftOutReason::Unreadable(ErrorKind::NotFound);
        SkippedLibrary { display: "/a/libcuda.so.1".to_owned(), reason, mapped_by: mapped_by.to_vec(), named: false }
    }

    #[test]
    fn unopenable_library_leaves_its_process_unwatched_unless_probed() {
        let mut files = LeftOutFiles::default();
        assert_eq!(files.note(&closed(&[7]), |_| true), Some(false));
        assert_eq!((files.take_unwatched(), files.coverage().count()), (Vec::new(), 0));
        assert_eq!(files.note(&closed(&[7, 8]), |tgid| tgid == 7), Some(true));
        assert_eq!(files.take_unwatched(), [8]);
        let coverage: Vec<_> = files.coverage().collect();
        assert!(coverage[0].error.as_ref().is_some_and(|error| error.contains("are not seen")), "{coverage:?}");
        assert_eq!(files.note(&closed(&[8]), |_| false), Some(false), "that is known");
        assert_eq!(files.note(&closed(&[8, 9]), |_| false), Some(true));
        assert_eq!(files.take_unwatched(), [9]);
        files.forget(9);
        assert_eq!(files.note(&closed(&[9]), |_| false), Some(true), "a later one with its number");
        assert!(files.keep_listed(&Discovery::default()));
        assert_eq!(files.coverage().count(), 0);
    }
}
