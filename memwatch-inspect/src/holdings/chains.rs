//! Dependency chains of names: the words in memory that lead to an object. They are read again from
//! the process, and a name holds if none of them has changed.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use crate::memory::MemoryAccess;
use crate::pass::Pass;

/// A link of a chain: addresses of words, and the previous link.
#[derive(Clone, Copy, Debug)]
struct ChainLink {
    before: Option<u32>,
    words: [u64; 2],
}

/// All chains, which share common beginnings.
#[derive(Debug, Default)]
pub(super) struct Chains {
    links: Vec<ChainLink>,
    holds: HashMap<u64, bool, FixedState>,
}

/// End of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChainEnd(u32);

impl Chains {
    /// Extends a chain by two words, given by address.
    pub(super) fn link(&mut self, before: Option<ChainEnd>, words: [u64; 2]) -> ChainEnd {
        let end = ChainEnd(u32::try_from(self.links.len()).unwrap_or(u32::MAX));
        self.links.push(ChainLink { before: before.map(|end| end.0), words });
        end
    }

    /// Returns whether all words of a chain still have their values from this pass.
    pub(super) fn holds<M: MemoryAccess>(&mut self, pass: &Pass<'_, M>, end: ChainEnd) -> bool {
        let mut current = Some(end.0);
        while let Some(link) = current.and_then(|number| self.links.get(number as usize)) {
            let is_same = |address: u64| {
                let word = pass.u64(address);
                word.is_some() && word == pass.memory().u64(address)
            };
            if !link.words.iter().all(|word| *self.holds.entry(*word).or_insert_with(|| is_same(*word))) {
                return false;
            }
            current = link.before;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Memory in which every word is its own address, except for one that changes.
    struct Changing(Cell<u64>);

    impl MemoryAccess for Changing {
        fn fill(&self, address: u64, into: &mut [u8]) -> bool {
            for (word, at) in into.as_chunks_mut::<8>().0.iter_mut().zip((address..).step_by(8)) {
                *word = if at == 0x2_0000 { self.0.get() } else { at }.to_le_bytes();
            }
            address < 0x10_0000
        }
    }

    #[test]
    fn pointer_chain_is_valid_until_one_of_its_words_changes() {
        let memory = Changing(Cell::new(1));
        let pass = Pass::new(&memory, u64::MAX);
        let read = || [0x1_0000, 0x2_0000, 0x3_0000].map(|address| pass.u64(address));
        assert!(read().iter().all(Option::is_some));
        for (value, expected) in [(1, true), (2, false)] {
            memory.0.set(value);
            let mut chains = Chains::default();
            let first = chains.link(None, [0x1_0000, 0x2_0000]);
            let last = chains.link(Some(first), [0x3_0000, 0x1_0000]);
            assert_eq!(chains.holds(&pass, last), expected);
            let other = chains.link(None, [0x3_0000; 2]);
            assert!(chains.holds(&pass, other), "it has nothing to do with that word");
            let gone = chains.link(None, [0x20_0000; 2]);
            assert!(!chains.holds(&pass, gone), "it cannot be read");
        }
    }
}
