//! Records in the ring buffer: fixed-size, without padding, read back without `unsafe`.

mod common;
pub(crate) mod words;

pub use common::CommonFields;
pub use words::RecordKind;

use self::words::WordReader;
use crate::native::{NATIVE_RECORD_BYTES, NativeItem, read_native};
use crate::rm::{RM_RECORD_BYTES, RmRecord, read_rm};
use crate::tensor::{
    STACK_FRAME_BYTES, STACK_RECORD_BYTES, STATISTICS_RECORD_BYTES, STATISTICS_WORDS, StackFrame, StackRecord,
    TENSOR_RECORD_BYTES, TEXT_RECORD_BYTES, TensorRecord, TextRecord,
};

/// An out-pointer was not readable when the call returned; the affected word is 0.
pub const FLAG_OUT_UNREADABLE: u8 = 1;
/// The struct argument was readable neither at entry nor at return; `peek` is 0.
pub const FLAG_PEEK_UNREADABLE: u8 = 2;

/// Words of a struct argument that a record can carry: a `CUDA_ARRAY3D_DESCRIPTOR` is the largest,
/// 40 bytes.
pub const PEEK_WORDS: usize = 5;

/// A returned call of a probed function. The kernel half does not know its meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CallRecord {
    /// [`RecordKind::Call`].
    pub kind: u8,
    /// `FLAG_*` bits.
    pub flags: u8,
    /// Row of the probe table ([`crate::probes::Probe::id`]).
    pub probe: u16,
    /// The low 32 bits of the return value (`CUresult` for libcuda).
    pub status: i32,
    /// Process id in the initial pid namespace.
    pub tgid: u32,
    /// Thread id in the initial pid namespace.
    pub tid: u32,
    /// Time of entry: `CLOCK_BOOTTIME`, nanoseconds.
    pub entered_ns: u64,
    /// Time of return: `CLOCK_BOOTTIME`, nanoseconds.
    pub returned_ns: u64,
    /// The six integer argument registers at entry; upper halves of 32-bit arguments are undefined.
    pub args: [u64; 6],
    /// The words that the plan's out-pointers point to at return.
    pub out: [u64; 2],
    /// The words that the plan reads from a struct argument; unused ones are 0.
    pub peek: [u64; PEEK_WORDS],
}

/// What happened to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ProcessEvent {
    /// A traced process made a child process (not a thread); `tgid` is the child, `parent_tgid` the
    /// parent.
    Fork = 1,
    /// The process called exec; the tgid stays.
    Exec = 2,
    /// The last thread of the process exited.
    Exit = 3,
    /// The process is about to report its first traced call.
    FirstCall = 4,
    /// The process, or one of its threads, was moved to another cgroup.
    Move = 5,
    /// A thread that made traced calls exited while its process continues; `parent_tgid` is the
    /// thread.
    ThreadEnd = 6,
}

impl ProcessEvent {
    fn from_number(number: u8) -> Option<Self> {
        [Self::Fork, Self::Exec, Self::Exit, Self::FirstCall, Self::Move, Self::ThreadEnd]
            .into_iter()
            .find(|event| *event as u8 == number)
    }
}

/// Size of a thread's name with its terminating zero, in bytes (`TASK_COMM_LEN` of
/// include/linux/sched.h).
pub const COMM_BYTES: usize = 16;

/// The first call, fork, exec, exit or move of a process that memwatch knows.
///
/// Cgroup, name and user are those of the process in whose context the event happens. For a fork
/// this is the parent, from which the child inherits them. A move happens in the context of the
/// process that does the moving, so the record has none of the three.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ProcessRecord {
    /// [`RecordKind::Process`].
    pub kind: u8,
    /// A [`ProcessEvent`] number.
    pub event: u8,
    /// Always zero.
    pub reserved: u16,
    /// The process that the event is about.
    pub tgid: u32,
    /// The parent process of a fork, the thread of a thread's exit, otherwise 0.
    pub parent_tgid: u32,
    /// For an exec or exit, the life of the tgid that the closed allocation map belongs to
    /// ([`crate::allocation_map::AllocationKey`]); 0 for none.
    pub life: u32,
    /// Time of the event: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// Cgroup (v2) id of the process at that time; 0 if the kernel gives none.
    pub cgroup_id: u64,
    /// Start time of the process: `task_struct.start_boottime` of its first thread, nanoseconds; 0
    /// if the kernel gives none.
    pub start_ns: u64,
    /// Name of the process's first thread, terminated by a zero.
    pub comm: [u8; COMM_BYTES],
    /// Real user id, in the initial user namespace.
    pub uid: u32,
    /// Always zero.
    pub unused: u32,
}

