//! Where the driver grants segments.
//!
//! Addresses matter where several free blocks fit equally well: PyTorch takes the lowest. Only the driver knows them, so a policy has its
//! segments where the program had its own of the same size, in the same order; further ones are above all others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Above all that a driver grants: addresses of programs have 47 bits.
const ABOVE: u64 = 1 << 48;

/// The addresses of one policy's segments.
#[derive(Clone, Debug, Default)]
pub(super) struct Addresses {
    /// Bytes of addresses that no driver granted.
    made: u64,
    /// Segments of the program that the policy has not needed yet, by size, oldest first.
    of_program: BTreeMap<u64, VecDeque<u64>>,
    /// Where the policy has segments.
    taken: BTreeSet<u64>,
    /// Where it had some, by size.
    returned: BTreeMap<u64, Vec<u64>>,
}

impl Addresses {
    /// The program has a segment here.
    pub(super) fn learn(&mut self, address: u64, bytes: u64) {
        self.of_program.entry(bytes).or_default().push_back(address);
    }

    /// It has it no longer.
    pub(super) fn forget(&mut self, address: u64, bytes: u64) {
        if let Some(known) = self.of_program.get_mut(&bytes) {
            known.retain(|own| *own != address);
        }
    }

    /// Where the policy has its next segment of this size.
    pub(super) fn take(&mut self, bytes: u64) -> u64 {
        let address = self.next(bytes);
        self.taken.insert(address);
        address
    }

    /// The policy has one here, as the program has.
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

    /// The policy gives a segment back.
    pub(super) fn give(&mut self, address: u64, bytes: u64) {
        self.taken.remove(&address);
        self.returned.entry(bytes).or_default().push(address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_lie_where_the_program_had_its_own_of_that_size_in_that_order() {
        let mut addresses = Addresses::default();
        addresses.learn(700, 20);
        addresses.learn(300, 20);
        addresses.learn(500, 2);
        assert_eq!([addresses.take(20), addresses.take(2), addresses.take(20)], [700, 500, 300]);
        assert_eq!([addresses.take(20), addresses.take(2)], [ABOVE, ABOVE + 20]);
    }

    #[test]
    fn no_two_segments_have_one_address() {
        let mut addresses = Addresses::default();
        addresses.learn(700, 20);
        assert_eq!(addresses.take(20), 700);
        // The program gave it back and has it again; the policy kept it.
        addresses.forget(700, 20);
        addresses.learn(700, 20);
        assert_eq!(addresses.take(20), ABOVE);
        // The policy gave it back, too, before the program had it again.
        addresses.give(700, 20);
        addresses.learn(700, 20);
        assert_eq!([addresses.take(20), addresses.take(20)], [700, ABOVE + 20]);
    }

    #[test]
    fn what_the_program_gave_back_first_is_not_waited_for() {
        let mut addresses = Addresses::default();
        addresses.learn(700, 20);
        addresses.forget(700, 20);
        assert_eq!(addresses.take(20), ABOVE);
    }
}
