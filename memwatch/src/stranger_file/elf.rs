//! The headers and small tables of a file with code, as the crate object reads them: in pieces that are kept, of which there is a bound for each file. A sparse
//! file says that it has any number of any size for nothing.

use std::cell::Cell;
use std::fs::File;
use std::io::{Read, Seek};
use std::ops::Range;

use object::read::{ReadCache, ReadRef};

/// What one file's headers, small tables and code may take: the largest real ones take some 1 MiB. Larger tables are read in pieces, and not kept.
const MOST_KEPT_BYTES: u64 = 32 << 20;
/// What a piece takes beside its bytes.
const PIECE_BYTES: u64 = 128;
/// As long as the crate lets a text be.
const MOST_TEXT_BYTES: u64 = 4096;

/// Reads a file as far as its budget goes: from there on it is damaged.
#[derive(Debug)]
pub(crate) struct ElfReader<R: Read + Seek = File> {
    cache: ReadCache<R>,
    left_bytes: Cell<u64>,
}

impl<R: Read + Seek> ElfReader<R> {
    /// Nothing is read yet.
    pub(crate) fn new(file: R) -> Self {
        Self { cache: ReadCache::new(file), left_bytes: Cell::new(MOST_KEPT_BYTES) }
    }

    fn take(&self, bytes: u64) -> Result<(), ()> {
        let left = self.left_bytes.get().checked_sub(bytes.saturating_add(PIECE_BYTES)).ok_or(())?;
        self.left_bytes.set(left);
        Ok(())
    }
}

impl<'a, R: Read + Seek> ReadRef<'a> for &'a ElfReader<R> {
    fn len(self) -> Result<u64, ()> {
        self.cache.len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        self.take(size)?;
        self.cache.read_bytes_at(offset, size)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        self.take(range.end.saturating_sub(range.start).min(MOST_TEXT_BYTES))?;
        self.cache.read_bytes_at_until(range, delimiter)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, SeekFrom};

    use super::*;

    /// An endless file of zeros, which counts what is read of it.
    struct Hole<'a> {
        at: u64,
        read_bytes: &'a Cell<usize>,
    }

    impl Read for Hole<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            into.fill(0);
            self.at += into.len() as u64;
            self.read_bytes.set(self.read_bytes.get() + into.len());
            Ok(into.len())
        }
    }

    impl Seek for Hole<'_> {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.at = match to {
                SeekFrom::Start(at) => at,
                SeekFrom::End(_) => u64::MAX / 2,
                SeekFrom::Current(by) => self.at.wrapping_add_signed(by),
            };
            Ok(self.at)
        }
    }

    #[test]
    fn elf_reader_keeps_a_bounded_amount_of_a_file() {
        let read_bytes = Cell::new(0);
        let file = ElfReader::new(Hole { at: 0, read_bytes: &read_bytes });
        for size in [3 << 30, 1 << 50, u64::MAX / 2, u64::MAX] {
            assert!((&file).read_bytes_at(0, size).is_err(), "{size}");
        }
        assert_eq!(read_bytes.get(), 0, "a table that is too large is not begun");
        let mut pieces = 0_u64;
        while (&file).read_bytes_at(pieces * 4096, 4096).is_ok() {
            pieces += 1;
        }
        assert!((4096..=8192).contains(&pieces), "{pieces}");
        let file = ElfReader::new(Hole { at: 0, read_bytes: &read_bytes });
        let texts = (0..u64::MAX).take_while(|at| (&file).read_bytes_at_until(*at..u64::MAX / 2, 0).is_ok()).count();
        assert!(texts <= 8192, "{texts}");
    }
}
