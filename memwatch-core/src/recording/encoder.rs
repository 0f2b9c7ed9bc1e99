//! Inputs in, bytes out.

use std::collections::HashMap;

use serde::Serialize;

use super::lane::{self, Kind, Lane, WIDEST};
use super::{
    CHUNK_MAGIC, ChunkFront, END_MAGIC, EndMark, Front, LONGEST_CHUNK_BYTES, MAGIC, MOST_INPUTS, Stopped, column,
};
use crate::input::Input;

/// Fast enough to keep up with any ring, and what is gained beyond is a few hundredths.
pub(super) const ZSTD_LEVEL: i32 = 3;

/// What is long apart from the numbers ends a chunk early: a chunk may be as long as [`LONGEST_CHUNK_BYTES`].
const MUCH_TEXT_BYTES: usize = 1 << 20;

/// What a number takes at most, seven bits a byte.
const LONGEST_NUMBER: usize = 10;

/// Collects inputs, and makes chunks of them.
pub struct Encoder {
    lanes: Vec<(Lane, Vec<Vec<u64>>)>,
    by_lane: HashMap<Lane, usize, foldhash::fast::FixedState>,
    /// The lane of each input, in their order.
    order: Vec<u64>,
    text: Vec<u8>,
    row: Box<[u64; WIDEST]>,
    /// Of the last input that has a time.
    time_ns: u64,
    first_ns: u64,
    last_ns: u64,
    /// The latest time of any input, in this chunk or before.
    latest_ns: u64,
    inputs: u64,
    /// How many numbers the lanes of this chunk have.
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
    /// The bytes that a recording begins with.
    pub fn front(front: &Front) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        write_text(&mut bytes, front);
        bytes
    }

    /// Adds an input to the chunk that is being made.
    pub fn push(&mut self, input: &Input) {
        let lane = lane::numbers(input, &mut self.row);
        if lane.kind != Kind::Other {
            self.note_time();
        }
        let Self { lanes, by_lane, .. } = self;
        let index = *by_lane.entry(lane).or_insert_with(|| {
            lanes.push((lane, vec![Vec::new(); lane.kind.width()]));
            lanes.len() - 1
        });
        if let Some((_, columns)) = self.lanes.get_mut(index) {
            columns.iter_mut().zip(self.row.iter()).for_each(|(column, number)| column.push(*number));
        }
        self.order.push(index as u64);
        self.inputs += 1;
        self.numbers += lane.kind.width();
        if lane.kind == Kind::Other {
            // What cannot be written as text is a record, which has a lane.
            write_text(&mut self.text, input);
        }
    }

    /// A time stands as its distance from that of the input before, whatever lane that is in: they are near each other.
    fn note_time(&mut self) {
        let [time, ..] = &mut *self.row;
        let time_ns = *time;
        *time = column::folded(time_ns.wrapping_sub(self.time_ns));
        self.time_ns = time_ns;
        self.first_ns = if self.first_ns == 0 { time_ns } else { self.first_ns.min(time_ns) };
        self.last_ns = self.last_ns.max(time_ns);
        self.latest_ns = self.latest_ns.max(time_ns);
    }

    /// Whether there is as much as belongs into one chunk.
    pub fn is_full(&self) -> bool {
        self.order.len() >= MOST_INPUTS as usize || self.text.len() >= MUCH_TEXT_BYTES
    }

    /// What the chunk that is being made takes at most, in bytes: usually it is a small part of that.
    pub const fn most_bytes(&self) -> u64 {
        let numbers = self.numbers + self.order.len() + self.lanes.len() * (2 * WIDEST + 3) + 1;
        let unpacked = (numbers * LONGEST_NUMBER + self.text.len()) as u64;
        // What does not pack at all becomes longer by so much (ZSTD_COMPRESSBOUND in zstd.h), and has its front.
        unpacked + (unpacked >> 8) + 64 + 64
    }

    /// How many inputs there were so far.
    pub const fn inputs(&self) -> u64 {
        self.inputs
    }

    /// How many of them are in the chunk that is being made.
    pub const fn pending(&self) -> u64 {
        self.order.len() as u64
    }

    /// The latest time of any of them: `CLOCK_BOOTTIME`, nanoseconds.
    pub const fn latest_ns(&self) -> u64 {
        self.latest_ns
    }

    /// The chunk of what was pushed since the last one; `None` for nothing. `boottime_to_unix_ns` is what to add to its times now to get
    /// nanoseconds since 1970.
    ///
    /// # Errors
    /// When the compressor cannot have the memory it needs, or one input alone is too long for a chunk.
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

    /// A chunk of so many inputs has not become a part of the recording: they do not count.
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
            if let [times, others @ ..] = &columns[..] {
                column::write_planes(&mut bytes, times);
                for values in others {
                    column::write(&mut bytes, values);
                }
            }
        }
        column::write(&mut bytes, &self.order);
        bytes.extend_from_slice(&self.text);
        bytes
    }

    /// The bytes that a recording ends with, if it comes to an end.
    pub fn end(&self, stopped: Stopped) -> Vec<u8> {
        let mut bytes = END_MAGIC.to_vec();
        write_text(&mut bytes, &EndMark { stopped, inputs: self.inputs });
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

/// A sum (CRC-32, IEEE) of all that a chunk says: what a disk has changed is not believed.
pub(super) fn checksum(front: &[u8], packed: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(front);
    sum.update(packed);
    sum.finalize()
}

/// A length that a chunk's front knows.
fn length(length: usize) -> std::io::Result<u32> {
    let length = u32::try_from(length).ok().filter(|length| *length <= LONGEST_CHUNK_BYTES);
    length.ok_or_else(|| std::io::Error::other("one chunk of a recording would be longer than 256 MiB"))
}

/// Appends its length in four bytes, and a value as JSON.
fn write_text(bytes: &mut Vec<u8>, value: &impl Serialize) {
    let start = bytes.len();
    bytes.extend_from_slice(&[0; 4]);
    // A vector takes any bytes, and no map in an input has keys that are no text.
    serde_json::to_writer(&mut *bytes, value).expect("an input can be written as text");
    let length = u32::try_from(bytes.len() - start - 4).unwrap_or(u32::MAX);
    bytes[start..start + 4].copy_from_slice(&length.to_le_bytes());
}
