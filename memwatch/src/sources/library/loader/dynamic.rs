//! Reads RPATH and RUNPATH of an untrusted ELF file, piece by piece.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// Maximum number of program headers and dynamic entries; real files have some 15 and 40.
const MOST_HEADERS: usize = 64;
const MOST_ENTRIES: usize = 1024;
/// Maximum length of a list of directories.
const LONGEST_LIST_BYTES: usize = 4096;

const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
const ENTRY_BYTES: usize = 16;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_NULL: u64 = 0;
const DT_STRTAB: u64 = 5;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;

/// A program header: offset and size in the file, and address in memory.
struct LoaderSegment {
    kind: u32,
    offset: u64,
    address: u64,
    bytes: u64,
}

/// Returns the lists in a file, unexpanded; none if it is no 64-bit little-endian ELF file, has no
/// lists or is damaged.
pub(super) fn search_paths(file: &File) -> Vec<Vec<u8>> {
    lists(|at, bytes| file.read_at(bytes, at).ok()).unwrap_or_default()
}

/// Returns the lists in a file's bytes.
#[cfg_attr(not(test), allow(dead_code, reason = "for tests, and for arbitrary bytes"))]
pub(super) fn search_paths_of(file: &[u8]) -> Vec<Vec<u8>> {
    let read = |at: u64, into: &mut [u8]| {
        let rest = file.get(usize::try_from(at).ok()?..)?;
        let length = rest.len().min(into.len());
        into[..length].copy_from_slice(&rest[..length]);
        Some(length)
    };
    lists(read).unwrap_or_default()
}

/// Returns the lists, given a function that reads at an offset and returns the number of bytes
/// read.
fn lists(read: impl Fn(u64, &mut [u8]) -> Option<usize>) -> Option<Vec<Vec<u8>>> {
    let exactly = |at: u64, bytes: &mut [u8]| (read(at, bytes)? == bytes.len()).then_some(());
    let mut header = [0; HEADER_BYTES];
    exactly(0, &mut header)?;
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let count = usize::from(u16_at(&header, 56)?).min(MOST_HEADERS);
    let mut headers = vec![0; count * PROGRAM_HEADER_BYTES];
    exactly(u64_at(&header, 32)?, &mut headers)?;
    let segments: Vec<LoaderSegment> =
        headers.as_chunks::<PROGRAM_HEADER_BYTES>().0.iter().filter_map(segment).collect();
    let dynamic = segments.iter().find(|segment| segment.kind == PT_DYNAMIC)?;
    let entries = usize::try_from(dynamic.bytes).ok()?.min(MOST_ENTRIES * ENTRY_BYTES) / ENTRY_BYTES;
    let mut table = vec![0; entries * ENTRY_BYTES];
    exactly(dynamic.offset, &mut table)?;
    let entries =
        table.as_chunks::<ENTRY_BYTES>().0.iter().filter_map(|entry| Some((u64_at(entry, 0)?, u64_at(entry, 8)?)));
    let entries: Vec<(u64, u64)> = entries.take_while(|(tag, _)| *tag != DT_NULL).collect();
    let strings = entries.iter().find(|(tag, _)| *tag == DT_STRTAB).map(|(_, address)| *address)?;
    let named = entries.iter().filter(|(tag, _)| matches!(*tag, DT_RPATH | DT_RUNPATH));
    let text = |offset: u64| {
        let at = offset_of(&segments, strings.checked_add(offset)?)?;
        let mut text = [0; LONGEST_LIST_BYTES];
        let length = read(at, &mut text)?;
        // Allocates only the text's length, since it is cached with the file.
        Some(text[..text[..length].iter().position(|byte| *byte == 0)?].to_vec())
    };
    // A linker writes at most one of each.
    Some(named.take(2).filter_map(|(_, offset)| text(*offset)).collect())
}

fn segment(header: &[u8; PROGRAM_HEADER_BYTES]) -> Option<LoaderSegment> {
    Some(LoaderSegment {
        kind: u32_at(header, 0)?,
        offset: u64_at(header, 8)?,
        address: u64_at(header, 16)?,
        bytes: u64_at(header, 32)?,
    })
}

/// Returns the file offset of an address.
fn offset_of(segments: &[LoaderSegment], address: u64) -> Option<u64> {
    segments.iter().filter(|segment| segment.kind == PT_LOAD).find_map(|segment| {
        let within = address.checked_sub(segment.address).filter(|within| *within < segment.bytes)?;
        segment.offset.checked_add(within)
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Builds a minimal shared library with these lists: headers, a dynamic table, and the strings.
    pub(in super::super) fn library(lists: &[(u64, &str)]) -> Vec<u8> {
        const DYNAMIC_AT: u64 = 0x100;
        const STRINGS_AT: u64 = 0x300;
        const ADDRESS: u64 = 0x40_0000;
        let mut strings = vec![0];
        let mut entries = vec![(1, 0), (DT_STRTAB, ADDRESS + STRINGS_AT)];
        for (tag, list) in lists {
            entries.push((*tag, u64::try_from(strings.len()).expect("short")));
            strings.extend(list.bytes().chain([0]));
        }
        entries.push((DT_NULL, 0));
        let length = STRINGS_AT + u64::try_from(strings.len()).expect("short");
        let dynamic_bytes = u64::try_from(entries.len() * ENTRY_BYTES).expect("short");
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(32, 0);
        bytes.extend(64_u64.to_le_bytes());
        bytes.resize(56, 0);
        bytes.extend(2_u16.to_le_bytes());
        bytes.resize(HEADER_BYTES, 0);
        for (kind, offset, size) in [(PT_LOAD, 0, length), (PT_DYNAMIC, DYNAMIC_AT, dynamic_bytes)] {
            bytes.extend(kind.to_le_bytes());
            bytes.extend(5_u32.to_le_bytes());
            bytes.extend(
                [offset, ADDRESS + offset, ADDRESS + offset, size, size, 4096].map(u64::to_le_bytes).as_flattened(),
            );
        }
        bytes.resize(usize::try_from(DYNAMIC_AT).expect("small"), 0);
        for (tag, value) in entries {
            bytes.extend([tag, value].map(u64::to_le_bytes).as_flattened());
        }
        bytes.resize(usize::try_from(STRINGS_AT).expect("small"), 0);
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn dynamic_section_returns_both_search_path_lists() {
        let file = library(&[(DT_RUNPATH, "$ORIGIN/../lib:/opt/cuda"), (DT_RPATH, "/old")]);
        let lists = search_paths_of(&file);
        assert_eq!(lists, [b"$ORIGIN/../lib:/opt/cuda".to_vec(), b"/old".to_vec()]);
        assert!(lists.iter().all(|list| list.capacity() == list.len()), "thousands of them are kept");
        assert_eq!(search_paths_of(&library(&[])), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn the_running_program_can_be_read() {
        let file = File::open("/proc/self/exe").expect("this program");
        assert!(search_paths(&file).len() <= 2);
    }

    #[test]
    fn dynamic_section_of_a_damaged_file_is_bounded_and_never_panics() {
        let file = library(&[(DT_RUNPATH, "/opt/cuda"), (DT_RPATH, "/old")]);
        for length in 0..file.len() {
            let cut = search_paths_of(&file[..length]);
            assert!(cut.len() <= 2, "{length}");
        }
        for index in 0..file.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut damaged = file.clone();
                damaged[index] = value;
                assert!(search_paths_of(&damaged).iter().all(|list| list.len() < LONGEST_LIST_BYTES));
            }
        }
    }
}
