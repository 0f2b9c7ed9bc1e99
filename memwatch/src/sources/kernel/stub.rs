//! Finds the stubs through which a library calls an imported function, such as `ioctl`. A stub in
//! the procedure linkage table is a `jmp` to the address that the loader has filled in. All calls
//! pass through it, and the return address on the stack is the caller's, so return probes work
//! there as in a function.
//!
//! Stubs are found through the data that the loader needs (`PT_DYNAMIC`), without section headers:
//! System V ABI, AMD64 supplement, 5.2. In case of doubt the file is refused.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use object::LittleEndian;
use object::elf::{
    self, DT_JMPREL, DT_NULL, DT_PLTRELSZ, DT_RELA, DT_RELASZ, DT_STRTAB, DT_SYMTAB, Dyn64, FileHeader64, PF_X,
    PT_DYNAMIC, PT_LOAD, ProgramHeader64, R_X86_64_64, R_X86_64_GLOB_DAT, R_X86_64_JUMP_SLOT, Rela64, Sym64,
};
use object::pod::{Pod, from_bytes};
use object::read::elf::{FileHeader as _, ProgramHeader as _};

use crate::sources::pieces::in_pieces;
use crate::stranger_file::ElfReader;

const LE: LittleEndian = LittleEndian;
/// The function for requests to the kernel driver, with its terminating zero.
pub(crate) const IOCTL: &str = "ioctl\0";
/// Maximum number of bytes of a name that are compared.
const MOST_NAME_BYTES: usize = 64;
/// Headers, entries and relocations beyond these counts are refused; a driver of 2025 has 10, 40 and 60,000.
const MOST_SEGMENTS: usize = 64;
const MOST_ENTRIES: u64 = 1024;
const MOST_RELOCATIONS: u64 = 4 << 20;
/// Maximum size of the code that is searched.
const MOST_CODE_BYTES: u64 = 1 << 30;
/// Maximum number of stubs. A linker generates fewer.
const MOST_STUBS: usize = 16;

/// `endbr64`, and the prefix `bnd`.
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
const BND: u8 = 0xf2;
/// Maximum number of bytes before a displacement: these two, and the opcode with its ModRM byte.
const BEFORE: usize = ENDBR64.len() + 1 + 2;
/// Alignment of stubs: 16 bytes in `.plt` and `.plt.sec`, 8 in `.plt.got`.
const STUB_ALIGNMENT: u64 = 8;
/// Maximum number of slots, which are the addresses that the loader fills with the address of the
/// function. Each is searched for at each byte of code. Linkers create one or two.
const MOST_SLOTS: usize = 16;

