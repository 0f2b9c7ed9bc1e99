//! Decodes the field offsets of a build's `tsl::BFCAllocator` from the code of three small
//! functions. Unexpected code is refused.
//!
//! Offsets differ between builds (XLA's statistics are at 0x4b8, 0x5b0 and 0x5c8 in builds of 2026,
//! 2025 and 2024), so none is hard-coded.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use memwatch_common::tensor::CounterPlan;

use crate::frameworks::symbols::{SymbolName, symbols};
use crate::sources::kernel::resolve::{FunctionLocation, ResolveError, SymbolLayout};
use crate::stranger_file::ElfReader;

/// `ClearStats` sets the allocation count to 0, reads the bytes in use and stores them as the peak.
const CLEAR_STATS: SymbolName = name(1, "_ZN3tsl12BFCAllocator10ClearStatsEv", "");
/// `Name` copies the allocator's name.
const NAME: SymbolName = name(2, "_ZN3tsl12BFCAllocator4NameB5cxx11Ev", "");
/// The overload of `AddTraceMe` that takes only an address looks up its chunk.
const LOOK_UP: SymbolName = name(3, "_ZN3tsl12BFCAllocator10AddTraceMeE", "EEPKv");
/// The vtable of the class. Each object begins with the address after the vtable's first two words.
const TABLE: SymbolName = name(4, "_ZTVN3tsl12BFCAllocatorE", "");
/// Frees a chunk and calls `AddTraceMe` with its address. Some compilers inline that call, as in
/// TensorFlow 2.18.
const GIVE_BACK: SymbolName = name(5, "_ZN3tsl12BFCAllocator21DeallocateRawInternalE", "");
/// The lambda by which `AddTraceMe` describes a chunk to a profiler.
const DESCRIBE: SymbolName = name(6, "_ZZN3tsl12BFCAllocator10AddTraceMeE", "llENK3$_0clB5cxx11Ev");

/// Maximum bytes read of a function; the longest of these has 200.
const CODE_BYTES: u64 = 512;
/// Maximum bytes read of [`GIVE_BACK`], which has some 1.5 KB.
const MOST_CALLER_BYTES: u64 = 64 << 10;
/// Maximum offset of a field. The object of the largest build has 1.6 KB.
const MOST_OFFSET: u32 = 8188 - 3 * 8;
/// Possible sizes of a chunk in bytes; XLA of 2026 has 0x68.
const CHUNK_BYTES: std::ops::RangeInclusive<u8> = 0x30..=0x7f;

const fn name(key: u16, beginning: &'static str, ending: &'static str) -> SymbolName {
    SymbolName { key, beginning, ending }
}

/// Field offsets of one build's arenas, in bytes from the beginning of the object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ArenaLayout {
    /// The arena's counters.
    pub(crate) counters: Option<CounterLayout>,
    /// Offset of the name: a pointer and a length.
    pub(crate) name: Option<u32>,
    /// Offset of the `OrtDevice` that shows the arena's device, if the name does not show it.
    pub(crate) device: Option<u16>,
    /// The arena's chunks and regions.
    pub(crate) chunks: Option<ChunkLayout>,
    /// Offset of the map of memory outside the arena's regions.
    pub(crate) reserved: Option<u32>,
    /// Addresses in the file of the vtables that arenas may have.
    pub(crate) tables: [Option<u64>; 2],
    /// `AddTraceMe` is inlined into its callers, so a probe on it sees nothing.
    pub(crate) is_inlined: bool,
}

/// Location of an arena's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CounterLayout {
    /// Offset in the object.
    pub(crate) offset_bytes: u16,
    /// Indices of the words with allocations, bytes in use, peak of these and largest allocation.
    pub(crate) words: [u8; 4],
}

impl CounterLayout {
    /// Word indices of `tsl::AllocatorStats`: consecutive.
    const TSL: [u8; 4] = [0, 1, 2, 3];

