//! The sequence number of a node of the backward graph, from two words of the node.
//!
//! It is the word 24 bytes into the node up to PyTorch 2.11, after the two pointers of `enable_shared_from_this`, and the word before it in 2.15,
//! after a reference count. The word that is no number is a pointer in the first case and the node's depth in the graph in the second. A pointer
//! is not always a high number: the heap of an executable with fixed addresses, as distributions build Python, begins below 4 GiB.

use serde::{Deserialize, Serialize};

/// What a node has that accumulates gradients: no number.
const NO_NUMBER: u64 = u64::MAX;
/// No program counts this far, and no executable with fixed addresses has its heap here.
const COUNTABLE: u64 = 1 << 32;
/// Nothing is mapped below this (`vm.mmap_min_addr`).
const LOWEST_ADDRESS: u64 = 1 << 16;
/// What is allocated lies at a multiple of this.
const ALIGNMENT: u64 = 8;

/// Where the nodes of a process have their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeLayout {
    /// In the second word: the first is a pointer.
    Second,
    /// In the first word.
    First,
}

/// The words 16 and 24 bytes into a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeWords(pub [u64; 2]);

impl NodeWords {
    /// Where the number is, if these words alone prove it. All nodes of a process have it in the same place.
    pub const fn layout(self) -> Option<NodeLayout> {
        let [first, second] = self.0;
        if first == NO_NUMBER {
            Some(NodeLayout::First)
        } else if second == NO_NUMBER || first >= COUNTABLE {
            Some(NodeLayout::Second)
        } else if first < LOWEST_ADDRESS || !first.is_multiple_of(ALIGNMENT) {
            Some(NodeLayout::First)
        } else {
            None
        }
    }

    /// The number, if it is there; `None` for nodes that have none.
    pub const fn sequence(self, layout: NodeLayout) -> Option<u64> {
        let number = match layout {
            NodeLayout::First => self.0[0],
            NodeLayout::Second => self.0[1],
        };
        if number == NO_NUMBER { None } else { Some(number) }
    }
}

#[cfg(test)]
mod tests {
    use super::{NO_NUMBER, NodeLayout, NodeWords};

    #[test]
    fn nodes_without_a_number_prove_where_the_others_have_theirs() {
        assert_eq!(NodeWords([0x482d_91f0, NO_NUMBER]).layout(), Some(NodeLayout::Second));
        assert_eq!(NodeWords([NO_NUMBER, 3]).layout(), Some(NodeLayout::First));
        assert_eq!(NodeWords([0x482d_91f0, NO_NUMBER]).sequence(NodeLayout::Second), None);
        assert_eq!(NodeWords([NO_NUMBER, 3]).sequence(NodeLayout::First), None);
    }

    #[test]
    fn what_can_be_no_pointer_is_a_number() {
        for first in [0, 12, 0x1_0001, 70_004] {
            assert_eq!(NodeWords([first, 3]).layout(), Some(NodeLayout::First), "{first}");
            assert_eq!(NodeWords([first, 3]).sequence(NodeLayout::First), Some(first));
        }
    }

    #[test]
    fn what_can_be_no_number_is_a_pointer() {
        let words = NodeWords([0x7fff_1234_5678, 12]);
        assert_eq!((words.layout(), words.sequence(NodeLayout::Second)), (Some(NodeLayout::Second), Some(12)));
    }

    #[test]
    fn a_pointer_into_a_low_heap_proves_nothing() {
        assert_eq!(NodeWords([0x4979_a9b0, 0x17e]).layout(), None);
    }
}