/// Why no stub of a file is probed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoStub {
    /// The file does not import the function.
    #[error("it does not import {0}")]
    NotImported(&'static str),
    /// The file calls the function without a stub (`-fno-plt`), or stores its address, so there is
    /// no single place that all calls pass through.
    #[error("it calls {0} without a stub")]
    WithoutStub(&'static str),
    /// The file imports the function, but no instruction that uses it was found.
    #[error("no use of its {0} was found")]
    NotUsed(&'static str),
    /// Stubs on this architecture are not known.
    #[error("stubs are known on x86-64 only")]
    UnsupportedMachine,
    /// The file is not a valid ELF file.
    #[error("damaged ELF file: {0}")]
    Damaged(&'static str),
    /// The file cannot be read.
    #[error("cannot be read")]
    Unreadable(#[from] io::Error),
}

/// Returns the file offsets of the stubs through which a file calls the function whose name begins
/// with `name`, of which the first 64 bytes are compared.
///
/// # Errors
/// [`NoStub`] has the reason why none is to be probed. No content causes a panic.
pub(crate) fn find(file: &File, name: &'static str) -> Result<Vec<u64>, NoStub> {
    let cache = ElfReader::new(file);
    let header = FileHeader64::<LittleEndian>::parse(&cache).map_err(|_damage| NoStub::Damaged("ELF header"))?;
    if !header.is_little_endian() || header.e_machine(LE) != elf::EM_X86_64 {
        return Err(NoStub::UnsupportedMachine);
    }
    let segments = header.program_headers(LE, &cache).map_err(|_damage| NoStub::Damaged("program headers"))?;
    if segments.len() > MOST_SEGMENTS {
        return Err(NoStub::Damaged("program headers"));
    }
    let image = StubImage { file, segments, name };
    let slots = image.slots()?;
    if slots.is_empty() {
        return Err(NoStub::NotImported(shown(name)));
    }
    image.stubs(&slots)
}

/// Returns a name without its terminating zero.
fn shown(name: &'static str) -> &'static str {
    name.trim_end_matches('\0')
}

struct StubImage<'data> {
    file: &'data File,
    segments: &'data [ProgramHeader64<LittleEndian>],
    name: &'static str,
}

impl StubImage<'_> {
    /// Returns the addresses that the loader fills with the address of the function.
    fn slots(&self) -> Result<Vec<u64>, NoStub> {
        let dynamic = self.segments.iter().find(|segment| segment.p_type(LE) == PT_DYNAMIC);
        let Some(dynamic) = dynamic else { return Ok(Vec::new()) };
        let entry_bytes = size_of::<Dyn64<LittleEndian>>() as u64;
        let mut entries = Vec::new();
        let length = dynamic.p_filesz(LE).min(MOST_ENTRIES * entry_bytes);
        self.each((dynamic.p_offset(LE), length), |entry: &Dyn64<LittleEndian>| {
            entries.push((entry.d_tag.get(LE), entry.d_val.get(LE)));
            Ok(())
        })?;
        entries.truncate(entries.iter().position(|(tag, _)| *tag == DT_NULL).unwrap_or(entries.len()));
        let value = |wanted| entries.iter().find(|(tag, _)| *tag == wanted).map(|(_, value)| *value);
        let (Some(symbols), Some(strings)) = (value(DT_SYMTAB), value(DT_STRTAB)) else { return Ok(Vec::new()) };
        let mut slots = Vec::new();
        for (table, length) in [(DT_JMPREL, DT_PLTRELSZ), (DT_RELA, DT_RELASZ)] {
            let (Some(table), Some(length)) = (value(table), value(length)) else { continue };
            if length / size_of::<Rela64<LittleEndian>>() as u64 > MOST_RELOCATIONS {
                return Err(NoStub::Damaged("relocations"));
            }
            let start = self.offset_of(table).ok_or(NoStub::Damaged("relocations"))?;
            self.each((start, length), |relocation: &Rela64<LittleEndian>| {
                let kind = relocation.r_type(LE, false);
                let has_name = matches!(kind, R_X86_64_JUMP_SLOT | R_X86_64_GLOB_DAT | R_X86_64_64);
                if has_name && self.is_meant(relocation.r_sym(LE, false), (symbols, strings))? {
                    if kind == R_X86_64_64 {
                        return Err(NoStub::WithoutStub(shown(self.name)));
                    }
                    if slots.len() >= MOST_SLOTS {
                        return Err(NoStub::WithoutStub(shown(self.name)));
                    }
                    slots.push(relocation.r_offset.get(LE));
                }
                Ok(())
            })?;
        }
        Ok(slots)
    }

    fn is_meant(&self, symbol: u32, (symbols, strings): (u64, u64)) -> Result<bool, NoStub> {
        let damaged = || NoStub::Damaged("symbol table");
        let mut entry = [0; size_of::<Sym64<LittleEndian>>()];
        let address = symbols.checked_add(u64::from(symbol) * entry.len() as u64).ok_or_else(damaged)?;
        self.file.read_exact_at(&mut entry, self.offset_of(address).ok_or_else(damaged)?)?;
        let (entry, _) = from_bytes::<Sym64<LittleEndian>>(&entry).map_err(|()| damaged())?;
        let address = strings.checked_add(entry.st_name.get(LE).into()).ok_or_else(damaged)?;
        let mut name = [0; MOST_NAME_BYTES];
        let read = self.file.read_at(&mut name, self.offset_of(address).ok_or_else(damaged)?)?;
        Ok(name[..read].starts_with(&self.name.as_bytes()[..self.name.len().min(MOST_NAME_BYTES)]))
    }

    /// Returns the stubs that use one of these slots. Fails if another instruction uses one.
    fn stubs(&self, slots: &[u64]) -> Result<Vec<u64>, NoStub> {
        let code = self.segments.iter().filter(|segment| segment.p_type(LE) == PT_LOAD);
        let code = code.filter(|segment| segment.p_flags(LE).contains(PF_X));
        let mut scan = Scan { slots, stubs: Vec::new(), others: 0 };
        for segment in code {
            let (start, address, length) = (segment.p_offset(LE), segment.p_vaddr(LE), segment.p_filesz(LE));
            if length > MOST_CODE_BYTES {
                return Err(NoStub::Damaged("program headers"));
            }
            let mut done = 0;
            in_pieces(self.file, (start, length), |offset, piece| {
                let place = CodePosition { file: start.wrapping_add(offset), address: address.wrapping_add(offset) };
                scan.look(piece, place, usize::try_from(done - offset).unwrap_or(usize::MAX));
                done = (offset + piece.len() as u64).saturating_sub(DISTANCE_BYTES as u64 - 1).max(done);
                AGAIN
            })?;
        }
        match scan.stubs.len() {
            _ if scan.others > 0 => Err(NoStub::WithoutStub(shown(self.name))),
            0 => Err(NoStub::NotUsed(shown(self.name))),
            1..=MOST_STUBS => Ok(scan.stubs),
            _ => Err(NoStub::WithoutStub(shown(self.name))),
        }
    }

    /// Calls `look` with each entry of a table.
    fn each<T: Pod>(&self, range: (u64, u64), mut look: impl FnMut(&T) -> Result<(), NoStub>) -> Result<(), NoStub> {
        let mut looked = Ok(());
        in_pieces(self.file, range, |_, piece| {
            let mut rest = piece;
            while looked.is_ok()
                && let Ok((entry, behind)) = from_bytes::<T>(rest)
            {
                looked = look(entry);
                rest = behind;
            }
            rest.len()
        })?;
        looked
    }

    /// Returns the file offset of an address.
    fn offset_of(&self, address: u64) -> Option<u64> {
        self.segments.iter().filter(|segment| segment.p_type(LE) == PT_LOAD).find_map(|segment| {
            let within = address.checked_sub(segment.p_vaddr(LE)).filter(|within| *within < segment.p_filesz(LE))?;
            segment.p_offset(LE).checked_add(within)
        })
    }
}

/// Size of the displacement between an instruction's end and its operand, in bytes.
const DISTANCE_BYTES: usize = 4;

/// How an instruction uses a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotUse {
    /// In a stub that begins at this offset of the piece.
    Stub(usize),
    /// In any other way.
    Other,
}

/// Number of bytes at the end of a piece that are examined again with the next piece: an incomplete
/// displacement, and the bytes that may precede it.
const AGAIN: usize = BEFORE + DISTANCE_BYTES;

/// Position of a piece of code, in the file and in memory.
#[derive(Clone, Copy)]
struct CodePosition {
    file: u64,
    address: u64,
}

/// Instructions found so far that use one of the slots.
struct Scan<'a> {
    slots: &'a [u64],
    /// Offsets in the file.
    stubs: Vec<u64>,
    others: usize,
}

impl Scan<'_> {
    /// Searches a piece of code for displacements that start at its byte `first` or later.
    fn look(&mut self, piece: &[u8], place: CodePosition, first: usize) {
        for (at, bytes) in piece.windows(DISTANCE_BYTES).enumerate().skip(first.max(2)) {
            let distance = bytes.first_chunk().map_or(0, |bytes| i32::from_le_bytes(*bytes));
            let end = place.address.wrapping_add((at + DISTANCE_BYTES) as u64);
            if !self.slots.contains(&end.wrapping_add_signed(distance.into())) {
                continue;
            }
            match use_before(&piece[..at], place.address) {
                Some(SlotUse::Stub(_)) if self.stubs.len() > MOST_STUBS => {}
                Some(SlotUse::Stub(begin)) => self.stubs.push(place.file.wrapping_add(begin as u64)),
                Some(SlotUse::Other) => self.others += 1,
                None => {}
            }
        }
    }
}

/// Determines the instruction whose opcode and ModRM byte end these bytes; `None` if it does not
/// use memory relative to itself.
fn use_before(before: &[u8], address: u64) -> Option<SlotUse> {
    let (opcode, modrm) = (before[before.len() - 2], before[before.len() - 1]);
    match (opcode, modrm) {
        // jmp
        (0xff, 0x25) => {
            let mut begin = before.len() - 2;
            if before[..begin].ends_with(&[BND]) {
                begin -= 1;
            }
            if before[..begin].ends_with(&ENDBR64) {
                begin -= ENDBR64.len();
            }
            let is_stub = address.wrapping_add(begin as u64).is_multiple_of(STUB_ALIGNMENT);
            Some(if is_stub { SlotUse::Stub(begin) } else { SlotUse::Other })
        }
        // call and push; mov, lea, cmp and the like in their forms with one ModRM byte, whose
        // operands are a register and memory at a displacement.
        (0xff, 0x15 | 0x35) => Some(SlotUse::Other),
        (0x03 | 0x0b | 0x23 | 0x2b | 0x33 | 0x39 | 0x3b | 0x85 | 0x89 | 0x8b | 0x8d, modrm) if modrm & 0xc7 == 5 => {
            Some(SlotUse::Other)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
