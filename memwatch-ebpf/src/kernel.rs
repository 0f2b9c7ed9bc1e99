//! The maps, and the implementation of [`memwatch_common::capture::CaptureKernel`] in the kernel.

mod addresses;
mod losses;
pub(crate) mod records;

use core::mem::MaybeUninit;

use aya_ebpf::Global;
use aya_ebpf::bindings::{
    BPF_ANY, BPF_F_NO_PREALLOC, BPF_NOEXIST, BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP,
    BPF_RINGBUF_HDR_SZ,
};
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{bpf_ktime_get_boot_ns, bpf_probe_read_user};
use aya_ebpf::macros::map;
use aya_ebpf::maps::ring_buf::RingBufEntry;
use aya_ebpf::maps::{Array, HashMap, RingBuf};
use memwatch_common::arming::{ArmGroup, GROUPS};
use memwatch_common::capture::{CaptureKernel, InFlight, MappedAllocation, NESTING, NO_FRAME, ThreadKey};
use memwatch_common::loss::Loss;
use memwatch_common::record::CallRecord;
use memwatch_common::shares::SharedTable;

use crate::counter::add;
use crate::shares;

/// Ring buffer of records for user space; the loader sets its size.
#[map]
static RECORDS: RingBuf = RingBuf::with_byte_size(16 << 20, 0);

/// 1 while the reader of [`RECORDS`] sleeps. The reader sets this and then checks the ring once
/// more.
#[map]
static READER_SLEEPS: Array<u64> = Array::with_max_entries(1, 0);

/// Calls between entry and return, by `tgid << 32 | tid`.
#[map]
static IN_FLIGHT: HashMap<u64, InFlight> = HashMap::with_max_entries(SharedTable::Calls.entries(), 0);

/// Target processes, used only if `WATCH_ALL` is 0. The user of memwatch chooses the targets, so
/// there are no shares.
#[map]
static WATCHED: HashMap<u32, u8> = HashMap::with_max_entries(65_536, 0);

/// Processes whose calls are recorded by probes that are attached to all processes but meant for a
/// few.
#[map]
static CALL_TARGETS: HashMap<u32, u32> = HashMap::with_max_entries(4096, BPF_F_NO_PREALLOC);

/// Processes that made a watched call or are a target. Their exec and exit are reported. The value
/// is the owner whose share the entry counts for.
#[map]
static KNOWN: HashMap<u32, u32> = HashMap::with_max_entries(SharedTable::Processes.entries(), 0);

/// Time of the last attach by [`ArmGroup`] of files: `CLOCK_BOOTTIME`, nanoseconds; 0 while probes are
/// being attached or removed. Set by the loader.
#[map]
static ARMED_NS: Array<u64> = Array::with_max_entries(GROUPS, 0);

/// Bytes of [`RECORDS`], a power of two. Set by the loader before load.
#[unsafe(no_mangle)]
static RING_BYTES: Global<u32> = Global::new(16 << 20);

/// 1 if every process is watched. Set by the loader before load.
#[unsafe(no_mangle)]
static WATCH_ALL: Global<u8> = Global::new(1);

/// Size from which a ring counts as large.
const LARGE_RING_BYTES: u32 = 16 << 20;

static NOTHING_IN_FLIGHT: InFlight = InFlight {
    frames: [NO_FRAME; NESTING],
    record: CallRecord {
        kind: 0,
        flags: 0,
        probe: 0,
        status: 0,
        tgid: 0,
        tid: 0,
        entered_ns: 0,
        returned_ns: 0,
        args: [0; 6],
        out: [0; 2],
        peek: [0; 5],
    },
    introduced: 0,
    owner: 0,
};

/// Access to the running kernel.
pub(crate) struct Bpf;

impl Bpf {
    /// Whether exec and exit of this process are reported.
    #[inline(always)]
    pub(crate) fn is_known(tgid: u32) -> bool {
        KNOWN.get_ptr(&tgid).is_some()
    }

    /// Reports a process before its first record.
    #[inline(always)]
    pub(crate) fn introduce_process(tgid: u32) {
        if Self::make_known(tgid) {
            records::announce(tgid);
        }
    }

