//! Caches the memory during a pass: each piece is read once and kept until the pass ends, forgets
//! it, or needs its room for another. Reads are counted.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use foldhash::fast::FixedState;

use crate::memory::{ALL_SPENT, MemoryAccess, SEARCH_SPENT};

/// Size of a piece in bytes.
const PIECE_BYTES: usize = 16 << 10;
/// Size of a page in bytes. A piece is read by pages if not all of it is mapped.
const PAGE_BYTES: usize = 4 << 10;

/// Size in bytes of the cells that are read for sparse data.
const CELL_BYTES: usize = 256;

/// Cell around an address; `None` if not mapped.
type Cell256 = Option<Box<[u8; CELL_BYTES]>>;

/// Maximum number of cached cells: 20 MiB with their places.
const MOST_CELLS: usize = 1 << 16;

/// Cached piece.
enum CachedPiece {
    Whole(Box<[u8]>),
    /// Pages of the piece that are mapped.
    Pages(Vec<Option<Box<[u8]>>>),
}

impl CachedPiece {
    /// Returns the bytes from an offset to the end of its page, if that is mapped.
    fn from(&self, offset: usize) -> Option<&[u8]> {
        match self {
            Self::Whole(bytes) => bytes.get(offset..),
            Self::Pages(pages) => {
                let page = pages.get(offset / PAGE_BYTES)?.as_deref()?;
                page.get(offset % PAGE_BYTES..)
            }
        }
    }
}

/// A piece, and whether it was used since the search for a piece to drop last came past it.
struct KeptPiece {
    start: u64,
    piece: CachedPiece,
    is_used: bool,
}

/// Cached pieces. If there are too many, one that was not used for a while is dropped.
struct KeptPieces {
    /// Index by address.
    places: HashMap<u64, usize, FixedState>,
    pieces: Vec<KeptPiece>,
    most: usize,
    /// Index at which the next search for a piece to drop begins.
    hand: usize,
    /// Address and index of the piece used last, which is mostly the next one, too.
    last: (u64, usize),
}

impl KeptPieces {
    /// No piece begins at this address.
    const NOWHERE: u64 = u64::MAX;

    fn new(most: usize) -> Self {
        Self { places: HashMap::default(), pieces: Vec::new(), most, hand: 0, last: (Self::NOWHERE, 0) }
    }

    fn clear(&mut self) {
        *self = Self::new(self.most);
    }

    fn has(&self, start: u64) -> bool {
        self.last.0 == start || self.places.contains_key(&start)
    }

    fn get(&mut self, start: u64) -> Option<&CachedPiece> {
        if self.last.0 != start {
            self.last = (start, *self.places.get(&start)?);
        }
        let kept = self.pieces.get_mut(self.last.1)?;
        kept.is_used = true;
        Some(&kept.piece)
    }

    /// Returns a buffer for another piece: that of a piece that is dropped for it, if there are
    /// enough.
    fn room(&mut self) -> (Option<usize>, Box<[u8]>) {
        if self.pieces.len() < self.most {
            return (None, vec![0; PIECE_BYTES].into());
        }
        while std::mem::take(&mut self.pieces[self.hand].is_used) {
            self.hand = (self.hand + 1) % self.pieces.len();
        }
        let dropped = &mut self.pieces[self.hand];
        self.places.remove(&dropped.start);
        let bytes = match std::mem::replace(&mut dropped.piece, CachedPiece::Pages(Vec::new())) {
            CachedPiece::Whole(bytes) => bytes,
            CachedPiece::Pages(_) => vec![0; PIECE_BYTES].into(),
        };
        let place = self.hand;
        self.hand = (place + 1) % self.pieces.len();
        (Some(place), bytes)
    }

    fn put(&mut self, start: u64, place: Option<usize>, piece: CachedPiece) {
        let kept = KeptPiece { start, piece, is_used: true };
        let place = place.unwrap_or(self.pieces.len());
        match self.pieces.get_mut(place) {
            Some(dropped) => *dropped = kept,
            None => self.pieces.push(kept),
        }
        self.places.insert(start, place);
        self.last = (start, place);
    }
}

/// A memory read in one pass.
pub struct Pass<'m, M> {
    memory: &'m M,
    pieces: RefCell<KeptPieces>,
    /// Cells by address.
    cells: RefCell<HashMap<u64, Cell256, FixedState>>,
    reads_cells: Cell<bool>,
    read_bytes: Cell<u64>,
    reads: Cell<u64>,
    most_bytes: u64,
    /// Spent time budget at the last query of the memory, and the number of calls since.
    spent: Cell<(u32, u32)>,
}

impl<'m, M: MemoryAccess> Pass<'m, M> {
    /// Creates a pass over this memory that reads at most this many bytes.
    pub fn new(memory: &'m M, most_bytes: u64) -> Self {
        Self {
            memory,
            pieces: RefCell::new(KeptPieces::new(usize::MAX)),
            cells: RefCell::default(),
            reads_cells: Cell::new(false),
            read_bytes: Cell::new(0),
            reads: Cell::new(0),
            most_bytes,
            spent: Cell::new((0, 0)),
        }
    }

