//! Finds the sequence number of a node of the backward graph in two words of the node.
//!
//! Up to PyTorch 2.11, the number is 24 bytes into the node, after the two pointers of
//! `enable_shared_from_this`. In 2.15, it is 16 bytes into the node, after a reference count. The
//! other of the two words is a pointer in the first case, and the node's depth in the graph in the
//! second. A pointer is not always a large number: the heap of a non-PIE executable, as
//! distributions build Python, starts below 4 GiB.

use serde::{Deserialize, Serialize};

/// Sequence number of a node that accumulates gradients and has none.
const NO_NUMBER: u64 = u64::MAX;
/// Exclusive upper bound of sequence numbers. A non-PIE executable has its heap below this address.
const COUNTABLE: u64 = 1 << 32;
/// Lowest address that can be mapped (`vm.mmap_min_addr`).
const LOWEST_ADDRESS: u64 = 1 << 16;
/// Alignment of heap allocations, bytes.
const ALIGNMENT: u64 = 8;

/// Position of the sequence number in the nodes of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeLayout {
    /// Second word; the first is a pointer.
    Second,
    /// First word.
    First,
}

/// The words 16 and 24 bytes into a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeWords(pub [u64; 2]);

impl NodeWords {
    /// Returns the position of the number, if these words alone prove it. All nodes of a process
    /// have the same layout.
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

    /// Returns the sequence number; `None` for nodes without one.
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
    fn node_word_too_small_for_a_pointer_is_a_sequence_number() {
        for first in [0, 12, 0x1_0001, 70_004] {
            assert_eq!(NodeWords([first, 3]).layout(), Some(NodeLayout::First), "{first}");
            assert_eq!(NodeWords([first, 3]).sequence(NodeLayout::First), Some(first));
        }
    }

    #[test]
    fn node_word_too_large_for_a_sequence_number_is_a_pointer() {
        let words = NodeWords([0x7fff_1234_5678, 12]);
        assert_eq!((words.layout(), words.sequence(NodeLayout::Second)), (Some(NodeLayout::Second), Some(12)));
    }

    #[test]
    fn a_pointer_into_a_low_heap_proves_nothing() {
        assert_eq!(NodeWords([0x4979_a9b0, 0x17e]).layout(), None);
    }
}