    /// Marks a process as known. Returns whether it was unknown before.
    #[inline(always)]
    fn make_known(tgid: u32) -> bool {
        if Self::is_known(tgid) {
            return false;
        }
        if !Self::list_known(tgid) {
            Bpf.lose(tgid, Loss::ProcessTableFull);
        }
        true
    }

    /// Adds a process to the known ones. Returns false if its owner's share or the table is full.
    #[inline(always)]
    fn list_known(tgid: u32) -> bool {
        let Some(owner) = shares::take(SharedTable::Processes) else { return false };
        if KNOWN.insert(&tgid, &owner, BPF_NOEXIST.into()).is_err() {
            shares::give(SharedTable::Processes, owner);
            // A racing thread may have inserted it first.
            return Self::is_known(tgid);
        }
        true
    }

    /// Whether this process is a target or a child of one.
    #[inline(always)]
    pub(crate) fn is_target(tgid: u32) -> bool {
        WATCHED.get_ptr(&tgid).is_some()
    }

    /// Makes a target's child a target.
    #[inline(always)]
    pub(crate) fn make_target(tgid: u32) {
        if WATCHED.insert(&tgid, &1, BPF_ANY.into()).is_err() {
            Bpf.lose(tgid, Loss::ProcessTableFull);
        }
        Self::make_known(tgid);
    }

    /// Closes the allocation map of a process whose memory is freed. Returns the life of the
    /// process number that the map was for; 0 if there was no map.
    #[inline(always)]
    pub(crate) fn close_allocation_map(tgid: u32) -> u32 {
        addresses::close(tgid)
    }

    /// Drops a process that has exited.
    #[inline(always)]
    pub(crate) fn forget(tgid: u32) {
        // Absent entries are the usual case, not an error.
        let _ = CALL_TARGETS.remove(&tgid);
        let _ = WATCHED.remove(&tgid);
        let Some(owner) = KNOWN.get_ptr(&tgid) else { return };
        // SAFETY: the value is copied at once; it is written once, by the insert.
        let owner = unsafe { *owner };
        if KNOWN.remove(&tgid).is_ok() {
            shares::give(SharedTable::Processes, owner);
        }
    }

    /// Drops the calls in flight of an exited thread. Returns whether the thread was inside a call;
    /// `None` if it never made one.
    #[inline(always)]
    pub(crate) fn drop_in_flight(thread: ThreadKey) -> Option<bool> {
        let (inside, owner) = Bpf.with_existing_in_flight(thread, |calls| {
            // A call that was entered before all probes of its file were in place may have returned
            // unseen.
            let inside = calls.frames.iter().any(|frame| frame.stack_pointer != 0 && frame.is_armed(&Bpf));
            (inside, calls.owner)
        })?;
        if IN_FLIGHT.remove(&key(thread)).is_ok() {
            #[expect(clippy::cast_possible_truncation, reason = "it was made of one")]
            shares::give(SharedTable::Calls, owner as u32);
        }
        Some(inside)
    }

    /// Does the same as [`CaptureKernel::read_words`], into a new array that is not zeroed first.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "a few hundred bytes")]
    pub(crate) fn words<const N: usize>(address: u64) -> ([u64; N], bool) {
        let mut words = MaybeUninit::<[u64; N]>::uninit();
        // SAFETY: the helper writes N words, or zeros on failure; it checks the user address
        // itself.
        let failed = unsafe { bpf_probe_read_user(words.as_mut_ptr().cast(), (N * 8) as u32, address as *const _) };
        // SAFETY: all words were written.
        (unsafe { words.assume_init() }, failed == 0)
    }

    /// Writes a record to the ring. Returns false if the ring is full.
    ///
    /// The reader polls while records arrive, so a wake-up (an interrupt) is requested only where a
    /// delay would lose data: for the first record of a process, whose `/proc` entry may vanish
    /// soon; for a new stack, whose objects may vanish; for a filling ring; and for a sleeping
    /// reader.
    #[inline(always)]
    pub(crate) fn output<T: ?Sized>(record: &T, urgent: bool) -> bool {
        let bytes = size_of_val(record) as u64;
        let has_room = RECORDS.output(record, wake_up(urgent, fill() + bytes, bytes)).is_ok();
        wake_sleeper();
        has_room
    }

