//! The memory of a hostile process: whatever it contains, reading its Python and PyTorch objects
//! ends and gives consistent results.

use std::iter::repeat;

use memwatch_core::input::holdings::HoldingClass;
use memwatch_core::words::Ordinal;
use memwatch_inspect::engines::{EngineMemory, EngineReader, SearchBreadth};
use memwatch_inspect::holdings::{AllocatedBlock, Blocks, InspectOptions, read};
use memwatch_inspect::memory::MemoryAccess;
use memwatch_inspect::python::layout::{CpythonLayout, PythonVersion, of_version};

/// Addresses of the image, of the class names, and of the blocks.
const BASE: u64 = 0x10_0000;
const NAMES_BASE: u64 = 0x20_0000;
const BLOCKS_BASE: u64 = 0x30_0000;
/// Bytes of a name with its terminator, and of a block.
const NAME_BYTES: u64 = 64;
const BLOCK_BYTES: u64 = 512;
const BLOCKS: u64 = 8;
/// Names that the readers search for.
const NAMES: [&str; 24] = [
    "type",
    "torch._C.TensorBase",
    "Module",
    "Optimizer",
    "module",
    "set",
    "collections.deque",
    "generator",
    "frame",
    "traceback",
    "code",
    "cell",
    "functools._lru_cache_wrapper",
    "function",
    "int",
    "N3c1010TensorImplE",
    "N3c1011StorageImplE",
    "N5torch8autograd12AutogradMetaE",
    "N5torch8autograd9generated12MulBackward0E",
    "N5torch8autograd6PyNodeE",
    "N3c1019UndefinedTensorImplE",
    "__closure__",
    "_modules",
    "state",
];

/// An image whose words are built from two input bytes each: small numbers are addresses in the
/// image, flags, names and blocks.
struct FuzzedImage {
    words: Vec<u8>,
    names: Vec<u8>,
}

impl FuzzedImage {
    fn of(data: &[u8]) -> Self {
        let word = |pair: &[u8; 2]| {
            let unit = u64::from(u16::from_le_bytes(*pair));
            let low = unit & 0xff;
            match unit >> 12 {
                0..=7 => BASE + 8 * unit,
                8 => 1 << (low & 63),
                9 => NAMES_BASE + NAME_BYTES * (low % NAMES.len() as u64),
                10 => BLOCKS_BASE + BLOCK_BYTES * (low % BLOCKS),
                11 => u64::MAX - low,
                _ => unit & 0xfff,
            }
        };
        let name = |name: &&'static str| (0..NAME_BYTES).zip(name.bytes().chain(repeat(0))).map(|(_, byte)| byte);
        Self {
            words: data.as_chunks::<2>().0.iter().flat_map(|pair| word(pair).to_le_bytes()).collect(),
            names: NAMES.iter().flat_map(name).collect(),
        }
    }

    /// Returns the image's bytes from an address on, or nothing for an address outside.
    fn from(&self, address: u64) -> &[u8] {
        let (base, bytes) =
            if address < NAMES_BASE { (BASE, self.words.as_slice()) } else { (NAMES_BASE, self.names.as_slice()) };
        let into = address.checked_sub(base).and_then(|into| usize::try_from(into).ok());
        into.and_then(|into| bytes.get(into..)).unwrap_or_default()
    }
}

impl MemoryAccess for FuzzedImage {
    fn fill(&self, address: u64, into: &mut [u8]) -> bool {
        // Pages exist as a whole and are zero after the end of the image. The bytes are copied in
        // one piece, since readers ask for large pieces and instrumented loops are slow.
        let there = self.from(address);
        let length = there.len().min(into.len());
        into[..length].copy_from_slice(&there[..length]);
        into[length..].fill(0);
        address >> 12 == BASE >> 12 || length > 0
    }
}

/// Returns the layout of the Python version that the first byte selects.
fn layout(choice: u8) -> Option<CpythonLayout> {
    let mut layout = of_version(PythonVersion { major: 3, minor: 9 + choice % 4 }).ok()?;
    layout.walk.interpreters_head = BASE;
    Some(layout)
}

/// Reads the objects of an arbitrary process.
///
/// # Panics
/// When the result contradicts itself, or two readings of the same memory differ.
pub fn run(data: &[u8]) {
    let Some((choice, data)) = data.split_first() else { return };
    let Some(layout) = layout(*choice) else { return };
    let image = FuzzedImage::of(data);
    let block = |index| AllocatedBlock {
        ordinal: Ordinal(0),
        address: BLOCKS_BASE + BLOCK_BYTES * index,
        bytes: BLOCK_BYTES,
        requested_bytes: BLOCK_BYTES - 8 * index,
    };
    let blocks = Blocks::new((0..BLOCKS).map(block).collect());
    let options = InspectOptions {
        most_read_bytes: 4 << 20,
        most_objects: 1000,
        workspaces: vec![BASE],
        ..InspectOptions::default()
    };
    let holdings = read(&image, Some(&layout), &blocks, &options);
    assert_eq!(holdings.rows.len(), usize::try_from(BLOCKS).unwrap_or(usize::MAX));
    assert!(holdings.objects <= 1000 && holdings.read_bytes <= (4 << 20) + (64 << 10));
    assert_eq!(holdings.dropped_names, 0, "the memory does not change");
    for row in &holdings.rows {
        assert!(row.class != HoldingClass::NoPythonObject || row.name.is_none(), "{row:?}");
        assert!(row.name.is_some() || row.other_names.is_empty(), "{row:?}");
    }
    assert_eq!(read(&image, Some(&layout), &blocks, &options), holdings, "the same memory holds the same");
    let process = EngineMemory { memory: &image, layout: &layout, libraries: &[] };
    let found = EngineReader::find(process, SearchBreadth::All);
    if let Ok(Some(reader)) = found {
        let pool = reader.fill(process).expect("it was readable a moment ago");
        assert_eq!(pool.used_blocks.checked_add(pool.free_blocks), Some(pool.blocks));
    }
}
