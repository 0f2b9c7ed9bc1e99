//! Converts inputs to rows of numbers. Inputs of the same kind and probe table row have much in
//! common and share a lane.

use memwatch_common::record::{
    COMM_BYTES, CallRecord, PEEK_WORDS, PROCESS_RECORD_BYTES, ProcessRecord, RecordKind, RingRecord,
};
use memwatch_common::tensor::{STATISTICS_WORDS, TEXT_BYTES, TensorRecord, TextRecord, tensor_probe};

use crate::input::Input;
use crate::words::Tgid;

/// Group of inputs with the same columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Lane {
    /// Kind of the inputs.
    pub(super) kind: LaneKind,
    /// Probe table row, if there is one.
    pub(super) row: u16,
}

/// Kind of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum LaneKind {
    /// [`RecordKind::Call`].
    Call = 1,
    /// [`RecordKind::Process`].
    Process = 2,
    /// [`RecordKind::Tensor`].
    Tensor = 3,
    /// [`RecordKind::Text`].
    Text = 4,
    /// [`Input::Statistics`].
    Statistics = 6,
    /// [`Input::Tick`].
    Tick = 7,
    /// Any other input, stored as text.
    Other = 255,
}

/// Number of words in a text record's text.
const TEXT_WORDS: usize = TEXT_BYTES / 8;
const COMM_WORDS: usize = COMM_BYTES / 8;
const _: () = assert!(TEXT_BYTES.is_multiple_of(8) && COMM_BYTES.is_multiple_of(8));
// When a field is added to this record, it has to be added here as well.
const _: () = assert!(PROCESS_RECORD_BYTES == 64);

/// Width of the widest row, that of an allocator's statistics.
pub(super) const WIDEST: usize = 3 + STATISTICS_WORDS;

impl LaneKind {
    pub(super) fn from_number(number: u64) -> Option<Self> {
        [Self::Call, Self::Process, Self::Tensor, Self::Text, Self::Statistics, Self::Tick, Self::Other]
            .into_iter()
            .find(|kind| *kind as u64 == number)
    }

    /// Returns the count of numbers in a row. The first is a time, except for [`LaneKind::Other`],
    /// which has no numbers.
    pub(super) const fn width(self) -> usize {
        match self {
            Self::Call => 6 + 6 + 2 + PEEK_WORDS,
            Self::Process => 9 + COMM_WORDS,
            Self::Tensor => 5 + 6 + 2 + 1,
            Self::Text => 5 + TEXT_WORDS,
            Self::Statistics => WIDEST,
            Self::Tick => 1,
            Self::Other => 0,
        }
    }
}

/// Writes an input's numbers into `row` and returns its lane.
pub(super) fn numbers(input: &Input, row: &mut [u64; WIDEST]) -> Lane {
    let mut row = RowWriter { numbers: row, next: 0 };
    match input {
        Input::Record(RingRecord::Call(call)) => call_numbers(call, &mut row),
        Input::Record(RingRecord::Process(process)) => process_numbers(process, &mut row),
        Input::Record(RingRecord::Tensor(tensor)) => {
            row.put(tensor.time_ns);
            row.put_all([tensor.tgid, tensor.tid, u32::from(tensor.flags), tensor.reserved].map(u64::from));
            // Register bits that carry no argument are noise, which does not compress.
            let bits = tensor_probe(tensor.probe).map_or([u64::MAX; 6], |row| row.meaning.argument_bits());
            row.put_all(std::array::from_fn::<_, 6, _>(|index| tensor.args[index] & bits[index]));
            row.put_all(tensor.extra);
            row.put(tensor.stack);
            Lane { kind: LaneKind::Tensor, row: tensor.probe }
        }
        Input::Record(RingRecord::Text(text)) => {
            row.put(text.time_ns);
            row.put_all([text.tgid, text.tid, u32::from(text.flags), text.chunk].map(u64::from));
            row.put_bytes(&text.text);
            Lane { kind: LaneKind::Text, row: text.probe }
        }
        Input::Statistics { tgid, allocator, time_ns, words } => {
            row.put_all([*time_ns, u64::from(tgid.0), *allocator]);
            row.put_all(**words);
            Lane { kind: LaneKind::Statistics, row: 0 }
        }
        Input::Tick { time_ns } => {
            row.put(*time_ns);
            Lane { kind: LaneKind::Tick, row: 0 }
        }
        _ => Lane { kind: LaneKind::Other, row: 0 },
    }
}

fn call_numbers(call: &CallRecord, row: &mut RowWriter<'_>) -> Lane {
    row.put(call.entered_ns);
    row.put(call.returned_ns.wrapping_sub(call.entered_ns));
    row.put_all([call.tgid, call.tid, call.status.cast_unsigned(), u32::from(call.flags)].map(u64::from));
    row.put_all(call.args);
    row.put_all(call.out);
    row.put_all(call.peek);
    Lane { kind: LaneKind::Call, row: call.probe }
}

