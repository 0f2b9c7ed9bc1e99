//! The memory that is read, whoever fills it.

/// The memory of a process, or what stands for it in a test.
pub trait Memory {
    /// Fills the whole of `into` from `address` on, or says that it cannot.
    fn fill(&self, address: u64, into: &mut [u8]) -> bool;

    /// How much of what the reading may take is over, in thousandths: 1,000 when it has to end. 0 where it may take as long as it does.
    fn spent(&self) -> u32 {
        0
    }

    /// So many bytes, all of them.
    fn array<const BYTES: usize>(&self, address: u64) -> Option<[u8; BYTES]> {
        let mut bytes = [0; BYTES];
        self.fill(address, &mut bytes).then_some(bytes)
    }

    /// The word at an address.
    fn u64(&self, address: u64) -> Option<u64> {
        self.array(address).map(u64::from_le_bytes)
    }

    /// Half a word.
    fn u32(&self, address: u64) -> Option<u32> {
        self.array(address).map(u32::from_le_bytes)
    }

    /// `count` bytes; none where that is more than `limit`.
    fn bytes(&self, address: u64, count: u64, limit: usize) -> Option<Vec<u8>> {
        let count = usize::try_from(count).ok().filter(|count| *count <= limit)?;
        let mut bytes = vec![0; count];
        self.fill(address, &mut bytes).then_some(bytes)
    }

    /// `count` words from an address on, all of them.
    fn words(&self, address: u64, count: usize) -> Option<Vec<u64>> {
        let mut bytes = vec![0; count.checked_mul(8)?];
        self.fill(at(address, 0)?, &mut bytes).then(|| words_of(&bytes))
    }

    /// What stands before the next NUL byte; none where that is longer than 255 bytes.
    fn terminated(&self, address: u64) -> Option<Vec<u8>> {
        const PIECE_BYTES: u64 = 32;
        let mut text = Vec::new();
        while text.len() < 255 {
            let at = address.checked_add(text.len() as u64)?;
            // A piece does not reach over its own end into a page that may not be there.
            let piece = self.bytes(at, PIECE_BYTES - at % PIECE_BYTES, 32)?;
            match piece.iter().position(|byte| *byte == 0) {
                Some(end) => {
                    text.extend_from_slice(&piece[..end]);
                    return Some(text);
                }
                None => text.extend(piece),
            }
        }
        None
    }
}

/// When a search among objects ends, so that there is time to read what it has found: in thousandths, as of [`Memory::spent`].
pub const SEARCH_SPENT: u32 = 500;
/// When paths are no longer looked for: the rest is for what is settled at the end.
pub const PATHS_SPENT: u32 = 850;
/// All of the time.
pub const ALL_SPENT: u32 = 1000;

/// Bytes as words.
pub fn words_of(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// `base + offset`, where that is an address.
pub fn at(base: u64, offset: u32) -> Option<u64> {
    // What no object lies at: the first page, and the kernel's half.
    (0x1000..1 << 56).contains(&base).then(|| base + u64::from(offset))
}

/// How many bytes the piece of glibc's heap at an address has, by the word before it, whose lowest bits are flags (`mchunk_size` of malloc/malloc.c). Of
/// another heap it may be any number.
pub fn heap_bytes(memory: &impl Memory, address: u64) -> Option<u64> {
    const HEAD_BYTES: u64 = 8;
    let size = memory.u64(at(address, 0)?.checked_sub(HEAD_BYTES)?)?;
    (size & !15).checked_sub(HEAD_BYTES)
}
