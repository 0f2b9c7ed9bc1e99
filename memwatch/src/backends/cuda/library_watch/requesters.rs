//! The driver's libraries beside libcuda that ask the kernel driver for memory: for graphics and video. Their requests are probed and nothing else, so
//! that what NVML charges a program that uses them has an explanation. A process that has one before its probes has memory that is older than the watch,
//! and no call of CUDA's is missed by it.

use std::collections::BTreeSet;

use memwatch_core::input::KernelCalls;

use super::LibraryWatch;
use crate::sources::kernel::attach::{LibraryProbes, attach_requests};
use crate::sources::kernel::load::Kernel;
use crate::sources::library_look::{NewFile, Subject};
use crate::sources::mappings::{MappedInode, NewMapping};

/// So many inodes are remembered; further ones are not looked at.
const MOST_INODES: usize = 1024;

/// The files that were met.
#[derive(Default)]
pub(super) struct Requesters {
    /// As long as the watch lasts.
    probes: Vec<LibraryProbes>,
    /// What was mapped, and looked at or to be.
    inodes: BTreeSet<MappedInode>,
    /// Mappings that nobody has looked at.
    mapped: Vec<NewMapping>,
}

impl Requesters {
    /// Files were mapped.
    pub(super) fn note(&mut self, mappings: Vec<NewMapping>) {
        for mapping in mappings {
            if !self.inodes.contains(&mapping.inode) && self.inodes.len() + self.mapped.len() < MOST_INODES {
                self.mapped.push(mapping);
            }
        }
    }

    /// The wanted processes that have mapped a file that was not met.
    pub(super) fn take_new(&mut self, wanted: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut tgids = BTreeSet::new();
        for mapping in std::mem::take(&mut self.mapped) {
            if wanted(mapping.tgid) && self.inodes.insert(mapping.inode) {
                tgids.insert(mapping.tgid);
            }
        }
        tgids.into_iter().collect()
    }

    /// Probes files that are new.
    pub(super) fn attach(&mut self, kernel: &mut Kernel, new: Vec<NewFile>) {
        for NewFile { file, plan } in new {
            let (calls, probes) = attach_requests(kernel, &file, plan.as_ref());
            match calls {
                KernelCalls::Probed { stubs } => log::info!("{}: requests are probed at {stubs} stubs", file.display),
                KernelCalls::Refused { reason } => log::info!("{}: requests are not seen: {reason}", file.display),
                KernelCalls::None => {}
            }
            self.probes.push(probes);
        }
    }
}

impl LibraryWatch {
    /// Has the files looked at that these processes have mapped, or the machine has.
    pub(super) fn order_requesters(&self, tgids: Option<Vec<u32>>) {
        self.order(Subject::Requesters(tgids));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(tgid: u32, number: u64) -> NewMapping {
        NewMapping { tgid, time_ns: 1, inode: MappedInode { device: (1, 1), number, generation: 0 } }
    }

    #[test]
    fn a_file_is_looked_at_once_however_many_map_it() {
        let mut requesters = Requesters::default();
        requesters.note(vec![mapping(5, 1), mapping(6, 1), mapping(7, 2), mapping(8, 3)]);
        assert_eq!(requesters.take_new(|tgid| tgid != 8), [5, 7]);
        requesters.note(vec![mapping(9, 1), mapping(8, 3)]);
        assert_eq!(requesters.take_new(|_| true), [8], "nobody wanted it before");
    }

    #[test]
    fn endless_files_of_that_name_are_not_looked_at_without_end() {
        let mut requesters = Requesters::default();
        for number in 0..10_000 {
            requesters.note(vec![mapping(5, number)]);
            requesters.take_new(|_| true);
        }
        assert_eq!(requesters.inodes.len(), MOST_INODES);
    }
}
