//! Where things lie in a build's `tsl::BFCAllocator`: decoded from the code of three small functions, and refused where that is not as expected.
//!
//! Offsets differ from build to build (XLA's statistics are at 0x4b8, 0x5b0 and 0x5c8 in builds of 2026, 2025 and 2024), so none is tabulated.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use memwatch_common::tensor::CounterPlan;

use crate::frameworks::pytorch::{SymbolName, symbols};
use crate::sources::kernel::resolve::{FunctionLocation, Layout, ResolveError};
use crate::stranger_file::ElfReader;

/// `ClearStats` sets the count of allocations to 0, reads the bytes in use and makes them the peak.
const CLEAR_STATS: SymbolName = name(1, "_ZN3tsl12BFCAllocator10ClearStatsEv", "");
/// `Name` copies the name.
const NAME: SymbolName = name(2, "_ZN3tsl12BFCAllocator4NameB5cxx11Ev", "");
/// `AddTraceMe` with an address alone looks its chunk up.
const LOOK_UP: SymbolName = name(3, "_ZN3tsl12BFCAllocator10AddTraceMeE", "EEPKv");
/// The table of the class's virtual functions: each object begins with the address behind its first two words.
const TABLE: SymbolName = name(4, "_ZTVN3tsl12BFCAllocatorE", "");
/// It gives a chunk back, and calls `AddTraceMe` with its address; some compilers have put what that does into it: TensorFlow's of 2.18.
const GIVE_BACK: SymbolName = name(5, "_ZN3tsl12BFCAllocator21DeallocateRawInternalE", "");
/// What `AddTraceMe` writes for a profiler, a function of its own.
const DESCRIBE: SymbolName = name(6, "_ZZN3tsl12BFCAllocator10AddTraceMeE", "llENK3$_0clB5cxx11Ev");

/// The longest of these functions has 200 bytes.
const CODE_BYTES: u64 = 512;
/// [`GIVE_BACK`] has some 1.5 KB.
const MOST_CALLER_BYTES: u64 = 64 << 10;
/// No object is longer: the largest build's has 1.6 KB.
const MOST_OFFSET: u32 = 8188 - 3 * 8;
/// Bytes of a chunk: 0x68 in XLA of 2026.
const CHUNK_BYTES: std::ops::RangeInclusive<u8> = 0x30..=0x7f;

const fn name(key: u16, beginning: &'static str, ending: &'static str) -> SymbolName {
    SymbolName { key, beginning, ending }
}

/// Where things lie in the objects of one build, in bytes from their beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ArenaLayout {
    /// What it counts.
    pub(crate) counters: Option<CounterLayout>,
    /// The name: a pointer and a length.
    pub(crate) name: Option<u32>,
    /// What says in whose memory it is, where that is not in its name: an `OrtDevice`.
    pub(crate) device: Option<u16>,
    /// Its chunks and regions.
    pub(crate) chunks: Option<ChunkLayout>,
    /// The map of memory that it has outside its regions.
    pub(crate) reserved: Option<u32>,
    /// The tables of virtual functions that its objects may have, as the file counts.
    pub(crate) tables: [Option<u64>; 2],
    /// `AddTraceMe` is a part of what calls it: a probe on it sees nothing.
    pub(crate) is_inlined: bool,
}

/// Where an arena counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CounterLayout {
    /// Into the object.
    pub(crate) offset_bytes: u16,
    /// Which words behind that are the allocations, the bytes in use, their peak and the largest chunk.
    pub(crate) words: [u8; 4],
}

impl CounterLayout {
    /// `tsl::AllocatorStats`: one behind the other.
    const TSL: [u8; 4] = [0, 1, 2, 3];

    /// Some words behind an offset; `None` where no object is so large.
    pub(crate) fn new(offset_bytes: u16, words: [u8; 4]) -> Option<Self> {
        let is_possible = u32::from(offset_bytes) <= MOST_OFFSET && offset_bytes.is_multiple_of(8);
        is_possible.then_some(Self { offset_bytes, words })
    }

