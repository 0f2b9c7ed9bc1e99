//! The file that a process has its Python interpreter from: `libpython3.x.so`, or the program itself.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use object::LittleEndian;
use object::elf::{FileHeader64, PT_LOAD, SHN_UNDEF, SHT_DYNSYM, SHT_SYMTAB};
use object::read::elf::{FileHeader as _, ProgramHeader as _, Sym as _};
use object::read::{ReadCache, ReadRef};

use super::PythonError;
use crate::printable::printable;
use crate::sources::library::{open_mapped_file, unescape};

const LE: LittleEndian = LittleEndian;
type Header = FileHeader64<LittleEndian>;

/// What is read of a list of mappings at most: 100,000 of them.
const MOST_MAPS_BYTES: u64 = 16 << 20;
/// Headers and symbols beyond that are no program's.
const MOST_HEADERS: usize = 4096;
const MOST_SYMBOLS: usize = 4 << 20;

/// Addresses that are looked for.
const SYMBOLS: [&str; 5] = ["_PyRuntime", "PyCode_Type", "Py_Version", "Py_NewRef", "PyFrame_GetCode"];

/// A file with an interpreter, as a process has it in memory.
#[derive(Debug)]
pub(super) struct Binary {
    /// Its path as the process sees it, printable.
    pub(super) display: String,
    /// Opened with `O_PATH`.
    pub(super) file: Arc<File>,
    /// What to add to an address of the file to have one of the process.
    bias: u64,
    segments: Vec<Segment>,
    /// In the order of [`SYMBOLS`].
    symbols: [Option<u64>; SYMBOLS.len()],
}

/// A loaded piece of a file.
#[derive(Clone, Copy, Debug)]
struct Segment {
    address: u64,
    offset: u64,
    file_bytes: u64,
}

/// The first mapping of a file in a process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapping {
    range: String,
    start: u64,
    offset: u64,
    inode: u64,
    path: Vec<u8>,
}

impl Binary {
    /// Finds it; none where the process runs no Python that exports `_PyRuntime`.
    ///
    /// # Errors
    /// The process may not be looked at, or its library is no readable ELF file.
    pub(super) fn of_process(tgid: u32) -> Result<Option<Self>, PythonError> {
        let process = PathBuf::from(format!("/proc/{tgid}"));
        let program = fs::read_link(process.join("exe")).map_err(|error| PythonError::Unreadable(error.kind()))?;
        let maps = File::open(process.join("maps")).map_err(|error| PythonError::Unreadable(error.kind()))?;
        let maps = BufReader::with_capacity(32 << 10, maps.take(MOST_MAPS_BYTES));
        let (library, own) =
            candidates(maps, program.as_os_str().as_bytes()).map_err(|error| PythonError::Unreadable(error.kind()))?;
        for mapping in library.iter().chain(&own) {
            let Some(file) = open_mapped_file(&process, &mapping.range, &mapping.path, mapping.inode) else {
                return Err(PythonError::Unreadable(io::ErrorKind::NotFound));
            };
            if let Some(binary) = Self::read(file, mapping)? {
                return Ok(Some(binary));
            }
        }
        Ok(None)
    }

    fn read(file: File, mapping: &Mapping) -> Result<Option<Self>, PythonError> {
        let readable = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let cache = ReadCache::new(readable.map_err(|error| PythonError::Unreadable(error.kind()))?);
        let damaged = || PythonError::Damaged;
        let header = Header::parse(&cache).ok().filter(|header| header.is_little_endian()).ok_or_else(damaged)?;
        let headers = header.program_headers(LE, &cache).map_err(|_damaged| damaged())?;
        let segments: Vec<Segment> = headers
            .iter()
            .take(MOST_HEADERS)
            .filter(|header| header.p_type(LE) == PT_LOAD)
            .map(|header| Segment {
                address: header.p_vaddr(LE),
                offset: header.p_offset(LE),
                file_bytes: header.p_filesz(LE),
            })
            .collect();
        let symbols = symbols(header, &cache).ok_or_else(damaged)?;
        if symbols[0].is_none() {
            return Ok(None);
        }
        let display = printable(&String::from_utf8_lossy(&mapping.path)).into_owned();
        let bias = bias(&segments, mapping).ok_or_else(damaged)?;
        Ok(Some(Self { display, file: Arc::new(file), bias, segments, symbols }))
    }

