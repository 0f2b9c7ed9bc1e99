//! Reads a whole hash map of the kernel, bucket by bucket.
//!
//! aya's iterator requests the next key after each key. Keys that are often removed, as addresses
//! are, make the kernel start over whenever the last key is absent (`BPF_MAP_GET_NEXT_KEY`), so the
//! walk may never end. `BPF_MAP_LOOKUP_BATCH` (Linux 5.6) walks by buckets; aya does not offer it.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use memwatch_common::allocation_map::AllocationKey;
use memwatch_common::capture::MappedAllocation;

/// `BPF_MAP_LOOKUP_BATCH` of include/uapi/linux/bpf.h.
const MAP_LOOKUP_BATCH: libc::c_int = 24;
/// Size of a batch, larger than any bucket: the kernel refuses a bucket that does not fit
/// (`ENOSPC`).
const AT_ONCE: u32 = 65_536;

/// `struct { … } batch` of `union bpf_attr`.
#[repr(C)]
#[derive(Default)]
struct Batch {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// Reads all entries of the map of addresses, except those added or removed during the walk.
///
/// # Errors
/// The kernel refuses the call.
pub(super) fn entries(map: BorrowedFd<'_>) -> io::Result<Vec<(AllocationKey, MappedAllocation)>> {
    let room = usize::try_from(AT_ONCE).map_err(io::Error::other)?;
    let (mut keys, mut values) = (vec![AllocationKey::default(); room], vec![MappedAllocation::default(); room]);
    let mut all = Vec::new();
    let mut position = None;
    loop {
        let mut next = 0_u32;
        let mut batch = Batch {
            in_batch: position
                .as_ref()
                .map_or(0, |position: &u32| std::ptr::from_ref(position).expose_provenance() as u64),
            out_batch: (&raw mut next).expose_provenance() as u64,
            keys: keys.as_mut_ptr().expose_provenance() as u64,
            values: values.as_mut_ptr().expose_provenance() as u64,
            count: AT_ONCE,
            map_fd: u32::try_from(map.as_raw_fd()).map_err(io::Error::other)?,
            ..Batch::default()
        };
        // SAFETY: the attributes point to buffers of `count` keys and values of the map's types,
        // and to two live words.
        let answer = unsafe { libc::syscall(libc::SYS_bpf, MAP_LOOKUP_BATCH, &raw mut batch, size_of::<Batch>()) };
        let error = io::Error::last_os_error();
        let at_end = answer < 0 && error.raw_os_error() == Some(libc::ENOENT);
        if answer < 0 && !at_end {
            return Err(error);
        }
        let count = usize::try_from(batch.count).map_err(io::Error::other)?;
        all.extend(keys.iter().copied().zip(values.iter().copied()).take(count));
        if at_end {
            return Ok(all);
        }
        position = Some(next);
    }
}
