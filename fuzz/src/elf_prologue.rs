//! A driver library, which any user may install, and the first instructions of a function.
//!
//! The first byte selects the input: if even, the rest is a file; if odd, the rest is a function's
//! code.

use std::io::{self, Cursor, Read, Seek, SeekFrom};

use memwatch_common::probes::PROBES;

use crate::sources::elf::ElfReader;
use crate::sources::kernel::resolve::{InstructionSet, SymbolLayout, SymbolTable};
use crate::sources::kernel::site::{AttachOffset, KernelVersion, SiteReason, select};

const ADDRESS: u64 = 0x12_3450;
/// Versions before and after each change of the instructions that the kernel emulates.
const KERNELS: [KernelVersion; 5] = [
    KernelVersion { major: 0, minor: 0 },
    KernelVersion { major: 5, minor: 15 },
    KernelVersion { major: 6, minor: 15 },
    KernelVersion { major: 6, minor: 18 },
    KernelVersion { major: 7, minor: 0 },
];

/// Resolves the table of probes in the bytes, or selects an attach offset in them.
///
/// # Panics
/// When two readings of one file differ, or an attach offset is not allowed.
pub fn run(data: &[u8]) {
    match data.split_first() {
        Some((selector, file)) if selector % 2 == 0 => resolve(file),
        Some((_, code)) => sites(code, ADDRESS, InstructionSet::X86_64),
        None => {}
    }
}

fn resolve(file: &[u8]) {
    let whole = SymbolTable::parse(file);
    sparse(file);
    let cache = ElfReader::new(Cursor::new(file));
    let in_parts = SymbolTable::parse(&cache);
    let (whole, in_parts) = match (whole, in_parts) {
        (Ok(whole), Ok(in_parts)) => (whole, in_parts),
        (whole, in_parts) => {
            assert_eq!(whole.err(), in_parts.err(), "one file, two readers");
            return;
        }
    };
    assert_eq!(whole.build_id(), in_parts.build_id());
    for probe in PROBES {
        let location = whole.function(probe.symbol);
        assert_eq!(location, in_parts.function(probe.symbol), "{}", probe.symbol);
        if let Some(location) = location {
            let length = u64::try_from(file.len()).expect("a file in memory");
            assert!(location.file_offset < length, "{}: {location:?}", probe.symbol);
            let code = whole.code(&location);
            assert_eq!(code, in_parts.code(&location), "{}", probe.symbol);
            sites(code, location.address, whole.machine());
        }
    }
}

/// Parses the same bytes followed by a hole of one terabyte, like a sparse file, so that everything
/// the file claims to have exists.
fn sparse(file: &[u8]) {
    let data = ElfReader::new(Sparse { file, at: 0 });
    let _ = SymbolTable::parse(&data);
    if let Ok(layout) = SymbolLayout::parse(&ElfReader::new(Sparse { file, at: 0 })) {
        for table in layout.tables() {
            assert!(table.symbols.1 <= HOLE_BYTES && table.strings.1 <= HOLE_BYTES);
        }
    }
}

const HOLE_BYTES: u64 = 1 << 40;

struct Sparse<'a> {
    file: &'a [u8],
    at: u64,
}

impl Read for Sparse<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let rest = usize::try_from(self.at).ok().and_then(|at| self.file.get(at..)).unwrap_or(&[]);
        let length = rest.len().min(into.len());
        into[..length].copy_from_slice(&rest[..length]);
        into[length..].fill(0);
        self.at += u64::try_from(into.len()).expect("it is in memory");
        Ok(into.len())
    }
}

impl Seek for Sparse<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.at = match to {
            SeekFrom::Start(at) => at,
            SeekFrom::End(by) => HOLE_BYTES.wrapping_add_signed(by),
            SeekFrom::Current(by) => self.at.wrapping_add_signed(by),
        };
        Ok(self.at)
    }
}

fn sites(code: &[u8], address: u64, machine: InstructionSet) {
    let mut moved: Option<AttachOffset> = None;
    for kernel in KERNELS {
        let site = select(code, address, machine, kernel);
        let length = u64::try_from(code.len()).expect("code in memory");
        assert!(site.offset_in_function == 0 || site.offset_in_function < length, "{site:?}");
        match site.reason {
            SiteReason::MovedPast { instructions } => {
                assert!(instructions > 0 && site.offset_in_function > 0 && site.emulated, "{site:?}");
                let before = moved.replace(site.clone());
                // A newer kernel emulates more instructions, so the search ends at the same
                // instruction or earlier.
                assert!(before.is_none_or(|before| site.offset_in_function <= before.offset_in_function), "{site:?}");
            }
            SiteReason::EntryEmulated => assert!(site.offset_in_function == 0 && site.emulated, "{site:?}"),
            _ => assert!(site.offset_in_function == 0 && !site.emulated, "{site:?}"),
        }
    }
}