    /// Where a symbol is in the process; `None` where the file has none of this name.
    pub(super) fn address(&self, symbol: &str) -> Option<u64> {
        let index = SYMBOLS.iter().position(|name| *name == symbol)?;
        self.symbols[index].map(|address| address.wrapping_add(self.bias))
    }

    /// Which byte of the file lies at an address of the process; `None` for an address that is not of the file.
    pub(super) fn file_offset(&self, address: u64) -> Option<u64> {
        let address = address.wrapping_sub(self.bias);
        self.segments.iter().find_map(|segment| {
            let into = address.checked_sub(segment.address).filter(|into| *into < segment.file_bytes)?;
            segment.offset.checked_add(into)
        })
    }
}

/// The first mappings of a `libpython3.x` and of the program.
fn candidates(mut maps: impl BufRead, program: &[u8]) -> io::Result<(Option<Mapping>, Option<Mapping>)> {
    let (mut library, mut own, mut line) = (None, None, Vec::new());
    loop {
        line.clear();
        if maps.read_until(b'\n', &mut line)? == 0 {
            return Ok((library, own));
        }
        let Some(mapping) = parse_line(line.trim_ascii_end()) else { continue };
        if library.is_none() && is_interpreter(&mapping.path) {
            library = Some(mapping);
        } else if own.is_none() && mapping.path == program {
            own = Some(mapping);
        }
    }
}

/// `start-end perms offset major:minor inode   /path`; the paths of removed files end as `readlink` of `exe` has them.
fn parse_line(line: &[u8]) -> Option<Mapping> {
    let path_start = line.iter().position(|byte| *byte == b'/')?;
    let mut fields = std::str::from_utf8(&line[..path_start]).ok()?.split_ascii_whitespace();
    let range = fields.next()?;
    let start = u64::from_str_radix(range.split_once('-')?.0, 16).ok()?;
    let offset = u64::from_str_radix(fields.nth(1)?, 16).ok()?;
    let inode = fields.nth(1)?.parse().ok()?;
    Some(Mapping { range: range.to_owned(), start, offset, inode, path: unescape(&line[path_start..]) })
}

/// `libpython3.11.so`, `libpython3.11.so.1.0`, `libpython3.13t.so`; not `libpython3.so`, which holds nothing.
fn is_interpreter(path: &[u8]) -> bool {
    let name = Path::new(std::ffi::OsStr::from_bytes(path)).file_name().map(OsStrExt::as_bytes).unwrap_or_default();
    name.strip_prefix(b"libpython3.").is_some_and(|rest| {
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        digits > 0 && rest[digits..].windows(3).any(|part| part == b".so")
    })
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
fn symbols<'data>(header: &Header, data: impl ReadRef<'data>) -> Option<[Option<u64>; SYMBOLS.len()]> {
    let sections = header.sections(LE, data).ok()?;
    let mut found = [None; SYMBOLS.len()];
    for kind in [SHT_DYNSYM, SHT_SYMTAB] {
        let table = sections.symbols(LE, data, kind).ok()?;
        for symbol in table.iter().take(MOST_SYMBOLS) {
            if symbol.st_shndx(LE) == SHN_UNDEF {
                continue;
            }
            let Ok(name) = table.symbol_name(LE, symbol) else { continue };
            if let Some(index) = SYMBOLS.iter().position(|wanted| wanted.as_bytes() == name) {
                found[index].get_or_insert(symbol.st_value(LE));
            }
        }
        if found[0].is_some() {
            break;
        }
    }
    Some(found)
}
