//! Reads the caching allocator's own statistics for user space, under the allocator's lock, once
//! per request and allocator.

use core::ffi::c_void;

use aya_ebpf::bindings::{BPF_ANY, BPF_F_NO_PREALLOC};
use aya_ebpf::helpers::generated::bpf_probe_read_user;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, LruHashMap};
use memwatch_common::capture::ThreadKey;
use memwatch_common::record::RecordKind;
use memwatch_common::tensor::{FLAG_EXTRA_UNREADABLE, STATISTICS_OFFSET_BYTES, STATISTICS_WORDS, StatisticsRecord};

use crate::kernel::Bpf;
use crate::python::mix;
use crate::threads::notes;

/// Number of the last request; 0 if there was none.
#[map]
static STATISTICS_REQUEST: Array<u64> = Array::with_max_entries(1, 0);

/// Number of the last request by process.
#[map]
static STATISTICS_WANTED: HashMap<u32, u64> = HashMap::with_max_entries(4096, BPF_F_NO_PREALLOC);

/// Number of the last answered request by allocator. For an allocator that was evicted from this
/// map, the request is answered again.
#[map]
static STATISTICS_SENT: LruHashMap<Allocator, u64> = LruHashMap::with_max_entries(1024, 0);

/// Marks of allocators whose last request was answered, indexed by a part of the mark.
#[map]
static STATISTICS_SETTLED: Array<u64> = Array::with_max_entries(SETTLED, 0);

const SETTLED: u32 = 256;

/// Address of the allocator of a device, as found by user space.
#[map]
static ALLOCATORS: HashMap<ProcessDevice, u64> = HashMap::with_max_entries(4096, BPF_F_NO_PREALLOC);

/// Maximum number of devices read when a process exits.
const DEVICES: u32 = 16;

/// Device of a process, in the process's own numbering.
#[derive(Clone, Copy)]
#[repr(C)]
struct ProcessDevice {
    ordinal: u32,
    tgid: u32,
}

/// Allocator of a process.
#[derive(Clone, Copy)]
#[repr(C)]
struct Allocator {
    address: u64,
    tgid: u64,
}

/// Notes the allocator whose code this thread is executing, from an event.
#[inline(always)]
pub(crate) fn note_allocator(thread: ThreadKey, allocator: u64) {
    if last_request() != 0
        && let Some(notes) = notes(thread)
    {
        notes.allocator = allocator;
    }
}

/// Sends the statistics of the allocator whose code this thread is executing, if requested. The
/// allocator's lock is held, so its counters are consistent.
#[inline(always)]
pub(crate) fn offer(thread: ThreadKey, time_ns: u64) {
    if last_request() != 0
        && let Some(notes) = notes(thread)
    {
        offer_of(thread, notes.allocator, time_ns);
    }
}

/// Sends the statistics of a device's allocator that is about to fail, ahead of the record of the
/// failure. The allocator's lock is held.
#[inline(always)]
pub(crate) fn report_failure(thread: ThreadKey, device: u64, time_ns: u64) {
    // A `c10::ProcessDevice`: kind in the lowest byte, number in the next.
    let ordinal = (device >> 8 & 0xff) as u32;
    report(ProcessDevice { ordinal, tgid: thread.tgid }, time_ns);
}

/// Sends the statistics of all allocators of an exiting process. From Linux 6.16 on, the process's
/// memory still exists at this point (`do_exit` of kernel/exit.c). Before, it is unreadable, and
/// nothing is sent.
#[inline(always)]
pub(crate) fn report_end(tgid: u32, time_ns: u64) {
    for ordinal in 0..DEVICES {
        report(ProcessDevice { ordinal, tgid }, time_ns);
    }
}

#[inline(never)]
fn report(device: ProcessDevice, time_ns: u64) {
    if let Some(allocator) = ALLOCATORS.get_ptr(&device) {
        // SAFETY: the value is copied at once; user space replaces it as a whole.
        let allocator = unsafe { *allocator };
        send(device.tgid, allocator, time_ns);
    }
}

/// Sends the statistics of this allocator, if requested.
#[inline(always)]
pub(crate) fn offer_of(thread: ThreadKey, allocator: u64, time_ns: u64) {
    let request = last_request();
    if request == 0 || allocator == 0 {
        return;
    }
    let allocator = Allocator { address: allocator, tgid: thread.tgid.into() };
    // The mark is a hash of allocator and request. A rare collision delays statistics until the
    // next request.
    let mark = mix(request, mix(allocator.tgid, allocator.address));
    let Some(settled) = STATISTICS_SETTLED.get_ptr_mut(slot(mark)) else { return };
    // SAFETY: map values are aligned to eight bytes; a concurrent writer writes its own mark.
    if unsafe { settled.read_volatile() } == mark {
        return;
    }
    answer(allocator, mark, time_ns);
}

/// Sends the statistics of an allocator if they are requested in its process and were not sent yet.
/// Then marks the request as answered.
///
/// Not inlined, since nearly every event skips it.
#[inline(never)]
fn answer(allocator: Allocator, mark: u64, time_ns: u64) {
    let Some(settled) = STATISTICS_SETTLED.get_ptr_mut(slot(mark)) else { return };
    #[expect(clippy::cast_possible_truncation, reason = "it was made of one")]
    let tgid = allocator.tgid as u32;
    // SAFETY: the values are copied at once; they are numbers that only grow.
    let wanted = STATISTICS_WANTED.get_ptr(&tgid).map_or(0, |wanted| unsafe { *wanted });
    // SAFETY: as above.
    let sent = STATISTICS_SENT.get_ptr(&allocator).map_or(0, |sent| unsafe { *sent });
    if sent < wanted {
        if !send(tgid, allocator.address, time_ns) {
            // The ring is full; the next event tries again.
            return;
        }
        let _ = STATISTICS_SENT.insert(&allocator, &wanted, BPF_ANY.into());
    }
    // SAFETY: as above.
    unsafe { settled.write_volatile(mark) };
}

/// Returns the slot of a mark.
#[inline(always)]
fn slot(mark: u64) -> u32 {
    (mark >> 32) as u32 & (SETTLED - 1)
}

#[inline(always)]
fn last_request() -> u64 {
    STATISTICS_REQUEST.get(0).copied().unwrap_or(0)
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "about a kilobyte")]
fn send(tgid: u32, allocator: u64, time_ns: u64) -> bool {
    let Some(mut entry) = Bpf::reserve::<StatisticsRecord>() else { return false };
    let record = entry.as_mut_ptr();
    // SAFETY: the entry is the record's memory. The helper writes the words, or zeros on failure;
    // it checks the user address itself.
    unsafe {
        (*record).kind = RecordKind::Statistics as u8;
        (*record).reserved = 0;
        (*record).tgid = tgid;
        (*record).allocator = allocator;
        (*record).time_ns = time_ns;
        let words = (&raw mut (*record).words).cast::<c_void>();
        let from = allocator.wrapping_add(STATISTICS_OFFSET_BYTES) as *const c_void;
        let failed = bpf_probe_read_user(words, (STATISTICS_WORDS * 8) as u32, from) != 0;
        (*record).flags = if failed { FLAG_EXTRA_UNREADABLE } else { 0 };
    }
    Bpf::submit(entry);
    true
}

/// Drops requests for a process that has exited or called exec.
#[inline(always)]
pub(crate) fn forget(tgid: u32) {
    let _ = STATISTICS_WANTED.remove(&tgid);
    for ordinal in 0..DEVICES {
        let _ = ALLOCATORS.remove(&ProcessDevice { ordinal, tgid });
    }
}