impl ProcessRecord {
    /// Returns the event, or `None` for a number this version does not know.
    pub fn event(&self) -> Option<ProcessEvent> {
        ProcessEvent::from_number(self.event)
    }

    /// Returns the name without its terminating zero.
    pub fn comm(&self) -> &[u8] {
        self.comm.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

/// Size of a [`CallRecord`] in the ring, in bytes.
pub const CALL_RECORD_BYTES: usize = 136;
/// Size of a [`ProcessRecord`] in the ring, in bytes.
pub const PROCESS_RECORD_BYTES: usize = 64;

const _: () = assert!(size_of::<CallRecord>() == CALL_RECORD_BYTES);
const _: () = assert!(size_of::<ProcessRecord>() == PROCESS_RECORD_BYTES);

/// A record as read from the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingRecord {
    /// A returned call.
    Call(CallRecord),
    /// A first call, fork, exec, exit or move.
    Process(ProcessRecord),
    /// An event of a framework allocator.
    Tensor(TensorRecord),
    /// An event of a framework allocator, with a name.
    Text(TextRecord),
}

/// Content of a ring slot: a record, or a longer item that is read in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// A record.
    Record(RingRecord),
    /// A Python stack.
    Stack(StackItem<'a>),
    /// A caching allocator's own statistics.
    Statistics(StatisticsItem<'a>),
    /// A copy of a thread's stack.
    Native(NativeItem<'a>),
    /// An ioctl to the kernel driver.
    Rm(RmRecord),
}

/// A Python stack in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackItem<'a> {
    /// Header of the stack.
    pub record: StackRecord,
    frames: &'a [u8],
}

impl<'a> StackItem<'a> {
    /// Returns the frames, innermost first.
    pub fn frames(&self) -> impl Iterator<Item = StackFrame> + 'a {
        self.frames.as_chunks::<STACK_FRAME_BYTES>().0.iter().map(|bytes| {
            let mut words = WordReader(bytes);
            StackFrame { code: words.u64(), instruction: words.u64(), object: words.u64() }
        })
    }
}

/// A caching allocator's own statistics in the ring ([`crate::tensor::StatisticsRecord`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatisticsItem<'a> {
    /// `FLAG_*` bits of [`crate::tensor`].
    pub flags: u8,
    /// Process id in the initial pid namespace.
    pub tgid: u32,
    /// The allocator of one device.
    pub allocator: u64,
    /// Time of the event: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    words: &'a [u8],
}

impl StatisticsItem<'_> {
    /// Returns the words from [`crate::tensor::STATISTICS_OFFSET_BYTES`] on.
    pub fn words(&self) -> [u64; STATISTICS_WORDS] {
        let mut words = WordReader(self.words);
        core::array::from_fn(|_| words.u64())
    }
}

impl<'a> Item<'a> {
    /// Reads the content of a ring slot.
    ///
    /// # Errors
    /// [`RecordError`] if the kind is unknown or the length is not that of the kind; any other
    /// content is accepted.
    pub fn from_bytes(bytes: &'a [u8]) -> Result<Self, RecordError> {
        match bytes.first() {
            Some(&kind) if kind == RecordKind::Stack as u8 => read_stack(bytes).map(Self::Stack),
            Some(&kind) if kind == RecordKind::Statistics as u8 => {
                WordReader::of::<STATISTICS_RECORD_BYTES>(bytes).map(|words| Self::Statistics(read_statistics(words)))
            }
            Some(&kind) if kind == RecordKind::Native as u8 => {
                WordReader::of::<NATIVE_RECORD_BYTES>(bytes).map(|words| Self::Native(read_native(words)))
            }
            Some(&kind) if kind == RecordKind::Rm as u8 => {
                WordReader::of::<RM_RECORD_BYTES>(bytes).map(|words| Self::Rm(read_rm(words)))
            }
            _ => RingRecord::from_bytes(bytes).map(Self::Record),
        }
    }
}

/// Bytes that are not a record of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordError {
    /// The first byte is not a known record kind.
    UnknownKind(u8),
    /// The length of the record does not match its kind.
    Length {
        /// Length of the kind, in bytes.
        expected: usize,
        /// Length of the record, in bytes.
        got: usize,
    },
}

