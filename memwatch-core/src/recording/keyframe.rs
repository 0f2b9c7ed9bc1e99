//! A keyframe: the complete state of the recorder's pipeline at one moment. Reading can start at a
//! keyframe without any earlier part.

use std::io::{self, Read as _};

use super::encoder::{ZSTD_LEVEL, checksum};
use super::{KEYFRAME_MAGIC, LONGEST_STATE_BYTES};

/// Header of a keyframe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyframeFront {
    /// Compressed size, bytes.
    pub packed_bytes: u32,
    /// Uncompressed size, bytes.
    pub unpacked_bytes: u32,
    /// Layout version of the state ([`crate::STATE`]).
    pub layout: u32,
    /// Latest time of all inputs so far: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// Number of inputs so far, since the recorder started.
    pub inputs: u64,
    /// Offset from `CLOCK_BOOTTIME` to nanoseconds since 1970, when the keyframe was made.
    pub boottime_to_unix_ns: i64,
}

/// A keyframe read from a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keyframe {
    /// Header of the keyframe.
    pub front: KeyframeFront,
    pub(super) packed: Vec<u8>,
}

impl Keyframe {
    /// Serialises a keyframe. The lengths in `front` are replaced by the actual ones.
    ///
    /// # Errors
    /// If the state is too long, or the compressor cannot allocate memory.
    pub fn pack(front: KeyframeFront, state: &[u8]) -> io::Result<Vec<u8>> {
        let too_long = || io::Error::other("the state exceeds the 512 MiB limit of a keyframe");
        let length = |length: usize| u32::try_from(length).ok().filter(|length| *length <= LONGEST_STATE_BYTES);
        let unpacked_bytes = length(state.len()).ok_or_else(too_long)?;
        let packed = zstd::bulk::compress(state, ZSTD_LEVEL)?;
        let packed_bytes = length(packed.len()).ok_or_else(too_long)?;
        let front = KeyframeFront { packed_bytes, unpacked_bytes, ..front };
        Ok(Self { front, packed }.bytes())
    }

    /// Returns the keyframe as it is in a recording.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = KEYFRAME_MAGIC.to_vec();
        self.front.write(&mut bytes);
        bytes.extend_from_slice(&checksum(&bytes[KEYFRAME_MAGIC.len()..], &self.packed).to_le_bytes());
        bytes.extend_from_slice(&self.packed);
        bytes
    }

    /// Returns the state; `None` if its length differs from the one in the header.
    pub fn state(&self) -> Option<Vec<u8>> {
        let wanted = u64::from(self.front.unpacked_bytes);
        let mut state = Vec::new();
        // The buffer grows with the data, so a forged length in the header allocates nothing.
        let decoder = zstd::stream::read::Decoder::new(&self.packed[..]).ok()?;
        let read = decoder.take(wanted + 1).read_to_end(&mut state).ok()? as u64;
        (read == wanted).then_some(state)
    }
}

impl KeyframeFront {
    fn write(&self, bytes: &mut Vec<u8>) {
        for number in [self.packed_bytes, self.unpacked_bytes, self.layout] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for number in [self.time_ns, self.inputs, self.boottime_to_unix_ns.cast_unsigned()] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
    }

    /// Decodes a header; `None` if a length exceeds its limit.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (lengths, others) = bytes.split_at_checked(12)?;
        let [packed_bytes, unpacked_bytes, layout] = *lengths.as_chunks::<4>().0 else { return None };
        let [time_ns, inputs, to_unix] = *others.as_chunks::<8>().0 else { return None };
        let [packed_bytes, unpacked_bytes, layout] = [packed_bytes, unpacked_bytes, layout].map(u32::from_le_bytes);
        let [time_ns, inputs, to_unix] = [time_ns, inputs, to_unix].map(u64::from_le_bytes);
        let is_possible = packed_bytes.max(unpacked_bytes) <= LONGEST_STATE_BYTES;
        let boottime_to_unix_ns = to_unix.cast_signed();
        is_possible.then_some(Self { packed_bytes, unpacked_bytes, layout, time_ns, inputs, boottime_to_unix_ns })
    }
}
