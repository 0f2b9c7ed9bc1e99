//! Memory shared with the kernel by a ring buffer's reader, as described in
//! `Documentation/bpf/ringbuf.rst`, mapped once.
//!
//! The kernel lets a reader map the data twice in a row, so that a record across the end is
//! contiguous, but both mappings count as resident memory. Here such a record is joined from its
//! two parts instead.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Size of a record's header (`BPF_RINGBUF_HDR_SZ`): its length, flags and page offset.
const HEADER_BYTES: usize = 8;
/// Alignment of records in bytes.
const ALIGNMENT_BYTES: usize = 8;
/// Flag of a record that is being written (`BPF_RINGBUF_BUSY_BIT`).
const BUSY: u32 = 1 << 31;
/// Flag of a discarded record (`BPF_RINGBUF_DISCARD_BIT`).
const DISCARDED: u32 = 1 << 30;

/// The reader's view of a ring buffer.
pub(super) struct RingMemory {
    /// Page with the consumer position, written by the reader.
    consumer: SharedMapping,
    /// Page with the producer position, written by the kernel, followed by the data.
    producer: SharedMapping,
    page_bytes: usize,
    /// Size of the data; a power of two.
    size_bytes: usize,
    /// Read position, which only grows.
    read_bytes: usize,
    /// Keep mode: space is given back only by [`Self::release`].
    keeps: bool,
    /// Buffer for a record across the end. Its elements are words because records are aligned to
    /// words.
    whole: Vec<u64>,
}

impl RingMemory {
    /// Maps a ring with `size_bytes` of data.
    ///
    /// # Errors
    /// The kernel refuses the mapping.
    pub(super) fn map(ring: BorrowedFd<'_>, size_bytes: usize) -> io::Result<Self> {
        // SAFETY: sysconf has no preconditions.
        let page_bytes = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).map_err(io::Error::other)?;
        let consumer = SharedMapping::new(Some(ring), (0, page_bytes), libc::PROT_READ | libc::PROT_WRITE)?;
        let producer = SharedMapping::new(Some(ring), (page_bytes, page_bytes + size_bytes), libc::PROT_READ)?;
        let mut memory =
            Self { consumer, producer, page_bytes, size_bytes, read_bytes: 0, keeps: false, whole: Vec::new() };
        memory.read_bytes = memory.consumer.position().load(Ordering::Acquire);
        Ok(memory)
    }

    /// Passes the next record to `take`, if there is one. Returns whether there was.
    pub(super) fn take(&mut self, take: impl FnOnce(&[u8])) -> bool {
        let bytes = loop {
            // Acquire: makes the data visible that the kernel wrote before the producer position.
            if self.producer.position().load(Ordering::Acquire) == self.read_bytes {
                return false;
            }
            let header = self.header();
            // Records after an unfinished one have to wait for it.
            if header & BUSY != 0 {
                return false;
            }
            let bytes = (header & !DISCARDED) as usize;
            if header & DISCARDED == 0 {
                break bytes;
            }
            self.give_back(bytes);
        };
        take(self.record(bytes));
        self.give_back(bytes);
        true
    }

    /// Advances past the next record, which has `bytes` bytes, and releases it unless in keep mode.
    fn give_back(&mut self, bytes: usize) {
        self.read_bytes = self.read_bytes.wrapping_add(HEADER_BYTES + bytes.next_multiple_of(ALIGNMENT_BYTES));
        if !self.keeps {
            self.release();
        }
    }

    /// Lets the kernel overwrite all records read so far.
    pub(super) fn release(&self) {
        // Release: orders the reads of the records before this store.
        self.consumer.position().store(self.read_bytes, Ordering::Release);
    }

    /// Enables keep mode: records stay in the ring until they are released.
    pub(super) const fn keep(&mut self) {
        self.keeps = true;
    }

    /// Returns the number of unread bytes.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.producer.position().load(Ordering::Acquire).wrapping_sub(self.read_bytes)
    }

    /// Returns the read position.
    pub(super) const fn position(&self) -> usize {
        self.read_bytes
    }

    /// Resumes at the position of an earlier reader, which may not have released what it read.
    /// Returns whether the position is in the ring.
    pub(super) fn go_on_from(&mut self, position: usize) -> bool {
        let is_there = position.wrapping_sub(self.read_bytes) <= self.waiting_bytes();
        if is_there {
            self.read_bytes = position;
            self.release();
        }
        is_there
    }

    /// Returns length and flags of the next record. The kernel submits it with a full barrier.
    fn header(&self) -> u32 {
        let at = self.read_bytes & (self.size_bytes - 1);
        // SAFETY: records begin at multiples of eight bytes within the size, which is mapped, and
        // the kernel writes the word atomically.
        let header = unsafe { self.producer.at(self.page_bytes + at).cast::<AtomicU32>().as_ref() };
        header.load(Ordering::Acquire)
    }

    /// Returns the next record, which has `bytes` bytes.
    fn record(&mut self, bytes: usize) -> &[u8] {
        let at = self.read_bytes.wrapping_add(HEADER_BYTES) & (self.size_bytes - 1);
        let before_end = bytes.min(self.size_bytes - at);
        let part = |at: usize, bytes: usize| {
            assert!(at + bytes <= self.size_bytes, "a record of {bytes} bytes in a ring of {}", self.size_bytes);
            // SAFETY: the range is within the mapping, and the kernel does not write to a submitted
            // record until it is released.
            unsafe { std::slice::from_raw_parts(self.producer.at(self.page_bytes + at).as_ptr(), bytes) }
        };
        let (first, second) = (part(at, before_end), part(0, bytes - before_end));
        if second.is_empty() {
            return first;
        }
        self.whole.resize(bytes.div_ceil(size_of::<u64>()), 0);
        // SAFETY: the buffer has at least `bytes` bytes, and words may be written as bytes.
        let whole = unsafe { std::slice::from_raw_parts_mut(self.whole.as_mut_ptr().cast::<u8>(), bytes) };
        whole[..before_end].copy_from_slice(first);
        whole[before_end..].copy_from_slice(second);
        whole
    }
}

