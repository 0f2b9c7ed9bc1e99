//! Files with code: how the caller of an instruction is found (`.eh_frame`, by the sorted table of `.eh_frame_hdr`), read where it is needed.
//!
//! Linux Standard Base, Core, 5.0, chapter 10.6; nothing is mapped, since a file that is cut meanwhile would kill memwatch.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::os::linux::fs::MetadataExt;
use std::os::unix::fs::FileExt;

use std::sync::Arc;

use object::elf::{FileHeader64, PT_GNU_EH_FRAME, PT_LOAD};
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use object::{LittleEndian, elf};

use super::rules::{self, Rules};
use crate::printable::printable;
use crate::sources::kernel::resolve::FunctionLocation;
use crate::stranger_file::{self, ElfReader, MOST_CODE_BYTES};

const LE: LittleEndian = LittleEndian;
/// Files that are known at once; more are unreadable.
const MOST_IMAGES: usize = 4096;
/// So many are kept whoever has them.
const FEW: usize = 64;
/// Headers beyond that are no program's.
const MOST_HEADERS: usize = 4096;
/// The longest entry of `.eh_frame` that is read: the largest real ones have some kilobytes.
const MOST_ENTRY_BYTES: usize = 1 << 20;
/// Instructions of a file whose rules are remembered; above it all are forgotten.
const MOST_RULES: usize = 1 << 16;
/// `.eh_frame_hdr` before its table: version, encodings, the address of `.eh_frame` and the number of entries.
const TABLE_HEADER_BYTES: usize = 12;
/// The encodings that linkers write: `.eh_frame` relative to here, the number as it is, and pairs relative to the beginning, of four bytes each
/// (`DW_EH_PE_pcrel | sdata4`, `udata4`, `datarel | sdata4`).
const TABLE_HEADER: [u8; 4] = [1, 0x1B, 0x03, 0x3B];

/// Which file it is: device, inode, size and when it was changed.
type Key = (u64, u64, u64, (i64, i64));

/// Files by number. Each is open, and what is known of it may be large: it stays as long as a process has it, and a while longer for those to come.
#[derive(Debug, Default)]
pub(super) struct Images {
    by_key: HashMap<Key, Option<usize>>,
    all: HashMap<usize, (Image, Arc<str>)>,
    /// No number is ever another file's.
    last: usize,
    /// How many were left when the ones without a process were forgotten last.
    left: usize,
}

/// A file with code.
#[derive(Debug)]
pub(crate) struct Image {
    pub(super) file: File,
    segments: Vec<Segment>,
    /// None where the file has none that is understood.
    table: Option<Table>,
    rules: HashMap<u64, Option<Arc<Rules>>>,
}

/// A loaded piece of a file.
#[derive(Clone, Copy, Debug)]
struct Segment {
    address: u64,
    offset: u64,
    file_bytes: u64,
}

/// The sorted table of functions.
#[derive(Clone, Copy, Debug)]
struct Table {
    /// The address that its entries are relative to.
    address: u64,
    /// Where its entries begin in the file.
    offset: u64,
    entries: u64,
}

impl Images {
    /// The number of a file, which was opened with `O_PATH`; `None` where it cannot be read, or is no ELF file for this processor.
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
            // Its owner has a lease on it: it may be readable when it is asked for again.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            opened => opened.ok().and_then(Image::read),
        };
        let number = image.map(|image| {
            self.last += 1;
            self.all.insert(self.last, (image, printable(&String::from_utf8_lossy(path)).into()));
            self.last
        });
        self.by_key.insert(key, number);
        number
    }

    /// A file by its number, and its path as the first process that had it saw it; `None` where no process has it any more.
    pub(super) fn named(&self, number: usize) -> Option<(&Image, Arc<str>)> {
        let (image, path) = self.all.get(&number)?;
        Some((image, Arc::clone(path)))
    }

    pub(super) fn get_mut(&mut self, number: usize) -> Option<&mut Image> {
        self.all.get_mut(&number).map(|(image, _)| image)
    }

    /// Whether there are so many more than somebody had once that it is worth looking who has them.
    pub(super) fn are_many(&self) -> bool {
        self.by_key.len() >= 2 * self.left + FEW
    }

    /// Forgets all but these.
    pub(super) fn keep(&mut self, used: &BTreeSet<usize>) {
        self.all.retain(|number, _| used.contains(number));
        // One that could not be read may be readable by now.
        self.by_key.retain(|_, number| number.is_some_and(|number| used.contains(&number)));
        self.left = self.by_key.len();
    }
}

