//! Reads unwind information from files with code (`.eh_frame`, through the sorted table of
//! `.eh_frame_hdr`), on demand.
//!
//! Format: Linux Standard Base, Core, 5.0, chapter 10.6. Files are not memory-mapped, since
//! truncating a mapped file would kill memwatch.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::os::linux::fs::MetadataExt;
use std::os::unix::fs::FileExt;

use std::sync::Arc;

use object::elf::{FileHeader64, PT_GNU_EH_FRAME, PT_LOAD};
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use object::{LittleEndian, elf};

use super::rules::{self, UnwindRules};
use crate::printable::printable;
use crate::sources::kernel::resolve::FunctionLocation;
use crate::stranger_file::{self, ElfReader, MOST_CODE_BYTES};

const LE: LittleEndian = LittleEndian;
/// Maximum number of known files; further ones count as unreadable.
const MOST_IMAGES: usize = 4096;
/// Number of files up to which unused ones are kept.
const FEW: usize = 64;
/// Maximum number of program headers.
const MOST_HEADERS: usize = 4096;
/// Maximum size of an entry of `.eh_frame`. The largest real ones have some kilobytes.
const MOST_ENTRY_BYTES: usize = 1 << 20;
/// Maximum number of instructions of a file with cached rules; beyond it all are dropped.
const MOST_RULES: usize = 1 << 16;
/// Size of `.eh_frame_hdr` before its table: version, encodings, the address of `.eh_frame` and the
/// number of entries.
const TABLE_HEADER_BYTES: usize = 12;
/// Version and encodings that linkers write: `.eh_frame` relative to its field, the number of
/// entries as it is, and pairs of four-byte values relative to the beginning (`DW_EH_PE_pcrel |
/// sdata4`, `udata4`, `datarel | sdata4`).
const TABLE_HEADER: [u8; 4] = [1, 0x1B, 0x03, 0x3B];

/// Identity of a file: device, inode, size and change time.
type ImageKey = (u64, u64, u64, (i64, i64));

/// Files by number. Each is open, and its data may be large, so a file is kept only while a process
/// maps it, and a while longer for later processes.
#[derive(Debug, Default)]
pub(super) struct Images {
    by_key: HashMap<ImageKey, Option<usize>>,
    all: HashMap<usize, (CodeImage, Arc<str>)>,
    /// Last number given to a file; numbers are not reused.
    last: usize,
    /// Number of files left after unused ones were last dropped.
    left: usize,
}

/// A file with code.
#[derive(Debug)]
pub(crate) struct CodeImage {
    pub(super) file: File,
    segments: Vec<ImageSegment>,
    /// Table of `.eh_frame_hdr`; `None` if the file has none in a known format.
    table: Option<UnwindTable>,
    rules: HashMap<u64, Option<Arc<UnwindRules>>>,
}

/// A loaded segment of a file.
#[derive(Clone, Copy, Debug)]
struct ImageSegment {
    address: u64,
    offset: u64,
    file_bytes: u64,
}

/// Sorted table of functions.
#[derive(Clone, Copy, Debug)]
struct UnwindTable {
    /// Address to which its entries are relative.
    address: u64,
    /// File offset of its first entry.
    offset: u64,
    entries: u64,
}

impl Images {
    /// Returns the number of a file opened with `O_PATH`; `None` if it is unreadable or no ELF file
    /// for this machine.
    pub(super) fn of(&mut self, file: &File, path: &[u8]) -> Option<usize> {
        let metadata = file.metadata().ok()?;
        let changed = (metadata.st_ctime(), metadata.st_ctime_nsec());
        let key = (metadata.st_dev(), metadata.st_ino(), metadata.st_size(), changed);
        if let Some(known) = self.by_key.get(&key) {
            return *known;
        }
        if self.by_key.len() >= MOST_IMAGES {
            return None;
        }
        let image = match stranger_file::reopen(file, MOST_CODE_BYTES) {
            // The file is under a lease of its owner and may be readable at the next attempt.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            opened => opened.ok().and_then(CodeImage::read),
        };
        let number = image.map(|image| {
            self.last += 1;
            self.all.insert(self.last, (image, printable(&String::from_utf8_lossy(path)).into()));
            self.last
        });
        self.by_key.insert(key, number);
        number
    }

    /// Returns a file by its number, and its path as the first process with it sees it; `None` if
    /// it was dropped.
    pub(super) fn named(&self, number: usize) -> Option<(&CodeImage, Arc<str>)> {
        let (image, path) = self.all.get(&number)?;
        Some((image, Arc::clone(path)))
    }

    pub(super) fn get_mut(&mut self, number: usize) -> Option<&mut CodeImage> {
        self.all.get_mut(&number).map(|(image, _)| image)
    }

    /// Whether enough files were added since the last clean-up to make another one worthwhile.
    pub(super) fn are_many(&self) -> bool {
        self.by_key.len() >= 2 * self.left + FEW
    }

    /// Drops all files but these.
    pub(super) fn keep(&mut self, used: &BTreeSet<usize>) {
        self.all.retain(|number, _| used.contains(number));
        // An unreadable file may be readable by now.
        self.by_key.retain(|_, number| number.is_some_and(|number| used.contains(&number)));
        self.left = self.by_key.len();
    }
}

