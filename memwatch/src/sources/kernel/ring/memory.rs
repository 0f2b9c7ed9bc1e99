//! The memory that the ring's reader shares with the kernel: read as `Documentation/bpf/ringbuf.rst` says, and mapped once.
//!
//! The kernel lets a reader map the records twice in a row, so that one that goes over the end lies in one piece; both count as resident. Here such a
//! record is put together from its two parts.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// What the kernel puts before each record (`BPF_RINGBUF_HDR_SZ`): its length and marks, and where in the ring it is.
const HEADER_BYTES: usize = 8;
/// What it rounds a record up to.
const ALIGNMENT_BYTES: usize = 8;
/// The record is being made (`BPF_RINGBUF_BUSY_BIT`).
const BUSY: u32 = 1 << 31;
/// It was taken back (`BPF_RINGBUF_DISCARD_BIT`).
const DISCARDED: u32 = 1 << 30;

/// The reader's end of a ring.
pub(super) struct RingMemory {
    /// The page in which the reader says how far it is.
    consumer: Mapping,
    /// The page in which the kernel says how far it is, and the records.
    producer: Mapping,
    page_bytes: usize,
    /// A power of two.
    size_bytes: usize,
    /// Where the reader is: it counts on and on.
    read_bytes: usize,
    /// What was read is given back only by [`Self::release`].
    keeps: bool,
    /// A record that goes over the end. Words, since records are made of such.
    whole: Vec<u64>,
}

impl RingMemory {
    /// Maps a ring that holds so many bytes.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn map(ring: BorrowedFd<'_>, size_bytes: usize) -> io::Result<Self> {
        // SAFETY: it has no preconditions.
        let page_bytes = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).map_err(io::Error::other)?;
        let consumer = Mapping::new(Some(ring), (0, page_bytes), libc::PROT_READ | libc::PROT_WRITE)?;
        let producer = Mapping::new(Some(ring), (page_bytes, page_bytes + size_bytes), libc::PROT_READ)?;
        let mut memory =
            Self { consumer, producer, page_bytes, size_bytes, read_bytes: 0, keeps: false, whole: Vec::new() };
        memory.read_bytes = memory.consumer.position().load(Ordering::Acquire);
        Ok(memory)
    }

    /// Hands over the next record, if there is one; whether there was.
    pub(super) fn take(&mut self, take: impl FnOnce(&[u8])) -> bool {
        let bytes = loop {
            // Acquire: what the kernel wrote before it stated how far it is can be read.
            if self.producer.position().load(Ordering::Acquire) == self.read_bytes {
                return false;
            }
            let header = self.header();
            // The ones behind a record that is being made wait for it.
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

    /// The kernel may write where the next record is, which has so many bytes.
    fn give_back(&mut self, bytes: usize) {
        self.read_bytes = self.read_bytes.wrapping_add(HEADER_BYTES + bytes.next_multiple_of(ALIGNMENT_BYTES));
        if !self.keeps {
            self.release();
        }
    }

    /// The kernel may write over all that was read.
    pub(super) fn release(&self) {
        // Release: what was read was read before.
        self.consumer.position().store(self.read_bytes, Ordering::Release);
    }

    /// What is read from now on stays in the ring until it is released.
    pub(super) const fn keep(&mut self) {
        self.keeps = true;
    }

    /// How much there is to be read, in bytes.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.producer.position().load(Ordering::Acquire).wrapping_sub(self.read_bytes)
    }

    /// How far the reader is.
    pub(super) const fn position(&self) -> usize {
        self.read_bytes
    }

    /// Goes on from here: a reader before this one had read so far, but may not have given it back. Whether that is in the ring.
    pub(super) fn go_on_from(&mut self, position: usize) -> bool {
        let is_there = position.wrapping_sub(self.read_bytes) <= self.waiting_bytes();
        if is_there {
            self.read_bytes = position;
            self.release();
        }
        is_there
    }

    /// The length and marks of the next record; it is handed over with a full barrier.
    fn header(&self) -> u32 {
        let at = self.read_bytes & (self.size_bytes - 1);
        // SAFETY: records begin at multiples of eight bytes, within the size, which is mapped; the kernel writes the word as a whole.
        let header = unsafe { self.producer.at(self.page_bytes + at).cast::<AtomicU32>().as_ref() };
        header.load(Ordering::Acquire)
    }

    /// The next record, which has so many bytes.
    fn record(&mut self, bytes: usize) -> &[u8] {
        let at = self.read_bytes.wrapping_add(HEADER_BYTES) & (self.size_bytes - 1);
        let before_end = bytes.min(self.size_bytes - at);
        let part = |at: usize, bytes: usize| {
            assert!(at + bytes <= self.size_bytes, "a record of {bytes} bytes in a ring of {}", self.size_bytes);
            // SAFETY: it is within the mapping, and the kernel does not write to a record that it has handed over until it is given back.
            unsafe { std::slice::from_raw_parts(self.producer.at(self.page_bytes + at).as_ptr(), bytes) }
        };
        let (first, second) = (part(at, before_end), part(0, bytes - before_end));
        if second.is_empty() {
            return first;
        }
        self.whole.resize(bytes.div_ceil(size_of::<u64>()), 0);
        // SAFETY: there is room for so many bytes, and bytes may be written to words.
        let whole = unsafe { std::slice::from_raw_parts_mut(self.whole.as_mut_ptr().cast::<u8>(), bytes) };
        whole[..before_end].copy_from_slice(first);
        whole[before_end..].copy_from_slice(second);
        whole
    }
}

