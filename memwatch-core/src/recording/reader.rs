//! Reads recordings, which may be truncated anywhere or not be recordings at all.

use std::io::{self, Read, Seek, SeekFrom};

use thiserror::Error;

use super::chunk::Chunk;
use super::encoder::checksum;
use super::keyframe::{Keyframe, KeyframeFront};
use super::{
    CHUNK_MAGIC, ChunkFront, END_MAGIC, EndMark, FORMAT_OF_STATES, Front, KEYFRAME_MAGIC, LONGEST_CHUNK_BYTES,
    LONGEST_FRONT_BYTES, MAGIC,
};

/// Error for a recording that cannot be read at all.
#[derive(Debug, Error)]
pub enum RecordingError {
    /// The first bytes are not those of a recording.
    #[error("not a memwatch recording")]
    NoRecording,
    /// The recording has the format of another version.
    #[error("recording format {0} is not supported; this memwatch reads formats 1 to {FORMAT_OF_STATES}")]
    Format(u32),
    /// The header is invalid.
    #[error("the recording's header is damaged")]
    Front,
    /// The source cannot be read.
    #[error("the recording cannot be read")]
    Io(#[from] io::Error),
}

/// End of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The recorder ended the recording.
    Whole(EndMark),
    /// The recording is truncated: the recorder was killed, the machine failed, or writing failed.
    Cut,
    /// The data is corrupt from this byte on; the chunks before are intact.
    Damaged {
        /// First byte of the corrupt chunk.
        byte: u64,
    },
}

/// Part of a recording.
#[derive(Clone, Debug, PartialEq)]
pub enum RecordingPart {
    /// A chunk of inputs.
    Chunk(Chunk),
    /// The complete state at this position.
    Keyframe(Keyframe),
}

/// Position of a part, without its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartPosition {
    /// Offset of its first byte.
    pub byte: u64,
    /// Header of a keyframe; `None` for a chunk.
    pub keyframe: Option<KeyframeFront>,
    /// Header of a chunk; `None` for a keyframe.
    pub chunk: Option<ChunkFront>,
}

/// Reads a recording part by part.
pub struct RecordingReader<R> {
    source: R,
    front: Front,
    /// Length of the header and what precedes it, bytes.
    front_bytes: u64,
    /// Number of bytes read.
    byte: u64,
    ending: Option<Ending>,
}

/// Size of the header of a chunk or keyframe, including its checksum.
const FRONT_BYTES: usize = 3 * 4 + 3 * 8 + 4;