    /// Reserves space for a record in the ring; `None` if it is full. The reservation must be
    /// submitted.
    #[inline(always)]
    pub(crate) fn reserve<T>() -> Option<RingBufEntry<T>> {
        RECORDS.reserve::<T>(0)
    }

    /// Whether the ring has enough space for long data that matters less than events.
    #[inline(always)]
    pub(crate) fn has_plenty() -> bool {
        fill() < u64::from(RING_BYTES.load()) / 4
    }

    /// Does the same as [`Self::submit`], for events at rates of a million a second. Checks for a
    /// filling ring in only one of 256 intervals of four microseconds each; filling the ring takes
    /// 0.1 s or more.
    #[inline(always)]
    pub(crate) fn submit_often<T>(entry: RingBufEntry<T>, time_ns: u64) {
        let ring = RING_BYTES.load();
        let is_looked_at = ring < LARGE_RING_BYTES || (time_ns >> 12).is_multiple_of(256);
        let fills = is_looked_at && fill() > u64::from(ring) / 4;
        let flags = if fills { BPF_RB_FORCE_WAKEUP } else { BPF_RB_NO_WAKEUP };
        entry.submit(flags.into());
        wake_sleeper();
    }

    /// Submits a record made in the ring. Wakes the reader if it sleeps, or if the ring is filling.
    #[inline(always)]
    pub(crate) fn submit<T>(entry: RingBufEntry<T>) {
        entry.submit(wake_up(false, fill(), size_of::<T>() as u64));
        wake_sleeper();
    }
}

/// Wakes the reader if it sleeps. Must be called after a record was submitted.
///
/// A reader that is about to sleep checks the ring once more, and the kernel submits with a full
/// barrier. So either that check finds the record, or this function finds the reader asleep. The
/// kernel offers no wake-up without a record, but a discarded record can wake.
#[inline(always)]
fn wake_sleeper() {
    let Some(sleeps) = READER_SLEEPS.get_ptr_mut(0) else { return };
    // SAFETY: map values are aligned to eight bytes and live as long as the program runs. Two
    // processors that both find 1 wake the reader twice, which is harmless.
    if unsafe { sleeps.read_volatile() } != 0 {
        wake();
    }
}

/// Not inlined, since the reader sleeps only before the first of many records.
#[inline(never)]
fn wake() {
    let Some(sleeps) = READER_SLEEPS.get_ptr_mut(0) else { return };
    // A full ring has already woken the reader.
    if let Some(nothing) = RECORDS.reserve::<u64>(0) {
        // SAFETY: as in `wake_sleeper`.
        unsafe { sleeps.write_volatile(0) };
        nothing.discard(BPF_RB_FORCE_WAKEUP.into());
    }
}

/// Returns the number of unread bytes in the ring.
#[inline(always)]
fn fill() -> u64 {
    RECORDS.query(BPF_RB_AVAIL_DATA.into())
}

/// Returns the wake-up flag for a record after which `filled` bytes are unread. Beyond a quarter of
/// the ring, there is one wake-up per 64th of the ring. A wake-up per record costs 4.5 microseconds
/// instead of 0.3 (measured).
#[inline(always)]
fn wake_up(urgent: bool, filled: u64, bytes: u64) -> u64 {
    let ring = u64::from(RING_BYTES.load());
    // The ring's size is a power of two. A record also occupies space for its header.
    let crosses = filled & (ring / 64 - 1) < bytes + u64::from(BPF_RINGBUF_HDR_SZ);
    let flags = if urgent || (filled > ring / 4 && crosses) { BPF_RB_FORCE_WAKEUP } else { BPF_RB_NO_WAKEUP };
    flags.into()
}

/// Returns the key of a thread in maps.
#[inline(always)]
pub(crate) fn key(thread: ThreadKey) -> u64 {
    u64::from(thread.tgid) << 32 | u64::from(thread.tid)
}

