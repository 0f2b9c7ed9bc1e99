//! Reads the executable file mappings of a process and resolves addresses to files.

mod query;

use std::collections::BTreeSet;
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
    /// Mappings that were used since [`Self::begin_use`], by their place in `all`.
    used: BTreeSet<usize>,
    /// Whether an address was in none of them.
    has_missed: bool,
}

/// An executable mapping of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CodeMapping {
    start: u64,
    end: u64,
    offset: u64,
    /// Device and number of the file.
    file: MappedFile,
    /// The mapping's line of `maps`; an equal line means the same mapping.
    line: Vec<u8>,
    /// Number of the file in [`Images`]; `None` if the file is unreadable.
    image: Option<usize>,
}

/// Device and inode number of a mapped file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct MappedFile {
    device: (u32, u32),
    inode: u64,
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
        Self { tgid, read_ns: 0, all: Vec::new(), used: BTreeSet::new(), has_missed: false }
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
        self.begin_use();
    }

    /// Begins to note which mappings are used.
    pub(super) fn begin_use(&mut self) {
        self.used.clear();
        self.has_missed = false;
    }

    /// Whether the mappings used since [`Self::begin_use`] are still those of the process, so that
    /// they need not be read again, which takes milliseconds for a large program. False if the kernel
    /// cannot tell, which it can since Linux 6.11.
    pub(super) fn are_used_ones_present(&self) -> bool {
        if self.has_missed || self.used.is_empty() {
            return false;
        }
        let Ok(file) = File::open(format!("/proc/{}/maps", self.tgid)) else { return false };
        self.used.iter().all(|at| {
            let Some(CodeMapping { start, end, offset, file: of, .. }) = self.all.get(*at) else { return false };
            query::executable_at(&file, *start).is_some_and(|found| {
                (found.start, found.end, found.offset) == (*start, *end, *offset)
                    && (found.device, found.inode) == (of.device, of.inode)
            })
        })
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
        let (major, minor) = fields.next()?.split_once(':')?;
        let [major, minor] = [major, minor].map(|number| u32::from_str_radix(number, 16).ok());
        let inode = fields.next()?.parse().ok()?;
        let file = MappedFile { device: (major?, minor?), inode };
        let path = unescape(&line[path_start..]);
        let image = open_mapped_file(process, range, &path, inode).and_then(|file| images.of(&file, &path));
        Some(CodeMapping { start, end, offset, file, line: line.to_vec(), image })
    }

    /// Returns the numbers of the mapped files.
    pub(super) fn images(&self) -> impl Iterator<Item = usize> {
        self.all.iter().filter_map(|mapping| mapping.image)
    }

    /// Returns the code at an address.
    pub(super) fn code(&mut self, address: u64) -> CodeLocation {
        let at = self.all.partition_point(|mapping| mapping.start <= address).checked_sub(1);
        let Some(at) = at.filter(|at| self.all.get(*at).is_some_and(|mapping| address < mapping.end)) else {
            self.has_missed = true;
            return CodeLocation::None;
        };
        self.used.insert(at);
        match &self.all[at] {
            CodeMapping { image: Some(image), start, offset, .. } => {
                CodeLocation::OfFile(*image, (address - start).saturating_add(*offset))
            }
            _ => CodeLocation::Unreadable,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;
    use std::path::Path;

    use super::*;

    const PAGE: usize = 4096;

    /// Maps the first page of a file as code, at this address if it is not null.
    fn map(path: &Path, at: *mut libc::c_void) -> *mut libc::c_void {
        let file = File::open(path).expect("it is there");
        let fixed = if at.is_null() { 0 } else { libc::MAP_FIXED };
        let flags = libc::MAP_PRIVATE | fixed;
        // SAFETY: an address that is not null is that of a page that this test has mapped.
        let mapped = unsafe { libc::mmap(at, PAGE, libc::PROT_READ | libc::PROT_EXEC, flags, file.as_raw_fd(), 0) };
        assert_ne!(mapped, libc::MAP_FAILED);
        mapped
    }

    #[test]
    fn mapping_that_another_file_has_replaced_is_not_present_any_more() {
        let directory = tempfile::tempdir().expect("a directory");
        let [one, other] = ["one", "other"].map(|name| directory.path().join(name));
        for path in [&one, &other] {
            std::fs::copy("/bin/true", path).expect("a copy of a program");
        }
        let (mut maps, mut images) = (Maps::new(std::process::id()), Images::default());
        let mapped = map(&one, std::ptr::null_mut());
        maps.be_as_new_as(clock::boottime_ns(), &mut images);
        assert!(!maps.are_used_ones_present(), "nothing was used");
        assert!(matches!(maps.code(mapped as u64), CodeLocation::OfFile(..)));
        let own = File::open("/proc/self/maps").expect("the list of mappings");
        let kernel_can_tell = query::executable_at(&own, map as *const () as u64).is_some();
        assert_eq!(maps.are_used_ones_present(), kernel_can_tell);
        map(&other, mapped);
        assert!(!maps.are_used_ones_present(), "it is another file now");
        maps.be_as_new_as(clock::boottime_ns(), &mut images);
        maps.code(mapped as u64);
        assert_eq!(maps.are_used_ones_present(), kernel_can_tell);
        assert_eq!(maps.code(8), CodeLocation::None);
        assert!(!maps.are_used_ones_present(), "it may be in a newer one");
        // SAFETY: the page is this test's own.
        unsafe { libc::munmap(mapped, PAGE) };
    }
}
