//! Converts inputs to rows of numbers. Inputs of the same kind and probe table row have much in
//! common and share a lane.

use memwatch_common::record::{
    COMM_BYTES, CallRecord, PEEK_WORDS, PROCESS_RECORD_BYTES, ProcessRecord, RecordKind, RingRecord,
};
use memwatch_common::rm::PAYLOAD_BYTES;
use memwatch_common::tensor::{STATISTICS_WORDS, TEXT_BYTES, TensorRecord, TextRecord, tensor_probe};

use crate::input::Input;
use crate::input::rm::{Inside, RmCall, used_bytes};
use crate::words::{Tgid, Tid};

/// Group of inputs with the same columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Lane {
    /// Kind of the inputs.
    pub(super) kind: LaneKind,
    /// Probe table row, if there is one; of an ioctl, its number and 256 times the count of words in
    /// its payload.
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
    /// [`Input::Rm`], unless the payload is not as [`RmCall::payload`] has it.
    Rm = 8,
    /// Any other input, stored as text.
    Other = 255,
}

/// Number of words in a text record's text.
const TEXT_WORDS: usize = TEXT_BYTES / 8;
const COMM_WORDS: usize = COMM_BYTES / 8;
const _: () = assert!(TEXT_BYTES.is_multiple_of(8) && COMM_BYTES.is_multiple_of(8));
// When a field is added to this record, it has to be added here as well.
const _: () = assert!(PROCESS_RECORD_BYTES == 64);

/// Count of an ioctl's numbers before its payload.
const RM_FIELDS: usize = 11;
/// Maximum count of words in an ioctl's payload.
const PAYLOAD_WORDS: usize = PAYLOAD_BYTES / 8;
const _: () = assert!(PAYLOAD_BYTES.is_multiple_of(8) && RM_FIELDS + PAYLOAD_WORDS <= WIDEST);

/// Width of the widest row, that of an allocator's statistics.
pub(super) const WIDEST: usize = 3 + STATISTICS_WORDS;

impl LaneKind {
    fn from_number(number: u64) -> Option<Self> {
        [Self::Call, Self::Process, Self::Tensor, Self::Text, Self::Statistics, Self::Tick, Self::Rm, Self::Other]
            .into_iter()
            .find(|kind| *kind as u64 == number)
    }
}

impl Lane {
    /// Restores a lane; `None` for a kind unknown to this version and for an impossible row.
    pub(super) fn from_numbers(kind: u64, row: u64) -> Option<Self> {
        let lane = Self { kind: LaneKind::from_number(kind)?, row: row.try_into().ok()? };
        (lane.kind != LaneKind::Rm || lane.payload_words() <= PAYLOAD_WORDS).then_some(lane)
    }

    /// Returns the count of numbers in a row. The first is a time, except for [`LaneKind::Other`],
    /// which has no numbers.
    pub(super) const fn width(self) -> usize {
        match self.kind {
            LaneKind::Call => 6 + 6 + 2 + PEEK_WORDS,
            LaneKind::Process => 9 + COMM_WORDS,
            LaneKind::Tensor => 5 + 6 + 2 + 1,
            LaneKind::Text => 5 + TEXT_WORDS,
            LaneKind::Statistics => WIDEST,
            LaneKind::Tick => 1,
            LaneKind::Rm => RM_FIELDS + self.payload_words(),
            LaneKind::Other => 0,
        }
    }

    /// Returns how many numbers at the front of a row are times or durations whose lower bytes are
    /// noise.
    pub(super) const fn times(self) -> usize {
        match self.kind {
            LaneKind::Rm => 3,
            LaneKind::Other => 0,
            _ => 1,
        }
    }

    /// Returns the count of words in the payload of an ioctl.
    const fn payload_words(self) -> usize {
        self.row.to_le_bytes()[1] as usize
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
        Input::Rm(call) if is_canonical(&call.payload) => rm_numbers(call, &mut row),
        _ => Lane { kind: LaneKind::Other, row: 0 },
    }
}

/// Returns whether a payload follows from its words: restoring drops the zeros at the end.
fn is_canonical(payload: &[u8]) -> bool {
    payload.len() <= PAYLOAD_BYTES && used_bytes(payload) == payload.len()
}

fn rm_numbers(call: &RmCall, row: &mut RowWriter<'_>) -> Lane {
    // 0 stands for no function, so the probe's row is one higher.
    let inside = call.inside.map(|Inside { probe, entered_ns }| (u64::from(probe) + 1, entered_ns));
    let (probe, inside_ns) = inside.unwrap_or((0, call.entered_ns));
    let after_ns = call.entered_ns.wrapping_sub(inside_ns);
    row.put_all([call.entered_ns, call.returned_ns.wrapping_sub(call.entered_ns), after_ns, probe]);
    row.put_all([call.tgid.0, call.tid.0, u32::from(call.flags), u32::from(call.size)].map(u64::from));
    row.put_all([u64::from(call.answer.cast_unsigned()), call.asked_bytes, call.stack]);
    let mut words = 0;
    for bytes in call.payload.chunks(8) {
        row.put(u64::from_le_bytes(std::array::from_fn(|index| bytes.get(index).copied().unwrap_or(0))));
        words += 1;
    }
    Lane { kind: LaneKind::Rm, row: u16::from_le_bytes([call.nr, words]) }
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
        LaneKind::Rm => Input::Rm(Box::new(rm(lane, &mut row)?)),
        LaneKind::Other => return None,
    })
}

fn rm(lane: Lane, row: &mut RowReader<impl Fn(usize) -> u64>) -> Option<RmCall> {
    let (entered_ns, took_ns, after_ns) = (row.take(), row.take(), row.take());
    let inside = match row.take().checked_sub(1) {
        None => None,
        Some(probe) => Some(Inside { probe: probe.try_into().ok()?, entered_ns: entered_ns.wrapping_sub(after_ns) }),
    };
    // The order of the other fields is the order of the numbers.
    Some(RmCall {
        entered_ns,
        returned_ns: entered_ns.wrapping_add(took_ns),
        inside,
        nr: lane.row.to_le_bytes()[0],
        tgid: Tgid(row.take_u32()?),
        tid: Tid(row.take_u32()?),
        flags: row.take_u8()?,
        size: row.take().try_into().ok()?,
        answer: row.take_u32()?.cast_signed(),
        asked_bytes: row.take(),
        stack: row.take(),
        payload: payload(lane.payload_words(), row),
    })
}

fn payload(words: usize, row: &mut RowReader<impl Fn(usize) -> u64>) -> Vec<u8> {
    let mut payload: Vec<u8> = (0..words).flat_map(|_| row.take().to_le_bytes()).collect();
    payload.truncate(used_bytes(&payload));
    payload
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