    /// Limits the cache to so many bytes. What was dropped is read again, and may have changed.
    #[must_use]
    pub fn keeping(self, most_bytes: usize) -> Self {
        self.pieces.borrow_mut().most = (most_bytes / PIECE_BYTES).max(1);
        self
    }

    /// Drops the cache, so that the current memory is read.
    pub fn forget(&self) {
        self.pieces.borrow_mut().clear();
        self.cells.borrow_mut().clear();
    }

    /// Runs `read` with small reads around each address, for scattered data such as C++ objects.
    pub fn sparsely<T>(&self, read: impl FnOnce() -> T) -> T {
        let before = self.reads_cells.replace(true);
        let done = read();
        self.reads_cells.set(before);
        done
    }

    /// Returns the number of bytes read.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes.get()
    }

    /// Returns the number of reads.
    pub fn reads(&self) -> u64 {
        self.reads.get()
    }

    /// Returns whether a limit was reached, so that missing data may exist.
    pub fn is_exhausted(&self) -> bool {
        self.read_bytes.get() >= self.most_bytes || self.is_late()
    }

    /// Returns whether searches must end because of the time budget.
    pub fn is_hurried(&self) -> bool {
        self.spent.get().0 >= SEARCH_SPENT
    }

    /// Returns whether the time budget is spent.
    pub fn is_late(&self) -> bool {
        self.spent.get().0 >= ALL_SPENT
    }

    /// Returns the underlying memory, uncached.
    pub fn memory(&self) -> &'m M {
        self.memory
    }

    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        // Cached data stays available after the time budget is spent.
        self.ask();
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

    fn ask(&self) {
        self.spent.set((self.memory.spent().max(self.spent.get().0), 0));
    }

    /// Reads a piece into this buffer, or its pages into their own.
    fn piece(&self, start: u64, mut bytes: Box<[u8]>) -> CachedPiece {
        if self.read(start, &mut bytes) {
            return CachedPiece::Whole(bytes);
        }
        let page = |index: u64| {
            let mut bytes = vec![0; PAGE_BYTES];
            self.read(start + index * PAGE_BYTES as u64, &mut bytes).then(|| bytes.into())
        };
        CachedPiece::Pages((0..(PIECE_BYTES / PAGE_BYTES) as u64).map(page).collect())
    }

    /// Fills a part of a page cell by cell, if its piece is not cached.
    fn fill_from_cells(&self, address: u64, into: &mut [u8]) -> bool {
        let mut cells = self.cells.borrow_mut();
        if cells.len() >= MOST_CELLS {
            cells.clear();
        }
        let (mut at, mut rest) = (address, into);
        while !rest.is_empty() {
            let offset = usize::try_from(at % CELL_BYTES as u64).expect("less than a cell");
            let (part, behind) = rest.split_at_mut((CELL_BYTES - offset).min(rest.len()));
            let cell = cells.entry(at - offset as u64).or_insert_with_key(|start| {
                let mut bytes = Box::new([0; CELL_BYTES]);
                self.read(*start, &mut bytes[..]).then_some(bytes)
            });
            let Some(cell) = cell else { return false };
            part.copy_from_slice(&cell[offset..offset + part.len()]);
            (at, rest) = (at + part.len() as u64, behind);
        }
        true
    }

    /// Fills a part of a page.
    fn fill_part(&self, address: u64, into: &mut [u8]) -> bool {
        let offset = usize::try_from(address % PIECE_BYTES as u64).expect("less than a piece");
        let start = address - offset as u64;
        let mut pieces = self.pieces.borrow_mut();
        if self.reads_cells.get() && !pieces.has(start) {
            return self.fill_from_cells(address, into);
        }
        if !pieces.has(start) {
            let (place, bytes) = pieces.room();
            pieces.put(start, place, self.piece(start, bytes));
        }
        pieces.get(start).and_then(|piece| piece.from(offset)?.get(..into.len())).is_some_and(|from| {
            into.copy_from_slice(from);
            true
        })
    }
}

