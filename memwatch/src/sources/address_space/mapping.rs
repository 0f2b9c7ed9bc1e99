//! Reads the memory mappings of a process.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use crate::sources::library::unescape;

/// Maximum bytes read of `maps`, enough for 100,000 mappings.
const MOST_MAPS_BYTES: u64 = 16 << 20;

/// A line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemoryMapping {
    /// First address.
    pub(crate) start: u64,
    /// Address after the last one.
    pub(crate) end: u64,
    /// Whether the mapping is readable.
    pub(crate) is_readable: bool,
    /// Offset in the file.
    pub(crate) offset: u64,
    /// Inode number of the file; 0 for an anonymous mapping.
    pub(crate) inode: u64,
    /// Path of the file as the process sees it; ends in ` (deleted)` if the file was removed.
    pub(crate) path: Vec<u8>,
}

impl MemoryMapping {
    /// Returns the address range as named in `map_files`.
    pub(super) fn range(&self) -> String {
        format!("{:x}-{:x}", self.start, self.end)
    }
}

/// Reads the mappings of the process at this directory of `/proc`, in order of addresses.
pub(super) fn read(process: &Path) -> io::Result<Vec<MemoryMapping>> {
    let file = File::open(process.join("maps"))?;
    let mut lines = BufReader::with_capacity(64 << 10, file.take(MOST_MAPS_BYTES));
    let (mut line, mut all) = (Vec::new(), Vec::new());
    loop {
        line.clear();
        if lines.read_until(b'\n', &mut line)? == 0 {
            return Ok(all);
        }
        all.extend(parse(line.trim_ascii_end()));
    }
}

/// Parses `start-end perms offset major:minor inode   path`.
fn parse(line: &[u8]) -> Option<MemoryMapping> {
    let path_start = line.iter().position(|byte| matches!(byte, b'/' | b'[')).unwrap_or(line.len());
    let mut fields = std::str::from_utf8(&line[..path_start]).ok()?.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = (number(start)?, number(end)?);
    let is_readable = fields.next()?.starts_with('r');
    let offset = number(fields.next()?)?;
    let inode = fields.nth(1)?.parse().ok()?;
    Some(MemoryMapping { start, end, is_readable, offset, inode, path: unescape(&line[path_start..]) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_maps_is_taken_apart() {
        let line = b"7f00a000-7f00c000 r--p 00001000 fe:01 1234                       /usr/lib/x \\012y.so (deleted)";
        let mapping = parse(line).expect("a line");
        assert_eq!((mapping.start, mapping.end, mapping.offset, mapping.inode), (0x7f00_a000, 0x7f00_c000, 4096, 1234));
        assert!(mapping.is_readable);
        assert_eq!(mapping.path, b"/usr/lib/x \ny.so (deleted)");
        assert_eq!(mapping.range(), "7f00a000-7f00c000");
        let heap = parse(b"0060a000-0070a000 rw-p 00000000 00:00 0                          [heap]").expect("a line");
        assert_eq!((heap.inode, heap.path), (0, b"[heap]".to_vec()));
        let none = parse(b"7f00a000-7f00c000 ---p 00000000 00:00 0 ").expect("a line");
        assert!(!none.is_readable && none.path.is_empty());
        assert!(parse(b"garbage").is_none() && parse(b"").is_none());
    }
}