    /// Creates a layout with words at an offset; `None` if the offset exceeds every known object.
    pub(crate) fn new(offset_bytes: u16, words: [u8; 4]) -> Option<Self> {
        let is_possible = u32::from(offset_bytes) <= MOST_OFFSET && offset_bytes.is_multiple_of(8);
        is_possible.then_some(Self { offset_bytes, words })
    }

    /// Returns the offset of the bytes in use.
    pub(crate) fn in_use(self) -> u64 {
        u64::from(self.offset_bytes) + 8 * u64::from(self.words[1])
    }

    /// Returns the layout as a plan for the kernel half.
    pub(crate) const fn plan(self) -> CounterPlan {
        CounterPlan { offset_bytes: self.offset_bytes, peak_word: self.words[2] }
    }
}

/// Location of an arena's chunks and regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkLayout {
    /// Offset of the vector of regions.
    pub(crate) regions: u32,
    /// Offset of the vector of chunks.
    pub(crate) chunks: u32,
    /// Size of a chunk in bytes.
    pub(crate) stride: u32,
}

impl ChunkLayout {
    /// Whether an object may have a vector at this offset with elements of this size.
    pub(crate) fn has_room_for(offset: u64, stride: u32) -> bool {
        offset <= u64::from(MOST_OFFSET) && u8::try_from(stride).is_ok_and(|stride| CHUNK_BYTES.contains(&stride))
    }
}