impl<M: MemoryAccess> MemoryAccess for Pass<'_, M> {
    /// Returns the spent part of the time or byte budget, whichever is larger. The memory is
    /// queried only now and then, since reading a clock may take longer than the work in between.
    fn spent(&self) -> u32 {
        const BETWEEN: u32 = 64;
        let (spent, asked) = self.spent.get();
        if asked >= BETWEEN {
            self.ask();
        } else {
            self.spent.set((spent, asked + 1));
        }
        let of_bytes = self.read_bytes.get().saturating_mul(1000) / self.most_bytes.max(1);
        self.spent.get().0.max(u32::try_from(of_bytes).unwrap_or(u32::MAX))
    }

    fn fill_fresh(&self, address: u64, into: &mut [u8]) -> bool {
        self.read(address, into)
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory in which each byte is the low byte of its address, except for unmapped pages in
    /// `holes`.
    struct Image {
        holes: Vec<u64>,
    }

    impl MemoryAccess for Image {
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
    fn pass_fetches_each_piece_once() {
        let image = Image { holes: Vec::new() };
        let pass = Pass::new(&image, u64::MAX);
        assert_eq!(pass.array::<2>(PIECE_BYTES as u64 - 1), Some([(16383 % 251) as u8, (16384 % 251) as u8]));
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
    fn sparse_pass_reads_small_cells_and_reuses_fetched_bytes() {
        let image = Image { holes: vec![1] };
        let pass = Pass::new(&image, u64::MAX);
        let cells = CELL_BYTES as u64;
        pass.sparsely(|| {
            assert_eq!(pass.array::<2>(cells - 1), Some([(255 % 251) as u8, (256 % 251) as u8]));
            assert_eq!((pass.array::<1>(5), pass.array::<1>(4096)), (Some([5]), None));
        });
        assert_eq!((pass.reads(), pass.read_bytes()), (3, 2 * cells));
        assert_eq!(pass.array::<1>(5), Some([5]));
        let read = pass.read_bytes();
        assert_eq!(pass.sparsely(|| pass.array::<1>(8 * cells + 8192)), Some([(10240 % 251) as u8]));
        assert_eq!(pass.read_bytes(), read, "the piece was read by then");
    }

    #[test]
    fn pass_reads_again_after_forget() {
        let image = Image { holes: Vec::new() };
        let pass = Pass::new(&image, u64::MAX);
        for reads in 1..3 {
            assert_eq!(pass.array::<1>(5), Some([5]));
            assert_eq!(pass.reads(), reads);
            pass.forget();
        }
    }

    #[test]
    fn a_pass_keeps_what_it_uses_and_not_more_than_it_may() {
        let image = Image { holes: vec![9] };
        let pass = Pass::new(&image, u64::MAX).keeping(2 * PIECE_BYTES);
        let byte = |piece: u64| pass.array::<1>(piece * PIECE_BYTES as u64 + 3);
        let read = |pieces: &[u64]| {
            let before = pass.reads();
            assert!(pieces.iter().all(|piece| byte(*piece) == Some([((piece * 16384 + 3) % 251) as u8])), "{pieces:?}");
            pass.reads() - before
        };
        assert_eq!(read(&[0, 1, 0, 1, 1]), 2);
        assert_eq!(read(&[3, 1, 3]), 1, "in the room of the first");
        assert_eq!(read(&[4, 3]), 1, "the one that was used longest ago");
        // Of the third piece, one page is missing.
        assert_eq!((read(&[2, 2]), read(&[4, 3, 2])), (5, 1), "a piece with a missing page is read page by page");
        pass.forget();
        assert_eq!(read(&[0, 1, 3, 0]), 4);
    }

    #[test]
    fn a_pass_ends_at_its_limit() {
        let image = Image { holes: Vec::new() };
        let pass = Pass::new(&image, PIECE_BYTES as u64);
        assert!(pass.array::<1>(0).is_some());
        assert!(pass.array::<1>(PIECE_BYTES as u64).is_none(), "the next piece is beyond it");
        assert!(pass.is_exhausted() && pass.array::<1>(7).is_some(), "what was read stays");
    }

    /// A memory with a time budget that a test can spend.
    struct Hurried {
        image: Image,
        spent: Cell<u32>,
    }

    impl MemoryAccess for Hurried {
        fn fill(&self, address: u64, into: &mut [u8]) -> bool {
            self.image.fill(address, into)
        }

        fn spent(&self) -> u32 {
            self.spent.get()
        }
    }

    #[test]
    fn a_pass_ends_with_its_time_and_what_was_read_stays() {
        let hurried = Hurried { image: Image { holes: Vec::new() }, spent: Cell::new(0) };
        let pass = Pass::new(&hurried, u64::MAX);
        assert!(pass.array::<1>(0).is_some() && !pass.is_hurried());
        hurried.spent.set(SEARCH_SPENT);
        assert!(pass.array::<1>(PIECE_BYTES as u64).is_some(), "what was found may be read");
        assert!(pass.is_hurried() && !pass.is_late());
        hurried.spent.set(ALL_SPENT);
        assert!(pass.array::<1>(2 * PIECE_BYTES as u64).is_none());
        assert!(pass.is_late() && pass.is_exhausted() && pass.array::<1>(7).is_some());
        assert!(pass.spent() >= ALL_SPENT);
    }

    #[test]
    fn bytes_are_spent_as_time_is() {
        let image = Image { holes: Vec::new() };
        let pass = Pass::new(&image, 4 * PIECE_BYTES as u64);
        for (piece, spent) in [(0, 250), (1, 500), (1, 500), (2, 750)] {
            assert!(pass.array::<1>(piece * PIECE_BYTES as u64).is_some());
            assert_eq!(pass.spent(), spent);
        }
        assert!(!pass.is_hurried(), "that is of the time");
    }

    #[test]
    fn no_address_overflows() {
        let image = Image { holes: Vec::new() };
        let pass = Pass::new(&image, u64::MAX);
        assert_eq!(pass.array::<16>(u64::MAX - 7), None);
    }
}
