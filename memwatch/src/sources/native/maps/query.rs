//! Asks the kernel for one mapping of a process (`PROCMAP_QUERY`, Linux 6.11 and later; linux/fs.h).

use std::fs::File;
use std::mem::size_of;
use std::os::fd::AsRawFd as _;

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: libc::c_ulong = 0xc068_6611;
/// `PROCMAP_QUERY_VMA_EXECUTABLE`.
const EXECUTABLE: u64 = 4;

/// `struct procmap_query`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

const _: () = assert!(size_of::<ProcmapQuery>() == 104);

/// An executable mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FoundMapping {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Offset in the file.
    pub(super) offset: u64,
    pub(super) device: (u32, u32),
    pub(super) inode: u64,
}

/// Returns the executable mapping at an address of the process whose `maps` this file is; `None` if
/// there is none, or if the kernel has no such call.
pub(super) fn executable_at(maps: &File, address: u64) -> Option<FoundMapping> {
    let size = size_of::<ProcmapQuery>() as u64;
    let mut query = ProcmapQuery { size, query_flags: EXECUTABLE, query_addr: address, ..ProcmapQuery::default() };
    // SAFETY: the argument is a live `procmap_query` whose size it states; without sizes of the name
    // and the build id, the kernel writes to nothing else.
    let answer = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) };
    (answer == 0).then_some(FoundMapping {
        start: query.vma_start,
        end: query.vma_end,
        offset: query.vma_offset,
        device: (query.dev_major, query.dev_minor),
        inode: query.inode,
    })
}
