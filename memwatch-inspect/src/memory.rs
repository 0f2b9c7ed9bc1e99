//! Access to the memory of a process.

/// The memory of a process, or a substitute in a test.
pub trait MemoryAccess {
    /// Fills all of `into` from `address` on. Returns whether it could.
    fn fill(&self, address: u64, into: &mut [u8]) -> bool;

    /// Does the same as [`Self::fill`] with what the memory is now, where `fill` has a cache.
    fn fill_fresh(&self, address: u64, into: &mut [u8]) -> bool {
        self.fill(address, into)
    }

    /// Returns how much of the time budget is spent, in thousandths; at 1,000 the reading must end.
    /// 0 if there is no budget.
    fn spent(&self) -> u32 {
        0
    }

    /// Reads this many bytes, or none.
    fn array<const BYTES: usize>(&self, address: u64) -> Option<[u8; BYTES]> {
        let mut bytes = [0; BYTES];
        self.fill(address, &mut bytes).then_some(bytes)
    }

    /// Reads the word at an address.
    fn u64(&self, address: u64) -> Option<u64> {
        self.array(address).map(u64::from_le_bytes)
    }

    /// Reads the half word at an address.
    fn u32(&self, address: u64) -> Option<u32> {
        self.array(address).map(u32::from_le_bytes)
    }

    /// Reads `count` bytes; `None` if that exceeds `limit`.
    fn bytes(&self, address: u64, count: u64, limit: usize) -> Option<Vec<u8>> {
        let count = usize::try_from(count).ok().filter(|count| *count <= limit)?;
        let mut bytes = vec![0; count];
        self.fill(address, &mut bytes).then_some(bytes)
    }

    /// Reads `count` words, or none.
    fn words(&self, address: u64, count: usize) -> Option<Vec<u64>> {
        // Few objects have more words, and a buffer on the stack costs nothing.
        const FEW: usize = 64;
        let address = at(address, 0)?;
        if count <= FEW {
            let mut bytes = [0; 8 * FEW];
            let bytes = bytes.get_mut(..8 * count)?;
            return self.fill(address, bytes).then(|| words_of(bytes));
        }
        let mut bytes = vec![0; count.checked_mul(8)?];
        self.fill(address, &mut bytes).then(|| words_of(&bytes))
    }

    /// Reads the bytes before the next NUL byte; `None` if they are more than 255.
    fn terminated(&self, address: u64) -> Option<Vec<u8>> {
        const PIECE_BYTES: u64 = 32;
        const MOST_BYTES: usize = 255;
        let mut text = Vec::new();
        while text.len() <= MOST_BYTES {
            let at = address.checked_add(text.len() as u64)?;
            // A piece must not extend into a page that may not be mapped.
            let piece = self.bytes(at, PIECE_BYTES - at % PIECE_BYTES, 32)?;
            match piece.iter().position(|byte| *byte == 0) {
                Some(end) => {
                    text.extend_from_slice(&piece[..end]);
                    return (text.len() <= MOST_BYTES).then_some(text);
                }
                None => text.extend(piece),
            }
        }
        None
    }
}

/// Point at which a search among objects ends, so that there is time to read its results; in
/// thousandths, as [`MemoryAccess::spent`].
pub const SEARCH_SPENT: u32 = 500;
/// Point at which the search for paths reads no further object. The rest is for the final checks.
pub const PATHS_SPENT: u32 = 850;
/// Point at which the search no longer follows references that were read before.
pub const FOLLOWED_SPENT: u32 = 925;
/// Point at which the time budget is spent.
pub const ALL_SPENT: u32 = 1000;

/// Converts bytes to words.
pub fn words_of(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// Returns `base + offset`, if `base` is a possible address.
pub fn at(base: u64, offset: u32) -> Option<u64> {
    // No object is in the first page or in the kernel's half.
    (0x1000..1 << 56).contains(&base).then(|| base + u64::from(offset))
}

/// Returns the size in bytes of the glibc heap chunk at an address, from the word before it. Its
/// lowest bits are flags (`mchunk_size` of malloc/malloc.c). In another heap it may be any number.
pub fn heap_bytes(memory: &impl MemoryAccess, address: u64) -> Option<u64> {
    const HEAD_BYTES: u64 = 8;
    let size = memory.u64(at(address, 0)?.checked_sub(HEAD_BYTES)?)?;
    (size & !15).checked_sub(HEAD_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE_AT: u64 = 0x1_0000;

    /// A page that begins at [`PAGE_AT`].
    struct MemoryPage(Vec<u8>);

    impl MemoryAccess for MemoryPage {
        fn fill(&self, address: u64, into: &mut [u8]) -> bool {
            let from = address.checked_sub(PAGE_AT).and_then(|from| usize::try_from(from).ok());
            let bytes = from.and_then(|from| self.0.get(from..from.checked_add(into.len())?));
            bytes.map(|bytes| into.copy_from_slice(bytes)).is_some()
        }
    }

    #[test]
    fn terminated_text_has_at_most_255_bytes_wherever_it_begins() {
        for start in [0, 1, 30, 31] {
            let read = |bytes: usize| {
                let page = MemoryPage([vec![b'.'; start], vec![b'a'; bytes], vec![0; 1024]].concat());
                page.terminated(PAGE_AT + start as u64).map(|text| text.len())
            };
            let found = [0, 1, 254, 255, 256, 285, 600].map(read);
            assert_eq!(found, [Some(0), Some(1), Some(254), Some(255), None, None, None], "{start}");
        }
    }
}