impl<R: Read> RecordingReader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// If the source is not a recording, or not one that this version can read.
    pub fn open(mut source: R) -> Result<Self, RecordingError> {
        let mut magic = [0; MAGIC.len()];
        let read = fill(&mut source, &mut magic)?;
        if read < magic.len() || magic != MAGIC {
            return Err(RecordingError::NoRecording);
        }
        let text = read_text(&mut source)?.ok_or(RecordingError::Front)?;
        let format = serde_json::from_slice(&text).map(|FormatHeader { format }| format);
        match format {
            Ok(format) if Front::is_known(format) => {}
            Ok(other) => return Err(RecordingError::Format(other)),
            Err(_) => return Err(RecordingError::Front),
        }
        let Ok(front) = serde_json::from_slice(&text) else { return Err(RecordingError::Front) };
        let byte = (MAGIC.len() + 4 + text.len()) as u64;
        Ok(Self { source, front, front_bytes: byte, byte, ending: None })
    }

    /// Header of the recording.
    pub const fn front(&self) -> &Front {
        &self.front
    }

    /// End of the recording, once the last part has been read.
    pub const fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// Takes the end, so that reading can continue elsewhere.
    pub(super) const fn take_ending(&mut self) -> Option<Ending> {
        self.ending.take()
    }

    /// Position of the first part.
    pub(super) const fn bytes_of_front(&self) -> u64 {
        self.front_bytes
    }

    /// Number of bytes read.
    pub const fn bytes(&self) -> u64 {
        self.byte
    }

    /// Marks the recording as damaged here, because the last chunk contains records unknown to this
    /// version.
    pub const fn note_damage(&mut self) {
        self.ending = Some(Ending::Damaged { byte: self.byte });
    }

    /// Reads the next part; `None` after the last one.
    ///
    /// # Errors
    /// If the source cannot be read.
    pub fn next_part(&mut self) -> io::Result<Option<RecordingPart>> {
        if self.ending.is_some() {
            return Ok(None);
        }
        let damaged = Ending::Damaged { byte: self.byte };
        let mut magic = [0; CHUNK_MAGIC.len()];
        let found = match fill(&mut self.source, &mut magic)? {
            0..4 => Err(Ending::Cut),
            _ if magic == CHUNK_MAGIC => self.read_chunk(damaged)?.map(RecordingPart::Chunk),
            _ if magic == KEYFRAME_MAGIC && self.has_keyframes() => {
                self.read_keyframe(damaged)?.map(RecordingPart::Keyframe)
            }
            _ if magic == END_MAGIC => Err(self.read_end(damaged)?),
            _ => Err(damaged),
        };
        match found {
            Ok(part) => Ok(Some(part)),
            Err(ending) => {
                self.ending = Some(ending);
                Ok(None)
            }
        }
    }

    fn has_keyframes(&self) -> bool {
        self.front.has_keyframes()
    }

    fn read_chunk(&mut self, damaged: Ending) -> io::Result<Result<Chunk, Ending>> {
        let packed = match self.read_packed(damaged, |bytes| Some(ChunkFront::read(bytes)?.packed_bytes))? {
            Ok(packed) => packed,
            Err(ending) => return Ok(Err(ending)),
        };
        let read = || {
            let stated = ChunkFront::read(&packed.front)?;
            let unpacked = zstd::bulk::decompress(&packed.bytes, stated.unpacked_bytes as usize).ok()?;
            Chunk::read(stated, &unpacked).ok()
        };
        Ok(read().ok_or(damaged))
    }

    fn read_keyframe(&mut self, damaged: Ending) -> io::Result<Result<Keyframe, Ending>> {
        let packed = self.read_packed(damaged, |bytes| Some(KeyframeFront::read(bytes)?.packed_bytes))?;
        Ok(packed.and_then(|Packed { front, bytes }| {
            KeyframeFront::read(&front).map(|front| Keyframe { front, packed: bytes }).ok_or(damaged)
        }))
    }

    /// Reads a header and the compressed bytes after it, and verifies the checksum.
    fn read_packed(
        &mut self,
        damaged: Ending,
        length: impl Fn(&[u8]) -> Option<u32>,
    ) -> io::Result<Result<Packed, Ending>> {
        let mut bytes = [0; FRONT_BYTES];
        if fill(&mut self.source, &mut bytes)? < FRONT_BYTES {
            return Ok(Err(Ending::Cut));
        }
        let Some((front, sum)) = bytes.split_last_chunk::<4>() else { return Ok(Err(damaged)) };
        let Some(wanted) = length(front) else { return Ok(Err(damaged)) };
        let mut packed = Vec::new();
        let wanted = u64::from(wanted);
        if self.source.by_ref().take(wanted).read_to_end(&mut packed)? as u64 != wanted {
            return Ok(Err(Ending::Cut));
        }
        if checksum(front, &packed) != u32::from_le_bytes(*sum) {
            return Ok(Err(damaged));
        }
        self.byte += (CHUNK_MAGIC.len() + FRONT_BYTES) as u64 + wanted;
        Ok(Ok(Packed { front: front.to_vec(), bytes: packed }))
    }

    fn read_end(&mut self, damaged: Ending) -> io::Result<Ending> {
        let Some(text) = read_text(&mut self.source)? else { return Ok(Ending::Cut) };
        self.byte += (END_MAGIC.len() + 4 + text.len()) as u64;
        Ok(serde_json::from_slice(&text).map_or(damaged, Ending::Whole))
    }
}

impl<R: Read + Seek> RecordingReader<R> {
    /// Returns the positions of all complete parts from here on, without reading their contents.
    /// The reading position does not change.
    ///
    /// # Errors
    /// If the source cannot be read.
    pub fn places(&mut self) -> io::Result<Vec<PartPosition>> {
        let length = self.source.seek(SeekFrom::End(0))?;
        let (mut places, mut byte) = (Vec::new(), self.byte);
        while let Some((place, end)) = self.place(byte, length)? {
            places.push(place);
            byte = end;
        }
        self.go_to(self.byte)?;
        Ok(places)
    }

