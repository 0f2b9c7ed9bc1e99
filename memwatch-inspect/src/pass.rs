//! One pass over a memory: each piece is read once, kept until the pass ends, and counted.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use foldhash::fast::FixedState;

use crate::memory::Memory;

/// Bytes of a piece.
const PIECE_BYTES: usize = 64 << 10;
/// Bytes of a page, of which a piece is made where not all of it is there.
const PAGE_BYTES: usize = 4 << 10;

/// What was read of a piece.
enum Piece {
    Whole(Box<[u8]>),
    /// Its pages that are there.
    Pages(Vec<Option<Box<[u8]>>>),
}

/// A memory as it is read in one pass.
pub struct Pass<'m, M> {
    memory: &'m M,
    pieces: RefCell<HashMap<u64, Piece, FixedState>>,
    read_bytes: Cell<u64>,
    reads: Cell<u64>,
    most_bytes: u64,
}

impl<'m, M: Memory> Pass<'m, M> {
    /// Over this memory, reading so many bytes at most.
    pub fn new(memory: &'m M, most_bytes: u64) -> Self {
        let pieces = RefCell::new(HashMap::with_hasher(FixedState::default()));
        Self { memory, pieces, read_bytes: Cell::new(0), reads: Cell::new(0), most_bytes }
    }

    /// How many bytes were read so far.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes.get()
    }

    /// With how many reads.
    pub fn reads(&self) -> u64 {
        self.reads.get()
    }

    /// Whether the limit was met: what is missing may be there.
    pub fn is_exhausted(&self) -> bool {
        self.read_bytes.get() >= self.most_bytes
    }

    /// The memory itself, as it is now.
    pub fn memory(&self) -> &'m M {
        self.memory
    }

    /// `count` words from an address on; `None` where one is not there.
    pub fn words(&self, address: u64, count: usize) -> Option<Vec<u64>> {
        let mut bytes = vec![0; count.checked_mul(8)?];
        self.fill(address, &mut bytes).then(|| words_of(&bytes))
    }

    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        if self.is_exhausted() {
            return false;
        }
        self.reads.set(self.reads.get() + 1);
        let is_read = self.memory.fill(address, into);
        if is_read {
            self.read_bytes.set(self.read_bytes.get() + into.len() as u64);
        }
        is_read
    }

    fn piece(&self, start: u64) -> Piece {
        let mut bytes = vec![0; PIECE_BYTES];
        if self.read(start, &mut bytes) {
            return Piece::Whole(bytes.into());
        }
        let page = |index: u64| {
            let mut bytes = vec![0; PAGE_BYTES];
            self.read(start + index * PAGE_BYTES as u64, &mut bytes).then(|| bytes.into())
        };
        Piece::Pages((0..(PIECE_BYTES / PAGE_BYTES) as u64).map(page).collect())
    }

    /// Fills a part that lies in one page.
    fn fill_part(&self, address: u64, into: &mut [u8]) -> bool {
        let offset = usize::try_from(address % PIECE_BYTES as u64).expect("less than a piece");
        let mut pieces = self.pieces.borrow_mut();
        let piece = pieces.entry(address - offset as u64).or_insert_with_key(|start| self.piece(*start));
        let from = match piece {
            Piece::Whole(bytes) => bytes.get(offset..),
            Piece::Pages(pages) => pages
                .get(offset / PAGE_BYTES)
                .and_then(Option::as_deref)
                .and_then(|page| page.get(offset % PAGE_BYTES..)),
        };
        from.and_then(|from| from.get(..into.len())).is_some_and(|from| {
            into.copy_from_slice(from);
            true
        })
    }
}

impl<M: Memory> Memory for Pass<'_, M> {
    fn fill(&self, address: u64, into: &mut [u8]) -> bool {
        let mut at = address;
        let mut rest = into;
        while !rest.is_empty() {
            let in_page = PAGE_BYTES - usize::try_from(at % PAGE_BYTES as u64).expect("less than a page");
            let (part, behind) = rest.split_at_mut(in_page.min(rest.len()));
            let Some(next) = at.checked_add(part.len() as u64) else { return false };
            if !self.fill_part(at, part) {
                return false;
            }
            (at, rest) = (next, behind);
        }
        true
    }
}

/// Bytes as words.
pub fn words_of(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of an address's low byte, where no page in `holes` is.
    struct Image {
        holes: Vec<u64>,
    }

    impl Memory for Image {
        fn fill(&self, address: u64, into: &mut [u8]) -> bool {
            let end = address + into.len() as u64;
            let page = |hole: &u64| hole * PAGE_BYTES as u64;
            if self.holes.iter().any(|hole| page(hole) < end && page(hole) + PAGE_BYTES as u64 > address) {
                return false;
            }
            into.iter_mut().zip(address..).for_each(|(byte, at)| *byte = u8::try_from(at % 251).expect("a byte"));
            true
        }
    }

    #[test]
    fn what_is_read_twice_is_fetched_once() {
        let image = Image { holes: Vec::new() };
        let pass = Pass::new(&image, u64::MAX);
        assert_eq!(pass.array::<2>(PIECE_BYTES as u64 - 1), Some([(65535 % 251) as u8, (65536 % 251) as u8]));
        assert_eq!(pass.array::<1>(5), Some([5]));
        assert_eq!((pass.reads(), pass.read_bytes()), (2, 2 * PIECE_BYTES as u64));
    }

    #[test]
    fn a_page_that_is_not_there_hides_only_itself() {
        let image = Image { holes: vec![1] };
        let pass = Pass::new(&image, u64::MAX);
        assert_eq!(pass.array::<1>(4095), Some([(4095 % 251) as u8]));
        assert_eq!(pass.array::<2>(4095), None);
        assert_eq!(pass.array::<1>(8192), Some([(8192 % 251) as u8]));
    }

    #[test]
    fn a_pass_ends_at_its_limit() {
        let image = Image { holes: Vec::new() };
        let pass = Pass::new(&image, PIECE_BYTES as u64);
        assert!(pass.array::<1>(0).is_some());
        assert!(pass.array::<1>(PIECE_BYTES as u64).is_none(), "the next piece is beyond it");
        assert!(pass.is_exhausted() && pass.array::<1>(7).is_some(), "what was read stays");
    }

    #[test]
    fn no_address_overflows() {
        let image = Image { holes: Vec::new() };
        let pass = Pass::new(&image, u64::MAX);
        assert_eq!(pass.array::<16>(u64::MAX - 7), None);
    }
}
