//! Maps sequence numbers of backward nodes to the stacks that created them. Each thread counts its
//! nodes up by one.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::origins::OriginKey;

/// Maximum number of nodes kept per thread. Larger graphs lose their oldest nodes.
const KEPT: usize = 1 << 17;
/// A gap larger than this indicates a new count rather than lost records.
const GAP: u64 = 4096;

/// A node of the backward graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Numbered {
    /// Where the node was created; `None` while unknown.
    pub(super) origin: Option<OriginKey>,
    /// Another node created it: in a recomputation, or for a second derivative.
    pub(super) by_node: bool,
    /// The node has run.
    pub(super) ran: bool,
}

/// Nodes created by one thread.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct NodeNumbers {
    first: u64,
    nodes: VecDeque<Numbered>,
    /// Number of nodes at the end that wait for an allocation to show where they were created.
    waiting: usize,
}

impl NodeNumbers {
    /// Adds a node of this number. At most `room` nodes of the thread are kept.
    pub(super) fn push(&mut self, number: u64, node: Numbered, room: usize) {
        let next = self.first.saturating_add(self.nodes.len() as u64);
        // A thread counts up by one. Another count means a reused thread id or lost records.
        if self.nodes.is_empty() || number < next || number - next > GAP {
            self.nodes.clear();
            self.waiting = 0;
            self.first = number;
        }
        let lost = Numbered { origin: None, by_node: node.by_node, ran: false };
        while self.first + (self.nodes.len() as u64) < number {
            self.nodes.push_back(lost);
            self.waiting = 0;
        }
        self.nodes.push_back(node);
        self.waiting = if node.origin.is_none() { self.waiting + 1 } else { 0 };
        while self.nodes.len() > room.clamp(1, KEPT) {
            self.nodes.pop_front();
            self.first += 1;
        }
        self.waiting = self.waiting.min(self.nodes.len());
    }

    /// Sets the origin of the nodes created since the last allocation.
    pub(super) fn settle(&mut self, origin: OriginKey) {
        let settled = self.nodes.len().saturating_sub(self.waiting);
        for node in self.nodes.range_mut(settled..) {
            node.origin = Some(origin);
        }
        self.waiting = 0;
    }

    /// Returns the node of this number.
    pub(super) fn get(&self, number: u64) -> Option<Numbered> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.nodes.get(index).copied()
    }

    /// Returns whether the node of this number waits for an allocation.
    pub(super) fn is_waiting(&self, number: u64) -> bool {
        let settled = self.first + self.nodes.len().saturating_sub(self.waiting) as u64;
        number >= settled && self.get(number).is_some()
    }

    /// Marks the node of this number as run.
    pub(super) fn ran(&mut self, number: u64) {
        let index = number.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        if let Some(node) = index.and_then(|index| self.nodes.get_mut(index)) {
            node.ran = true;
        }
    }

    /// Returns the number of nodes kept.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: OriginKey = OriginKey(3);
    const THERE: OriginKey = OriginKey(4);
    const BLANK: Numbered = Numbered { origin: None, by_node: false, ran: false };

    fn numbers(range: std::ops::Range<u64>) -> NodeNumbers {
        let mut numbers = NodeNumbers::default();
        range.for_each(|number| numbers.push(number, BLANK, KEPT));
        numbers
    }

    fn origin(numbers: &NodeNumbers, number: u64) -> Option<OriginKey> {
        numbers.get(number).expect("it is kept").origin
    }

    #[test]
    fn nodes_belong_to_the_allocation_that_follows_them() {
        let mut numbers = numbers(10..12);
        numbers.settle(HERE);
        numbers.push(12, BLANK, KEPT);
        numbers.settle(THERE);
        numbers.settle(HERE);
        assert_eq!([10, 11, 12].map(|number| origin(&numbers, number)), [Some(HERE), Some(HERE), Some(THERE)]);
        assert_eq!(numbers.get(9), None);
        assert_eq!(numbers.get(13), None);
    }

    #[test]
    fn lost_numbers_are_not_known_and_another_count_begins_again() {
        let mut numbers = numbers(0..3);
        numbers.push(7, BLANK, KEPT);
        let waiting = numbers.clone();
        numbers.settle(HERE);
        assert_eq!([2, 5, 7, 8].map(|number| waiting.is_waiting(number)), [false, false, true, false]);
        assert_eq!([2, 5, 7].map(|number| origin(&numbers, number)), [None, None, Some(HERE)]);
        numbers.push(1, BLANK, KEPT);
        assert_eq!((numbers.len(), numbers.get(7)), (1, None));
        numbers.push(u64::MAX, BLANK, KEPT);
        numbers.push(0, BLANK, KEPT);
        assert_eq!(numbers.len(), 1);
    }

    #[test]
    fn sequence_numbers_evict_the_oldest_at_capacity() {
        let mut numbers = numbers(0..100);
        numbers.push(100, BLANK, 10);
        assert_eq!((numbers.len(), numbers.get(90), numbers.get(91).is_some()), (10, None, true));
        numbers.settle(HERE);
        assert_eq!(origin(&numbers, 91), Some(HERE));
        numbers.ran(95);
        assert!(numbers.get(95).is_some_and(|node| node.ran) && !numbers.get(96).is_some_and(|node| node.ran));
    }
}