    /// Returns the position of the first complete part from here on, as [`Self::places`] does.
    ///
    /// # Errors
    /// If the source cannot be read.
    pub fn first_place(&mut self) -> io::Result<Option<PartPosition>> {
        let length = self.source.seek(SeekFrom::End(0))?;
        let first = self.place(self.byte, length)?;
        self.go_to(self.byte)?;
        Ok(first.map(|(place, _)| place))
    }

    /// Returns the part at this byte and where it ends; `None` if there is no complete one.
    fn place(&mut self, byte: u64, length: u64) -> io::Result<Option<(PartPosition, u64)>> {
        let mut bytes = [0; CHUNK_MAGIC.len() + FRONT_BYTES];
        self.source.seek(SeekFrom::Start(byte))?;
        if fill(&mut self.source, &mut bytes)? < bytes.len() {
            return Ok(None);
        }
        let (magic, front) = bytes.split_at(CHUNK_MAGIC.len());
        let front = front.get(..FRONT_BYTES - 4).unwrap_or_default();
        let chunk = ChunkFront::read(front).filter(|_| magic == CHUNK_MAGIC);
        let keyframe = KeyframeFront::read(front).filter(|_| magic == KEYFRAME_MAGIC);
        let packed = keyframe.map(|front| front.packed_bytes).or(chunk.map(|front| front.packed_bytes));
        let end = packed.map(|packed| byte + bytes.len() as u64 + u64::from(packed)).filter(|end| *end <= length);
        Ok(end.map(|end| (PartPosition { byte, keyframe, chunk }, end)))
    }

    /// Moves the reading position to this byte, where a part begins.
    ///
    /// # Errors
    /// If the source cannot be read.
    pub fn go_to(&mut self, byte: u64) -> io::Result<()> {
        self.byte = self.source.seek(SeekFrom::Start(byte))?;
        Ok(())
    }
}

/// A header and the compressed bytes after it.
struct Packed {
    front: Vec<u8>,
    bytes: Vec<u8>,
}

/// Header field common to all versions.
#[derive(serde::Deserialize)]
struct FormatHeader {
    format: u32,
}

impl ChunkFront {
    /// Decodes a header; `None` if a length exceeds its limit.
    fn read(bytes: &[u8]) -> Option<Self> {
        let (lengths, times) = bytes.split_at_checked(12)?;
        let [packed_bytes, unpacked_bytes, inputs] = *lengths.as_chunks::<4>().0 else { return None };
        let [first_ns, last_ns, to_unix] = *times.as_chunks::<8>().0 else { return None };
        let [packed_bytes, unpacked_bytes, inputs] = [packed_bytes, unpacked_bytes, inputs].map(u32::from_le_bytes);
        let [first_ns, last_ns, to_unix] = [first_ns, last_ns, to_unix].map(u64::from_le_bytes);
        let is_possible = packed_bytes.max(unpacked_bytes) <= LONGEST_CHUNK_BYTES && inputs <= super::MOST_INPUTS;
        let boottime_to_unix_ns = to_unix.cast_signed();
        is_possible.then_some(Self { packed_bytes, unpacked_bytes, inputs, first_ns, last_ns, boottime_to_unix_ns })
    }
}

/// Reads until the buffer is full or the source ends; returns the number of bytes read.
fn fill(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut read = 0;
    while let Some(rest) = buffer.get_mut(read..).filter(|rest| !rest.is_empty()) {
        match source.read(rest) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

/// Reads text preceded by its length; `None` if it is truncated or longer than
/// [`LONGEST_FRONT_BYTES`].
fn read_text(source: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    if fill(source, &mut length)? < length.len() || u32::from_le_bytes(length) > LONGEST_FRONT_BYTES {
        return Ok(None);
    }
    let mut text = Vec::new();
    let wanted = u64::from(u32::from_le_bytes(length));
    let read = source.by_ref().take(wanted).read_to_end(&mut text)? as u64;
    Ok((read == wanted).then_some(text))
}