impl ArenaLayout {
    /// Finds the layout in the library's file.
    ///
    /// # Errors
    /// The file cannot be read or parsed.
    pub(crate) fn of(file: &File) -> Result<Self, ResolveError> {
        let clone = file.try_clone().map_err(|_unreadable| ResolveError::Damaged { what: "file" })?;
        let cache = ElfReader::new(clone);
        let layout = SymbolLayout::parse(&cache)?;
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

/// Whether the first function directly calls the second, which only `AddTraceMe` calls otherwise.
fn is_inlined(file: &File, functions: [Option<&FunctionLocation>; 2]) -> bool {
    let [Some(function), Some(called)] = functions else { return false };
    let mut code = vec![0; usize::try_from(function.size_bytes.min(MOST_CALLER_BYTES)).unwrap_or(0)];
    file.read_exact_at(&mut code, function.file_offset).is_ok() && calls(&code, function.address, called.address)
}

/// Whether code at `address` contains a possible call of `called`: `e8` and the distance from the
/// next instruction.
fn calls(code: &[u8], address: u64, called: u64) -> bool {
    const CALL: u8 = 0xe8;
    let is_it = |(at, window): (u64, &[u8])| {
        let [CALL, distance @ ..] = window else { return false };
        let distance = distance.first_chunk().map_or(0, |bytes| i32::from_le_bytes(*bytes));
        (address + at + window.len() as u64).wrapping_add_signed(distance.into()) == called
    };
    (0..).zip(code.windows(5)).any(is_it)
}

/// Reads the first bytes of a function; empty if they cannot be read.
pub(in crate::frameworks) fn code_of(file: &File, location: &FunctionLocation) -> Vec<u8> {
    let length = usize::try_from(location.size_bytes.min(CODE_BYTES)).unwrap_or(0);
    let mut code = vec![0; length];
    if file.read_exact_at(&mut code, location.file_offset).is_err() {
        code.clear();
    }
    code
}

/// An instruction that accesses memory at a register plus a 32-bit offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Access {
    /// Length of the instruction up to the offset's end, without an immediate.
    end: usize,
    /// Number of the base register, 0 to 15.
    base: u8,
    offset: u32,
}

/// Decodes an instruction `REX.W opcode` with a memory operand of a base register and a 32-bit
/// offset.
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

/// Returns the first such instruction from index `from` that fits, and the index of its end.
fn find(code: &[u8], from: usize, opcode: u8, fits: impl Fn(&Access) -> bool) -> Option<(Access, usize)> {
    (from..code.len()).find_map(|at| {
        let access = access(&code[at..], opcode).filter(&fits)?;
        Some((access, at + access.end))
    })
}

/// Opcodes of `mov imm32, m64` and `mov m64, r64`.
const STORE_CONSTANT: u8 = 0xc7;
const LOAD: u8 = 0x8b;

/// Returns the offset of the counters from `movq $0, COUNT(%this)` followed by `mov COUNT+8(%this),
/// %reg`.
fn counters(code: &[u8]) -> Option<u16> {
    let (count, end) = find(code, 0, STORE_CONSTANT, |_| true)?;
    let is_zero = code.get(end..end + 4)? == [0; 4];
    let (in_use, _) = find(code, end + 4, LOAD, |load| load.base == count.base)?;
    (is_zero && in_use.offset == count.offset + 8).then(|| u16::try_from(count.offset).ok()).flatten()
}

/// Returns the offset of the name from `mov NAME(%rsi), %reg`, followed by `mov NAME+8(%rsi), %reg`
/// for its length.
fn name_offset(code: &[u8]) -> Option<u32> {
    const RSI: u8 = 6;
    let (text, end) = find(code, 0, LOAD, |load| load.base == RSI)?;
    find(code, end, LOAD, |load| load.base == RSI && load.offset == text.offset + 8).map(|_| text.offset)
}

/// Decodes `add $REGIONS, %rdi`, a call, and then in any order `mov CHUNKS(%this), %reg` and a
/// multiplication by the size of a chunk.
fn chunks(code: &[u8]) -> Option<ChunkLayout> {
    const ADD_TO_RDI: [u8; 3] = [0x48, 0x81, 0xc7];
    let add = code.windows(3).position(|bytes| bytes == ADD_TO_RDI)?;
    let regions = u32::from_le_bytes(*code.get(add + 3..)?.first_chunk()?);
    let (vector, end) = find(code, add + 7, LOAD, |_| true)?;
    let stride = (add + 7..code.len().min(end + PRODUCT_BEHIND)).find_map(|at| stride(&code[at..]))?;
    let is_behind = vector.offset > regions && regions <= MOST_OFFSET;
    is_behind.then_some(ChunkLayout { regions, chunks: vector.offset, stride })
}

/// Maximum distance from the load of the vector to the multiplication, in bytes.
const PRODUCT_BEHIND: usize = 8;

/// Returns the multiplier of `imul $STRIDE, (%reg, %reg, 8), %reg`, or 64 for `shl $6, %reg`.
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

    /// `ClearStats` of XLA's plug-in for CUDA 13, version 0.12.0.1, from `lea 0x468(%rdi),%r14` on.
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

    /// The look-up of TensorFlow 2.21.0.
    const LOOK_UP_64: &[u8] = &[
        0x48, 0x81, 0xc7, 0x70, 0x05, 0, 0, 0x48, 0x89, 0xce, 0xe8, 1, 2, 3, 4, 0x48, 0xc1, 0xeb, 0x08, 0x48, 0x8b,
        0x04, 0xd8, 0x49, 0x8b, 0x94, 0x24, 0x88, 0x05, 0, 0, 0x48, 0xc1, 0xe0, 0x06, 0x48, 0x8b, 0x4c, 0x02, 0x18,
    ];

    #[test]
    fn bfc_layout_offsets_are_decoded_from_the_code() {
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
    fn bfc_call_instruction_is_matched_by_its_target() {
        let code = [0x55, 0xe8, 0x0a, 0x00, 0x00, 0x00, 0xe8, 0xf5, 0xff, 0xff, 0xff, 0xc3];
        assert!(calls(&code, 0x1000, 0x1010) && calls(&code, 0x1000, 0x1000));
        assert!(!calls(&code, 0x1000, 0x1011) && !calls(&code, 0x1001, 0x1010) && !calls(&code[..5], 0x1000, 0x1010));
    }
}