fn process_numbers(process: &ProcessRecord, row: &mut RowWriter<'_>) -> Lane {
    row.put(process.time_ns);
    row.put_all([process.tgid, process.parent_tgid, process.life, process.uid].map(u64::from));
    row.put_all([u64::from(process.reserved), u64::from(process.unused), process.cgroup_id, process.start_ns]);
    row.put_bytes(&process.comm);
    Lane { kind: LaneKind::Process, row: u16::from(process.event) }
}

/// Restores an input from its numbers; `None` for inputs stored as text and for invalid numbers.
pub(super) fn input(lane: Lane, numbers: impl Fn(usize) -> u64) -> Option<Input> {
    let mut row = RowReader { numbers, next: 0 };
    Some(match lane.kind {
        LaneKind::Call => Input::Record(RingRecord::Call(call(lane.row, &mut row)?)),
        LaneKind::Process => Input::Record(RingRecord::Process(process(lane.row, &mut row)?)),
        // The order of the fields is the order of the numbers.
        LaneKind::Tensor => Input::Record(RingRecord::Tensor(TensorRecord {
            kind: RecordKind::Tensor as u8,
            probe: lane.row,
            time_ns: row.take(),
            tgid: row.take_u32()?,
            tid: row.take_u32()?,
            flags: row.take_u8()?,
            reserved: row.take_u32()?,
            args: row.take_all(),
            extra: row.take_all(),
            stack: row.take(),
        })),
        LaneKind::Text => Input::Record(RingRecord::Text(TextRecord {
            kind: RecordKind::Text as u8,
            probe: lane.row,
            time_ns: row.take(),
            tgid: row.take_u32()?,
            tid: row.take_u32()?,
            flags: row.take_u8()?,
            chunk: row.take_u32()?,
            text: row.take_bytes(),
        })),
        LaneKind::Statistics => {
            let (time_ns, tgid, allocator) = (row.take(), Tgid(row.take_u32()?), row.take());
            Input::Statistics { tgid, allocator, time_ns, words: Box::new(row.take_all()) }
        }
        LaneKind::Tick => Input::Tick { time_ns: row.take() },
        LaneKind::Other => return None,
    })
}

fn call(probe: u16, row: &mut RowReader<impl Fn(usize) -> u64>) -> Option<CallRecord> {
    let (entered_ns, took_ns) = (row.take(), row.take());
    Some(CallRecord {
        kind: RecordKind::Call as u8,
        probe,
        entered_ns,
        returned_ns: entered_ns.wrapping_add(took_ns),
        tgid: row.take_u32()?,
        tid: row.take_u32()?,
        status: row.take_u32()?.cast_signed(),
        flags: row.take_u8()?,
        args: row.take_all(),
        out: row.take_all(),
        peek: row.take_all(),
    })
}

fn process(event: u16, row: &mut RowReader<impl Fn(usize) -> u64>) -> Option<ProcessRecord> {
    Some(ProcessRecord {
        kind: RecordKind::Process as u8,
        event: event.try_into().ok()?,
        time_ns: row.take(),
        tgid: row.take_u32()?,
        parent_tgid: row.take_u32()?,
        life: row.take_u32()?,
        uid: row.take_u32()?,
        reserved: row.take().try_into().ok()?,
        unused: row.take_u32()?,
        cgroup_id: row.take(),
        start_ns: row.take(),
        comm: row.take_bytes(),
    })
}

/// A row to be filled.
struct RowWriter<'a> {
    numbers: &'a mut [u64; WIDEST],
    next: usize,
}

impl RowWriter<'_> {
    fn put(&mut self, number: u64) {
        if let Some(place) = self.numbers.get_mut(self.next) {
            *place = number;
        }
        self.next += 1;
    }

    fn put_all<const N: usize>(&mut self, numbers: [u64; N]) {
        for number in numbers {
            self.put(number);
        }
    }

    fn put_bytes(&mut self, bytes: &[u8]) {
        let (words, _) = bytes.as_chunks::<8>();
        for word in words {
            self.put(u64::from_le_bytes(*word));
        }
    }
}

/// A row to be read.
struct RowReader<F> {
    numbers: F,
    next: usize,
}

impl<F: Fn(usize) -> u64> RowReader<F> {
    fn take(&mut self) -> u64 {
        self.next += 1;
        (self.numbers)(self.next - 1)
    }

    fn take_u32(&mut self) -> Option<u32> {
        self.take().try_into().ok()
    }

    fn take_u8(&mut self) -> Option<u8> {
        self.take().try_into().ok()
    }

    fn take_all<const N: usize>(&mut self) -> [u64; N] {
        std::array::from_fn(|_| self.take())
    }

    fn take_bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let (words, _) = bytes.as_chunks_mut::<8>();
        for word in words {
            *word = self.take().to_le_bytes();
        }
        bytes
    }
}