    /// Where the bytes in use are.
    pub(crate) fn in_use(self) -> u64 {
        u64::from(self.offset_bytes) + 8 * u64::from(self.words[1])
    }

    /// The same for the kernel half.
    pub(crate) const fn plan(self) -> CounterPlan {
        CounterPlan { offset_bytes: self.offset_bytes, peak_word: self.words[2] }
    }
}

/// Where an arena's chunks and regions are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkLayout {
    /// The vector of regions.
    pub(crate) regions: u32,
    /// The vector of chunks.
    pub(crate) chunks: u32,
    /// Bytes of a chunk.
    pub(crate) stride: u32,
}

impl ChunkLayout {
    /// Whether an object may have a vector there, of elements of this size.
    pub(crate) fn has_room_for(offset: u64, stride: u32) -> bool {
        offset <= u64::from(MOST_OFFSET) && u8::try_from(stride).is_ok_and(|stride| CHUNK_BYTES.contains(&stride))
    }
}

impl ArenaLayout {
    /// Looks for it in the file.
    ///
    /// # Errors
    /// The file cannot be read or understood.
    pub(crate) fn of(file: &File) -> Result<Self, ResolveError> {
        let clone = file.try_clone().map_err(|_unreadable| ResolveError::Damaged { what: "file" })?;
        let cache = ElfReader::new(clone);
        let layout = Layout::parse(&cache)?;
        let found = symbols(file, &layout, &[CLEAR_STATS, NAME, LOOK_UP, TABLE, GIVE_BACK, DESCRIBE])?;
        let code = |name: SymbolName| found.functions.get(&name.key).map(|location| code_of(file, location));
        Ok(Self {
            counters: code(CLEAR_STATS)
                .and_then(|code| counters(&code))
                .and_then(|offset_bytes| CounterLayout::new(offset_bytes, CounterLayout::TSL)),
            name: code(NAME).and_then(|code| name_offset(&code)),
            device: None,
            chunks: code(LOOK_UP).and_then(|code| chunks(&code)),
            reserved: None,
            tables: [found.objects.get(&TABLE.key).copied(), None],
            is_inlined: is_inlined(file, [GIVE_BACK, DESCRIBE].map(|name| found.functions.get(&name.key))),
        })
    }
}

/// Whether a function calls what only `AddTraceMe` calls, by itself.
fn is_inlined(file: &File, functions: [Option<&FunctionLocation>; 2]) -> bool {
    let [Some(function), Some(called)] = functions else { return false };
    let mut code = vec![0; usize::try_from(function.size_bytes.min(MOST_CALLER_BYTES)).unwrap_or(0)];
    file.read_exact_at(&mut code, function.file_offset).is_ok() && calls(&code, function.address, called.address)
}

/// Whether code at an address has what may be a call of this function: `e8` and how far it is from behind that.
fn calls(code: &[u8], address: u64, called: u64) -> bool {
    const CALL: u8 = 0xe8;
    let is_it = |(at, window): (u64, &[u8])| {
        let [CALL, distance @ ..] = window else { return false };
        let distance = distance.first_chunk().map_or(0, |bytes| i32::from_le_bytes(*bytes));
        (address + at + window.len() as u64).wrapping_add_signed(distance.into()) == called
    };
    (0..).zip(code.windows(5)).any(is_it)
}

/// The beginning of a function; empty where it cannot be read.
pub(super) fn code_of(file: &File, location: &FunctionLocation) -> Vec<u8> {
    let length = usize::try_from(location.size_bytes.min(CODE_BYTES)).unwrap_or(0);
    let mut code = vec![0; length];
    if file.read_exact_at(&mut code, location.file_offset).is_err() {
        code.clear();
    }
    code
}

