//! Symbol addresses of a program or library as it is mapped in a process.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::Arc;

use memchr::memmem::Finder;
use object::LittleEndian;
use object::elf::{FileHeader64, PT_LOAD, SHN_UNDEF, Sym64};
use object::pod::from_bytes;
use object::read::elf::{FileHeader as _, ProgramHeader as _};

use super::address_space::{AddressSpace, MemoryMapping};
use super::build_id::build_id;
use super::kernel::resolve::{ResolveError, SYMBOL_BYTES, SymbolLayout, SymbolTableRange};
use super::pieces::in_pieces;
use crate::printable::printable;
use crate::stranger_file::{self, ElfReader, MOST_CODE_BYTES};

const LE: LittleEndian = LittleEndian;
type ElfFileHeader = FileHeader64<LittleEndian>;

/// Maximum number of headers in a valid program.
const MOST_HEADERS: usize = 4096;
/// Maximum number of occurrences of a wanted name in a string table. A linker writes each name
/// once.
const MOST_PLACES: usize = 1024;

/// Why a file cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BinaryError {
    /// The file is gone or cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(io::ErrorKind),
    /// The file is not an ELF file for this processor, or is inconsistent.
    #[error("it is damaged")]
    Damaged,
}

/// A file with code, as mapped in a process.
#[derive(Debug)]
pub(crate) struct Binary {
    /// Path as the process sees it, printable.
    pub(crate) display: String,
    /// The file, opened with `O_PATH`.
    pub(crate) file: Arc<File>,
    /// Build id in hexadecimal digits, if any.
    pub(crate) build_id: Option<String>,
    /// Offset from addresses in the file to addresses in the process.
    bias: u64,
    segments: Vec<BinarySegment>,
    /// Symbols found, with their addresses in the file.
    symbols: Vec<(&'static str, u64)>,
}

/// A loaded segment of a file.
#[derive(Clone, Copy, Debug)]
struct BinarySegment {
    address: u64,
    offset: u64,
    file_bytes: u64,
}

impl Binary {
    /// Reads the file of a process's first mapping of it, and looks up these symbols in the dynamic
    /// table and, if the first symbol is not in that, in the static table.
    ///
    /// # Errors
    /// The file is gone, or is not an ELF file.
    pub(crate) fn of(
        space: &AddressSpace,
        mapping: &MemoryMapping,
        wanted: &[&'static str],
    ) -> Result<Self, BinaryError> {
        let file = space.file_of(mapping).ok_or(BinaryError::Unreadable(io::ErrorKind::NotFound))?;
        Self::read(file, mapping, wanted)
    }

    fn read(file: File, mapping: &MemoryMapping, wanted: &[&'static str]) -> Result<Self, BinaryError> {
        let unreadable = |error: io::Error| BinaryError::Unreadable(error.kind());
        let readable = stranger_file::reopen(&file, MOST_CODE_BYTES).map_err(unreadable)?;
        let cache = ElfReader::new(readable.try_clone().map_err(unreadable)?);
        let damaged = || BinaryError::Damaged;
        let header =
            ElfFileHeader::parse(&cache).ok().filter(|header| header.is_little_endian()).ok_or_else(damaged)?;
        let headers = header.program_headers(LE, &cache).map_err(|_damaged| damaged())?;
        let headers = headers.get(..MOST_HEADERS).unwrap_or(headers);
        let build_id = build_id(&cache, headers);
        let segments: Vec<BinarySegment> = headers
            .iter()
            .filter(|header| header.p_type(LE) == PT_LOAD)
            .map(|header| BinarySegment {
                address: header.p_vaddr(LE),
                offset: header.p_offset(LE),
                file_bytes: header.p_filesz(LE),
            })
            .collect();
        let symbols = symbols(&readable, &cache, wanted).ok_or_else(damaged)?;
        let display = printable(&String::from_utf8_lossy(&mapping.path)).into_owned();
        let bias = bias(&segments, mapping).ok_or_else(damaged)?;
        Ok(Self { display, file: Arc::new(file), build_id, bias, segments, symbols })
    }

    /// Returns the address of a symbol in the process; `None` if the file lacks the symbol.
    pub(crate) fn address(&self, symbol: &str) -> Option<u64> {
        let (_, address) = self.symbols.iter().find(|(name, _)| *name == symbol)?;
        Some(address.wrapping_add(self.bias))
    }

    /// Returns the file offset of an address in the process; `None` if the address is not in the
    /// file.
    pub(crate) fn file_offset(&self, address: u64) -> Option<u64> {
        let address = address.wrapping_sub(self.bias);
        self.segments.iter().find_map(|segment| {
            let into = address.checked_sub(segment.address).filter(|into| *into < segment.file_bytes)?;
            segment.offset.checked_add(into)
        })
    }
}

/// Computes the offset from file addresses to process addresses. The kernel maps whole pages: a
/// mapping starts at the page that contains the start of a segment, or later.
fn bias(segments: &[BinarySegment], mapping: &MemoryMapping) -> Option<u64> {
    const PAGE_BYTES: u64 = 4096;
    let page = |offset: u64| offset & !(PAGE_BYTES - 1);
    let segment = segments.iter().find(|segment| {
        let end = segment.offset.saturating_add(segment.file_bytes);
        (page(segment.offset)..end).contains(&mapping.offset)
    })?;
    let address = segment.address.wrapping_add(mapping.offset).wrapping_sub(segment.offset);
    Some(mapping.start.wrapping_sub(address))
}

/// Looks up symbols in the dynamic table, or else in the static one. Returns `None` for a damaged
/// file.
fn symbols(file: &File, data: &ElfReader, wanted: &[&'static str]) -> Option<Vec<(&'static str, u64)>> {
    let mut found: Vec<(&'static str, u64)> = Vec::new();
    let layout = match SymbolLayout::parse(data) {
        Err(ResolveError::NoSymbols) => return Some(found),
        layout => layout.ok()?,
    };
    for table in layout.tables() {
        let places = places(file, table, wanted).ok()?;
        let mut look = |symbol: &[u8; SYMBOL_BYTES]| {
            let (symbol, _) = from_bytes::<Sym64<LittleEndian>>(symbol).ok()?;
            let name = places.get(&symbol.st_name.get(LE).into()).filter(|_| symbol.st_shndx.get(LE) != SHN_UNDEF)?;
            if found.iter().all(|(found, _)| found != name) {
                found.push((name, symbol.st_value.get(LE)));
            }
            Some(())
        };
        let read = in_pieces(file, table.symbols, |_, piece| {
            let (symbols, rest) = piece.as_chunks::<SYMBOL_BYTES>();
            for symbol in symbols {
                look(symbol);
            }
            rest.len()
        });
        read.ok()?;
        if wanted.first().is_some_and(|first| found.iter().any(|(found, _)| found == first)) {
            break;
        }
    }
    Some(found)
}

/// Returns the offsets of names in a string table. A name is searched for with its terminating
/// zero.
fn places(file: &File, table: SymbolTableRange, wanted: &[&'static str]) -> io::Result<BTreeMap<u64, &'static str>> {
    let ended: Vec<(&'static str, Vec<u8>)> =
        wanted.iter().map(|name| (*name, [name.as_bytes(), &[0]].concat())).collect();
    let finders: Vec<(&'static str, Finder<'_>)> =
        ended.iter().map(|(name, text)| (*name, Finder::new(text))).collect();
    let again = ended.iter().map(|(_, text)| text.len() - 1).max().unwrap_or(0);
    let mut places = BTreeMap::new();
    in_pieces(file, table.strings, |offset, piece| {
        for (name, finder) in &finders {
            let room = MOST_PLACES.saturating_sub(places.len());
            places.extend(finder.find_iter(piece).take(room).map(|at| (offset + at as u64, *name)));
        }
        again
    })?;
    Ok(places)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::FileExt as _;

    use super::*;

    #[test]
    fn an_address_is_found_by_its_symbol_and_an_absent_one_is_not() {
        let file = File::open("/proc/self/exe").expect("this program");
        let data = ElfReader::new(file.try_clone().expect("a descriptor"));
        let own = symbols(&file, &data, &["main", "_start", "memwatch_has_no_such_symbol"]).expect("a program");
        let names: BTreeSet<&str> = own.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, BTreeSet::from(["main", "_start"]));
        assert!(own.iter().all(|(_, address)| *address != 0));
    }

    #[test]
    fn a_sparse_file_that_says_it_has_a_large_table_takes_nothing() {
        let mut bytes = std::fs::read("/proc/self/exe").expect("this program");
        bytes.truncate(64);
        for (phnum, shnum, entries) in [(1_u16, 3_u16, 3_u64 << 30), (0xffff, 3, 24), (1, 0, 24)] {
            let file = tempfile::tempfile().expect("a file");
            file.set_len(7 << 30).expect("it is sparse");
            let section = |kind: u32, offset: u64, size: u64, link: u32| {
                let mut bytes = [0_u32, kind].map(u32::to_le_bytes).concat();
                bytes.extend([0_u64, 0, offset, size].map(u64::to_le_bytes).as_flattened());
                bytes.extend([link, u32::MAX].map(u32::to_le_bytes).as_flattened());
                bytes.extend([8_u64, 24].map(u64::to_le_bytes).as_flattened());
                bytes
            };
            let mut header = bytes.clone();
            header[0x20..0x28].copy_from_slice(&(1_u64 << 20).to_le_bytes());
            header[0x28..0x30].copy_from_slice(&4096_u64.to_le_bytes());
            header[0x38..0x3a].copy_from_slice(&phnum.to_le_bytes());
            header[0x3c..0x3e].copy_from_slice(&shnum.to_le_bytes());
            // If the header cannot hold the number of sections, the first section does.
            let sections =
                [section(0, 0, 1 << 40, 0), section(11, 1 << 16, entries, 2), section(3, 4 << 30, 1 << 20, 0)];
            file.write_all_at(&header, 0).expect("written");
            file.write_all_at(&sections.concat(), 4096).expect("written");
            let data = ElfReader::new(file.try_clone().expect("a descriptor"));
            let found = symbols(&file, &data, &["_PyRuntime"]);
            assert!(found.is_none_or(|found| found.is_empty()), "{phnum} {shnum} {entries}");
        }
    }
}