impl CaptureKernel for Bpf {
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "two 32-bit numbers in one word")]
    fn thread(&self) -> ThreadKey {
        let both = bpf_get_current_pid_tgid();
        // The upper half is the tgid, the lower the tid.
        ThreadKey { tgid: (both >> 32) as u32, tid: both as u32 }
    }

    #[inline(always)]
    fn now_ns(&self) -> u64 {
        // SAFETY: the helper has no preconditions.
        unsafe { bpf_ktime_get_boot_ns() }
    }

    #[inline(always)]
    fn watched(&self, tgid: u32) -> bool {
        WATCH_ALL.load() != 0 || Self::is_target(tgid)
    }

    #[inline(always)]
    fn listed(&self, tgid: u32) -> bool {
        CALL_TARGETS.get_ptr(&tgid).is_some()
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "at most five words")]
    fn read_words<const N: usize>(&self, address: u64, words: &mut [u64; N]) -> bool {
        // SAFETY: the helper writes N words, or zeros on failure; it checks the user address
        // itself.
        unsafe { bpf_probe_read_user(words.as_mut_ptr().cast(), (N * 8) as u32, address as *const _) == 0 }
    }

    #[inline(always)]
    fn with_in_flight<R>(&self, thread: ThreadKey, change: impl FnOnce(&mut InFlight) -> R) -> Option<R> {
        let key = key(thread);
        let calls = IN_FLIGHT.get_ptr_mut(&key).or_else(|| {
            let owner = shares::take(SharedTable::Calls)?;
            // Only this thread inserts its key, so an error means a full table.
            if IN_FLIGHT.insert(&key, &NOTHING_IN_FLIGHT, BPF_NOEXIST.into()).is_err() {
                shares::give(SharedTable::Calls, owner);
                return None;
            }
            let calls = IN_FLIGHT.get_ptr_mut(&key)?;
            // SAFETY: as below.
            unsafe { (*calls).owner = owner.into() };
            Some(calls)
        })?;
        // SAFETY: the entry belongs to the running thread, which runs this code; no other thread
        // writes or removes it.
        Some(change(unsafe { &mut *calls }))
    }

    #[inline(always)]
    fn with_existing_in_flight<R>(&self, thread: ThreadKey, change: impl FnOnce(&mut InFlight) -> R) -> Option<R> {
        let calls = IN_FLIGHT.get_ptr_mut(&key(thread))?;
        // SAFETY: as in `with_in_flight`.
        Some(change(unsafe { &mut *calls }))
    }

    #[inline(always)]
    fn armed_ns(&self, group: ArmGroup) -> u64 {
        // 0 means that probes are being attached or removed.
        ARMED_NS.get(group.number()).copied().filter(|armed_ns| *armed_ns != 0).unwrap_or(u64::MAX)
    }

    #[inline(always)]
    fn open_file(&self, descriptor: u32) -> u64 {
        crate::task::open_file(descriptor).unwrap_or(0)
    }

    #[inline(always)]
    fn credit(&self, tgid: u32, address: u64, booked: &MappedAllocation) {
        addresses::credit(tgid, address, booked);
    }

    #[inline(always)]
    fn debit(&self, tgid: u32, address: u64) -> MappedAllocation {
        addresses::debit(tgid, address)
    }

    #[inline(always)]
    fn note_teardown(&self, tgid: u32) {
        addresses::note_teardown(tgid);
    }

    #[inline(always)]
    fn introduce(&self, tgid: u32) {
        Self::introduce_process(tgid);
    }

    #[inline(always)]
    fn emit(&self, record: &CallRecord) -> bool {
        Self::output(record, false)
    }

    #[inline(always)]
    fn lose(&self, tgid: u32, loss: Loss) {
        losses::lose(tgid, loss);
    }
}

/// Adds one to a counter if it exists.
#[inline(always)]
fn add_one(counter: Option<*mut u64>) {
    if let Some(counter) = counter {
        // SAFETY: map values are aligned to eight bytes and live as long as the program runs.
        unsafe { add(counter, 1) };
    }
}