/// An instruction with a register and memory at a register and 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Access {
    /// Where in the code the instruction ends, without what follows the 32 bits.
    end: usize,
    /// The register that the memory is relative to, 0 to 15.
    base: u8,
    offset: u32,
}

/// The instruction at the beginning of this code, if it is `REX.W opcode` with memory at a register and 32 bits.
fn access(code: &[u8], opcode: u8) -> Option<Access> {
    let [rex, found, modrm, rest @ ..] = code else { return None };
    let is_wide = (0x48..=0x4f).contains(rex) && *found == opcode && modrm >> 6 == 2;
    let has_scale = modrm & 7 == 4;
    let rest = if has_scale { rest.strip_prefix(&[0x24])? } else { rest };
    let offset = u32::from_le_bytes(*rest.first_chunk()?);
    let base = (modrm & 7) | (rex & 1) << 3;
    let end = if has_scale { 8 } else { 7 };
    (is_wide && offset <= MOST_OFFSET).then_some(Access { end, base, offset })
}

/// The first such instruction from a place on that fits, and where it ends.
fn find(code: &[u8], from: usize, opcode: u8, fits: impl Fn(&Access) -> bool) -> Option<(Access, usize)> {
    (from..code.len()).find_map(|at| {
        let access = access(&code[at..], opcode).filter(&fits)?;
        Some((access, at + access.end))
    })
}

/// `mov imm32, m64`, `mov m64, r64`.
const STORE_CONSTANT: u8 = 0xc7;
const LOAD: u8 = 0x8b;

/// `movq $0, COUNT(%this)`, and then `mov COUNT+8(%this), %reg`.
fn counters(code: &[u8]) -> Option<u16> {
    let (count, end) = find(code, 0, STORE_CONSTANT, |_| true)?;
    let is_zero = code.get(end..end + 4)? == [0; 4];
    let (in_use, _) = find(code, end + 4, LOAD, |load| load.base == count.base)?;
    (is_zero && in_use.offset == count.offset + 8).then(|| u16::try_from(count.offset).ok()).flatten()
}

/// `mov NAME(%rsi), %reg`, and `mov NAME+8(%rsi), %reg` for its length.
fn name_offset(code: &[u8]) -> Option<u32> {
    const RSI: u8 = 6;
    let (text, end) = find(code, 0, LOAD, |load| load.base == RSI)?;
    find(code, end, LOAD, |load| load.base == RSI && load.offset == text.offset + 8).map(|_| text.offset)
}

/// `add $REGIONS, %rdi`, a call, and then in some order `mov CHUNKS(%this), %reg` and a product with the size of a chunk.
fn chunks(code: &[u8]) -> Option<ChunkLayout> {
    const ADD_TO_RDI: [u8; 3] = [0x48, 0x81, 0xc7];
    let add = code.windows(3).position(|bytes| bytes == ADD_TO_RDI)?;
    let regions = u32::from_le_bytes(*code.get(add + 3..)?.first_chunk()?);
    let (vector, end) = find(code, add + 7, LOAD, |_| true)?;
    let stride = (add + 7..code.len().min(end + PRODUCT_BEHIND)).find_map(|at| stride(&code[at..]))?;
    let is_behind = vector.offset > regions && regions <= MOST_OFFSET;
    is_behind.then_some(ChunkLayout { regions, chunks: vector.offset, stride })
}

/// How far behind the load of the vector the product is at most, in bytes.
const PRODUCT_BEHIND: usize = 8;

