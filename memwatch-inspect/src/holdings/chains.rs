//! Dependency chains of names: the words in memory that lead to an object, and the addresses that
//! they had. They are read again from the process, and a name holds if none of them has changed.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use crate::memory::MemoryAccess;
use crate::python::heap::Heap;
use crate::python::layout::TYPE;

/// Bits of a reference that may be flags of the interpreter, and not of the address.
const FLAGS: u64 = 7;

/// A word that refers to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ChainWord {
    /// Address of the word.
    pub(super) slot: u64,
    /// Address in the word when the name was found.
    pub(super) target: u64,
}

/// A link of a chain: words, and the previous link.
#[derive(Clone, Copy, Debug)]
struct ChainLink {
    before: Option<u32>,
    words: [ChainWord; 2],
}

/// All chains, which share common beginnings.
#[derive(Debug, Default)]
pub(super) struct Chains {
    links: Vec<ChainLink>,
    holds: HashMap<ChainWord, bool, FixedState>,
}

/// End of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChainEnd(u32);

impl Chains {
    /// Extends a chain by two words.
    pub(super) fn link(&mut self, before: Option<ChainEnd>, words: [ChainWord; 2]) -> ChainEnd {
        let end = ChainEnd(u32::try_from(self.links.len()).unwrap_or(u32::MAX));
        self.links.push(ChainLink { before: before.map(|end| end.0), words });
        end
    }

    /// Extends a chain by the word that refers to a Python object, and by that object's class.
    pub(super) fn refer<M: MemoryAccess>(
        &mut self,
        before: Option<ChainEnd>,
        heap: &Heap<'_, M>,
        word: ChainWord,
    ) -> ChainEnd {
        // No class has the address 0, so the chain of an unreadable object does not hold.
        let class = heap.class_address(word.target).unwrap_or(0);
        self.link(before, [word, ChainWord { slot: word.target.wrapping_add(TYPE.into()), target: class }])
    }

    /// Returns whether all words of a chain still refer to the same objects.
    pub(super) fn holds(&mut self, memory: &impl MemoryAccess, end: ChainEnd) -> bool {
        let mut current = Some(end.0);
        while let Some(link) = current.and_then(|number| self.links.get(number as usize)) {
            let is_same = |word: &ChainWord| memory.u64(word.slot).is_some_and(|now| (now ^ word.target) & !FLAGS == 0);
            if !link.words.iter().all(|word| *self.holds.entry(*word).or_insert_with(|| is_same(word))) {
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
        let memory = Changing(Cell::new(0));
        let word = |slot: u64, target: u64| ChainWord { slot, target };
        let own = |slot: u64| word(slot, slot);
        for (now, expected) in [(0x8000, true), (0x8001, true), (0x8010, false)] {
            memory.0.set(now);
            let mut chains = Chains::default();
            let first = chains.link(None, [own(0x1_0000), word(0x2_0000, 0x8000)]);
            let last = chains.link(Some(first), [own(0x3_0000), own(0x1_0000)]);
            assert_eq!(chains.holds(&memory, last), expected, "{now:#x}");
            let other = chains.link(None, [own(0x3_0000); 2]);
            assert!(chains.holds(&memory, other), "it has nothing to do with that word");
            let stale = chains.link(Some(other), [word(0x3_0000, 0x4_0000), own(0x3_0000)]);
            assert!(!chains.holds(&memory, stale), "the word was read before it changed");
            let gone = chains.link(None, [own(0x20_0000); 2]);
            assert!(!chains.holds(&memory, gone), "it cannot be read");
        }
    }
}
