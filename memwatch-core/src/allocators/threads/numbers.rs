//! Which stack the nodes of the backward graph were made on, by the numbers that a thread gave them: one after the other.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::origins::OriginKey;

/// How many numbers of a thread are kept: a graph of more nodes loses its oldest ones.
const KEPT: usize = 1 << 17;
/// A gap of more numbers than this is another count, and no loss.
const GAP: u64 = 4096;

/// One node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Numbered {
    /// Where it was made; `None` while that is not known.
    pub(super) origin: Option<OriginKey>,
    /// It was made by another node: in a recomputation, or for a second derivative.
    pub(super) by_node: bool,
    /// It has run.
    pub(super) ran: bool,
}

/// The numbers that one thread gave.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Numbers {
    first: u64,
    nodes: VecDeque<Numbered>,
    /// How many of the last ones wait for an allocation that says where they were made.
    waiting: usize,
}

impl Numbers {
    /// The thread gave this number. Of this thread's, `room` are kept at most.
    pub(super) fn push(&mut self, number: u64, node: Numbered, room: usize) {
        let next = self.first.saturating_add(self.nodes.len() as u64);
        // A thread counts up by one; another count is another thread under the same id, or records were lost.
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

    /// The nodes made since the last allocation were made here.
    pub(super) fn settle(&mut self, origin: OriginKey) {
        let settled = self.nodes.len().saturating_sub(self.waiting);
        for node in self.nodes.range_mut(settled..) {
            node.origin = Some(origin);
        }
        self.waiting = 0;
    }

    /// The node of this number.
    pub(super) fn get(&self, number: u64) -> Option<Numbered> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.nodes.get(index).copied()
    }

    /// Whether the node of this number waits for an allocation.
    pub(super) fn is_waiting(&self, number: u64) -> bool {
        let settled = self.first + self.nodes.len().saturating_sub(self.waiting) as u64;
        number >= settled && self.get(number).is_some()
    }

    /// It runs.
    pub(super) fn ran(&mut self, number: u64) {
        let index = number.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        if let Some(node) = index.and_then(|index| self.nodes.get_mut(index)) {
            node.ran = true;
        }
    }

    /// How many are kept.
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

    fn numbers(range: std::ops::Range<u64>) -> Numbers {
        let mut numbers = Numbers::default();
        range.for_each(|number| numbers.push(number, BLANK, KEPT));
        numbers
    }

    fn origin(numbers: &Numbers, number: u64) -> Option<OriginKey> {
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
    fn the_oldest_go_when_there_is_no_room() {
        let mut numbers = numbers(0..100);
        numbers.push(100, BLANK, 10);
        assert_eq!((numbers.len(), numbers.get(90), numbers.get(91).is_some()), (10, None, true));
        numbers.settle(HERE);
        assert_eq!(origin(&numbers, 91), Some(HERE));
        numbers.ran(95);
        assert!(numbers.get(95).is_some_and(|node| node.ran) && !numbers.get(96).is_some_and(|node| node.ran));
    }
}