impl RingRecord {
    /// Reads one record.
    ///
    /// # Errors
    /// [`RecordError`] if the kind is unknown or the length is not that of the kind; any other
    /// content is accepted.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RecordError> {
        match bytes.first() {
            Some(&kind) if kind == RecordKind::Call as u8 => {
                WordReader::of::<CALL_RECORD_BYTES>(bytes).map(|mut words| Self::Call(read_call(&mut words)))
            }
            Some(&kind) if kind == RecordKind::Process as u8 => {
                WordReader::of::<PROCESS_RECORD_BYTES>(bytes).map(|mut words| Self::Process(read_process(&mut words)))
            }
            Some(&kind) if kind == RecordKind::Tensor as u8 => {
                WordReader::of::<TENSOR_RECORD_BYTES>(bytes).map(|mut words| Self::Tensor(read_tensor(&mut words)))
            }
            Some(&kind) if kind == RecordKind::Text as u8 => {
                WordReader::of::<TEXT_RECORD_BYTES>(bytes).map(|mut words| Self::Text(read_text(&mut words)))
            }
            Some(&kind) => Err(RecordError::UnknownKind(kind)),
            None => Err(RecordError::Length { expected: PROCESS_RECORD_BYTES, got: 0 }),
        }
    }
}

fn read_call(words: &mut WordReader<'_>) -> CallRecord {
    CallRecord {
        kind: words.u8(),
        flags: words.u8(),
        probe: words.u16(),
        status: words.i32(),
        tgid: words.u32(),
        tid: words.u32(),
        entered_ns: words.u64(),
        returned_ns: words.u64(),
        args: core::array::from_fn(|_| words.u64()),
        out: core::array::from_fn(|_| words.u64()),
        peek: core::array::from_fn(|_| words.u64()),
    }
}

fn read_process(words: &mut WordReader<'_>) -> ProcessRecord {
    ProcessRecord {
        kind: words.u8(),
        event: words.u8(),
        reserved: words.u16(),
        tgid: words.u32(),
        parent_tgid: words.u32(),
        life: words.u32(),
        time_ns: words.u64(),
        cgroup_id: words.u64(),
        start_ns: words.u64(),
        comm: words.take(),
        uid: words.u32(),
        unused: words.u32(),
    }
}

fn read_tensor(words: &mut WordReader<'_>) -> TensorRecord {
    TensorRecord {
        kind: words.u8(),
        flags: words.u8(),
        probe: words.u16(),
        tid: words.u32(),
        tgid: words.u32(),
        reserved: words.u32(),
        time_ns: words.u64(),
        args: core::array::from_fn(|_| words.u64()),
        extra: core::array::from_fn(|_| words.u64()),
        stack: words.u64(),
    }
}

fn read_text(words: &mut WordReader<'_>) -> TextRecord {
    TextRecord {
        kind: words.u8(),
        flags: words.u8(),
        probe: words.u16(),
        tid: words.u32(),
        tgid: words.u32(),
        chunk: words.u32(),
        time_ns: words.u64(),
        text: words.take(),
    }
}

fn read_stack(bytes: &[u8]) -> Result<StackItem<'_>, RecordError> {
    let wrong = |expected| RecordError::Length { expected, got: bytes.len() };
    let (front, frames) = bytes.split_at_checked(STACK_RECORD_BYTES).ok_or(wrong(STACK_RECORD_BYTES))?;
    let mut words = WordReader(front);
    let record = StackRecord {
        kind: words.u8(),
        flags: words.u8(),
        frames: words.u16(),
        tgid: words.u32(),
        id: words.u64(),
        entries: core::array::from_fn(|_| words.u64()),
    };
    let expected = usize::from(record.frames) * STACK_FRAME_BYTES;
    if frames.len() == expected { Ok(StackItem { record, frames }) } else { Err(wrong(STACK_RECORD_BYTES + expected)) }
}