/// `imul $STRIDE, (%reg, %reg, 8), %reg`, or `shl $6, %reg` for 64.
fn stride(code: &[u8]) -> Option<u32> {
    const MULTIPLY: u8 = 0x6b;
    const SHIFT: u8 = 0xc1;
    match *code {
        [0x48..=0x4f, MULTIPLY, modrm, _, stride, ..]
            if modrm >> 6 == 0 && modrm & 7 == 4 && CHUNK_BYTES.contains(&stride) =>
        {
            Some(u32::from(stride))
        }
        [0x48..=0x4f, SHIFT, 0xe0..=0xe7, 6, ..] => Some(64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{ChunkLayout, calls, chunks, counters, name_offset};

    /// Of XLA's plug-in for CUDA 13, version 0.12.0.1: from `lea 0x468(%rdi),%r14` on.
    const CLEAR: &[u8] = &[
        0x4c, 0x8d, 0xb7, 0x68, 0x04, 0, 0, 0x4c, 0x89, 0xf7, 0xe8, 1, 2, 3, 4, 0x48, 0xc7, 0x83, 0xb8, 0x04, 0, 0, 0,
        0, 0, 0, 0x48, 0x8b, 0x83, 0xc0, 0x04, 0, 0, 0x48, 0x89, 0x83, 0xc8, 0x04, 0, 0,
    ];
    const NAME: &[u8] =
        &[0x48, 0x8d, 0x7f, 0x10, 0x4c, 0x8b, 0xa6, 0xe8, 0x03, 0, 0, 0x4c, 0x8b, 0xb6, 0xf0, 0x03, 0, 0];
    const LOOK_UP: &[u8] = &[
        0x48, 0x81, 0xc7, 0x70, 0x04, 0, 0, 0x48, 0x89, 0xce, 0xe8, 1, 2, 3, 4, 0x48, 0x6b, 0x04, 0xd8, 0x68, 0x49,
        0x8b, 0x94, 0x24, 0x88, 0x04, 0, 0, 0x48, 0x8b, 0x4c, 0x02, 0x18,
    ];

    /// Of TensorFlow 2.21.0.
    const LOOK_UP_64: &[u8] = &[
        0x48, 0x81, 0xc7, 0x70, 0x05, 0, 0, 0x48, 0x89, 0xce, 0xe8, 1, 2, 3, 4, 0x48, 0xc1, 0xeb, 0x08, 0x48, 0x8b,
        0x04, 0xd8, 0x49, 0x8b, 0x94, 0x24, 0x88, 0x05, 0, 0, 0x48, 0xc1, 0xe0, 0x06, 0x48, 0x8b, 0x4c, 0x02, 0x18,
    ];

    #[test]
    fn the_offsets_of_a_build_stand_in_its_code() {
        assert_eq!(counters(CLEAR), Some(0x4b8));
        assert_eq!(name_offset(NAME), Some(0x3e8));
        assert_eq!(chunks(LOOK_UP), Some(ChunkLayout { regions: 0x470, chunks: 0x488, stride: 0x68 }));
        assert_eq!(chunks(LOOK_UP_64), Some(ChunkLayout { regions: 0x570, chunks: 0x588, stride: 64 }));
    }

    #[test]
    fn code_that_is_not_as_expected_is_refused() {
        let mut other = CLEAR.to_vec();
        other[29] = 0xc4;
        assert_eq!(counters(&other), None, "bytes in use lie behind the count");
        let mut other = NAME.to_vec();
        other[14] = 0xf4;
        assert_eq!(name_offset(&other), None, "the length lies behind the text");
        let mut other = LOOK_UP.to_vec();
        other[19] = 0x08;
        assert_eq!(chunks(&other), None, "no chunk is so small");
        for code in [CLEAR, NAME, LOOK_UP] {
            for length in 0..code.len().min(18) {
                assert_eq!((counters(&code[..length]), chunks(&code[..length])), (None, None));
            }
        }
    }

    #[test]
    fn a_call_is_known_by_how_far_it_goes() {
        let code = [0x55, 0xe8, 0x0a, 0x00, 0x00, 0x00, 0xe8, 0xf5, 0xff, 0xff, 0xff, 0xc3];
        assert!(calls(&code, 0x1000, 0x1010) && calls(&code, 0x1000, 0x1000));
        assert!(!calls(&code, 0x1000, 0x1011) && !calls(&code, 0x1001, 0x1010) && !calls(&code[..5], 0x1000, 0x1010));
    }
}
