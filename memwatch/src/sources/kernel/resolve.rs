//! Resolves function names to file offsets for probes, from the bytes of a library file alone.
//!
//! The reader is generic over [`ReadRef`], so it takes a `&[u8]` (tests, fuzzing) or a
//! `&ElfReader<File>`, which reads only the few hundred kilobytes it needs of a 100 MB driver and,
//! unlike a memory map, cannot be killed by a concurrent truncation of the file. It does not choose
//! the attach offset (see `site`) and opens no file.

use std::collections::BTreeMap;

use object::elf::{
    FileHeader64, PF_X, PT_LOAD, ProgramHeader64, SHN_UNDEF, SHT_DYNSYM, SHT_SYMTAB, STT_FUNC, STT_OBJECT,
    SectionHeader64, Sym64,
};
use object::pod::slice_from_all_bytes;
use object::read::ReadRef;
use object::read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _};
use object::{LittleEndian, elf};

use crate::sources::build_id::build_id;

/// Only little-endian files are read; big-endian ones are refused first.
const LE: LittleEndian = LittleEndian;
/// Maximum size of a symbol or string table (175,000 symbols); the largest real one is below 100
/// KB.
const MAX_TABLE_BYTES: u64 = 4 << 20;
/// Maximum size of tables that are read in pieces and not kept: PyTorch's largest library has
/// 600,000 symbols and 100 MB of names.
const MOST_SYMBOLS_BYTES: u64 = 96 << 20;
const MOST_NAMES_BYTES: u64 = 1 << 30;
/// Maximum number of headers; real drivers have about 10 segments and 30 sections. The segment
/// limit matters because every symbol is looked up in every segment.
const MAX_SEGMENTS: u32 = 64;
const MAX_SECTIONS: u32 = 65_536;
/// Maximum length of a symbol name; the longest libcuda export has 51 characters.
const MAX_NAME_BYTES: usize = 255;
/// Maximum size of a function to return the code of; site selection refuses to judge a longer one.
const MAX_FUNCTION_BYTES: u64 = 64 << 10;

/// Why a library file cannot be probed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ResolveError {
    /// The file does not start with the ELF magic, or is shorter than it.
    #[error("not an ELF file")]
    NotElf,
    /// A 32-bit library: its calls carry arguments on the stack, which the probes do not read.
    #[error("32-bit ELF file: only 64-bit processes are watched")]
    ThirtyTwoBit,
    /// A big-endian file: no machine with an NVIDIA driver is big-endian.
    #[error("big-endian ELF file")]
    BigEndian,
    /// A header or table points outside the file or contradicts itself.
    #[error("damaged ELF file: {what}")]
    Damaged {
        /// The part that could not be read.
        what: &'static str,
    },
    /// There is neither a dynamic nor a static symbol table.
    #[error("no symbol table in the file")]
    NoSymbols,
}

/// The instruction set of a library, from the ELF header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InstructionSet {
    /// x86-64 (`EM_X86_64`).
    X86_64,
    /// 64-bit Arm (`EM_AARCH64`).
    Aarch64,
    /// Any other `e_machine` value.
    Other(u16),
}

/// Location of an exported function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FunctionLocation {
    /// Virtual address in the file's own address space (before relocation).
    pub(crate) address: u64,
    /// Offset from the start of the file, where a uprobe is attached.
    pub(crate) file_offset: u64,
    /// Length of the function in bytes from its symbol; 0 if the symbol has none.
    pub(crate) size_bytes: u64,
}

/// The exported functions of a library file, and its build id.
#[derive(Debug, Clone)]
pub(crate) struct SymbolTable<'data, R: ReadRef<'data> = &'data [u8]> {
    data: R,
    machine: InstructionSet,
    functions: BTreeMap<&'data str, FunctionLocation>,
    build_id: Option<String>,
}

