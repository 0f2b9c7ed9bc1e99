//! Simulates the addresses of driver segments.
//!
//! PyTorch takes the lowest of several free blocks that fit equally well, so addresses matter. Only
//! the driver chooses them. A policy therefore gets the addresses of the program's own segments of
//! the same size, in the same order; further segments get addresses above all others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Above all addresses from a driver: user addresses have 47 bits.
const ABOVE: u64 = 1 << 48;

/// Addresses of one policy's segments.
#[derive(Clone, Debug, Default)]
pub(super) struct SegmentAddresses {
    /// Bytes of address space assigned above [`ABOVE`].
    made: u64,
    /// Addresses of the program's segments that the policy has not used yet, by size, oldest first.
    of_program: BTreeMap<u64, VecDeque<u64>>,
    /// Addresses of the policy's segments.
    taken: BTreeSet<u64>,
    /// Addresses of the policy's freed segments, by size.
    returned: BTreeMap<u64, Vec<u64>>,
}

impl SegmentAddresses {
    /// Records that the program has a segment at this address.
    pub(super) fn learn(&mut self, address: u64, bytes: u64) {
        self.of_program.entry(bytes).or_default().push_back(address);
    }

    /// Records that the program has freed a segment.
    pub(super) fn forget(&mut self, address: u64, bytes: u64) {
        if let Some(known) = self.of_program.get_mut(&bytes) {
            known.retain(|own| *own != address);
        }
    }

    /// Returns the address of the policy's next segment of this size.
    pub(super) fn take(&mut self, bytes: u64) -> u64 {
        let address = self.next(bytes);
        self.taken.insert(address);
        address
    }

    /// Records that the policy has a segment at the same address as the program.
    pub(super) fn hold(&mut self, address: u64) {
        self.taken.insert(address);
    }

    fn next(&mut self, bytes: u64) -> u64 {
        let Self { of_program, taken, returned, .. } = self;
        let known = of_program.get_mut(&bytes);
        if let Some(address) =
            known.and_then(|known| std::iter::from_fn(|| known.pop_front()).find(|own| !taken.contains(own)))
        {
            if let Some(earlier) = returned.get_mut(&bytes) {
                earlier.retain(|own| *own != address);
            }
            return address;
        }
        if let Some(address) = returned.get_mut(&bytes).and_then(Vec::pop) {
            return address;
        }
        let address = ABOVE + self.made;
        self.made += bytes;
        address
    }

    /// Records that the policy has freed a segment.
    pub(super) fn give(&mut self, address: u64, bytes: u64) {
        self.taken.remove(&address);
        self.returned.entry(bytes).or_default().push(address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulated_segments_reuse_the_program_addresses_by_size_in_order() {
        let mut addresses = SegmentAddresses::default();
        addresses.learn(700, 20);
        addresses.learn(300, 20);
        addresses.learn(500, 2);
        assert_eq!([addresses.take(20), addresses.take(2), addresses.take(20)], [700, 500, 300]);
        assert_eq!([addresses.take(20), addresses.take(2)], [ABOVE, ABOVE + 20]);
    }

    #[test]
    fn no_two_segments_have_one_address() {
        let mut addresses = SegmentAddresses::default();
        addresses.learn(700, 20);
        assert_eq!(addresses.take(20), 700);
        // The program freed it and allocated it again; the policy kept it.
        addresses.forget(700, 20);
        addresses.learn(700, 20);
        assert_eq!(addresses.take(20), ABOVE);
        // The policy freed it, too, before the program allocated it again.
        addresses.give(700, 20);
        addresses.learn(700, 20);
        assert_eq!([addresses.take(20), addresses.take(20)], [700, ABOVE + 20]);
    }

    #[test]
    fn simulated_segment_address_freed_by_the_program_is_not_reused() {
        let mut addresses = SegmentAddresses::default();
        addresses.learn(700, 20);
        addresses.forget(700, 20);
        assert_eq!(addresses.take(20), ABOVE);
    }
}
