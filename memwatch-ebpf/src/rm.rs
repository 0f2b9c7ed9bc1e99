//! Ioctls to NVIDIA's kernel driver: implementation of [`memwatch_common::rm::capture`] in the kernel.

use core::ffi::c_void;

use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::helpers::generated::bpf_probe_read_user;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{HashMap, Queue};
use memwatch_common::capture::ThreadKey;
use memwatch_common::rm::capture::{NO_IOCTL, RmInFlight, RmKernel, on_ioctl, on_ioctl_return, room};
use memwatch_common::rm::{PAYLOAD_BYTES, RmRecord};
use memwatch_common::shares::SharedTable;

use crate::kernel::{Bpf, key};
use crate::native::copy_request;
use crate::shares;

/// Ioctls between entry and return, by `tgid << 32 | tid`. Preallocated (6 MB): with allocation on
/// demand the kernel keeps only about ten entries of this size ready, and inserting fails for some
/// of many new threads while memory is full of page cache.
#[map]
static RM_IN_FLIGHT: HashMap<u64, RmInFlight> = HashMap::with_max_entries(SharedTable::Requests.entries(), 0);

/// Records that did not fit in the ring. They are few, and losing one would make the sums of a
/// process wrong for good.
#[map]
static RM_WAITING: Queue<RmRecord> = Queue::with_max_entries(SharedTable::Waiting.entries(), 0);

static NOTHING_IN_FLIGHT: RmInFlight = NO_IOCTL;

/// Handles the entry of the driver's stub for `ioctl`.
#[inline(always)]
pub(crate) fn on_enter(cookie: u64, (request, argument): (u64, u64), stack_pointer: u64) {
    on_ioctl(&Bpf, cookie, (request, argument), stack_pointer);
}

/// Handles the return of the stub.
#[inline(always)]
pub(crate) fn on_return(value: u64, stack_pointer: u64) {
    on_ioctl_return(&Bpf, value, stack_pointer);
}

/// Drops the ioctl in flight of a thread that has exited or called exec. Returns whether a record
/// is missing because of it.
#[inline(always)]
pub(crate) fn drop_in_flight(thread: ThreadKey) -> bool {
    let inside = Bpf.with_existing_ioctl(thread, |call| (call.counts(&Bpf), call.owner));
    let Some((inside, owner)) = inside else { return false };
    if RM_IN_FLIGHT.remove(&key(thread)).is_ok() {
        #[expect(clippy::cast_possible_truncation, reason = "it was made of one")]
        shares::give(SharedTable::Requests, owner as u32);
    }
    inside
}

impl RmKernel for Bpf {
    #[inline(always)]
    fn with_ioctl<R>(&self, thread: ThreadKey, change: impl FnOnce(&mut RmInFlight) -> R) -> Option<R> {
        let key = key(thread);
        let call = RM_IN_FLIGHT.get_ptr_mut(&key).or_else(|| {
            let owner = shares::take(SharedTable::Requests)?;
            // Only this thread inserts its key, so an error means a full table.
            if RM_IN_FLIGHT.insert(&key, &NOTHING_IN_FLIGHT, BPF_NOEXIST.into()).is_err() {
                shares::give(SharedTable::Requests, owner);
                return None;
            }
            let call = RM_IN_FLIGHT.get_ptr_mut(&key)?;
            // SAFETY: as below.
            unsafe { (*call).owner = owner.into() };
            Some(call)
        })?;
        // SAFETY: the entry belongs to the running thread, which runs this code; no other thread
        // writes or removes it.
        Some(change(unsafe { &mut *call }))
    }

    #[inline(always)]
    fn with_existing_ioctl<R>(&self, thread: ThreadKey, change: impl FnOnce(&mut RmInFlight) -> R) -> Option<R> {
        let call = RM_IN_FLIGHT.get_ptr_mut(&key(thread))?;
        // SAFETY: as in `with_ioctl`.
        Some(change(unsafe { &mut *call }))
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "no more than there is room for")]
    fn read_payload(&self, address: u64, payload: &mut [u8; PAYLOAD_BYTES], (at, bytes): (usize, u64)) -> bool {
        let bytes = if bytes > room(at) { room(at) } else { bytes };
        // SAFETY: the offset is within the payload.
        let to = unsafe { payload.as_mut_ptr().add(at) };
        // SAFETY: the helper writes at most `room(at)` bytes, or zeros on failure; it checks the
        // user address itself.
        unsafe { bpf_probe_read_user(to.cast::<c_void>(), bytes as u32, address as *const c_void) == 0 }
    }

    #[inline(always)]
    fn copy_stack(&self, thread: ThreadKey, now_ns: u64) -> u64 {
        copy_request(thread, now_ns)
    }

    #[inline(always)]
    fn emit_rm(&self, record: &mut RmRecord) -> bool {
        Self::introduce_process(record.tgid);
        record.owner = 0;
        Self::output(record, false) || wait(record)
    }
}

/// Queues a record if the share of its owner has space.
#[inline(always)]
fn wait(record: &mut RmRecord) -> bool {
    let Some(owner) = shares::take(SharedTable::Waiting) else { return false };
    record.owner = owner;
    let waits = RM_WAITING.push(record, 0).is_ok();
    if !waits {
        shares::give(SharedTable::Waiting, owner);
    }
    waits
}
