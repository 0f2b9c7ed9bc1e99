use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::ptr::null_mut;

use super::*;

/// A mapping of this process. It is unmapped when it is dropped.
struct TestMapping {
    address: *mut libc::c_void,
    bytes: usize,
}

impl TestMapping {
    fn new(file: Option<&File>, bytes: usize) -> Self {
        let (flags, file) = match file {
            Some(file) => (libc::MAP_PRIVATE, file.as_raw_fd()),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1),
        };
        // SAFETY: a new mapping does not affect existing ones.
        let address = unsafe { libc::mmap(null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, file, 0) };
        assert_ne!(address, libc::MAP_FAILED);
        Self { address, bytes }
    }

    fn at(&self, offset: usize) -> u64 {
        (self.address.addr() + offset) as u64
    }

    fn write(&self, offset: usize, byte: u8) {
        assert!(offset < self.bytes);
        // SAFETY: the byte is in the mapping, which is writable and this test's own.
        unsafe { self.address.cast::<u8>().add(offset).write_volatile(byte) };
    }

    /// Returns how many of the mapping's pages are in memory, by the process's own page map.
    fn resident(&self) -> usize {
        let pages = File::open("/proc/self/pagemap").expect("it is there");
        let page = usize::try_from(PAGE_BYTES).expect("small");
        let is_there = |index: &usize| {
            let mut entry = [0; 8];
            pages.read_exact_at(&mut entry, (self.at(index * page) / PAGE_BYTES) * 8).expect("it is readable");
            u64::from_ne_bytes(entry) & IS_PRESENT != 0
        };
        (0..self.bytes / page).filter(is_there).count()
    }
}

impl Drop for TestMapping {
    fn drop(&mut self) {
        // SAFETY: nothing else refers to it.
        unsafe { libc::munmap(self.address, self.bytes) };
    }
}

#[test]
fn pages_that_were_never_touched_read_as_zero_and_are_not_made() {
    let mapped = TestMapping::new(None, 64 << 12);
    mapped.write(5 << 12, 7);
    let space = AddressSpace::open(std::process::id()).expect("own memory");
    let before = mapped.resident();
    let mut bytes = vec![1; 64 << 12];
    assert!(space.fill(mapped.at(0), &mut bytes));
    assert_eq!(bytes.iter().position(|byte| *byte != 0), Some(5 << 12));
    assert_eq!(bytes[5 << 12], 7);
    assert_eq!(mapped.resident(), before, "reading made a page");
}

#[test]
fn address_space_reads_untouched_file_pages_from_the_file() {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(&[3; 5000]).expect("written");
    let mapped = TestMapping::new(Some(&file), 2 << 12);
    let space = AddressSpace::open(std::process::id()).expect("own memory");
    let mut bytes = vec![1; 2 << 12];
    assert!(space.fill(mapped.at(0), &mut bytes));
    assert!(bytes[..5000].iter().all(|byte| *byte == 3) && bytes[5000..].iter().all(|byte| *byte == 0));
    assert_eq!(mapped.resident(), 0, "reading made a page");
    mapped.write(1, 9);
    assert_eq!(space.array::<3>(mapped.at(0)), Some([3, 9, 3]));
}

#[test]
fn address_space_read_of_unmapped_memory_is_none() {
    let space = AddressSpace::open(std::process::id()).expect("own memory");
    assert_eq!(space.array::<8>(0), None);
    assert_eq!(space.array::<8>(u64::MAX - 3), None);
    assert_eq!(space.array::<8>(1 << 47), None, "the kernel's half");
}
