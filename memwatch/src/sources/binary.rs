//! A program or library as a process has it in memory: where its symbols are.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use object::LittleEndian;
use object::elf::{FileHeader64, PT_LOAD, SHN_UNDEF, SHT_DYNSYM, SHT_SYMTAB};
use object::read::elf::{FileHeader as _, ProgramHeader as _, Sym as _};
use object::read::{ReadCache, ReadRef};

use super::address_space::{AddressSpace, Mapping};
use super::build_id::build_id;
use crate::printable::printable;

const LE: LittleEndian = LittleEndian;
type Header = FileHeader64<LittleEndian>;

/// Headers and symbols beyond that are no program's.
const MOST_HEADERS: usize = 4096;
const MOST_SYMBOLS: usize = 4 << 20;

/// Why a file cannot be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BinaryError {
    /// It has gone, or may not be read.
    #[error("it cannot be read: {0}")]
    Unreadable(io::ErrorKind),
    /// It is no ELF file for this processor, or contradicts itself.
    #[error("it is damaged")]
    Damaged,
}

/// A file with code, as a process has it in memory.
#[derive(Debug)]
pub(crate) struct Binary {
    /// Its path as the process sees it, printable.
    pub(crate) display: String,
    /// Opened with `O_PATH`.
    pub(crate) file: Arc<File>,
    /// Its build id in hexadecimal digits, if it has one.
    pub(crate) build_id: Option<String>,
    /// What to add to an address of the file to have one of the process.
    bias: u64,
    segments: Vec<Segment>,
    /// What was asked for and the file has, with the addresses there.
    symbols: Vec<(&'static str, u64)>,
}

/// A loaded piece of a file.
#[derive(Clone, Copy, Debug)]
struct Segment {
    address: u64,
    offset: u64,
    file_bytes: u64,
}

impl Binary {
    /// Reads the file of a process's mapping, which is the first that the process has of it, and looks for these symbols: in the dynamic table, and
    /// where the first is not there, in the static one.
    ///
    /// # Errors
    /// It is not there any more, or no ELF file.
    pub(crate) fn of(space: &AddressSpace, mapping: &Mapping, wanted: &[&'static str]) -> Result<Self, BinaryError> {
        let file = space.file_of(mapping).ok_or(BinaryError::Unreadable(io::ErrorKind::NotFound))?;
        Self::read(file, mapping, wanted)
    }

    fn read(file: File, mapping: &Mapping, wanted: &[&'static str]) -> Result<Self, BinaryError> {
        let readable = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let cache = ReadCache::new(readable.map_err(|error| BinaryError::Unreadable(error.kind()))?);
        let damaged = || BinaryError::Damaged;
        let header = Header::parse(&cache).ok().filter(|header| header.is_little_endian()).ok_or_else(damaged)?;
        let headers = header.program_headers(LE, &cache).map_err(|_damaged| damaged())?;
        let headers = headers.get(..MOST_HEADERS).unwrap_or(headers);
        let build_id = build_id(&cache, headers);
        let segments: Vec<Segment> = headers
            .iter()
            .filter(|header| header.p_type(LE) == PT_LOAD)
            .map(|header| Segment {
                address: header.p_vaddr(LE),
                offset: header.p_offset(LE),
                file_bytes: header.p_filesz(LE),
            })
            .collect();
        let symbols = symbols(header, &cache, wanted).ok_or_else(damaged)?;
        let display = printable(&String::from_utf8_lossy(&mapping.path)).into_owned();
        let bias = bias(&segments, mapping).ok_or_else(damaged)?;
        Ok(Self { display, file: Arc::new(file), build_id, bias, segments, symbols })
    }

    /// Where a symbol is in the process; `None` where the file has none of this name.
    pub(crate) fn address(&self, symbol: &str) -> Option<u64> {
        let (_, address) = self.symbols.iter().find(|(name, _)| *name == symbol)?;
        Some(address.wrapping_add(self.bias))
    }

    /// Which byte of the file lies at an address of the process; `None` for an address that is not of the file.
    pub(crate) fn file_offset(&self, address: u64) -> Option<u64> {
        let address = address.wrapping_sub(self.bias);
        self.segments.iter().find_map(|segment| {
            let into = address.checked_sub(segment.address).filter(|into| *into < segment.file_bytes)?;
            segment.offset.checked_add(into)
        })
    }
}

/// The kernel maps whole pages: a mapping begins at the page that a segment begins in, or later in it.
fn bias(segments: &[Segment], mapping: &Mapping) -> Option<u64> {
    const PAGE_BYTES: u64 = 4096;
    let page = |offset: u64| offset & !(PAGE_BYTES - 1);
    let segment = segments.iter().find(|segment| {
        let end = segment.offset.saturating_add(segment.file_bytes);
        (page(segment.offset)..end).contains(&mapping.offset)
    })?;
    let address = segment.address.wrapping_add(mapping.offset).wrapping_sub(segment.offset);
    Some(mapping.start.wrapping_sub(address))
}

/// The symbols, from the dynamic table or else the static one; `None` for a damaged file.
fn symbols<'data>(
    header: &Header,
    data: impl ReadRef<'data>,
    wanted: &[&'static str],
) -> Option<Vec<(&'static str, u64)>> {
    let sections = header.sections(LE, data).ok()?;
    let mut found: Vec<(&'static str, u64)> = Vec::new();
    for kind in [SHT_DYNSYM, SHT_SYMTAB] {
        let table = sections.symbols(LE, data, kind).ok()?;
        for symbol in table.iter().take(MOST_SYMBOLS) {
            if symbol.st_shndx(LE) == SHN_UNDEF {
                continue;
            }
            let Ok(name) = table.symbol_name(LE, symbol) else { continue };
            let Some(name) = wanted.iter().find(|wanted| wanted.as_bytes() == name) else { continue };
            if found.iter().all(|(found, _)| found != name) {
                found.push((name, symbol.st_value(LE)));
            }
        }
        if wanted.first().is_some_and(|first| found.iter().any(|(found, _)| found == first)) {
            break;
        }
    }
    Some(found)
}