impl<'data, R: ReadRef<'data>> SymbolTable<'data, R> {
    /// Reads the exported functions from `.dynsym`, or from `.symtab` if there is none.
    ///
    /// # Errors
    /// The [`ResolveError`] describes the defect of the file. Symbols outside the file's loaded
    /// segments are skipped without an error. No input causes a panic.
    pub(crate) fn parse(data: R) -> Result<Self, ResolveError> {
        check_identification(data)?;
        let header = FileHeader64::<LittleEndian>::parse(data).map_err(damaged("ELF header"))?;
        let segments = program_headers(header, data)?;
        let sections = section_headers(header, data)?;
        let table = find_section(sections, SHT_DYNSYM)
            .or_else(|| find_section(sections, SHT_SYMTAB))
            .ok_or(ResolveError::NoSymbols)?;
        Ok(Self {
            data,
            machine: machine_of(header.e_machine.get(LE).0),
            functions: functions(data, sections, table, segments)?,
            build_id: build_id(data, segments),
        })
    }

    /// Returns the location of the function `name`, if the library exports it.
    pub(crate) fn function(&self, name: &str) -> Option<FunctionLocation> {
        self.functions.get(name).copied()
    }

    /// Returns the names of all exported functions, in alphabetical order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'data str> {
        self.functions.keys().copied()
    }

    /// Returns the complete machine code of a function.
    ///
    /// Empty if the symbol has no size, if the function is longer than [`MAX_FUNCTION_BYTES`] or if
    /// it is outside the file: half a function would hide branches from site selection, which keeps
    /// the entry for an empty slice.
    pub(crate) fn code(&self, location: &FunctionLocation) -> &'data [u8] {
        if location.size_bytes > MAX_FUNCTION_BYTES {
            return &[];
        }
        self.data.read_bytes_at(location.file_offset, location.size_bytes).unwrap_or(&[])
    }

    /// Returns the GNU build id in lowercase hexadecimal, if the file has one.
    pub(crate) fn build_id(&self) -> Option<&str> {
        self.build_id.as_deref()
    }

    /// Returns the instruction set of the library.
    pub(crate) fn machine(&self) -> InstructionSet {
        self.machine
    }
}

/// Size of an entry of a symbol table in bytes.
pub(crate) const SYMBOL_BYTES: usize = size_of::<Sym64<LittleEndian>>();

/// A symbol table and its string table: offset and length in the file, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SymbolTableRange {
    /// Range of the symbols.
    pub(crate) symbols: (u64, u64),
    /// Range of their names.
    pub(crate) strings: (u64, u64),
}

/// Positions of a file's symbol tables, for reading large ones in pieces.
#[derive(Debug, Clone)]
pub(crate) struct SymbolLayout<'data> {
    segments: &'data [ElfSegment],
    tables: Vec<SymbolTableRange>,
    machine: InstructionSet,
    file_bytes: u64,
    build_id: Option<String>,
}