/// Memory shared with the kernel.
struct SharedMapping {
    begin: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory belongs to the mapping alone, and is written through atomics.
unsafe impl Send for SharedMapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps a range of a file, or anonymous memory without a file.
    fn new(file: Option<BorrowedFd<'_>>, (offset, bytes): (usize, usize), protection: libc::c_int) -> io::Result<Self> {
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        let nobodys = if file.is_none() { libc::MAP_ANONYMOUS } else { 0 };
        let file = file.map_or(-1, |file| file.as_raw_fd());
        // SAFETY: a new mapping at an address chosen by the kernel overlaps no other memory.
        let begin =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED | nobodys, file, offset) };
        match NonNull::new(begin.cast()).filter(|_| begin != libc::MAP_FAILED) {
            Some(begin) => Ok(Self { begin, bytes }),
            None => Err(io::Error::last_os_error()),
        }
    }

    /// Returns the position in the first word.
    fn position(&self) -> &AtomicUsize {
        // SAFETY: a mapping is page-aligned, and the kernel writes the word atomically.
        unsafe { self.begin.cast().as_ref() }
    }

    /// # Safety
    /// The offset is within the mapping.
    unsafe fn at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset < self.bytes);
        // SAFETY: the caller guarantees that the offset is within the mapping.
        unsafe { self.begin.add(offset) }
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: no reference to the mapping is left.
        unsafe { libc::munmap(self.begin.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const PAGE: usize = 4096;

    /// A ring without a kernel, and its expected records.
    struct Fake {
        ring: RingMemory,
        made_bytes: usize,
        expected: VecDeque<Vec<u8>>,
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// Writes a record of this size; `false` discards it.
        Make(usize, bool),
        /// Begins a record of this size and submits it after the next read.
        Begin(usize),
        Read,
    }

    impl Fake {
        fn new() -> Self {
            let map = |bytes| SharedMapping::new(None, (0, bytes), libc::PROT_READ | libc::PROT_WRITE).expect("memory");
            let (consumer, producer) = (map(PAGE), map(2 * PAGE));
            let whole = Vec::new();
            let ring = RingMemory {
                consumer,
                producer,
                page_bytes: PAGE,
                size_bytes: PAGE,
                read_bytes: 0,
                keeps: false,
                whole,
            };
            Self { ring, made_bytes: 0, expected: VecDeque::new() }
        }

        fn write(&self, at: usize, byte: u8) {
            // SAFETY: the offset is within the mapping, which belongs to the test.
            unsafe { self.ring.producer.at(PAGE + at % PAGE).write(byte) };
        }

        /// Writes a record with these flags as the kernel does, if there is space. Returns the
        /// position of its header.
        fn make(&mut self, bytes: usize, marks: u32) -> Option<usize> {
            let taken = HEADER_BYTES + bytes.next_multiple_of(ALIGNMENT_BYTES);
            let begin = self.made_bytes;
            let read = self.ring.consumer.position().load(Ordering::Relaxed);
            if begin + taken - read > PAGE - 1 {
                return None;
            }
            let record: Vec<u8> =
                (0..bytes).map(|index| u8::try_from((begin / 8 + index) % 251).expect("small")).collect();
            record.iter().enumerate().for_each(|(index, byte)| self.write(begin + HEADER_BYTES + index, *byte));
            self.mark(begin, u32::try_from(bytes).expect("a short record") | marks);
            self.made_bytes += taken;
            self.ring.producer.position().store(self.made_bytes, Ordering::Release);
            if marks & DISCARDED == 0 {
                self.expected.push_back(record);
            }
            Some(begin)
        }

        fn mark(&self, begin: usize, header: u32) {
            header.to_ne_bytes().iter().enumerate().for_each(|(index, byte)| self.write(begin + index, *byte));
        }

        fn read(&mut self) -> Vec<Vec<u8>> {
            let mut read = Vec::new();
            while self.ring.take(|record| read.push(record.to_vec())) {}
            read
        }
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0_usize..700, any::<bool>()).prop_map(|(bytes, is_kept)| Step::Make(bytes, is_kept)),
            1 => (0_usize..700).prop_map(Step::Begin),
            2 => Just(Step::Read),
        ]
    }

    #[test]
    fn retained_ring_records_are_read_again_except_acknowledged_ones() {
        let mut fake = Fake::new();
        for _ in 0..3 {
            fake.make(24, 0).expect("there is room");
        }
        fake.ring.keep();
        let read = fake.read();
        assert_eq!(read.len(), 3);
        let taken = fake.ring.position();
        let next = |fake: &mut Fake| fake.ring.read_bytes = fake.ring.consumer.position().load(Ordering::Relaxed);
        next(&mut fake);
        assert_eq!(fake.read(), read, "it was not released");
        next(&mut fake);
        assert!(fake.ring.go_on_from(taken / 3) && !fake.ring.go_on_from(taken + 8));
        assert_eq!(fake.read(), read[1..]);
        fake.ring.release();
        next(&mut fake);
        assert!(fake.read().is_empty() && !fake.ring.go_on_from(taken / 3), "it has gone on since");
    }

    proptest! {
        #[test]
        fn every_record_is_read_once_and_whole_and_in_its_order(steps in prop::collection::vec(step(), 1..200)) {
            let mut fake = Fake::new();
            for step in steps {
                match step {
                    Step::Make(bytes, true) => drop(fake.make(bytes, 0)),
                    Step::Make(bytes, false) => drop(fake.make(bytes, DISCARDED)),
                    Step::Begin(bytes) => {
                        let before = fake.expected.len();
                        let Some(begin) = fake.make(bytes, BUSY) else { continue };
                        fake.make(8, 0);
                        let read = fake.read();
                        prop_assert_eq!(read, fake.expected.drain(..before).collect::<Vec<_>>());
                        fake.mark(begin, u32::try_from(bytes).expect("a short record"));
                    }
                    Step::Read => {
                        let read = fake.read();
                        prop_assert_eq!(read, fake.expected.drain(..).collect::<Vec<_>>());
                    }
                }
            }
            prop_assert_eq!(fake.read(), fake.expected.drain(..).collect::<Vec<_>>());
        }
    }
}