/// Memory that is shared with the kernel.
struct Mapping {
    begin: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory belongs to the mapping alone, and is written through atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Of a file, from an offset on; without one, of nobody.
    fn new(file: Option<BorrowedFd<'_>>, (offset, bytes): (usize, usize), protection: libc::c_int) -> io::Result<Self> {
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        let nobodys = if file.is_none() { libc::MAP_ANONYMOUS } else { 0 };
        let file = file.map_or(-1, |file| file.as_raw_fd());
        // SAFETY: a new mapping disturbs nobody.
        let begin =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED | nobodys, file, offset) };
        match NonNull::new(begin.cast()).filter(|_| begin != libc::MAP_FAILED) {
            Some(begin) => Ok(Self { begin, bytes }),
            None => Err(io::Error::last_os_error()),
        }
    }

    /// The word at its front.
    fn position(&self) -> &AtomicUsize {
        // SAFETY: a mapping begins with a page, and the kernel writes the word as a whole.
        unsafe { self.begin.cast().as_ref() }
    }

    /// # Safety
    /// It is within the mapping.
    unsafe fn at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset < self.bytes);
        // SAFETY: the caller's.
        unsafe { self.begin.add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody reads it any more.
        unsafe { libc::munmap(self.begin.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const PAGE: usize = 4096;

    /// A ring without a kernel, and what is in it.
    struct Fake {
        ring: RingMemory,
        made_bytes: usize,
        expected: VecDeque<Vec<u8>>,
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// A record of so many bytes is made; it may be taken back.
        Make(usize, bool),
        /// One is begun and handed over after the next read.
        Begin(usize),
        Read,
    }

    impl Fake {
        fn new() -> Self {
            let map = |bytes| Mapping::new(None, (0, bytes), libc::PROT_READ | libc::PROT_WRITE).expect("memory");
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
            // SAFETY: it is within the mapping, which is the test's own.
            unsafe { self.ring.producer.at(PAGE + at % PAGE).write(byte) };
        }

        /// Makes a record as the kernel does, if there is room; with these marks. Returns where its header is.
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
    fn what_is_kept_is_read_again_by_who_comes_next_but_for_what_was_noted() {
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
