//! Bytes in, chunks out: of a recording that may have been cut off anywhere, or is none.

use std::io::{self, Read, Seek, SeekFrom};

use thiserror::Error;

use super::chunk::Chunk;
use super::encoder::checksum;
use super::keyframe::{Keyframe, KeyframeFront};
use super::{
    CHUNK_MAGIC, ChunkFront, END_MAGIC, EndMark, FORMAT, FORMAT_WITH_KEYFRAMES, Front, KEYFRAME_MAGIC,
    LONGEST_CHUNK_BYTES, LONGEST_FRONT_BYTES, MAGIC,
};

/// Why a recording cannot be read at all.
#[derive(Debug, Error)]
pub enum RecordingError {
    /// The first bytes are not those of a recording.
    #[error("it is no recording of memwatch's")]
    NoRecording,
    /// Another version wrote it, in another format.
    #[error(
        "it has format {0}, of another version of memwatch; this one reads formats {FORMAT} and {FORMAT_WITH_KEYFRAMES}"
    )]
    Format(u32),
    /// What stands after the first bytes is nothing that memwatch writes.
    #[error("its front is damaged")]
    Front,
    /// It cannot be read.
    #[error("it cannot be read")]
    Io(#[from] io::Error),
}

/// How a recording ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// As its recorder ended it.
    Whole(EndMark),
    /// In the middle: its recorder was killed, the machine went down, or it could not be written on.
    Cut,
    /// Nothing from this byte on is what was written; the chunks before are.
    Damaged {
        /// The first byte of the chunk that is not.
        byte: u64,
    },
}

/// What a recording is made of.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Inputs.
    Chunk(Chunk),
    /// All that was known where it stands.
    Keyframe(Keyframe),
}

/// Where a part stands, without what is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its first byte.
    pub byte: u64,
    /// A keyframe's front; `None` for a chunk.
    pub keyframe: Option<KeyframeFront>,
    /// A chunk's front; `None` for a keyframe.
    pub chunk: Option<ChunkFront>,
}

/// Reads a recording, part by part.
pub struct Reader<R> {
    source: R,
    front: Front,
    /// How many bytes have been read.
    byte: u64,
    ending: Option<Ending>,
}

/// Bytes of a chunk's or a keyframe's front, its sum included.
const FRONT_BYTES: usize = 3 * 4 + 3 * 8 + 4;

impl<R: Read> Reader<R> {
    /// Reads the front.
    ///
    /// # Errors
    /// When this is no recording, or not one for this version.
    pub fn open(mut source: R) -> Result<Self, RecordingError> {
        let mut magic = [0; MAGIC.len()];
        let read = fill(&mut source, &mut magic)?;
        if read < magic.len() || magic != MAGIC {
            return Err(RecordingError::NoRecording);
        }
        let text = read_text(&mut source)?.ok_or(RecordingError::Front)?;
        let format = serde_json::from_slice(&text).map(|Format { format }| format);
        match format {
            Ok(FORMAT | FORMAT_WITH_KEYFRAMES) => {}
            Ok(other) => return Err(RecordingError::Format(other)),
            Err(_) => return Err(RecordingError::Front),
        }
        let Ok(front) = serde_json::from_slice(&text) else { return Err(RecordingError::Front) };
        Ok(Self { source, front, byte: (MAGIC.len() + 4 + text.len()) as u64, ending: None })
    }

    /// What stands at its front.
    pub const fn front(&self) -> &Front {
        &self.front
    }

    /// How it ends, as soon as that is known: after its last chunk.
    pub const fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// How many bytes have been read.
    pub const fn bytes(&self) -> u64 {
        self.byte
    }

    /// What a chunk reported of itself was no record that this version knows: so it ends before.
    pub const fn note_damage(&mut self) {
        self.ending = Some(Ending::Damaged { byte: self.byte });
    }

    /// The next part; `None` after the last one.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn next_part(&mut self) -> io::Result<Option<Part>> {
        if self.ending.is_some() {
            return Ok(None);
        }
        let damaged = Ending::Damaged { byte: self.byte };
        let mut magic = [0; CHUNK_MAGIC.len()];
        let found = match fill(&mut self.source, &mut magic)? {
            0..4 => Err(Ending::Cut),
            _ if magic == CHUNK_MAGIC => self.read_chunk(damaged)?.map(Part::Chunk),
            _ if magic == KEYFRAME_MAGIC && self.has_keyframes() => self.read_keyframe(damaged)?.map(Part::Keyframe),
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
        self.front.format == FORMAT_WITH_KEYFRAMES
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

    /// A front, and the packed bytes behind it, whose sum is right.
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

impl<R: Read + Seek> Reader<R> {
    /// Where each part stands that is there as a whole, from here on; it is read on from here all the same. What is in them is not looked at.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn places(&mut self) -> io::Result<Vec<Place>> {
        let length = self.source.seek(SeekFrom::End(0))?;
        let mut places = Vec::new();
        let mut byte = self.byte;
        let mut bytes = [0; CHUNK_MAGIC.len() + FRONT_BYTES];
        loop {
            self.source.seek(SeekFrom::Start(byte))?;
            if fill(&mut self.source, &mut bytes)? < bytes.len() {
                break;
            }
            let (magic, front) = bytes.split_at(CHUNK_MAGIC.len());
            let front = front.get(..FRONT_BYTES - 4).unwrap_or_default();
            let chunk = ChunkFront::read(front).filter(|_| magic == CHUNK_MAGIC);
            let keyframe = KeyframeFront::read(front).filter(|_| magic == KEYFRAME_MAGIC);
            let packed = keyframe.map(|front| front.packed_bytes).or(chunk.map(|front| front.packed_bytes));
            let Some(end) = packed.map(|packed| byte + bytes.len() as u64 + u64::from(packed)) else { break };
            if end > length {
                break;
            }
            places.push(Place { byte, keyframe, chunk });
            byte = end;
        }
        self.go_to(self.byte)?;
        Ok(places)
    }

    /// Reads on from this byte, where a part begins.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn go_to(&mut self, byte: u64) -> io::Result<()> {
        self.byte = self.source.seek(SeekFrom::Start(byte))?;
        Ok(())
    }
}

/// A front, and the packed bytes behind it.
struct Packed {
    front: Vec<u8>,
    bytes: Vec<u8>,
}

/// What every version's front has.
#[derive(serde::Deserialize)]
struct Format {
    format: u32,
}

impl ChunkFront {
    /// `None` for lengths that no chunk has.
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

/// Reads until the buffer is full or there is no more: how many bytes there were.
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

/// A text with its length before it; `None` where there is less than that, or it is too long for one.
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