impl<'data> SymbolLayout<'data> {
    /// Parses the headers.
    ///
    /// # Errors
    /// Fails as [`SymbolTable::parse`] does.
    pub(crate) fn parse<R: ReadRef<'data>>(data: R) -> Result<Self, ResolveError> {
        check_identification(data)?;
        let header = FileHeader64::<LittleEndian>::parse(data).map_err(damaged("ELF header"))?;
        let segments = program_headers(header, data)?;
        let sections = section_headers(header, data)?;
        let file_bytes = data.len().map_err(damaged("file length"))?;
        let range = |section: &Section, most_bytes: u64| {
            let (offset, length) = (section.sh_offset(LE), section.sh_size(LE));
            let end = offset.checked_add(length).filter(|end| *end <= file_bytes && length <= most_bytes);
            end.map(|_| (offset, length))
        };
        let table = |kind| {
            let section = find_section(sections, kind)?;
            let strings = sections.get(usize::try_from(section.sh_link(LE)).ok()?)?;
            Some(SymbolTableRange {
                symbols: range(section, MOST_SYMBOLS_BYTES)?,
                strings: range(strings, MOST_NAMES_BYTES)?,
            })
        };
        let tables: Vec<SymbolTableRange> = [SHT_DYNSYM, SHT_SYMTAB].into_iter().filter_map(table).collect();
        if tables.is_empty() {
            return Err(ResolveError::NoSymbols);
        }
        let (machine, build_id) = (machine_of(header.e_machine.get(LE).0), build_id(data, segments));
        Ok(Self { segments, tables, machine, file_bytes, build_id })
    }

    /// Returns the tables in the file: first the exported symbols, then all symbols.
    pub(crate) fn tables(&self) -> impl Iterator<Item = SymbolTableRange> {
        self.tables.iter().copied()
    }

    /// Returns the instruction set.
    pub(crate) fn machine(&self) -> InstructionSet {
        self.machine
    }

    /// Returns the GNU build id in hexadecimal digits, if the file has one.
    pub(crate) fn build_id(&self) -> Option<&str> {
        self.build_id.as_deref()
    }

    /// Returns the address, before relocation, of the code at a file offset.
    pub(crate) fn address_of(&self, file_offset: u64) -> Option<u64> {
        let code = |segment: &&ElfSegment| segment.p_type(LE) == PT_LOAD && segment.p_flags(LE).contains(PF_X);
        self.segments.iter().filter(code).find_map(|segment| {
            let within = file_offset.checked_sub(segment.p_offset(LE))?;
            (within < segment.p_filesz(LE)).then(|| segment.p_vaddr(LE).checked_add(within))?
        })
    }

    /// Returns the function that a symbol table entry defines in this file, if it defines one.
    pub(crate) fn function(&self, symbol: &[u8; SYMBOL_BYTES]) -> Option<FunctionLocation> {
        let (symbol, _) = object::pod::from_bytes::<Sym64<LittleEndian>>(symbol).ok()?;
        if symbol.st_type() != STT_FUNC || symbol.st_shndx.get(LE) == SHN_UNDEF {
            return None;
        }
        locate(symbol, self.segments).filter(|location| lies_within(location, self.file_bytes))
    }

    /// Returns the address, before relocation, of the data that a symbol table entry defines in
    /// this file, if it defines any.
    pub(crate) fn object(symbol: &[u8; SYMBOL_BYTES]) -> Option<u64> {
        let (symbol, _) = object::pod::from_bytes::<Sym64<LittleEndian>>(symbol).ok()?;
        let is_defined = symbol.st_type() == STT_OBJECT && symbol.st_shndx.get(LE) != SHN_UNDEF;
        is_defined.then(|| symbol.st_value.get(LE))
    }
}

fn damaged<E>(what: &'static str) -> impl Fn(E) -> ResolveError {
    move |_| ResolveError::Damaged { what }
}

fn check_identification<'data>(data: impl ReadRef<'data>) -> Result<(), ResolveError> {
    let ident = data.read_bytes_at(0, 16).unwrap_or(&[]);
    match ident {
        [0x7f, b'E', b'L', b'F', class, encoding, ..] => match (*class, *encoding) {
            (1, _) => Err(ResolveError::ThirtyTwoBit),
            (2, 1) => Ok(()),
            (2, 2) => Err(ResolveError::BigEndian),
            _ => Err(ResolveError::Damaged { what: "ELF class" }),
        },
        _ => Err(ResolveError::NotElf),
    }
}

fn machine_of(e_machine: u16) -> InstructionSet {
    match e_machine {
        machine if machine == elf::EM_X86_64.0 => InstructionSet::X86_64,
        machine if machine == elf::EM_AARCH64.0 => InstructionSet::Aarch64,
        other => InstructionSet::Other(other),
    }
}

type ElfHeader = FileHeader64<LittleEndian>;
type ElfSegment = ProgramHeader64<LittleEndian>;
type Section = SectionHeader64<LittleEndian>;

fn program_headers<'data>(header: &ElfHeader, data: impl ReadRef<'data>) -> Result<&'data [ElfSegment], ResolveError> {
    let what = "program headers";
    let count = header.phnum(LE, data).map_err(damaged(what))?;
    if count > MAX_SEGMENTS {
        return Err(ResolveError::Damaged { what });
    }
    header.program_headers(LE, data).map_err(damaged(what))
}

