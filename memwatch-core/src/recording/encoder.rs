//! Encodes inputs into a recording.

use std::collections::HashMap;

use serde::Serialize;

use super::lane::{self, Lane, LaneKind, WIDEST};
use super::{
    CHUNK_MAGIC, ChunkFront, END_MAGIC, EndMark, Front, LONGEST_CHUNK_BYTES, MAGIC, MOST_INPUTS, Stopped, column,
};
use crate::input::Input;

/// zstd level: fast enough for any ring; higher levels save only a few percent.
pub(super) const ZSTD_LEVEL: i32 = 3;

/// Size of text inputs that ends a chunk early, well below [`LONGEST_CHUNK_BYTES`].
const MUCH_TEXT_BYTES: usize = 1 << 20;

/// Maximum size of an encoded number, with seven bits per byte.
const LONGEST_NUMBER: usize = 10;

/// Collects inputs and encodes them into chunks.
pub struct Encoder {
    lanes: Vec<(Lane, Vec<Vec<u64>>)>,
    by_lane: HashMap<Lane, usize, foldhash::fast::FixedState>,
    /// Lane of each input, in order.
    order: Vec<u64>,
    text: Vec<u8>,
    row: Box<[u64; WIDEST]>,
    /// Time of the last input that has one.
    time_ns: u64,
    first_ns: u64,
    last_ns: u64,
    /// Latest time of all inputs, in this chunk or earlier.
    latest_ns: u64,
    inputs: u64,
    /// Count of numbers in the lanes of this chunk.
    numbers: usize,
}

impl Default for Encoder {
    fn default() -> Self {
        Self {
            lanes: Vec::new(),
            by_lane: HashMap::default(),
            order: Vec::new(),
            text: Vec::new(),
            row: Box::new([0; WIDEST]),
            time_ns: 0,
            first_ns: 0,
            last_ns: 0,
            latest_ns: 0,
            inputs: 0,
            numbers: 0,
        }
    }
}

