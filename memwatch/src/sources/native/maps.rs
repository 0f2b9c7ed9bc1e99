//! Which code a process has where: its executable mappings of files.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;

use super::image::Images;
use crate::sources::clock;
use crate::sources::library::{open_mapped_file, unescape};

/// What is read of a list of mappings at most: 100,000 of them.
const MOST_MAPS_BYTES: u64 = 16 << 20;

/// The executable mappings of a process at a moment.
#[derive(Debug)]
pub(super) struct Maps {
    tgid: u32,
    /// When they were read: `CLOCK_BOOTTIME`, nanoseconds; 0 for never.
    read_ns: u64,
    /// By their addresses.
    all: Vec<Mapping>,
}

/// A part of a file that is mapped to be executed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapping {
    start: u64,
    end: u64,
    offset: u64,
    /// The line of the list that it is from: what has the same line is the same.
    line: Vec<u8>,
    /// The file in [`Images`]; `None` where it could not be read.
    image: Option<usize>,
}

/// What lies at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    /// A byte of a file: its number in [`Images`], and its offset.
    OfFile(usize, u64),
    /// A byte of a file that could not be read.
    Unreadable,
    /// No file's.
    None,
}

impl Maps {
    pub(super) fn new(tgid: u32) -> Self {
        Self { tgid, read_ns: 0, all: Vec::new() }
    }

    /// Reads them again unless that was done after this moment: code that ran then is in what is read since, unless it has gone meanwhile.
    pub(super) fn be_as_new_as(&mut self, time_ns: u64, images: &mut Images) {
        if self.read_ns > time_ns {
            return;
        }
        let read_ns = clock::boottime_ns();
        let process = PathBuf::from(format!("/proc/{}", self.tgid));
        // Of a process that has ended, what was read before stays.
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

    /// What a line says; `None` for what is not executed or of no file.
    fn mapping(&self, line: &[u8], process: &std::path::Path, images: &mut Images) -> Option<Mapping> {
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
        Some(Mapping { start, end, offset, line: line.to_vec(), image })
    }

    /// The files that it has, by their numbers.
    pub(super) fn images(&self) -> impl Iterator<Item = usize> {
        self.all.iter().filter_map(|mapping| mapping.image)
    }

    /// What lies at an address.
    pub(super) fn code(&self, address: u64) -> Code {
        let at = self.all.partition_point(|mapping| mapping.start <= address);
        match at.checked_sub(1).map(|at| &self.all[at]).filter(|mapping| address < mapping.end) {
            Some(Mapping { image: Some(image), start, offset, .. }) => {
                Code::OfFile(*image, (address - start).saturating_add(*offset))
            }
            Some(_) => Code::Unreadable,
            None => Code::None,
        }
    }
}
