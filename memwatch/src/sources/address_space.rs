//! Reads the memory of another process without changing it: a read allocates no page.
//!
//! Reading a page that the process has not accessed yet would allocate it and add it to the page
//! tables, so `/proc/PID/pagemap` is read first (Documentation/admin-guide/mm/pagemap.rst). A page
//! that was not accessed has the content of its file, or zeros.
//!
//! The files `mem` and `pagemap` refer to the address space at the time they were opened
//! (proc_pid_mem(5)). After an exec, or when the process number is reused, they are empty.

mod mapping;
mod timed;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use memwatch_inspect::memory::MemoryAccess;

pub(crate) use mapping::MemoryMapping;
pub(crate) use timed::TimedSpace;

use super::library::open_mapped_file;
use crate::stranger_file;

/// Page size in bytes.
const PAGE_BYTES: u64 = 4096;
/// Maximum number of pages per read of the page map.
const MOST_PAGES: usize = 64;
/// Bit of a page map entry: the page is in memory.
const IS_PRESENT: u64 = 1 << 63;
/// Bit of a page map entry: the page is swapped out. Reading would swap it in.
const IS_SWAPPED: u64 = 1 << 62;

/// Memory of a process.
#[derive(Debug)]
pub(crate) struct AddressSpace {
    process: PathBuf,
    memory: File,
    pages: File,
    mappings: Vec<MemoryMapping>,
    /// Open files of pages that were not accessed, by the address of their mapping.
    files: RefCell<BTreeMap<u64, Option<File>>>,
}

impl AddressSpace {
    /// Opens the memory. Needs permission to trace the process (ptrace(2), `PTRACE_MODE_ATTACH`),
    /// but does not stop it.
    ///
    /// # Errors
    /// The process has exited, or reading is not permitted.
    pub(crate) fn open(tgid: u32) -> io::Result<Self> {
        let process = PathBuf::from(format!("/proc/{tgid}"));
        let memory = File::open(process.join("mem"))?;
        let pages = File::open(process.join("pagemap"))?;
        let mappings = mapping::read(&process)?;
        Ok(Self { process, memory, pages, mappings, files: RefCell::default() })
    }

    /// Reads the mappings again.
    ///
    /// # Errors
    /// The process has exited, or reading is not permitted any longer.
    pub(crate) fn refresh(&mut self) -> io::Result<()> {
        self.mappings = mapping::read(&self.process)?;
        self.files.borrow_mut().clear();
        Ok(())
    }

    /// Returns the mappings as of the last refresh, by address.
    pub(crate) fn mappings(&self) -> &[MemoryMapping] {
        &self.mappings
    }

    /// Opens the file of a mapping, with `O_PATH`.
    pub(crate) fn file_of(&self, mapping: &MemoryMapping) -> Option<File> {
        open_mapped_file(&self.process, &mapping.range(), &mapping.path, mapping.inode)
    }

    fn mapping_at(&self, address: u64) -> Option<&MemoryMapping> {
        let after = self.mappings.partition_point(|mapping| mapping.start <= address);
        self.mappings.get(after.checked_sub(1)?).filter(|mapping| address < mapping.end)
    }

    /// Fills a buffer with the content of a page, or part of one, that the process has not
    /// accessed.
    fn fill_untouched(&self, address: u64, into: &mut [u8]) -> bool {
        let Some(mapping) = self.mapping_at(address).filter(|mapping| mapping.is_readable) else { return false };
        if mapping.inode == 0 {
            into.fill(0);
            return true;
        }
        let mut files = self.files.borrow_mut();
        let file = files.entry(mapping.start).or_insert_with(|| {
            // The `O_PATH` descriptor cannot be read. It stays open until the file is reopened
            // through it.
            let named = self.file_of(mapping)?;
            stranger_file::reopen(&named, u64::MAX).ok()
        });
        let offset = (address - mapping.start).checked_add(mapping.offset);
        file.as_ref().zip(offset).is_some_and(|(file, offset)| read_zero_padded(file, offset, into).is_ok())
    }

    /// Returns the page map entries of the pages in an address range.
    fn entries(&self, address: u64, bytes: usize) -> Option<Vec<u64>> {
        let first = address / PAGE_BYTES;
        let last = address.checked_add(bytes as u64)?.checked_sub(1)? / PAGE_BYTES;
        let count = usize::try_from(last - first + 1).ok().filter(|count| *count <= MOST_PAGES)?;
        let mut entries = vec![0; 8 * count];
        self.pages.read_exact_at(&mut entries, first.checked_mul(8)?).ok()?;
        Some(entries.as_chunks::<8>().0.iter().map(|entry| u64::from_ne_bytes(*entry)).collect())
    }

    fn fill_some(&self, address: u64, into: &mut [u8]) -> bool {
        let Some(entries) = self.entries(address, into.len()) else { return false };
        if entries.iter().all(|entry| entry & IS_PRESENT != 0) {
            return self.memory.read_exact_at(into, address).is_ok();
        }
        let (mut at, mut rest) = (address, into);
        for entry in entries {
            let in_page = usize::try_from(PAGE_BYTES - at % PAGE_BYTES).unwrap_or(usize::MAX);
            let (part, behind) = rest.split_at_mut(in_page.min(rest.len()));
            let is_filled = if entry & IS_PRESENT != 0 {
                self.memory.read_exact_at(part, at).is_ok()
            } else {
                entry & IS_SWAPPED == 0 && self.fill_untouched(at, part)
            };
            if !is_filled {
                return false;
            }
            (at, rest) = (at + part.len() as u64, behind);
        }
        true
    }
}

impl MemoryAccess for AddressSpace {
    fn fill(&self, address: u64, into: &mut [u8]) -> bool {
        let most = (MOST_PAGES - 1) * usize::try_from(PAGE_BYTES).unwrap_or(usize::MAX);
        (address..).step_by(most).zip(into.chunks_mut(most)).all(|(address, part)| self.fill_some(address, part))
    }
}

/// Reads the file. Beyond the file's end, a mapping has zeros up to the end of the page.
fn read_zero_padded(file: &File, offset: u64, into: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < into.len() {
        match file.read_at(&mut into[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    into[filled..].fill(0);
    Ok(())
}

#[cfg(test)]
mod tests;
