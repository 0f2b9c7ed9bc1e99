//! Reads the executable file mappings of a process and resolves addresses to files.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;

use super::image::Images;
use crate::sources::clock;
use crate::sources::library::{open_mapped_file, unescape};

/// Maximum bytes read of `maps`, enough for 100,000 mappings.
const MOST_MAPS_BYTES: u64 = 16 << 20;

/// The executable mappings of a process at one moment.
#[derive(Debug)]
pub(super) struct Maps {
    tgid: u32,
    /// When the mappings were read: `CLOCK_BOOTTIME`, nanoseconds; 0 for never.
    read_ns: u64,
    /// Mappings in order of addresses.
    all: Vec<CodeMapping>,
}

/// An executable mapping of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CodeMapping {
    start: u64,
    end: u64,
    offset: u64,
    /// The mapping's line of `maps`; an equal line means the same mapping.
    line: Vec<u8>,
    /// Number of the file in [`Images`]; `None` if the file is unreadable.
    image: Option<usize>,
}

/// The code at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CodeLocation {
    /// Number of the file in [`Images`], and the offset in the file.
    OfFile(usize, u64),
    /// The file is unreadable.
    Unreadable,
    /// The address is in no file.
    None,
}

impl Maps {
    pub(super) fn new(tgid: u32) -> Self {
        Self { tgid, read_ns: 0, all: Vec::new() }
    }

    /// Reads the mappings again unless they were read after `time_ns`. Code that ran at that time
    /// is then included, unless it was unmapped since.
    pub(super) fn be_as_new_as(&mut self, time_ns: u64, images: &mut Images) {
        if self.read_ns > time_ns {
            return;
        }
        let read_ns = clock::boottime_ns();
        let process = PathBuf::from(format!("/proc/{}", self.tgid));
        // After the process has exited, the earlier mappings are kept.
        let Ok(file) = File::open(process.join("maps")) else { return };
        let mut lines = BufReader::with_capacity(64 << 10, file.take(MOST_MAPS_BYTES));
        let (mut line, mut all) = (Vec::new(), Vec::with_capacity(self.all.len()));
        loop {
            line.clear();
            match lines.read_until(b'\n', &mut line) {
                Ok(0) => break,
                Ok(_) => all.extend(self.mapping(line.trim_ascii_end(), &process, images)),
                Err(_) => return,
            }
        }
        if !all.is_empty() {
            self.all = all;
            self.read_ns = read_ns;
        }
    }

    /// Parses a line; `None` for a mapping without execute permission or file.
    fn mapping(&self, line: &[u8], process: &std::path::Path, images: &mut Images) -> Option<CodeMapping> {
        let path_start = line.iter().position(|byte| *byte == b'/')?;
        let mut fields = std::str::from_utf8(&line[..path_start]).ok()?.split_ascii_whitespace();
        let range = fields.next()?;
        let permissions = fields.next()?;
        if permissions.as_bytes().get(2) != Some(&b'x') {
            return None;
        }
        let (start, end) = range.split_once('-')?;
        let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).ok());
        let (start, end) = (start?, end?);
        let known = self.all.binary_search_by_key(&start, |mapping| mapping.start).ok().map(|at| &self.all[at]);
        if let Some(known) = known.filter(|known| known.line == line) {
            return Some(known.clone());
        }
        let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
        let inode = fields.nth(1)?.parse().ok()?;
        let path = unescape(&line[path_start..]);
        let image = open_mapped_file(process, range, &path, inode).and_then(|file| images.of(&file, &path));
        Some(CodeMapping { start, end, offset, line: line.to_vec(), image })
    }

    /// Returns the numbers of the mapped files.
    pub(super) fn images(&self) -> impl Iterator<Item = usize> {
        self.all.iter().filter_map(|mapping| mapping.image)
    }

    /// Returns the code at an address.
    pub(super) fn code(&self, address: u64) -> CodeLocation {
        let at = self.all.partition_point(|mapping| mapping.start <= address);
        match at.checked_sub(1).map(|at| &self.all[at]).filter(|mapping| address < mapping.end) {
            Some(CodeMapping { image: Some(image), start, offset, .. }) => {
                CodeLocation::OfFile(*image, (address - start).saturating_add(*offset))
            }
            Some(_) => CodeLocation::Unreadable,
            None => CodeLocation::None,
        }
    }
}