fn read_statistics(mut words: WordReader<'_>) -> StatisticsItem<'_> {
    let (_kind, flags, _reserved) = (words.u8(), words.u8(), words.u16());
    let (tgid, allocator, time_ns) = (words.u32(), words.u64(), words.u64());
    StatisticsItem { flags, tgid, allocator, time_ns, words: words.0 }
}

#[cfg(test)]
mod tests {
    use super::{CALL_RECORD_BYTES, Item, PROCESS_RECORD_BYTES, ProcessEvent, ProcessRecord, RecordError, RingRecord};
    use crate::tensor::{STATISTICS_RECORD_BYTES, TENSOR_RECORD_BYTES, TEXT_RECORD_BYTES};

    fn numbered<const N: usize>(kind: u8) -> [u8; N] {
        let mut bytes = core::array::from_fn(|index| u8::try_from(index).expect("records are short"));
        bytes[0] = kind;
        bytes
    }

    #[test]
    fn a_call_record_is_read_field_by_field_in_layout_order() {
        let Ok(RingRecord::Call(call)) = RingRecord::from_bytes(&numbered::<CALL_RECORD_BYTES>(1)) else {
            panic!("a call record must be read")
        };
        assert_eq!(call.flags, 1);
        assert_eq!(call.probe, u16::from_ne_bytes([2, 3]));
        assert_eq!(call.tgid, u32::from_ne_bytes([8, 9, 10, 11]));
        assert_eq!(call.args[5], u64::from_ne_bytes([72, 73, 74, 75, 76, 77, 78, 79]));
        assert_eq!(call.peek[0], u64::from_ne_bytes([96, 97, 98, 99, 100, 101, 102, 103]));
    }

    #[test]
    fn a_process_record_names_its_event() {
        let mut bytes = numbered::<PROCESS_RECORD_BYTES>(2);
        bytes[1] = 3;
        let Ok(RingRecord::Process(process)) = RingRecord::from_bytes(&bytes) else {
            panic!("a process record must be read")
        };
        assert_eq!(process.event(), Some(ProcessEvent::Exit));
        assert_eq!((process.comm[0], process.uid), (40, u32::from_ne_bytes([56, 57, 58, 59])));
    }

    #[test]
    fn a_name_ends_at_its_first_zero_or_with_its_field() {
        let named = |comm: &[u8; 16]| ProcessRecord { comm: *comm, ..ProcessRecord::default() }.comm().to_vec();
        assert_eq!(named(b"python3\0\0\0\0\0\0\0\0\0"), b"python3");
        assert_eq!(named(b"a\0rest of before"), b"a");
        assert_eq!(named(&[b'x'; 16]), [b'x'; 16]);
        assert_eq!(named(&[0; 16]), b"");
    }

    #[test]
    fn short_long_empty_and_unknown_bytes_are_errors_and_no_panic() {
        assert_eq!(RingRecord::from_bytes(&[9; 136]), Err(RecordError::UnknownKind(9)));
        assert_eq!(RingRecord::from_bytes(&[1; 64]), Err(RecordError::Length { expected: 136, got: 64 }));
        assert_eq!(RingRecord::from_bytes(&[2; 136]), Err(RecordError::Length { expected: 64, got: 136 }));
        assert_eq!(RingRecord::from_bytes(&[]), Err(RecordError::Length { expected: 64, got: 0 }));
    }

    #[test]
    fn a_tensor_record_and_its_text_are_read_field_by_field() {
        let Ok(RingRecord::Tensor(tensor)) = RingRecord::from_bytes(&numbered::<TENSOR_RECORD_BYTES>(3)) else {
            panic!("a tensor record must be read")
        };
        assert_eq!((tensor.tid, tensor.tgid), (u32::from_ne_bytes([4, 5, 6, 7]), u32::from_ne_bytes([8, 9, 10, 11])));
        assert_eq!(tensor.stack, u64::from_ne_bytes([88, 89, 90, 91, 92, 93, 94, 95]));
        let mut bytes = numbered::<TEXT_RECORD_BYTES>(4);
        bytes[30] = 0;
        let Ok(RingRecord::Text(text)) = RingRecord::from_bytes(&bytes) else { panic!("a text record must be read") };
        assert_eq!(text.text(), [24, 25, 26, 27, 28, 29]);
    }

    #[test]
    fn a_stack_has_as_many_frames_as_it_says_or_is_an_error() {
        let mut bytes = [7; 32 + 48];
        (bytes[0], bytes[2], bytes[3]) = (5, 2, 0);
        let Ok(Item::Stack(stack)) = Item::from_bytes(&bytes) else { panic!("a stack must be read") };
        assert_eq!(stack.frames().count(), 2);
        bytes[2] = 3;
        assert_eq!(Item::from_bytes(&bytes), Err(RecordError::Length { expected: 32 + 72, got: 80 }));
        assert_eq!(Item::from_bytes(&bytes[..9]), Err(RecordError::Length { expected: 32, got: 9 }));
    }

    #[test]
    fn statistics_record_fields_are_read_at_their_offsets() {
        let mut bytes = [0; STATISTICS_RECORD_BYTES];
        (bytes[0], bytes[4], bytes[24]) = (6, 9, 11);
        let Ok(Item::Statistics(found)) = Item::from_bytes(&bytes) else { panic!("statistics must be read") };
        assert_eq!((found.tgid, found.words()[0], found.words()[143]), (9, 11, 0));
    }
}
