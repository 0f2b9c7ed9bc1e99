//! The references between all objects, read in the order of addresses.
//!
//! A search visits objects in an order that has nothing to do with their addresses, and would read
//! most of the memory several times. In this order each page is read about once.

use super::heap::Heap;
use crate::memory::{MemoryAccess, PATHS_SPENT};

/// References by referring object, without labels.
#[derive(Debug, Default)]
pub(super) struct References {
    /// Index in `targets` and number of references, by object; `None` if they were not read.
    ranges: Vec<Option<(u32, u32)>>,
    targets: Vec<u32>,
    is_cut: bool,
}

impl References {
    /// Reads the references of all objects in the lists.
    pub(super) fn read(heap: &Heap<'_, impl MemoryAccess>) -> Self {
        let mut read = Self { ranges: vec![None; heap.len()], ..Self::default() };
        let mut edges = Vec::new();
        for place in heap.by_address() {
            if heap.objects().memory.spent() >= PATHS_SPENT {
                read.is_cut = true;
                break;
            }
            edges.clear();
            if !heap.is_moving() || heap.is_same(place) {
                heap.put_edges(place, &mut edges);
            }
            let (Ok(start), Ok(count)) = (u32::try_from(read.targets.len()), u32::try_from(edges.len())) else { break };
            read.targets.extend(edges.iter().map(|edge| edge.target));
            read.ranges[place as usize] = Some((start, count));
        }
        read
    }

    /// Returns the objects to which an object refers; `None` if its references were not read.
    pub(super) fn of(&self, place: u32) -> Option<&[u32]> {
        let (start, count) = self.ranges.get(place as usize).copied().flatten()?;
        self.targets.get(start as usize..)?.get(..count as usize)
    }

    /// Returns whether no references were read.
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns whether reading ended early because of the time budget.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }
}
