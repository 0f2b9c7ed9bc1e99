//! Recordings: every input of a watch, in order, as bytes that can be kept. `docs/recording.md` describes the format.
//!
//! A recording is a front, then chunks, then an end mark. Each chunk is whole by itself: what was written before a recorder was killed, or
//! a disk was full, can be read. Replayed into a pipeline, a recording gives the snapshot that the watch had.

mod chunk;
mod column;
mod encoder;
mod keyframe;
mod lane;
mod reader;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use chunk::Chunk;
pub use encoder::Encoder;
pub use keyframe::{Keyframe, KeyframeFront};
pub use reader::{Ending, Part, Place, Reader, RecordingError};

/// The format of recordings that have all inputs.
pub const FORMAT: u32 = 1;
/// The format of recordings that keep the newest: with keyframes between the chunks, of which the first may stand before all of them.
pub const FORMAT_WITH_KEYFRAMES: u32 = 2;

/// The first bytes of every recording. As in PNG: no text, and damaged by whatever changes line ends.
const MAGIC: [u8; 8] = *b"\x89MWR\r\n\x1a\n";
/// The first bytes of a chunk.
const CHUNK_MAGIC: [u8; 4] = *b"MWCH";
/// The first bytes of a keyframe.
const KEYFRAME_MAGIC: [u8; 4] = *b"MWKF";
/// The first bytes of the end mark.
const END_MAGIC: [u8; 4] = *b"MWEN";

/// A chunk has no more inputs than this.
const MOST_INPUTS: u32 = 1 << 15;
/// Nor is it longer than this before it is compressed: what is known of one process with a million blocks fits.
const LONGEST_CHUNK_BYTES: u32 = 256 << 20;
/// Nor is a state longer than this, packed or not.
const LONGEST_STATE_BYTES: u32 = 512 << 20;
/// Nor is the front.
const LONGEST_FRONT_BYTES: u32 = 1 << 20;

/// What stands at the front of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Front {
    /// [`FORMAT`] or [`FORMAT_WITH_KEYFRAMES`].
    pub format: u32,
    /// The version of memwatch that wrote it.
    pub version: String,
    /// The machine's name.
    pub host: String,
    /// Every process of the machine was watched, not targets alone.
    pub everybody: bool,
    /// What was to be recorded, as it was typed.
    pub command: Vec<String>,
}

/// What stands before a chunk's inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkFront {
    /// Bytes that follow, compressed.
    pub packed_bytes: u32,
    /// Bytes that they are when unpacked.
    pub unpacked_bytes: u32,
    /// How many inputs they are.
    pub inputs: u32,
    /// The earliest time of any of them: `CLOCK_BOOTTIME`, nanoseconds; 0 where none has one.
    pub first_ns: u64,
    /// The latest.
    pub last_ns: u64,
    /// What to add, when the chunk was written, to get nanoseconds since 1970.
    pub boottime_to_unix_ns: i64,
}

/// Why a recording has an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stopped {
    /// Its recorder was stopped, or had recorded for as long as it was asked to.
    Asked,
    /// Nobody that was to be watched was left.
    NobodyLeft,
    /// It had become as large as it may.
    Limit,
}

/// What stands at the end of a recording that was not cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndMark {
    /// Why.
    pub stopped: Stopped,
    /// How many inputs there are in all.
    pub inputs: u64,
}