impl Encoder {
    /// Returns the header of a recording.
    pub fn front(front: &Front) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        write_text(&mut bytes, front);
        bytes
    }

    /// Adds an input to the current chunk.
    pub fn push(&mut self, input: &Input) {
        let lane = lane::numbers(input, &mut self.row);
        if lane.kind != LaneKind::Other {
            self.note_time();
        }
        let Self { lanes, by_lane, .. } = self;
        let index = *by_lane.entry(lane).or_insert_with(|| {
            lanes.push((lane, vec![Vec::new(); lane.width()]));
            lanes.len() - 1
        });
        if let Some((_, columns)) = self.lanes.get_mut(index) {
            columns.iter_mut().zip(self.row.iter()).for_each(|(column, number)| column.push(*number));
        }
        self.order.push(index as u64);
        self.inputs += 1;
        self.numbers += lane.width();
        if lane.kind == LaneKind::Other {
            // Only records cannot be written as text, and they have lanes.
            write_text(&mut self.text, input);
        }
    }

    /// Replaces the time by the difference from the previous input's time, in whatever lane: the
    /// two are close.
    fn note_time(&mut self) {
        let [time, ..] = &mut *self.row;
        let time_ns = *time;
        *time = column::folded(time_ns.wrapping_sub(self.time_ns));
        self.time_ns = time_ns;
        self.first_ns = if self.first_ns == 0 { time_ns } else { self.first_ns.min(time_ns) };
        self.last_ns = self.last_ns.max(time_ns);
        self.latest_ns = self.latest_ns.max(time_ns);
    }

    /// Returns whether the current chunk is full.
    pub fn is_full(&self) -> bool {
        self.order.len() >= MOST_INPUTS as usize || self.text.len() >= MUCH_TEXT_BYTES
    }

    /// Returns an upper bound of the current chunk's size, bytes; usually it is much smaller.
    pub const fn most_bytes(&self) -> u64 {
        let numbers = self.numbers + self.order.len() + self.lanes.len() * (2 * WIDEST + 3) + 1;
        let unpacked = (numbers * LONGEST_NUMBER + self.text.len()) as u64;
        // Incompressible data grows by this amount (ZSTD_COMPRESSBOUND in zstd.h); the chunk's
        // header is added.
        unpacked + (unpacked >> 8) + 64 + 64
    }

    /// Number of inputs so far.
    pub const fn inputs(&self) -> u64 {
        self.inputs
    }

    /// Number of inputs in the current chunk.
    pub const fn pending(&self) -> u64 {
        self.order.len() as u64
    }

    /// Latest time of all inputs: `CLOCK_BOOTTIME`, nanoseconds.
    pub const fn latest_ns(&self) -> u64 {
        self.latest_ns
    }

    /// Encodes the inputs added since the last chunk; `None` if there are none.
    /// `boottime_to_unix_ns` is the present offset from `CLOCK_BOOTTIME` to nanoseconds since 1970.
    ///
    /// # Errors
    /// If the compressor cannot allocate memory, or a single input is too long for a chunk.
    pub fn chunk(&mut self, boottime_to_unix_ns: i64) -> std::io::Result<Option<Vec<u8>>> {
        if self.order.is_empty() {
            return Ok(None);
        }
        let unpacked = self.unpacked();
        let packed = zstd::bulk::compress(&unpacked, ZSTD_LEVEL)?;
        let front = ChunkFront {
            packed_bytes: length(packed.len())?,
            unpacked_bytes: length(unpacked.len())?,
            inputs: length(self.order.len())?,
            first_ns: self.first_ns,
            last_ns: self.last_ns,
            boottime_to_unix_ns,
        };
        let mut bytes = CHUNK_MAGIC.to_vec();
        front.write(&mut bytes);
        bytes.extend_from_slice(&checksum(&bytes[CHUNK_MAGIC.len()..], &packed).to_le_bytes());
        bytes.extend_from_slice(&packed);
        let Self { latest_ns, inputs, .. } = *self;
        *self = Self { latest_ns, inputs, ..Self::default() };
        Ok(Some(bytes))
    }

    /// Subtracts the inputs of a chunk that was not written to the recording.
    pub const fn leave_out(&mut self, inputs: u64) {
        self.inputs = self.inputs.saturating_sub(inputs);
    }

    fn unpacked(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        column::write_number(&mut bytes, self.lanes.len() as u64);
        for (lane, columns) in &self.lanes {
            let rows = columns.first().map_or(0, Vec::len);
            for number in [lane.kind as u64, u64::from(lane.row), rows as u64] {
                column::write_number(&mut bytes, number);
            }
            // Where lower bytes are noise, differences of two numbers compress worse than the numbers.
            let (times, others) = columns.split_at(lane.times());
            for values in times {
                column::write_planes(&mut bytes, values);
            }
            for values in others {
                column::write(&mut bytes, values);
            }
        }
        column::write(&mut bytes, &self.order);
        bytes.extend_from_slice(&self.text);
        bytes
    }

    /// Returns the end mark of a recording.
    pub fn end(&self, stopped: Stopped) -> Vec<u8> {
        EndMark { stopped, inputs: self.inputs }.bytes()
    }
}

impl EndMark {
    /// Returns the mark as it is in a recording.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = END_MAGIC.to_vec();
        write_text(&mut bytes, self);
        bytes
    }
}

impl ChunkFront {
    fn write(&self, bytes: &mut Vec<u8>) {
        for number in [self.packed_bytes, self.unpacked_bytes, self.inputs] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for number in [self.first_ns, self.last_ns, self.boottime_to_unix_ns.cast_unsigned()] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
    }
}

/// Computes the checksum (CRC-32, IEEE) of a chunk, which detects data corrupted on disk.
pub(super) fn checksum(front: &[u8], packed: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(front);
    sum.update(packed);
    sum.finalize()
}

/// Converts a length and checks it against the limit of a chunk.
fn length(length: usize) -> std::io::Result<u32> {
    let length = u32::try_from(length).ok().filter(|length| *length <= LONGEST_CHUNK_BYTES);
    length.ok_or_else(|| std::io::Error::other("a chunk of the recording exceeds 256 MiB"))
}

/// Appends a value as JSON, preceded by its length in four bytes.
fn write_text(bytes: &mut Vec<u8>, value: &impl Serialize) {
    let start = bytes.len();
    bytes.extend_from_slice(&[0; 4]);
    // A vector accepts any number of bytes, and no map in an input has keys that are not strings.
    serde_json::to_writer(&mut *bytes, value).expect("an input can be written as text");
    let length = u32::try_from(bytes.len() - start - 4).unwrap_or(u32::MAX);
    bytes[start..start + 4].copy_from_slice(&length.to_le_bytes());
}