fn section_headers<'data>(header: &ElfHeader, data: impl ReadRef<'data>) -> Result<&'data [Section], ResolveError> {
    let what = "section headers";
    let count = header.shnum(LE, data).map_err(damaged(what))?;
    if count > MAX_SECTIONS {
        return Err(ResolveError::Damaged { what });
    }
    header.section_headers(LE, data).map_err(damaged(what))
}

fn find_section(sections: &[Section], kind: elf::SectionType) -> Option<&Section> {
    sections.iter().find(|section| section.sh_type(LE) == kind)
}

/// Returns the bytes of a table section; refuses one that is too large or outside the file.
fn table_bytes<'data>(
    data: impl ReadRef<'data>,
    section: &Section,
    what: &'static str,
) -> Result<&'data [u8], ResolveError> {
    if section.sh_size(LE) > MAX_TABLE_BYTES {
        return Err(ResolveError::Damaged { what });
    }
    section.data(LE, data).map_err(damaged(what))
}

/// Returns the bytes of the string table that `section` links to.
fn linked_strings<'data>(
    data: impl ReadRef<'data>,
    sections: &[Section],
    section: &Section,
) -> Result<&'data [u8], ResolveError> {
    let what = "string table";
    let index = usize::try_from(section.sh_link(LE)).map_err(damaged(what))?;
    let strings = sections.get(index).ok_or(ResolveError::Damaged { what })?;
    table_bytes(data, strings, what)
}

/// Returns the NUL-terminated name at `offset`; `None` for names no linker would write.
fn name_at(strings: &[u8], offset: u64) -> Option<&str> {
    let tail = strings.get(usize::try_from(offset).ok()?..)?;
    let window = tail.get(..=MAX_NAME_BYTES).unwrap_or(tail);
    let length = window.iter().position(|&byte| byte == 0)?;
    std::str::from_utf8(&window[..length]).ok().filter(|name| !name.is_empty())
}

fn functions<'data>(
    data: impl ReadRef<'data>,
    sections: &[Section],
    table: &Section,
    segments: &[ElfSegment],
) -> Result<BTreeMap<&'data str, FunctionLocation>, ResolveError> {
    let what = "symbol table";
    let symbols: &[Sym64<LittleEndian>] =
        slice_from_all_bytes(table_bytes(data, table, what)?).map_err(damaged(what))?;
    let strings = linked_strings(data, sections, table)?;
    let file_bytes = data.len().map_err(damaged("file length"))?;
    let mut found = BTreeMap::new();
    for symbol in symbols {
        if symbol.st_type() != STT_FUNC || symbol.st_shndx.get(LE) == SHN_UNDEF {
            continue;
        }
        let Some(name) = name_at(strings, symbol.st_name.get(LE).into()) else {
            continue;
        };
        let location = locate(symbol, segments).filter(|location| lies_within(location, file_bytes));
        if let Some(location) = location {
            // The first symbol of a name is the default version.
            found.entry(name).or_insert(location);
        }
    }
    Ok(found)
}

/// Converts a symbol's address to a file offset through the executable segment that contains it.
fn locate(symbol: &Sym64<LittleEndian>, segments: &[ElfSegment]) -> Option<FunctionLocation> {
    let address = symbol.st_value.get(LE);
    segments.iter().find_map(|segment| {
        if segment.p_type(LE) != PT_LOAD || !segment.p_flags(LE).contains(PF_X) {
            return None;
        }
        let into_segment = address.checked_sub(segment.p_vaddr(LE))?;
        if into_segment >= segment.p_filesz(LE) {
            return None;
        }
        Some(FunctionLocation {
            address,
            file_offset: segment.p_offset(LE).checked_add(into_segment)?,
            size_bytes: symbol.st_size.get(LE),
        })
    })
}

fn lies_within(location: &FunctionLocation, file_bytes: u64) -> bool {
    location.file_offset < file_bytes
        && location.file_offset.checked_add(location.size_bytes).is_some_and(|end| end <= file_bytes)
}

#[cfg(test)]
mod tests;
