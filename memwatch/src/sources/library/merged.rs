//! Merges the results of scans of different processes.

use super::limits::MOST_IN_ALL;
use super::{Discovery, MOST_LEFT_OUT, SkippedLibrary, insert};

impl Discovery {
    /// Returns the result for processes that were not scanned.
    pub(crate) fn of_unseen(tgids: Vec<u32>) -> Self {
        Self { processes_denied: tgids.len(), denied: tgids, ..Self::default() }
    }

    /// Merges another scan's result, within the limits of one scan.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.processes += other.processes;
        self.processes_denied += other.processes_denied;
        self.denied.extend(&other.denied);
        self.over_limit += other.over_limit;
        for file in &other.files {
            if let Some(known) = self.files.iter_mut().find(|known| known.identity.is_same_file(&file.identity)) {
                file.mapped_by.iter().for_each(|tgid| insert(&mut known.mapped_by, Some(*tgid)));
            } else if self.files.len() < MOST_IN_ALL {
                self.files.push(file.clone());
            } else {
                self.over_limit += 1;
            }
        }
        for one in &other.left_out {
            self.merge_left_out(one);
        }
    }

    fn merge_left_out(&mut self, one: &SkippedLibrary) {
        let same = |known: &&mut SkippedLibrary| known.reason == one.reason && known.display == one.display;
        if let Some(known) = self.left_out.iter_mut().find(same) {
            one.mapped_by.iter().for_each(|tgid| insert(&mut known.mapped_by, Some(*tgid)));
            known.named |= one.named;
        } else if one.named || self.left_out.len() < MOST_LEFT_OUT {
            self.left_out.push(one.clone());
        } else {
            self.over_limit += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::LibraryScan;
    use super::*;

    #[test]
    fn library_scans_of_one_file_are_merged() {
        let own = std::process::id();
        let look = || LibraryScan::new("/proc").with_stems(&["libc.so"]).scan_process(own);
        let mut merged = Discovery::default();
        merged.merge(&look());
        let mut other = look();
        other.files.iter_mut().for_each(|file| file.mapped_by = vec![own - 1]);
        other.denied = vec![7];
        merged.merge(&other);
        assert_eq!((merged.processes, merged.files.len(), &merged.denied), (2, 1, &vec![7]));
        assert_eq!(merged.files[0].mapped_by, [own - 1, own]);
    }
}