impl Image {
    /// A file for this processor; `None` where it is none.
    pub(crate) fn read(file: File) -> Option<Self> {
        let cache = ElfReader::new(file.try_clone().ok()?);
        let header = FileHeader64::<LittleEndian>::parse(&cache).ok()?;
        if !header.is_little_endian() || header.e_machine(LE) != elf::EM_X86_64 {
            return None;
        }
        let headers = header.program_headers(LE, &cache).ok()?;
        let headers = || headers.iter().take(MOST_HEADERS);
        let loaded = headers().filter(|header| header.p_type(LE) == PT_LOAD);
        let segments = loaded.map(|header| Segment {
            address: header.p_vaddr(LE),
            offset: header.p_offset(LE),
            file_bytes: header.p_filesz(LE),
        });
        let table = headers().find(|header| header.p_type(LE) == PT_GNU_EH_FRAME);
        let table = table.and_then(|header| Table::read(&file, header.p_vaddr(LE), header.p_offset(LE)));
        let segments = segments.collect();
        drop(cache);
        Some(Self { file, segments, table, rules: HashMap::new() })
    }

    /// The function that has an instruction at this address, by its description: without symbols it says where one begins and ends.
    pub(crate) fn function(&self, address: u64) -> Option<FunctionLocation> {
        let description = self.table?.description(&self.file, address)?;
        let entry = self.entry(self.offset(description)?)?;
        // Behind the length and the way to its common part: where the function begins, from here, and how long it is.
        let [begin, bytes] = [8, 12].map(|at| Some(u32::from_le_bytes(*entry.get(at..)?.first_chunk()?)));
        let (begin, size_bytes) =
            (description.checked_add(8)?.wrapping_add_signed(begin?.cast_signed().into()), bytes?);
        let is_within = address.checked_sub(begin)? < u64::from(size_bytes);
        let file_offset = self.offset(begin)?;
        is_within.then_some(FunctionLocation { address: begin, file_offset, size_bytes: size_bytes.into() })
    }

    /// The address, before relocation, of a byte of the file.
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

    /// How the caller of the instruction at this address is found; `None` where nothing says so.
    pub(super) fn rules(&mut self, address: u64) -> Option<Arc<Rules>> {
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

    fn find(&self, address: u64) -> Option<Rules> {
        let description = self.table?.description(&self.file, address)?;
        let offset = self.offset(description)?;
        let entry = self.entry(offset)?;
        // Behind the length: how far before here its common part begins.
        let back = u32::from_le_bytes(*entry.get(4..)?.first_chunk()?);
        let common = self.entry((offset + 4).checked_sub(back.into())?)?;
        rules::of(&common, &entry, description, address)
    }

    /// An entry of `.eh_frame`, with its length before it.
    fn entry(&self, offset: u64) -> Option<Vec<u8>> {
        let mut length = [0; 4];
        self.file.read_exact_at(&mut length, offset).ok()?;
        // All ones announce a length of eight bytes, which no compiler writes for code.
        let bytes =
            usize::try_from(u32::from_le_bytes(length)).ok().filter(|bytes| (8..MOST_ENTRY_BYTES).contains(bytes));
        let mut entry = vec![0; bytes? + 4];
        self.file.read_exact_at(&mut entry, offset).ok()?;
        Some(entry)
    }
}

impl Table {
    fn read(file: &File, address: u64, offset: u64) -> Option<Self> {
        let mut header = [0; TABLE_HEADER_BYTES];
        file.read_exact_at(&mut header, offset).ok()?;
        let entries = header[8..].first_chunk().map(|bytes| u32::from_le_bytes(*bytes))?;
        let is_known = header[..4] == TABLE_HEADER;
        is_known.then_some(Self { address, offset: offset + TABLE_HEADER_BYTES as u64, entries: entries.into() })
    }

    /// The address of the entry of `.eh_frame` for the last function that begins at or before this address.
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