impl CodeImage {
    /// Reads the headers of an ELF file; `None` if it is not for this machine.
    pub(crate) fn read(file: File) -> Option<Self> {
        let cache = ElfReader::new(file.try_clone().ok()?);
        let header = FileHeader64::<LittleEndian>::parse(&cache).ok()?;
        if !header.is_little_endian() || header.e_machine(LE) != elf::EM_X86_64 {
            return None;
        }
        let headers = header.program_headers(LE, &cache).ok()?;
        let headers = || headers.iter().take(MOST_HEADERS);
        let loaded = headers().filter(|header| header.p_type(LE) == PT_LOAD);
        let segments = loaded.map(|header| ImageSegment {
            address: header.p_vaddr(LE),
            offset: header.p_offset(LE),
            file_bytes: header.p_filesz(LE),
        });
        let table = headers().find(|header| header.p_type(LE) == PT_GNU_EH_FRAME);
        let table = table.and_then(|header| UnwindTable::read(&file, header.p_vaddr(LE), header.p_offset(LE)));
        let segments = segments.collect();
        drop(cache);
        Some(Self { file, segments, table, rules: HashMap::new() })
    }

    /// Returns the function that contains an address, from its entry of `.eh_frame`, which shows
    /// beginning and end without symbols.
    pub(crate) fn function(&self, address: u64) -> Option<FunctionLocation> {
        let description = self.table?.description(&self.file, address)?;
        let entry = self.entry(self.offset(description)?)?;
        // After the length and the pointer to the CIE: the function's beginning relative to this
        // field, and its size.
        let [begin, bytes] = [8, 12].map(|at| Some(u32::from_le_bytes(*entry.get(at..)?.first_chunk()?)));
        let (begin, size_bytes) =
            (description.checked_add(8)?.wrapping_add_signed(begin?.cast_signed().into()), bytes?);
        let is_within = address.checked_sub(begin)? < u64::from(size_bytes);
        let file_offset = self.offset(begin)?;
        is_within.then_some(FunctionLocation { address: begin, file_offset, size_bytes: size_bytes.into() })
    }

    /// Returns the address, before relocation, of a byte of the file.
    pub(super) fn address(&self, offset: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let into = offset.checked_sub(segment.offset).filter(|into| *into < segment.file_bytes)?;
            segment.address.checked_add(into)
        })
    }

    fn offset(&self, address: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let into = address.checked_sub(segment.address).filter(|into| *into < segment.file_bytes)?;
            segment.offset.checked_add(into)
        })
    }

    /// Returns the unwind rules of the instruction at an address; `None` if there are none.
    pub(super) fn rules(&mut self, address: u64) -> Option<Arc<UnwindRules>> {
        if let Some(known) = self.rules.get(&address) {
            return known.clone();
        }
        let rules = self.find(address).map(Arc::new);
        if self.rules.len() >= MOST_RULES {
            self.rules.clear();
        }
        self.rules.insert(address, rules.clone());
        rules
    }

    fn find(&self, address: u64) -> Option<UnwindRules> {
        let description = self.table?.description(&self.file, address)?;
        let offset = self.offset(description)?;
        let entry = self.entry(offset)?;
        // After the length: the distance from this field back to the CIE.
        let back = u32::from_le_bytes(*entry.get(4..)?.first_chunk()?);
        let common = self.entry((offset + 4).checked_sub(back.into())?)?;
        rules::of(&common, &entry, description, address)
    }

    /// Reads an entry of `.eh_frame`, including its length field.
    fn entry(&self, offset: u64) -> Option<Vec<u8>> {
        let mut length = [0; 4];
        self.file.read_exact_at(&mut length, offset).ok()?;
        // All ones announce an eight-byte length, which no compiler writes for code.
        let bytes =
            usize::try_from(u32::from_le_bytes(length)).ok().filter(|bytes| (8..MOST_ENTRY_BYTES).contains(bytes));
        let mut entry = vec![0; bytes? + 4];
        self.file.read_exact_at(&mut entry, offset).ok()?;
        Some(entry)
    }
}

impl UnwindTable {
    fn read(file: &File, address: u64, offset: u64) -> Option<Self> {
        let mut header = [0; TABLE_HEADER_BYTES];
        file.read_exact_at(&mut header, offset).ok()?;
        let entries = header[8..].first_chunk().map(|bytes| u32::from_le_bytes(*bytes))?;
        let is_known = header[..4] == TABLE_HEADER;
        is_known.then_some(Self { address, offset: offset + TABLE_HEADER_BYTES as u64, entries: entries.into() })
    }

    /// Returns the address of the entry of `.eh_frame` for the last function that begins at or
    /// before an address.
    fn description(&self, file: &File, address: u64) -> Option<u64> {
        let at = |index: u64| -> Option<[u64; 2]> {
            let mut pair = [0; 8];
            file.read_exact_at(&mut pair, self.offset.checked_add(index * 8)?).ok()?;
            let [begin, description] = [&pair[..4], &pair[4..]].map(|half| {
                half.first_chunk().map(|bytes| self.address.wrapping_add_signed(i32::from_le_bytes(*bytes).into()))
            });
            Some([begin?, description?])
        };
        let (mut low, mut high) = (0, self.entries);
        while low < high {
            let middle = low.midpoint(high);
            if at(middle)?[0] <= address { low = middle + 1 } else { high = middle }
        }
        at(low.checked_sub(1)?).map(|[_, description]| description)
    }
}
