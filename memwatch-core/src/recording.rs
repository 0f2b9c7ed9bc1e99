//! Recordings: every input of a session, in order, as bytes. `docs/recording.md` describes the
//! format.
//!
//! A recording consists of a header, chunks and an end mark. Each chunk is self-contained: whatever
//! was written before the recorder was killed or the disk was full can be read. Replayed into a
//! pipeline, a recording gives the snapshots of the session.

mod chunk;
mod column;
mod encoder;
mod keyframe;
mod lane;
mod reader;
#[cfg(test)]
mod tests;
mod thinned;

use serde::{Deserialize, Serialize};

pub use chunk::Chunk;
pub use encoder::Encoder;
pub use keyframe::{Keyframe, KeyframeFront};
pub use reader::{Ending, PartPosition, RecordingError, RecordingPart, RecordingReader};
pub use thinned::thin;

/// Format of recordings that contain all inputs.
pub const FORMAT: u32 = 3;
/// Format of recordings that keep only the newest inputs, with keyframes between the chunks. The
/// first keyframe may precede all chunks.
pub const FORMAT_WITH_KEYFRAMES: u32 = 4;
/// Format of recordings without some inputs between the keyframes: each keyframe replaces the
/// state.
pub const FORMAT_OF_STATES: u32 = 5;
/// [`FORMAT`] and [`FORMAT_WITH_KEYFRAMES`] before ioctls had columns.
const OLDER: [u32; 2] = [1, 2];

/// First bytes of every recording. As in PNG, they are not text and do not survive line-end
/// conversions.
const MAGIC: [u8; 8] = *b"\x89MWR\r\n\x1a\n";
/// First bytes of a chunk.
const CHUNK_MAGIC: [u8; 4] = *b"MWCH";
/// First bytes of a keyframe.
const KEYFRAME_MAGIC: [u8; 4] = *b"MWKF";
/// First bytes of the end mark.
const END_MAGIC: [u8; 4] = *b"MWEN";

/// Maximum number of inputs in a chunk.
const MOST_INPUTS: u32 = 1 << 15;
/// Maximum size of an uncompressed chunk. The state of one process with a million blocks fits.
const LONGEST_CHUNK_BYTES: u32 = 256 << 20;
/// Maximum size of a state, compressed or not.
const LONGEST_STATE_BYTES: u32 = 512 << 20;
/// Maximum size of the header.
const LONGEST_FRONT_BYTES: u32 = 1 << 20;

/// Header of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Front {
    /// [`FORMAT`], [`FORMAT_WITH_KEYFRAMES`] or [`FORMAT_OF_STATES`].
    pub format: u32,
    /// Version of memwatch that wrote the recording.
    pub version: String,
    /// Host name.
    pub host: String,
    /// Whether every process of the machine was traced rather than targets only.
    pub everybody: bool,
    /// Recorded target, as typed on the command line.
    pub command: Vec<String>,
    /// Start of the machine, by the id that the kernel gives it; `None` in older recordings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
    /// Start of the recorder: `CLOCK_BOOTTIME`, nanoseconds. Files of one recorder continue each
    /// other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_ns: Option<u64>,
    /// Minimum time between two keyframes of a recording without some inputs, nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apart_ns: Option<u64>,
    /// Last keyframe before which inputs are missing, if nothing is missing after it:
    /// `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub states_until_ns: Option<u64>,
}

impl Front {
    /// Whether there may be keyframes, even before all chunks.
    pub const fn has_keyframes(&self) -> bool {
        matches!(self.format, 2 | FORMAT_WITH_KEYFRAMES | FORMAT_OF_STATES)
    }

    /// Whether inputs are missing between the keyframes.
    pub const fn is_of_states(&self) -> bool {
        self.format == FORMAT_OF_STATES
    }

    /// Whether this version can read the recording.
    pub(crate) fn is_known(format: u32) -> bool {
        OLDER.contains(&format) || matches!(format, FORMAT | FORMAT_WITH_KEYFRAMES | FORMAT_OF_STATES)
    }
}

/// Header of a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkFront {
    /// Compressed size, bytes.
    pub packed_bytes: u32,
    /// Uncompressed size, bytes.
    pub unpacked_bytes: u32,
    /// Number of inputs.
    pub inputs: u32,
    /// Earliest time of the inputs: `CLOCK_BOOTTIME`, nanoseconds; 0 if no input has a time.
    pub first_ns: u64,
    /// Latest time of the inputs: `CLOCK_BOOTTIME`, nanoseconds.
    pub last_ns: u64,
    /// Offset from `CLOCK_BOOTTIME` to nanoseconds since 1970, when the chunk was written.
    pub boottime_to_unix_ns: i64,
}

/// Reason for the end of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stopped {
    /// The recorder was stopped, or its time limit was reached.
    Asked,
    /// No target was left.
    NobodyLeft,
    /// The size limit was reached.
    Limit,
}

/// End mark of a complete recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndMark {
    /// Reason for the end.
    pub stopped: Stopped,
    /// Total number of inputs.
    pub inputs: u64,
}
